"""The native backend: starts the helper processes, makes sandboxes, and keeps a few of them ready."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from toolyard.core.errors import SandboxError, SandboxLost, SandboxUnavailable
from toolyard.sandboxes import host, profiles
from toolyard.sandboxes.base import Limits, Profile, Report
from toolyard.sandboxes.endings import is_short, no_room
from toolyard.sandboxes.native.agent_client import AgentClient, Expected, told_of
from toolyard.sandboxes.native.cgroups import Groups
from toolyard.sandboxes.native.channel import pair, without_room
from toolyard.sandboxes.native.confine import environment
from toolyard.sandboxes.native.helper_argv import command
from toolyard.sandboxes.native.init_process import InitProcess
from toolyard.sandboxes.native.one_shot import OneShotInterpreter, OneShotKeeper
from toolyard.sandboxes.native.pool import RehearsedSandbox, SandboxPool
from toolyard.sandboxes.native.probe import probe, unavailable
from toolyard.sandboxes.native.rootfs import place
from toolyard.sandboxes.native.sandbox import NativeSandbox
from toolyard.sandboxes.native.templates import Helper, Templates
from toolyard.sandboxes.native.watch import Ground, Strained
from toolyard.sandboxes.native.zygote import FIRST_UID
from toolyard.sandboxes.view import View

S = TypeVar("S", bound=RehearsedSandbox)

_ENDING_SECONDS = 60.0
"""Time for the broker to exit."""
_UIDS_PER_SERVER = 2**16


class NativeBackend:
    """`limits` are the default ones. For each profile in use, it keeps `ready` spare sandboxes with these limits.

    A profile has at most `templates` template processes, which start as they are needed.

    `check_room` gets the number of sandboxes and how many of them are being made. It raises `SandboxError` if there is
    no room for one more.
    """

    name = "native"

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        ready: int = 2,
        templates: int = 1,
        view: View | None = None,
        check_room: Callable[[int, int], None] = lambda count, making: None,
    ) -> None:
        self._limits = limits or Limits()
        self._ready = ready
        self._view = view or View.usual()
        self._stamps = self._view.stamps()
        self._check_room_beside = check_room
        self._templates_each = templates
        self._process: subprocess.Popen[bytes] | None = None
        self._broker: Helper | None = None
        self._templates: dict[Profile, Templates] = {}
        self._pools: dict[Profile, SandboxPool[NativeSandbox]] = {}
        self._one_shot: dict[Profile, SandboxPool[OneShotInterpreter]] = {}
        self._groups = Groups([])
        self._support: Mapping[str, Sequence[Any]] = {}
        self._landlock = 0
        self._own_users = False
        self._report: Report | None = None
        self._numbers: Iterator[int] = itertools.count()
        self._sandboxes: set[NativeSandbox | OneShotInterpreter] = set()
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> Report:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"the native sandbox needs Linux, and this is {sys.platform}")
        try:
            await self._launch()
            self._report = Report(self.name, "L0", {})  # until the probe proves more
            async with await self._make(Limits(), "plain") as sandbox:
                self._report = await probe(sandbox, self._support, self._landlock, self._view.words)
        except SandboxLost as error:
            await self.close()
            raise unavailable(str(error), errno.EPERM if os.strerror(errno.EPERM) in str(error) else 0) from error
        except BaseException:
            await self.close()
            raise
        return self._report

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> NativeSandbox:
        return await self._taken(self._pools, self._make, limits or self._limits, profile)

    async def open_interpreter(self, limits: Limits | None = None, *, profile: Profile = "plain") -> OneShotInterpreter:
        """An interpreter for one piece of code."""
        return await self._taken(self._one_shot, self._make_one_shot, limits or self._limits, profile)

    async def _taken(
        self,
        pools: dict[Profile, SandboxPool[S]],
        make: Callable[[Limits, Profile], Awaitable[S]],
        limits: Limits,
        profile: Profile,
    ) -> S:
        """Take a spare one if it has the default limits; otherwise make one."""
        self._check_open()
        if not self._ready or limits != self._limits:
            return await make(limits, profile)
        await self._forget_outdated()
        if profile not in pools:
            pools[profile] = SandboxPool(lambda: make(limits, profile), self._ready)
        return await pools[profile].take()

    async def _forget_outdated(self) -> None:
        """Drop spare sandboxes when a hidden path was replaced: they do not hide its replacement."""
        if (found := self._view.stamps()) != self._stamps:
            self._stamps = found
            outdated = self._all_pools()
            self._pools.clear()
            self._one_shot.clear()
            for pool in outdated:
                await pool.close()

    def report(self) -> Report:
        if self._report is None:
            raise SandboxUnavailable("the sandbox has not been started")
        return self._report

    def count(self) -> tuple[int, int]:
        ready = sum(len(pool) for pool in self._all_pools())
        return len(self._sandboxes) - ready, ready

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        for pool in self._all_pools():
            await pool.close()
        self._pools.clear()
        self._one_shot.clear()
        closing = (sandbox.close_family() for sandbox in list(self._sandboxes))
        await asyncio.gather(*closing, return_exceptions=True)  # ignore failures: the broker ends the rest
        await self._forget_templates()
        if self._broker is not None:
            self._broker.channel.close()
        if self._process is not None and not await asyncio.to_thread(_has_ended_well, self._process):
            await asyncio.to_thread(self._groups.remove)  # the broker did not
        self._groups.close()

    def _all_pools(self) -> Sequence[SandboxPool[Any]]:
        return [*self._pools.values(), *self._one_shot.values()]

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxUnavailable("the sandbox's backend is closed")

    # Processes.

    async def _launch(self) -> None:
        if self._process is not None:  # an earlier broker, which has ended
            if not await asyncio.to_thread(_has_ended_well, self._process):
                await asyncio.to_thread(self._groups.remove)  # the broker did not
            self._groups.close()
        ours, theirs = pair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220  # a vfork, and no wait
                command("native.broker", theirs.fileno()),
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
        """A restarted broker must enforce what its predecessor did: the report says so."""
        if fallen := [name for name, found in self._support.items() if found[0] and not support[name][0]]:
            raise SandboxUnavailable(f"limits can no longer be enforced: {', '.join(fallen)}")
        self._support = support

    async def _template(self, profile: Profile) -> Helper:
        return await (await self._templates_of(profile)).idlest()

    async def _templates_of(self, profile: Profile) -> Templates:
        await self._ensure_broker()
        self._check_open()
        if profile not in self._templates:
            self._templates[profile] = Templates(self._templates_each, partial(self._spawn, profile))
        return self._templates[profile]

    async def _ensure_broker(self) -> None:
        async with self._starting:
            self._check_open()
            if self._broker is None or self._broker.channel.lost:
                await self._forget_templates()
                await self._launch()

    async def _forget_templates(self) -> None:
        templates = [*self._templates.values()]
        self._templates.clear()
        for each in templates:
            await each.close()

    async def _spawn(self, profile: Profile) -> Helper:
        self._view.check(profile)
        ours, theirs = pair()
        template = Helper(ours)
        try:
            return await self._prepared(template, theirs, profile)
        except BaseException:
            template.channel.close()
            raise

    async def _prepared(self, template: Helper, theirs: socket.socket, profile: Profile) -> Helper:
        assert self._broker is not None
        python = self._view.python
        with theirs:
            spawned = await self._broker.channel.ask("zygote", fds=[theirs.fileno()], python=python.executable)
        if problem := spawned.header.get("failed"):
            raise SandboxError(f"another process for sandboxes could not be started: {problem}")
        path = self._view.path([*map(place, python.bins)])
        config = {
            "closed": self._view.closed,
            "covers": [*map(place, self._view.places((*host.PROGRAMS, *host.etc(), *python.prefixes)))],
            "environment": environment(path),
            "groups": self._groups.describe(),
            "hidden": self._view.hidden,
            "ipython": profiles.is_ipython(profile),
            "large": profiles.is_large(profile),
            "packages": python.packages,
            "path": path,
            "prefixes": python.prefixes,
            "preload": profiles.preload(profile),
            "warm_up": profiles.warm_up(profile, python),
        }
        await template.channel.tell(config)
        told = await template.ready()
        if "failed" in told:
            raise unavailable(str(told["failed"]), int(told.get("errno") or 0))
        self._landlock, self._own_users = told["landlock"], told["own_users"]
        return template

    # For other processes of ours that make sandboxes with our templates.

    async def lend(self, profile: Profile) -> tuple[Mapping[str, Any], Sequence[socket.socket]]:
        """The settings of a profile's templates, and sockets to them. A process with such a socket may send
        requests."""
        templates = await (await self._templates_of(profile)).all()
        lines: list[socket.socket] = []
        try:
            for template in templates:
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
        """A sandbox number that this server uses once."""
        return next(self._numbers)

    # Sandboxes.

    async def _make(self, limits: Limits, profile: Profile) -> NativeSandbox:
        number, template, owner = await self._beginning(profile)
        ours, theirs = pair()
        client = AgentClient(ours, owner=owner)
        first: Expected | None = None
        root: InitProcess | None = None
        try:
            with theirs:
                first = client.expect_interpreter()
                fds = [theirs.fileno(), *first.theirs]
                root = await self._clone(template, number, limits, fds, alone=False, interpreter=first.number)
            first.close_theirs()
            interprets = await client.ready()
            self._check_open()
        except BaseException:
            if root is not None:
                root.signal(signal.SIGKILL)
            if first is not None:
                client.give_up(first)
            client.close()
            if root is not None:
                await asyncio.shield(root.end())
            raise

        async def end() -> None:
            root.signal(signal.SIGKILL)  # before its agent sees the closed socket and starts to clean up
            client.close()
            await root.end()

        interpreter = client.started(first, limits.output_bytes) if interprets else None
        if interpreter is None:  # no room for it; the first use raises
            client.give_up(first)
        sandbox = NativeSandbox(
            client,
            limits,
            self._ground(root, owner, root.memory_left),
            end=end,
            another=partial(self.open, profile=profile),
            on_branched=self._sandboxes.add,
            on_closed=self._sandboxes.discard,
            interpreter=interpreter,
        )
        self._sandboxes.add(sandbox)
        return sandbox

    async def _make_one_shot(self, limits: Limits, profile: Profile) -> OneShotInterpreter:
        number, template, owner = await self._beginning(profile)
        expected = Expected.of(0, owner, interpreter=True)
        try:
            root = await self._clone(template, number, limits, expected.theirs, alone=True)
        except BaseException:
            expected.close()
            raise
        keeper = OneShotKeeper(root, expected, limits.output_bytes)
        try:
            await keeper.ready()
            self._check_open()
        except BaseException:
            await asyncio.shield(keeper.end())
            raise
        interpreter = OneShotInterpreter(
            keeper,
            limits,
            self._ground(keeper, owner),
            on_closed=self._sandboxes.discard,
        )
        self._sandboxes.add(interpreter)
        return interpreter

    async def _beginning(self, profile: Profile) -> tuple[int, Helper, int]:
        """The number of a new sandbox, its template, and the outside user of its programs."""
        number = await self.next_number()
        template = await self._template(profile)
        return number, template, FIRST_UID + number if self._own_users else -1

    async def _clone(
        self, template: Helper, number: int, limits: Limits, fds: Sequence[int], *, alone: bool, interpreter: int = 0
    ) -> InitProcess:
        """Have process 1 of a sandbox made. It reports for itself when it is set up."""
        told = told_of(limits, memory_enforced=self._memory_enforced)
        made = await template.channel.ask(
            "make", fds=fds, sandbox=number, limits=told, alone=alone, interpreter=interpreter
        )
        if problem := made.header.get("failed"):
            refused = OSError(made.header["errno"], str(problem))
            raise no_room(refused) if is_short(refused) else unavailable(str(problem), 0)
        if not made.fds:
            raise without_room(os.strerror(errno.EMFILE))
        return InitProcess(made.fds[0], self._groups.group(made.header["group"]), number, template.channel)

    def _ground(self, group: Strained, owner: int, memory_left: Callable[[], int | None] = lambda: None) -> Ground:
        enforced = self._memory_enforced
        return Ground(self.report, owner, enforced, group, self._check_room, enforced, memory_left)

    def _check_room(self, more: int) -> None:
        self._check_room_beside(len(self._sandboxes) + more - 1, more - 1)

    @property
    def _memory_enforced(self) -> bool:
        return bool(self._support["memory"][0])


def _has_ended_well(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a broker. Kill one that does not end by itself; its sandboxes end with it."""
    try:
        return process.wait(_ENDING_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
