"""Sandboxes as containers of Docker or Podman, through the command line of the engine.

A sandbox is one container without network and without privileges. Its file system is read-only except for its workspace
and /tmp. Its first process reads from a pipe that the server holds: when the server ends, however it ends, the pipe
closes and the container ends. `exec` starts programs in it. The image must have Python 3.11 or later as `python3`, and
bash for a shell.

Most tests run against a stand-in for an engine, and show only that the commands are well formed and that what is built
on them works; `make test-engines` has a real one. `start` measures how well an engine isolates, with programs in a
container that try to get out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import profiles
from toolyard.sandboxes.base import ENVIRONMENT, WORKSPACE, Level, Limits, Missing, Profile, Report
from toolyard.sandboxes.native import seccomp
from toolyard.sandboxes.pipes import feed, send
from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.backend import RoomBackend
from toolyard.sandboxes.process_based.launcher import NAME
from toolyard.sandboxes.process_based.programs import HelperProcess, start
from toolyard.sandboxes.process_based.room import new_mark, resources_of, script
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.process_based.trial import Trial, try_out
from toolyard.sandboxes.view import View

_UID = 1000
_AS_PROGRAM = ("--user", f"{_UID}:{_UID}")
"""The first process of a container is root, without any capability, so that programs cannot end it."""
_LABEL = "toolyard.server"
_PROFILE = "seccomp.json"
_READY = b"ready\n"
_SECONDS = 60.0
"""For one command of the engine."""
_END_SECONDS = 10.0
_MESSAGE_MOST = 64 * 1024
_LIST_MOST = 16 * 1024 * 1024
_OUTPUT_MOST = 2 * 1024 * 1024 * 1024

_LOOK = """
import os, sys
there = [path for path in sys.argv[1:] if os.path.exists(path)]
print(__import__("json").dumps([list(filter(os.path.isdir, there)), list(filter(os.path.isfile, there))]))
"""
_FIXES = {
    "files": "have the engine run containers as it does by default",
    "network": "have the engine give containers a network namespace",
    "processes": "have the engine give containers a pid namespace",
    "signals": "have the engine give containers a pid namespace",
    "user": "have the engine honour --user and --cap-drop",
    "privileges": "have the engine honour --security-opt no-new-privileges",
    "system calls": "do not run the engine with seccomp unconfined",
    "memory": "let the engine make cgroups: as root, or with systemd and cgroup v2",
}


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The result of a command of the engine."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def problem(self) -> str:
        return on_one_line(self.stderr) or f"it ended with code {self.code}"


def on_one_line(words: bytes) -> str:
    """An engine's message on one line, to quote it in ours."""
    return " ".join(words.decode(errors="replace").split())


