"""The native backend: starts the helper processes, makes sandboxes, and keeps a few of them ready."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from toolyard.core.errors import SandboxLost, SandboxUnavailable
from toolyard.sandboxes import profiles
from toolyard.sandboxes.base import Limits, Profile, Report
from toolyard.sandboxes.native.boot import command
from toolyard.sandboxes.native.cgroups import Groups
from toolyard.sandboxes.native.channel import Channel, pair
from toolyard.sandboxes.native.guest import Expected, Guest, told_of
from toolyard.sandboxes.native.pool import Pool
from toolyard.sandboxes.native.probe import probe, unavailable
from toolyard.sandboxes.native.sandbox import NativeSandbox
from toolyard.sandboxes.native.template import place
from toolyard.sandboxes.native.watch import Ground
from toolyard.sandboxes.native.zygote import FIRST_UID

_SECONDS = 60.0
"""For a helper process to get ready, or to go."""
_PROMPTLY_SECONDS = 0.05
"""In which what was killed is gone, unless it has to wait for a processor."""
_UIDS_PER_SERVER = 2**16


class Helper:
    """A channel to a process of ours, which says once that it is ready."""

    def __init__(self, sock: socket.socket) -> None:
        self._told: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self.channel = Channel(sock, on_event=self._event, on_lost=self._lost, trusted=True)

    async def ready(self) -> Mapping[str, Any]:
        async with asyncio.timeout(_SECONDS):
            return await self._told

    def _event(self, event: Mapping[str, Any]) -> None:
        if not self._told.done():
            self._told.set_result(event)

    def _lost(self, why: str) -> None:
        self._event({"failed": why})


class Born(NamedTuple):
    """A sandbox of which all processes are there."""

    guest: Guest
    first: Expected
    """What its first interpreter was started with."""
    process: Process
    group: str
    interprets: bool
    """Whether there was room for the interpreter."""


class NativeBackend:
    """`limits` are the usual ones. `ready` sandboxes with those are kept for each profile that has been asked for."""

    name = "native"

    def __init__(self, *, limits: Limits | None = None, ready: int = 2, templates: int | None = None) -> None:
        self._limits = limits or Limits()
        self._ready = ready
        self._templates_each = templates or min(os.cpu_count() or 1, 4)
        self._process: subprocess.Popen[bytes] | None = None
        self._broker: Helper | None = None
        self._templates: dict[Profile, Sequence[Helper]] = {}
        self._pools: dict[Profile, Pool] = {}
        self._groups = Groups([])
        self._support: Mapping[str, Sequence[Any]] = {}
        self._landlock = 0
        self._own_users = False
        self._report: Report | None = None
        self._numbers: Iterator[int] = itertools.count()
        self._sandboxes: set[NativeSandbox] = set()
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> Report:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"the native sandbox needs Linux, and this is {sys.platform}")
        try:
            await self._launch()
            self._report = Report(self.name, "L0", {})  # until more is shown
            async with await self._make(Limits(), "plain") as sandbox:
                self._report = await probe(sandbox, self._support, self._landlock)
        except SandboxLost as error:
            await self.close()
            raise unavailable(str(error), errno.EPERM if os.strerror(errno.EPERM) in str(error) else 0) from error
        except BaseException:
            await self.close()
            raise
        return self._report

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> NativeSandbox:
        self._check_open()
        if not self._ready or (limits is not None and limits != self._limits):
            return await self._make(limits or self._limits, profile)
        if profile not in self._pools:
            self._pools[profile] = Pool(lambda: self._make(self._limits, profile), self._ready)
        return await self._pools[profile].take()

    def report(self) -> Report:
        if self._report is None:
            raise SandboxUnavailable("the sandbox has not been started")
        return self._report

    def count(self) -> tuple[int, int]:
        ready = sum(len(pool) for pool in self._pools.values())
        return len(self._sandboxes) - ready, ready

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()
        closing = (sandbox.close_family() for sandbox in list(self._sandboxes))
        await asyncio.gather(*closing, return_exceptions=True)  # whatever they ran into: the broker ends the rest
        for template in itertools.chain.from_iterable(self._templates.values()):
            template.channel.close()
        self._templates.clear()
        if self._broker is not None:
            self._broker.channel.close()
        if self._process is not None and await asyncio.to_thread(self._process.wait, _SECONDS) != 0:
            await asyncio.to_thread(self._groups.remove)  # the broker could not
        self._groups.close()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxUnavailable("the sandbox's backend is closed")

    # Processes.

    async def _launch(self) -> None:
        if self._process is not None:  # an earlier one, which is gone
            await asyncio.to_thread(self._process.wait, _SECONDS)
            self._groups.close()
        ours, theirs = pair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220  # a vfork, and no wait
                command("broker", theirs.fileno()),
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is the server's to handle
            )
        self._broker = Helper(ours)
        try:
            told = await self._broker.ready()
        except BaseException:
            self._broker.channel.close()
            raise
        if "failed" in told:
            raise SandboxUnavailable(f"the sandbox's broker could not start: {told['failed']}")
        self._check_support(told["support"])
        self._groups = Groups.at(told["groups"])
        self._numbers = itertools.count(self._process.pid % 2**12 * _UIDS_PER_SERVER)

    def _check_support(self, support: Mapping[str, Sequence[Any]]) -> None:
        """A broker that is started anew must enforce what its predecessor did: that is what the report says."""
        if fallen := [name for name, found in self._support.items() if found[0] and not support[name][0]]:
            raise SandboxUnavailable(f"limits can no longer be enforced: {', '.join(fallen)}")
        self._support = support

    async def _template(self, profile: Profile, number: int) -> Helper:
        """One of the profile's template processes; those that are not there are started."""
        async with self._starting:
            self._check_open()
            if self._broker is None or self._broker.channel.lost:
                self._templates.clear()
                await self._launch()
            templates = [template for template in self._templates.get(profile, ()) if not template.channel.lost]
            self._templates[profile] = templates
            if not templates and (absent := profiles.missing(profile)):
                raise SandboxUnavailable(f"the profile {profile!r} needs {', '.join(absent)}: pip install it")
            while len(templates) < self._templates_each:
                templates.append(await self._spawn(profile))
        return templates[number % len(templates)]

    async def _spawn(self, profile: Profile) -> Helper:
        ours, theirs = pair()
        template = Helper(ours)
        try:
            return await self._prepared(template, theirs, profile)
        except BaseException:
            template.channel.close()
            raise

    async def _prepared(self, template: Helper, theirs: socket.socket, profile: Profile) -> Helper:
        assert self._broker is not None
        with theirs:
            await self._broker.channel.ask("zygote", fds=[theirs.fileno()])
        config = {
            "groups": self._groups.describe(),
            "ipython": profiles.is_ipython(profile),
            "packages": profiles.packages(),
            "path": os.pathsep.join([*_own_programs(), "/usr/local/bin", "/usr/bin", "/bin"]),
            "prefixes": profiles.prefixes(),
            "preload": profiles.preload(profile),
            "warm_up": profiles.warm_up(profile),
        }
        await template.channel.tell(config)
        told = await template.ready()
        if "failed" in told:
            raise unavailable(str(told["failed"]), int(told.get("errno") or 0))
        self._landlock, self._own_users = told["landlock"], told["own_users"]
        return template

    # What other processes of ours need to make sandboxes with our templates.

    async def lend(self, profile: Profile) -> tuple[Mapping[str, Any], Sequence[socket.socket]]:
        """What there is to know, and lines to the templates of a profile. Who has one may ask as we do."""
        await self._template(profile, 0)
        lines: list[socket.socket] = []
        try:
            for template in self._templates[profile]:
                line, theirs = pair()
                lines.append(line)
                with theirs:
                    told = (await template.channel.ask("join", fds=[theirs.fileno()])).header
                if problem := told.get("failed"):
                    raise SandboxUnavailable(str(problem))
        except BaseException:
            for line in lines:
                line.close()
            raise
        return {
            "groups": self._groups.describe(),
            "support": self._support,
            "own_users": self._own_users,
        }, lines

    async def next_number(self) -> int:
        """Of a sandbox: no other of this server has it."""
        return next(self._numbers)

    # Sandboxes.

    async def _make(self, limits: Limits, profile: Profile) -> NativeSandbox:
        number = await self.next_number()
        template = await self._template(profile, number)
        owner = FIRST_UID + number if self._own_users else -1
        born = await self._born(template, number, owner, limits)
        group, guest = self._groups.group(born.group), born.guest
        oom_kills = group.oom_counter()

        async def unthrottle() -> None:
            try:
                await template.channel.tell({"op": "unthrottle", "sandbox": number})  # whose group it is
            except SandboxLost:
                with contextlib.suppress(OSError):  # gone, too
                    group.unthrottle()

        async def end() -> None:
            born.process.kill()  # before its agent hears that nobody is there any more, and does more than to die
            guest.close()
            await born.process.gone(unthrottle)
            oom_kills.close()
            if template.channel.lost:  # who would have removed it
                with contextlib.suppress(OSError):  # a new broker has swept
                    group.remove()
            self._sandboxes.discard(sandbox)

        ground = Ground(self.report, owner, self._memory_enforced, oom_kills.read)
        interpreter = guest.started(born.first, limits.output_bytes) if born.interprets else None
        if interpreter is None:  # there is no room for it; who needs it will be told
            guest.give_up(born.first)
        sandbox = NativeSandbox(guest, limits, ground, end=end, interpreter=interpreter)
        self._sandboxes.add(sandbox)
        return sandbox

    async def _born(self, template: Helper, number: int, owner: int, limits: Limits) -> Born:
        """Have the processes of a sandbox made, and wait until they are furnished."""
        ours, theirs = pair()
        guest = Guest(ours, owner=owner)
        first = guest.expect_interpreter()
        process: Process | None = None
        try:
            told = told_of(limits, memory_enforced=self._memory_enforced)
            with theirs:
                fds = [theirs.fileno(), *first.theirs]
                made = await template.channel.ask(
                    "make", fds=fds, sandbox=number, limits=told, interpreter=first.number
                )
            first.close_theirs()
            if problem := made.header.get("failed"):
                raise unavailable(str(problem), 0)
            process = Process(made.fds[0])
            interprets = await guest.ready()
            self._check_open()
        except BaseException:
            if process is not None:
                process.kill()
            guest.give_up(first)
            guest.close()
            if process is not None:
                await asyncio.shield(process.gone(_nothing))
            raise
        return Born(guest, first, process, made.header["group"], interprets)

    @property
    def _memory_enforced(self) -> bool:
        return bool(self._support["memory"][0])


def _own_programs() -> Sequence[str]:
    """Where the interpreter's own programs are found inside; those of a virtual environment first."""
    return [f"{place(prefix)}/bin" for prefix in reversed(profiles.prefixes())]


async def _nothing() -> None:
    """For a sandbox in which nothing has run yet."""


class Process:
    """Process 1 of a sandbox, held by a descriptor that can mean no other."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def kill(self) -> None:
        """End it, and with it everything in its namespace."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def gone(self, unthrottle: Callable[[], Awaitable[None]]) -> None:
        """To be waited for when it was killed, and once only.

        One that has used up its share of processor time dies only when it gets the next: it is helped, then.
        """
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            if not gone.done():
                gone.set_result(None)

        loop.add_reader(self._pidfd, ended)
        try:
            await asyncio.wait((gone,), timeout=_PROMPTLY_SECONDS)
            if not gone.done():
                await unthrottle()
                async with asyncio.timeout(_SECONDS):
                    await gone
        finally:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
