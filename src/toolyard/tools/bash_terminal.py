"""`bash_terminal`: a shell that keeps its state. It shows what a terminal would: each command after a prompt."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolyard.core.environment import Environment
from toolyard.core.forms import tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.sandboxes.base import Finished
from toolyard.sandboxes.output import ended_by
from toolyard.tools.after_blocks import after_block
from toolyard.tools.sandboxed import SandboxedToolset
from toolyard.tools.shell_lines import commands

SECONDS = 10
"""The time limit of each command."""
ACTION_SECONDS = 60
"""After this time, no further command of the same call begins."""
LONGEST = 100_000
BLOCKED = "Execution blocked: Command contains potentially dangerous operations. Forbidden commands detected: "
ENDED = "[the shell has ended: a new one has its directory, functions, aliases and exported variables]"
LOST = "[the shell was lost: a new one has none of its variables and functions; files are kept]"

_FENCED = re.compile(r"```\s*(?:bash|shell|sh)\b(.*?)```", re.DOTALL)
_FENCED_TERMINAL = re.compile(r"```\s*terminal\b(.*?)```", re.DOTALL)
_COMMENT = re.compile(r"\s*(?:#[^\n]*)?")
_OF_A_CHILD = re.compile(r"^bash: +\d+ Killed +.*\n?", re.MULTILINE)
"""Bash's line about a program that was killed with the command."""
_OF_BASH_ITSELF = re.compile(r"^(?:bash|main): (?:eval: )?line \d+: ", re.MULTILINE)
"""Bash counts lines from the start of the shell, a number that means nothing here; `main` is its name for the top
level."""


@dataclass(frozen=True, slots=True)
class ShellForm:
    """Reads `<bash>` tags, or else fences marked bash, sh or shell, or else terminal; several are one script."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        blocks = tagged(text, "bash") or _FENCED.findall(text) or _FENCED_TERMINAL.findall(text)
        return {"command": "\n".join(block.strip() for block in blocks)} if blocks else None

    def answer(self, text: str, result: str) -> str:
        fences = ("```bash", "```sh")
        return after_block(text, result, tag="bash", output="o", fences=fences, called="\n```output\n{}\n```\n")


class BashTerminal(SandboxedToolset):
    """A shell for each session, in the session's workspace."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._kept = f".shell-{secrets.token_hex(8)}"
        """A shell that exits writes its state into this file, in its first home, for its successor."""
        self._new_shell()

    def _new_shell(self) -> None:
        self._place = "~"
        self._status = 0
        self._is_new = True
        self._stops_at_errors = False
        """Whether `set -e` is on."""

    @tool(form=ShellForm())
    async def bash_terminal(self, command: str) -> ToolOutput:
        """Run commands in a bash that keeps its directory, variables and functions from one call to the next.

        Args:
            command: One command, or several lines of them.
        """
        if getattr(self.env, "block_lists", False) and (words := blocked(command)):
            return ToolOutput(blocks=[TextBlock(text=BLOCKED + words)])
        return await self._transcribe(commands(command.replace("\r\n", "\n")) if command else [])

    async def _transcribe(self, lines: Sequence[str]) -> ToolOutput:
        """Run commands, and show each with its prompt and its output. Stops when the shell ends."""
        transcript: list[str] = []
        metadata: dict[str, object] = {"exit_code": self._status}
        until = time.monotonic() + ACTION_SECONDS
        for number, command in enumerate(lines, 1):
            transcript.append(f"user@bash-session:{self._place}$ {command}")
            if _COMMENT.fullmatch(command):
                continue
            if time.monotonic() > until:
                transcript.append(f"Not run: the commands before took more than {ACTION_SECONDS} seconds.")
                break
            finished = await self._run(command)
            metadata = {"exit_code": finished.exit_code, "isolation": finished.isolation}
            transcript += written(finished)
            if finished.state_lost:
                transcript.append(ENDED if await self._goes_on() else LOST)
                transcript += ["Not run: the commands that follow."] * (number < len(lines))
                metadata["state_lost"] = True
                break
        text = "\n".join(transcript).strip(" \n")[:LONGEST]
        return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata)

    async def _goes_on(self) -> bool:
        """Start a new shell, and restore the state that the last one left, if any."""
        self._new_shell()
        kept = f"~/{self._kept}"
        learnt = await self._run(f'[[ -e {kept} ]] && \\builtin eval "$(cat {kept}; rm -f {kept})"')
        self._status = 0
        return learnt.exit_code == 0

    async def _run(self, command: str) -> Finished:
        """Run a command, and read the shell's new directory, exit code and flags."""
        sandbox = await self.sandbox()
        mark = secrets.token_hex(8)
        finished = await sandbox.shell(self._marked(command, mark), timeout=SECONDS)
        parts = finished.stdout.split(mark.encode())
        if len(parts) == 6 and parts[1].isdigit():
            status, flags, home, place = (part.decode(errors="replace") for part in parts[1:5])
            self._status, self._place, self._is_new = int(status), _shown(place, home), False
            self._stops_at_errors = "e" in flags
            return replace(finished, exit_code=self._status, stdout=parts[0] + parts[5])
        if not finished.state_lost and command != ":":  # the output limit cut off the state
            await self._run(":")
        return replace(finished, stdout=parts[0])

    def _marked(self, command: str, mark: str) -> str:
        """The command for bash: at the top level, with `$?` from the last command.

        Afterwards bash writes the exit code, the shell's flags, home and directory between marks. Bash's own messages
        about this, as with `set -x`, are dropped, and so is a redirection of the command's output by `exec`. `eval`
        tolerates incomplete commands, but under `set -e` it fails where `a && b` does not.
        """
        body = f"{{ {command}\n}}" if self._stops_at_errors else f"\\builtin eval {_quoted(command)}"
        state = f'"{mark}%d{mark}%s{mark}%s{mark}%s{mark}" "$?" "$-" "$HOME" "$PWD"'
        return (
            "{\n"
            + self._beginning() * self._is_new
            + f"(\\builtin exit {self._status}) || " * bool(self._status)
            + f"{body} >&60 2>&61 60>&- 61>&-\n"
            + f"\\builtin printf {state} >&60\n"
            + "} 60>&1 61>&2 >/dev/null 2>&1"
        )

    def _beginning(self) -> str:
        """Commands that make a new shell save its state when it ends."""
        keep = (
            "{ \\builtin declare -px; \\builtin declare -f; \\builtin alias -p; "
            '\\builtin printf "builtin cd -- %q || builtin cd" "$PWD"; } 2>/dev/null >'
        )
        return f'\\builtin shopt -s expand_aliases\n\\builtin trap {_quoted(keep)}"${{HOME@Q}}/{self._kept}" EXIT\n'