class ContainerEngine:
    """The command line of Docker or Podman."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.folder: Path | None = None
        """Where its commands run. Podman leaves a file `oom` there when a program needed too much memory."""

    def begin(self, *arguments: str, output_bytes: int, name: str = "", mark: str = "") -> HelperProcess:
        """Start a command. It gets our environment, to find its engine; no container gets that."""
        argv = [self.program, *arguments]
        cwd = str(self.folder) if self.folder else None
        return start(argv, env=os.environ, output_bytes=output_bytes, name=name, mark=mark, cwd=cwd)

    async def run(
        self, *arguments: str, stdin: bytes = b"", most: int = _MESSAGE_MOST, seconds: float = _SECONDS
    ) -> EngineAnswer:
        """Run a command to its end."""
        command = self.begin(*arguments, output_bytes=most)
        feeding = asyncio.ensure_future(feed(command.stdin, stdin))
        command.stdin = -1
        try:
            async with asyncio.timeout(seconds):
                ending = await command.end()
            return EngineAnswer(ending.code, command.stdout.take(), command.stderr.take())
        except TimeoutError:
            return EngineAnswer(-1, b"", f"{self.program} {arguments[0]} took longer than {seconds:g} s".encode())
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            command.kill_group()
            await command.end()
            command.close()


class ContainerBackend(RoomBackend):
    """`program` defaults to the name of the engine."""

    def __init__(
        self,
        engine: Literal["docker", "podman"],
        *,
        image: str = "python:3.13-slim",
        program: str | None = None,
        view: View | None = None,
    ) -> None:
        self.name: str = engine
        self._engine = ContainerEngine(program or engine)
        self._image = image
        self._covers: Sequence[str] = ()
        """Options that cover hidden paths that exist in the image itself."""
        self._folder: Path | None = None
        """Holds the seccomp profile for the engine to read."""
        super().__init__(view)

    async def start(self) -> Report:
        if not self._view.is_own:
            raise SandboxUnavailable(f"{self.name} uses the Python of its image, see --sandbox-image: no other one")
        try:
            answer = await self._engine.run("version", "--format", "{{.Server.Version}}")
        except FileNotFoundError:
            raise SandboxUnavailable(f"there is no program {self._engine.program!r}: install {self.name}") from None
        if answer.code:
            raise SandboxUnavailable(f"{self.name} cannot be reached: {answer.problem}")
        await self._sweep()
        await self._check_image()
        self._report = Report(self.name, "L0", {})  # until the trial proves more
        if self._folder is None:
            self._folder = self._engine.folder = await asyncio.to_thread(self._new_folder)
        try:
            await self._cover_hidden()
            async with await self.open() as sandbox:
                trial = await try_out(sandbox, uid=_UID, memory_bytes=Limits().memory_bytes)
            if trial.problem:
                raise SandboxUnavailable(f"{self.name} cannot run the image {self._image!r}: {trial.problem}")
        except BaseException:
            await self.close()
            raise
        self._report = self._as_found(trial)
        return self._report

    async def close(self) -> None:
        await super().close()
        folder, self._folder = self._folder, None
        self._engine.folder = None
        if folder is not None:
            await asyncio.to_thread(origin.remove, folder)

    def _new_folder(self) -> Path:
        for forsaken in origin.forsaken_directories(self.name):
            origin.remove(forsaken)
        folder = origin.make_directory(self.name)
        with contextlib.suppress(ValueError):  # an unknown machine: the engine's own profile remains
            (folder / _PROFILE).write_text(json.dumps(seccomp.container_profile()))
        return folder

    def _profile(self) -> Sequence[str]:
        """Options for the filter of system calls. Engines' own profiles let programs make user namespaces."""
        path = self._folder / _PROFILE if self._folder else None
        return ["--security-opt", f"seccomp={path}"] if path and path.exists() else []

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        limits = limits or Limits()
        room = await self._room(limits)
        try:
            await self._check_profile(room, profile)
        except BaseException:
            await room.close()
            raise
        return self._sandbox_in(room, limits, profile)

    async def _room(self, limits: Limits) -> ContainerRoom:
        return await ContainerRoom.make(self._engine, self.name, self._image, limits, [*self._profile(), *self._covers])

    async def _cover_hidden(self) -> None:
        """A container shows nothing of this host, but its image may have the environment installed at the same path."""
        if not self._view.hidden:
            return
        room = await self._room(Limits())
        try:
            told = await room.command(*room.python, "-S", "-c", _LOOK, *self._view.hidden)
        finally:
            await room.close()
        if told.code:
            raise SandboxUnavailable(f"{self.name} cannot look into the image {self._image!r}: {told.problem}")
        folders, files = json.loads(told.stdout)
        self._covers = [
            *(part for path in folders for part in ("--tmpfs", f"{path}:ro,nosuid,nodev,mode=555,size=4k")),
            *(part for path in files for part in ("--volume", f"/dev/null:{path}:ro")),
        ]

    async def _check_image(self) -> None:
        """Toolyard pulls no image: only the operator brings programs from elsewhere to this host."""
        answer = await self._engine.run("image", "inspect", "--format", "{{.Id}}", self._image)
        if answer.code:
            raise SandboxUnavailable(
                f"{self.name} has no image {self._image!r}, and Toolyard pulls none: {self.name} pull {self._image} "
                f"({answer.problem})"
            )

    async def _check_profile(self, room: ContainerRoom, profile: Profile) -> None:
        needed = ", ".join(profiles.NEEDS[profile])
        if needed and (await room.command(*room.python, "-c", f"import {needed}")).code:
            raise SandboxUnavailable(f"the profile {profile!r} needs {needed}, which the image {self._image!r} lacks")

    async def _sweep(self) -> None:
        """Remove containers of servers that were killed, in case the engine left them."""
        found = await self._engine.run("ps", "--all", "--quiet", "--filter", f"label={_LABEL}")
        for container in found.stdout.decode().split():
            label = f'{{{{index .Config.Labels "{_LABEL}"}}}}'
            made_by = await self._engine.run("inspect", "--format", label, container)
            if made_by.code == 0 and origin.is_gone(made_by.stdout.decode().strip()):
                await self._engine.run("rm", "--force", container)

    def _as_found(self, trial: Trial) -> Report:
        enforced = {
            "files": f"container, read-only root{self._view.words}",
            "network": "network namespace",
            "processes": "pid and IPC namespaces",
            "user": "no capabilities",
            "privileges": "no_new_privs",
            "system calls": "seccomp allowlist" if self._profile() else f"seccomp, as {self.name} has it",
            "memory": "cgroup",
        }
        layers = {wall: "none" if wall in trial.fallen else how for wall, how in enforced.items()}
        layers["disk"] = "none" if "files" in trial.fallen else "size of a file system in memory"
        missing = [Missing(wall, "a program in a container got around it", _FIXES[wall]) for wall in trial.fallen]
        return Report(self.name, _level(trial.fallen), layers, missing)


