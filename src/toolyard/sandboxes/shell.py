"""The host's side of a session's shell: one command after the other to a bash that keeps its state.

A random number for each command marks the end of its output. Only programs of the same sandbox can find out the number
and write it; all they gain is a wrong exit code for their own command.
"""

from __future__ import annotations

import re
import secrets
import shlex
import signal

from toolyard.sandboxes.pipes import Capture, send

ARGV = ("bash", "--noprofile", "--norc")
"""Reads commands from its standard input, without a prompt."""
COMMAND_BYTES = 4 * 1024 * 1024
"""The longest command. Bash reads its input byte by byte, about a million of them in a second."""
OUT, ERR = 62, 63
"""The descriptors of the shell's real output. Commands have it as 1 and 2 and may redirect theirs; what the shell
itself writes between commands (traps, set -x) is dropped. `Limits.open_files` must be larger."""
ABANDON = int(signal.SIGRTMAX)
"""Makes the shell abandon the rest of its command as soon as no program runs in it. Send it before you end the programs
of the command: bash handles a signal when the program that it waits for has ended."""
_GIVE_UP = "[[ ${FUNCNAME-} ]] && { \\builtin trap - EXIT; \\builtin exit 143; }; \\builtin break 1000"
"""Each command runs in our loop, so that `break` skips the rest of it, through all subshells and redirections, and
keeps the shell. Inside a function `break` does not reach that far, and the shell exits."""
_NO_SUBSHELL = re.compile(
    r"""\$'(?P<quoted>(?:\\.|[^'\\])*)'|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|\s)\#[^\n]*"""
    r"""|\$\(\(?|[<>=@?*+!]\(|\(\(|\(\s*\)|\(\\builtin\ exit\ \d+\)""",
    re.DOTALL | re.MULTILINE,
)
"""Parts of a command that begin no subshell: quotes, comments, substitutions, arithmetic, arrays, functions."""


class Shell:
    """A running bash, by its pipes. Start it with `ARGV`; the caller ends it."""

    def __init__(self, stdin: int, stdout: Capture, stderr: Capture) -> None:
        self._stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._prelude = f"exec {OUT}>&1 {ERR}>&2 >/dev/null 2>&1; trap '{_GIVE_UP}' {ABANDON}\n"

    async def run(self, command: str, output_bytes: int) -> int:
        """Run one command until it ends; its output is then in `stdout` and `stderr`. Returns its exit code.

        Does not return if the shell ends first, for example by `exit`, so wait for that too. When this is cancelled,
        the command goes on, and the shell cannot be used any more.
        """
        mark = secrets.token_hex(16)
        for stream in (self.stdout, self.stderr):
            stream.begin(output_bytes, mark.encode())
        await send(self._stdin, self._text(command, mark))
        status = await self.stdout.answer
        await self.stderr.answer
        return int(status) if len(status) <= 3 and status.isdigit() else 255

    def abandoned(self) -> None:
        """Call this after sending `ABANDON`: if the signal arrives late, the shell must not abandon the next
        command."""
        self._prelude = "\\builtin :\n"

    def _text(self, command: str, mark: str) -> bytes:
        """The command, quoted for `eval`, so that open quotes, loops and here-documents end with it."""
        prelude, self._prelude = self._prelude, ""
        redirected = f"</dev/null >&{OUT} 2>&{ERR} {OUT}>&- {ERR}>&-"
        text = (
            f"{prelude}for _ in ''; do \\builtin eval {shlex.quote(command)} {redirected}; done\n"
            f"\\builtin printf '{mark}=%d\\n' \"$?\" >&{OUT}; \\builtin printf '{mark}=\\n' >&{ERR}\n"
        )
        return text.encode("utf-8", "surrogateescape")


def may_wait_for_subshell(command: str) -> bool:
    """Whether it contains a `( list )`. When that ends, bash begins the next command before it handles a signal: such a
    command cannot be abandoned without losing the shell. What `eval` and `.` read is not checked."""
    rest, at = [], 0
    for skipped in _NO_SUBSHELL.finditer(command):
        rest.append(command[at : skipped.start()])
        at = skipped.end()
        if (quoted := skipped["quoted"]) and may_wait_for_subshell(re.sub(r"\\(047|.)", _unquoted, quoted)):
            return True
    return "(" in "".join((*rest, command[at:]))


def _unquoted(escape: re.Match[str]) -> str:
    return "'" if escape[1] == "047" else escape[1]


def refused(command: str) -> str:
    """Why no shell could read a text; empty if it can."""
    if "\0" in command:
        return "a command cannot hold a null character"
    try:
        size = len(command.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        return f"the command is not text: {error.reason}"
    return f"the command has {size} bytes, and {COMMAND_BYTES} are allowed" if size > COMMAND_BYTES else ""