def written(finished: Finished) -> list[str]:
    """The output of a command, and how it failed, if it did."""
    stdout, stderr = (stream.decode(errors="replace").rstrip() for stream in (finished.stdout, finished.stderr))
    stderr = _OF_BASH_ITSELF.sub("bash: ", stderr)
    if finished.killed_by is not None:
        stderr = _OF_A_CHILD.sub("", stderr).rstrip()
    parts = [part for part in (stdout, stderr) if part]
    if finished.timed_out:
        parts.append(f"Process timed out after {SECONDS} seconds")
    elif finished.killed_by is not None:
        parts.append(f"Process {ended_by(finished.killed_by, finished.usage.wall_seconds)}")
    elif finished.exit_code and not stderr:
        parts.append(f"Command exited with code {finished.exit_code}")
    return parts


def _quoted(text: str) -> str:
    """Quote without a quote character, because the whole is quoted once more before bash reads it."""
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\047") + "'"


def _shown(place: str, home: str) -> str:
    if place == home:
        return "~"
    return "~" + place.removeprefix(home) if place.startswith(f"{home}/") else place


# verl-tool's list of words. It stops no attack; the sandbox does.

_LOOKED_AT = 1000
"""How many characters of a line to check: an attacker could make a longer line slow to match."""
_AT_START = r"(?:^|[;&|({`]|\$\(|\b(?:then|do|else|exec|xargs|nohup|time|env)\s)\s*"
_PROGRAMS = (
    r"(?:mkfs[\w.]*|fdisk|mount|umount|passwd|su|sudo|chroot|systemctl|service|iptables|ufw|firewall-cmd|nc|ncat|telnet"
    r"|ssh|scp|rsync|lynx|w3m|crontab|batch|killall|pkill|mknod|losetup)(?=[\s;&|)`]|$)"
)
_SYSTEM = r"(?:etc|bin|sbin|usr|var|lib\w*|boot|root|proc|sys)"
_FORBIDDEN = (
    re.compile(_AT_START + rf"(?:/\S*/)?(?P<found>{_PROGRAMS})"),
    re.compile(
        _AT_START + rf"(?P<found>rm\s+(?:-\S+\s+)*-\w*[rRf]\w*\s+(?:-\S+\s+)*/(?:{_SYSTEM}\b\S*|\*)?)(?=[\s;&|)`]|$)",
    ),
    re.compile(_AT_START + r"(?P<found>dd\s+(?:\S+\s+)*?if=|(?:curl|wget)\s+(?:-\S+\s+)*['\"]?http)"),
    re.compile(_AT_START + r"(?P<found>kill\s+-(?:9|KILL|SIGKILL)\b|chmod\s+(?:-\S+\s+)*0?777\b)"),
    re.compile(r"(?P<found>[<>]\s*/dev/)(?!(?:null|zero|u?random|tty|fd|std(?:in|out|err)|shm|tcp|udp)\b)"),
    re.compile(rf"(?P<found>>\s*/{_SYSTEM}/)"),
    re.compile(_AT_START + r"(?P<found>find\s+/\s.*-exec|(?:source|\.)\s+/)"),
)


def blocked(command: str) -> str:
    """The first forbidden words in the command where they would run; empty if there are none."""
    lines = [line[:_LOOKED_AT] for line in command.splitlines()]
    found = (pattern.search(line) for pattern in _FORBIDDEN for line in lines)
    return next((match["found"] for match in found if match), "")
