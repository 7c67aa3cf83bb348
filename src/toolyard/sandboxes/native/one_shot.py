"""An interpreter alone in its sandbox, for one piece of code: it is process 1, with no process of ours beside it.

That takes half the processes of a session. The code can do the same as there or less: there is no agent to attack.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from toolyard.core.errors import SandboxLost
from toolyard.sandboxes.base import Executed, Limits
from toolyard.sandboxes.endings import HostExhausted
from toolyard.sandboxes.native.agent_client import SECONDS, Expected, RemoteProgram, program_of, within
from toolyard.sandboxes.native.cgroups import Strain
from toolyard.sandboxes.native.init_process import InitProcess
from toolyard.sandboxes.native.processes import used_by
from toolyard.sandboxes.native.python import Python
from toolyard.sandboxes.native.watch import Ground, NativeWatch

_EXITING_SECONDS = 1.0
"""Time for a disconnected interpreter to be gone. One that only closed its files stays."""


class OneShotInterpreter:
    def __init__(
        self, keeper: OneShotKeeper, limits: Limits, ground: Ground, *, on_closed: Callable[[OneShotInterpreter], None]
    ) -> None:
        self._keeper = keeper
        self._limits = limits
        self._ground = ground
        self._python = Python(keeper, limits, ground, keeper.program)
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._closing is None and not self._keeper.lost

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        """A caller that stops waiting must close it, which ends the code."""
        if self._closing is not None:
            raise SandboxLost("the sandbox is closed")
        watch = NativeWatch(self._limits, timeout, self._ground)
        executed = await self._python.execute(code, watch)
        watch.check_host()
        return executed

    async def rehearse(self) -> None:
        await self._python.rehearse()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._free())
        await asyncio.shield(self._closing)

    async def close_family(self) -> None:
        await self.close()

    async def _free(self) -> None:
        try:
            await self._keeper.end()
        finally:
            self._on_closed(self)


class OneShotKeeper:
    """Ends the interpreter and reports how it ended, in place of an agent."""

    def __init__(self, root: InitProcess, expected: Expected, output: int) -> None:
        self._root = root
        self._strain = self._seen = Strain()
        self._killed = False
        """Since then its group may belong to another sandbox."""
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.program = program_of(expected, output, on_event=self._event, on_lost=self._lost)

    @property
    def lost(self) -> str:
        assert self.program.channel is not None
        return self.program.channel.lost

    async def ready(self) -> None:
        """Wait until all walls stand. Raises SandboxLost if they could not be made."""
        async with within(SECONDS, "it does not get ready"):
            await self._ready

    async def interpret(self, output: int) -> NoReturn:
        raise SandboxLost("this interpreter was for one piece of code")

    async def measure(self, program: RemoteProgram) -> Mapping[str, Any]:
        used = [used_by(pid) for pid in _with_all_below(self._root.pid())]
        return {"cpu": sum(cpu for cpu, _ in used), "memory": sum(memory for _, memory in used)}

    async def end_since(self, program: RemoteProgram, seconds: float) -> None:
        """Do nothing: its processes are about to end with it."""

    async def signal(self, program: RemoteProgram, number: int) -> None:
        self._root.signal(number)

    async def kill(self, program: RemoteProgram) -> Mapping[str, Any]:
        """Nothing inside can kill process 1. So if we did not kill it, the code has not failed."""
        if self._root.ended:
            raise SandboxLost("the sandbox is closed")
        self._killed = True
        stalled = self._root.strain_once(late=True).memory_stalled
        hung_up = bool(self.lost) and await self._root.is_gone(_EXITING_SECONDS)
        self._root.signal(signal.SIGKILL)
        ending = await self._root.ending()
        ran_out = Strain(ending["oom_kills"], ending["memory_full"]).out_of_memory(Strain())
        if ran_out == "host":
            raise HostExhausted.of("memory")
        if hung_up and ending["code"] == -signal.SIGKILL and not ran_out:
            raise SandboxLost("the sandbox is gone: it was killed from outside")
        self._strain = Strain(oom_kills=bool(ran_out), memory_full=bool(ran_out), memory_stalled=stalled)
        return ending

    def glance(self) -> Strain:
        """Its group is new, or was read after the previous piece of code."""
        return self._seen

    def strain(self, *, late: bool = False) -> Strain:
        """The final strain if it was killed, else the current one."""
        self._seen = self._strain if self._killed else self._root.strain_once(late=late)
        return self._seen

    async def ran_out(self, before: Strain) -> str:
        """Known only after `kill()`: it has no agent."""
        return self._strain.out_of_memory(before)

    def is_full(self) -> bool:
        return self._root.is_full()

    def is_out_of_memory(self) -> bool:
        return self._root.is_out_of_memory()

    async def end(self) -> None:
        self._root.signal(signal.SIGKILL)  # before it sees the closed socket and starts to clean up
        self.program.close()
        await self._root.end()

    def _event(self, event: Mapping[str, Any]) -> None:
        """Handle its first message. Later it only answers requests."""
        if self._ready.done():
            raise ValueError("an interpreter only answers")
        if "failed" in event:
            self._lost(f"it could not be set up: {event['failed']}")
        else:
            self._ready.set_result(None)

    def _lost(self, why: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(SandboxLost(f"the sandbox is gone: {why}"))
            self._ready.exception()  # mark as retrieved, even if no caller waits


def _with_all_below(pid: int) -> list[int]:
    """All processes of a sandbox: orphans become children of process 1."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:  # gone
            continue
    return found
