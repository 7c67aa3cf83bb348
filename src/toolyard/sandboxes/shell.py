"""The host's side of a session's shell: one command after the other to a bash that keeps its state.

Where a command's output ends is marked by the shell with a number that is drawn for each command. Only programs of the
same sandbox can find it out and write it themselves; what they gain is a wrong exit code for their own command.
"""

from __future__ import annotations

import asyncio
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
"""Where the shell keeps its real output: commands have it as 1 and 2 and may send their own elsewhere, and what the
shell itself says between commands (traps, set -x) goes nowhere. `Limits.open_files` has to be larger."""
ABANDON = int(signal.SIGRTMAX)
"""Makes the shell give up its command with everything that is left of it, as soon as no program runs in it. Send it
before you end the programs of the command: bash handles a signal when the program that it waits for has ended."""
_GIVE_UP = "[[ ${FUNCNAME-} ]] && { \\builtin trap - EXIT; \\builtin exit 143; }; \\builtin break 1000"
"""Each command stands in a loop of ours, so that `break` skips the rest of it, down to the last subshell and
redirection, and keeps the shell. In a function `break` does not reach so far, and the shell ends."""
_NO_SUBSHELL = re.compile(
    r"""\$'(?P<quoted>(?:\\.|[^'\\])*)'|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|\s)\#[^\n]*"""
    r"""|\$\(\(?|[<>=@?*+!]\(|\(\(|\(\s*\)|\(\\builtin\ exit\ \d+\)""",
    re.DOTALL | re.MULTILINE,
)
"""Parts of a command that begin no subshell: quotes, comments, substitutions, arithmetic, arrays, functions."""


class Shell:
    """A bash that runs, by its pipes. Start it with `ARGV`; ending it, in time or not, is left to who started it."""

    def __init__(self, stdin: int, stdout: Capture, stderr: Capture) -> None:
        self._stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._prelude = f"exec {OUT}>&1 {ERR}>&2 >/dev/null 2>&1; trap '{_GIVE_UP}' {ABANDON}\n"

    async def run(self, command: str, output_bytes: int) -> int:
        """Run one command to its end; its output is then in `stdout` and `stderr`. Returns its exit code.

        Does not return if the shell ends first, as it does with `exit`, so wait for that too. When this is cancelled,
        the command goes on, and the shell is of no more use.
        """
        mark = secrets.token_hex(16)
        for stream in (self.stdout, self.stderr):
            stream.begin(output_bytes, mark.encode())
        await send(self._stdin, self._text(command, mark))
        status, _ = await asyncio.gather(self.stdout.answer, self.stderr.answer)
        return int(status) if len(status) <= 3 and status.isdigit() else 255

    def abandoned(self) -> None:
        """The shell was told to `ABANDON` a command. Should it hear of that only now, it is not to give up the next."""
        self._prelude = "\\builtin :\n"

    def _text(self, command: str, mark: str) -> bytes:
        """Quoted and evaluated, so that a command ends where it ends, with all its quotes, loops and documents."""
        prelude, self._prelude = self._prelude, ""
        redirected = f"</dev/null >&{OUT} 2>&{ERR} {OUT}>&- {ERR}>&-"
        text = (
            f"{prelude}for _ in ''; do \\builtin eval {shlex.quote(command)} {redirected}; done\n"
            f"\\builtin printf '{mark}=%d\\n' \"$?\" >&{OUT}; \\builtin printf '{mark}=\\n' >&{ERR}\n"
        )
        return text.encode("utf-8", "surrogateescape")


def may_wait_for_subshell(command: str) -> bool:
    """Whether there is a `( list )` in it. When that ends, bash begins the next command before it handles a signal: so
    such a command cannot be given up without the shell. What `eval` and `.` read is not looked at."""
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
    """What is wrong with a text that no shell could read, if anything is."""
    if "\0" in command:
        return "a command cannot hold a null character"
    try:
        size = len(command.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        return f"the command is not text: {error.reason}"
    return f"the command has {size} bytes, and {COMMAND_BYTES} are allowed" if size > COMMAND_BYTES else ""