def _level(fallen: Sequence[str]) -> Level:
    """L3 if every wall held, L3-nolimit if only the memory limit fell, else L0."""
    if not fallen:
        return "L3"
    return "L3-nolimit" if list(fallen) == ["memory"] else "L0"


class ContainerRoom:
    watched = False
    python: Sequence[str] = ("python3", "-I")

    def __init__(self, engine: ContainerEngine, container: str, holder: HelperProcess, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._container = container
        self._holder = holder
        """Runs as long as the container does; its open standard input keeps the container alive."""

    @classmethod
    async def make(
        cls, engine: ContainerEngine, kind: str, image: str, limits: Limits, covers: Sequence[str] = ()
    ) -> ContainerRoom:
        container = f"toolyard-{secrets.token_hex(8)}"
        arguments = [*_walls(kind, container, limits), *covers, image, "cat"]
        holder = engine.begin("run", *arguments, output_bytes=_MESSAGE_MOST, name=container)
        room = cls(engine, container, holder, limits)
        try:
            async with asyncio.timeout(_SECONDS):
                await room._is_up()
        except TimeoutError:
            await room.close()
            raise SandboxUnavailable(f"no container of the image {image!r} within {_SECONDS:g} s") from None
        except BaseException:
            await room.close()
            raise
        return room

    async def _is_up(self) -> None:
        """Wait until the container's first process, `cat`, echoes what it was sent."""
        await send(self._holder.stdin, _READY)
        while not self._holder.stdout.take().endswith(_READY):
            if self._holder.ended.done():
                problem = on_one_line(self._holder.stderr.take())
                raise SandboxUnavailable(f"{self._engine.program} cannot run a container: {problem}")
            await asyncio.sleep(0.01)

    async def command(self, *argv: str, stdin: bytes = b"", most: int = _MESSAGE_MOST) -> EngineAnswer:
        """Run one of our own commands in the container."""
        where = (*_AS_PROGRAM, "--workdir", WORKSPACE, self._container)
        return await self._engine.run("exec", "--interactive", *where, *argv, stdin=stdin, most=most)

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], limits: Limits, lasting: bool = False
    ) -> HelperProcess:
        mark = "" if lasting else new_mark()
        name = secrets.token_hex(8)
        less_memory = limits.memory_bytes < self._limits.memory_bytes  # than the container's limit for all programs
        orders = {
            "do": "spawn",
            "env": dict(env),
            "limits": resources_of(limits, lasting=lasting, each_process=less_memory, processes=False),
            "mark": mark,
            "adopt": True,
        }
        launched = [*script((*self.python, "-S"), "process_based/launcher", repr(orders)), *argv]
        where = (*_AS_PROGRAM, "--workdir", WORKSPACE, "--env", f"{NAME}={name}", self._container)
        arguments = ("exec", "--interactive", *where, *launched)
        return self._engine.begin(*arguments, output_bytes=limits.output_bytes, name=name, mark=mark)

    async def interrupt(self, program: HelperProcess) -> None:
        await self._tell_launcher({"do": "signal", "name": program.name, "number": int(signal.SIGINT)})

    async def relieve(self, program: HelperProcess, since: float, first: int = 0) -> None:
        await self._tell_launcher({"do": "relieve", "name": program.name, "since": since, "first": first})

    async def kill(self, program: HelperProcess) -> None:
        if program.ended.done():
            return
        program.killed = True
        await self._tell_launcher({"do": "signal", "name": program.name, "number": int(signal.SIGTERM)})
        await asyncio.wait((program.ended,), timeout=_END_SECONDS)
        program.kill_group()

    async def measure(self, program: HelperProcess) -> tuple[float, int]:
        told = await self._tell_launcher({"do": "used", "name": program.name})
        try:
            cpu, memory = json.loads(told.stdout)
            return float(cpu), int(memory)
        except (ValueError, TypeError):
            return 0.0, 0

    async def _tell_launcher(self, orders: Mapping[str, object]) -> EngineAnswer:
        return await self.command(*script((*self.python, "-S"), "process_based/launcher", repr(orders)))

    async def lost(self) -> str:
        if self._holder.ended.done():
            return on_one_line(self._holder.stderr.take()) or "its container has ended"
        answer = await self.command("true")
        return answer.problem if answer.code else ""

    async def read(self, path: str, most: int) -> bytes:
        return await self._file("read", path, most)

    async def write(self, path: str, data: bytes, most: int, mode: int | None = None) -> None:
        await self._file("write", path, most, *([] if mode is None else [str(mode)]), data=data)

    async def list(self, path: str) -> Sequence[tuple[str, str, int]]:
        found = json.loads(await self._file("list", path, _LIST_MOST))
        return [(str(name), str(kind), int(size)) for name, kind, size in found]

    async def _file(self, operation: str, path: str, most: int, *more: str, data: bytes = b"") -> bytes:
        argv = script((*self.python, "-S"), "process_based/workspace", operation, path, str(most), *more)
        answer = await self.command(*argv, stdin=data, most=max(most, _MESSAGE_MOST))
        if answer.code:
            raise OSError(0, answer.problem)
        return answer.stdout

    async def copy_from(self, other: ContainerRoom) -> None:
        most = str(_OUTPUT_MOST)
        packed = await other.command(*script((*self.python, "-S"), "packing", "pack", ".", most), most=_OUTPUT_MOST)
        emptied = await self.command("find", ".", "-mindepth", "1", "-delete")
        unpacking = script((*self.python, "-S"), "packing", "restore", ".", most, most)
        unpacked = await self.command(*unpacking, stdin=packed.stdout)
        for answer in (packed, emptied, unpacked):
            if answer.code:
                raise OSError(0, f"the workspace could not be copied: {answer.problem}")

    async def close(self) -> None:
        await self._engine.run("rm", "--force", self._container)
        self._holder.kill_group()
        await self._holder.end()
        self._holder.close()


def _walls(kind: str, container: str, limits: Limits) -> Sequence[str]:
    """The container's options. Docker and Podman take the same ones, with one exception."""
    inodes = f",nr_inodes={limits.disk_files}" if kind == "docker" else ""
    private = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_bytes}{inodes}"
    return [
        *(
            "--pull",
            "never",
            "--rm",
            "--interactive",
            "--init",
            "--name",
            container,
            "--label",
            f"{_LABEL}={origin.mine()}",
        ),
        *("--network", "host" if limits.network == "host" else "none"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *(["--http-proxy=false"] if kind == "podman" else []),  # or programs would see the server's, with its password
        *("--user", "0:0", "--hostname", "sandbox", "--workdir", WORKSPACE),
        *("--tmpfs", f"{WORKSPACE}:{private}", "--tmpfs", f"/tmp:{private}"),
        *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
        *("--pids-limit", str(limits.processes + _OWN_PROCESSES), "--cpus", f"{limits.cpus:g}"),
        *(part for name, value in ENVIRONMENT.items() for part in ("--env", f"{name}={value}")),
    ]


_OWN_PROCESSES = 8
"""Processes beside the programs': the container's first ones, a launcher for each program, and our commands."""
