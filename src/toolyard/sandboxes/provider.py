"""Gives an environment's code its sandboxes: from its server, or from the script that it runs in."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Token
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from toolyard.core.errors import SandboxLost
from toolyard.core.workspace import Files
from toolyard.sandboxes import capacity, choice, profiles
from toolyard.sandboxes.base import (
    Backend,
    Counted,
    Executed,
    Interpreter,
    Interpreting,
    Level,
    Limits,
    Profile,
    Report,
    Sandbox,
)
from toolyard.sandboxes.installation import HasPython, Installation, here
from toolyard.sandboxes.kept import KeptInterpreters
from toolyard.sandboxes.places import OwnPlaces, Places, has_place, in_place
from toolyard.sandboxes.supplies import supply
from toolyard.sandboxes.view import View

log = logging.getLogger("toolyard.sandbox")

T = TypeVar("T")
S = TypeVar("S", bound=Interpreter)


class Provider:
    """One backend. It starts with the first sandbox, and closes with everything in it.

    It belongs to the event loop that it is used on. `async with Provider("native"):` is for scripts and tests that want
    other settings than the default; a server has its own.
    """

    def __init__(
        self,
        backend: str = choice.AUTO,
        minimum: Level = "L3-nolimit",
        *,
        limits: Limits | None = None,
        ready: int = 2,
        image: str = "",
        at_once: int = 0,
        share: int = 1,
        python: str = "",
        hidden: Iterable[str | os.PathLike[str]] = (),
        allow_visible_source: bool = False,
    ) -> None:
        """At most `at_once` sandboxes are made, or used once, at the same time; 0: a few for each processor, which this
        provider shares with `share - 1` others.

        `python` is the interpreter for code in sandboxes; default: this one. `hidden` are paths that no sandbox shows:
        `hidden_paths(MyEnvironment)`. A backend without walls refuses them, unless `allow_visible_source`. Raises
        `SandboxUnavailable` if there is no such Python.
        """
        choice.check_name(backend)
        self.view = View.of(python, hidden, told=allow_visible_source)
        self.limits = limits or Limits()
        """The limits of a sandbox that is opened without any."""
        self._choice = backend
        self._minimum = minimum
        self._ready = ready
        self._image = image
        self._share = share
        self._new_places = partial(OwnPlaces, at_once, share=share)
        self._places: Places = self._new_places()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[Backend] | None = None
        self._backend: Backend | None = None
        self._before: HasPython | None = None
        self.lender: Callable[[Limits], Awaitable[tuple[Places, Backend | None]]] | None = None
        """Lends places to this process, and perhaps a backend, so that it needs none of its own."""
        self._making = 0
        self._told_of_network = False
        self._ending: set[asyncio.Task[None]] = set()
        self._kept = KeptInterpreters(self._end)
        self.failed: float | None = None
        """When the last start failed; None if it succeeded."""

    @property
    def python(self) -> Installation:
        """The Python of its sandboxes."""
        return self.view.python

    @property
    def report(self) -> Report | None:
        """The isolation of a sandbox with default limits; None before the first sandbox."""
        return self._backend.report().within(self.limits) if self._backend is not None else None

    @property
    def count(self) -> tuple[int, int] | None:
        """Sandboxes in use, and spare ones; None if the backend does not count them."""
        if not isinstance(self._backend, Counted):
            return None
        used, ready = self._backend.count()
        return used - len(self._kept), ready + len(self._kept)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    async def start(self) -> Report:
        """Choose a backend and start it, unless it runs."""
        return (await self._started()).report().within(self.limits)

    async def backend(self) -> Backend:
        """The chosen backend, started."""
        return await self._started()

    async def open(self, limits: Limits | None = None, profile: Profile = "plain") -> Sandbox:
        """Open a sandbox. It has a place only while it is being made. Raises `SandboxError`, before anything is made,
        if there is no room for it."""
        backend = await self._started()
        places = await self._place()
        try:
            capacity.check(sum(self.count or ()) + self._making, self._making)
            return await self._made(backend, limits or self.limits, profile)
        finally:
            _give_back(places)

    async def _made(self, backend: Backend, limits: Limits, profile: Profile) -> Sandbox:
        self._tell_of_network(limits)
        self._making += 1
        try:
            with in_place():
                sandbox = await backend.open(limits, profile=profile)
        finally:
            self._making -= 1
        sandbox.another = partial(self.open, profile=profile)
        return sandbox

    @property
    def places(self) -> Places:
        return self._places

    @asynccontextmanager
    async def open_once(self, limits: Limits | None = None, profile: Profile = "plain") -> AsyncIterator[Sandbox]:
        """A sandbox for one piece of work. The caller does not wait for its end."""
        backend = await self._started()
        self._tell_of_network(limits or self.limits)
        async with self._once(lambda: backend.open(limits or self.limits, profile=profile)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def interpreter_once(
        self, limits: Limits | None = None, profile: Profile = "plain"
    ) -> AsyncIterator[Interpreter]:
        """The same for work that is a single piece of Python: it needs less than a whole sandbox."""
        backend = await self._started()
        self._tell_of_network(limits or self.limits)
        async with self._once(lambda: _interpreter(backend, limits or self.limits, profile)) as interpreter:
            yield interpreter

    @asynccontextmanager
    async def interpreter_again(self, profile: Profile = "plain") -> AsyncIterator[Interpreter]:
        """The same for trusted code that leaves nothing behind: earlier work may have used the interpreter, and later
        work will, if the block ends without an exception. It takes no place: use it in work that has one."""
        backend = await self._started()
        async with self._kept.use(profile, lambda: _interpreter(backend, self.limits, profile)) as interpreter:
            yield interpreter

    @asynccontextmanager
    async def _once(self, opens: Callable[[], Awaitable[S]]) -> AsyncGenerator[S]:
        """Holds its place until the sandbox has ended: a free place means room for the next one."""
        places = await self._place()
        with in_place():
            try:
                used = await opens()
            except BaseException:
                _give_back(places)
                raise
            try:
                yield used
            finally:
                self._end(used, places)

    def _tell_of_network(self, limits: Limits) -> None:
        """Warn once if an environment requests more than the operator set."""
        if limits.network == "host" and self.limits.network != "host" and not self._told_of_network:
            self._told_of_network = True
            log.warning(
                "an environment asks for sandboxes with this host's network: programs in them reach all that this host "
                "does, this server too. Without --api-key they may use it"
            )

    async def _place(self) -> Places | None:
        """Wait for a place; None for work that is part of other work with a place. The caller gives it back."""
        if has_place():
            return None
        places = self._places
        await places.take()
        return places

    def _end(self, used: Interpreter, places: Places | None = None) -> None:
        ending = asyncio.ensure_future(used.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        ending.add_done_callback(lambda _: _give_back(places))

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and (error := ending.exception()) is not None:
            log.error("a sandbox could not be closed", exc_info=error)

    async def warm(self, profile: Profile) -> None:
        """Prepare a profile, so that its first sandbox opens as fast as the others."""
        await (await self.open(profile=profile)).close()

    async def close(self) -> None:
        """Close every sandbox and leave nothing behind. The next request starts a fresh backend."""
        if (starting := self._starting) is not None:
            starting.cancel()
            await asyncio.wait((starting,))
        backend, self._backend, self._loop = self._backend, None, None
        if backend is not None:
            self._kept.close()
            await asyncio.gather(*self._ending, return_exceptions=True)  # `_ended` has logged failures
            await backend.close()

    async def let_go(self) -> int:
        """Call this before a fork: it closes the backend's descriptors, which the copy would share. If sandboxes are
        open, it keeps the backend and returns their number."""
        self._kept.close()
        await asyncio.gather(*self._ending, return_exceptions=True)
        loop, count = self._loop, sum(self.count or ())
        if not count:
            await self.close()
            self._loop = loop
        return count

    def enter(self) -> Token[HasPython | None]:
        """Make `open_sandbox` use this provider, in this context and those copied from it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return here.set(self)

    async def __aenter__(self) -> Self:
        self._before = here.get()
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here.set(self._before)
        await self.close()

    async def _started(self) -> Backend:
        self._check_loop()
        if self._backend is not None:
            return self._backend
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(self._start_ended)
        starting = self._starting
        try:
            # Shielded: one cancelled caller must not cancel the start for the others.
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if starting.cancelled() and not (waiting is not None and waiting.cancelling()):
                raise SandboxLost("the sandboxes were closed before this one was there") from None
            raise

    async def _start(self) -> Backend:
        backend: Backend | None = None
        if self.lender is not None:
            self._places, backend = await self.lender(self.limits)
        if backend is None:
            backend = await choice.start(
                self._choice,
                self._minimum,
                limits=self.limits,
                ready=self._ready,
                image=self._image,
                view=self.view,
                share=self._share,
            )
        self._backend = backend
        log.info("%s", described(backend.report().within(self.limits)))
        return backend

    def _start_ended(self, starting: asyncio.Task[Backend]) -> None:
        self._starting = None
        if not starting.cancelled():
            self.failed = time.monotonic() if starting.exception() is not None else None  # the caller got the exception

    def _check_loop(self) -> None:
        running = asyncio.get_running_loop()
        if self._loop is not None and self._loop.is_closed():  # closed without us; our backend died with its loop
            self._loop = self._backend = self._starting = None
            self._places = self._new_places()
            self._kept = KeptInterpreters(self._end)
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise RuntimeError(
                "sandboxes belong to the event loop of their server, and this is another one. Write the tool as a "
                "coroutine (async def), or in a plain function: blocking(open_sandbox())"
            )


_of_loops: dict[asyncio.AbstractEventLoop, Provider] = {}
"""Providers for code that runs neither in a server nor inside `async with Provider()`."""


async def open_sandbox(
    limits: Limits | None = None, profile: Profile = "plain", *, files: Files | None = None
) -> Sandbox:
    """Open a sandbox; the caller closes it. Without `limits` it has those that the operator set.

    `files` are in its workspace when it opens: text, bytes, or the host's path of a file or a folder. Files of the host
    keep their owner's mode bits: an executable or read-only file stays executable or read-only.
    """
    sandbox = await _here().open(limits, profile)
    if files is not None:
        try:
            await supply(sandbox, files)
        except BaseException:
            await sandbox.close()
            raise
    return sandbox


def open_once(limits: Limits | None = None, profile: Profile = "plain") -> AbstractAsyncContextManager[Sandbox]:
    """For `async with`: a sandbox for one piece of work. The caller does not wait for the sandbox's end."""
    return _here().open_once(limits, profile)


def interpreter_once(
    limits: Limits | None = None, profile: Profile = "plain"
) -> AbstractAsyncContextManager[Interpreter]:
    """The same for a single piece of Python."""
    return _here().interpreter_once(limits, profile)


def interpreter_again(profile: Profile = "plain") -> AbstractAsyncContextManager[Interpreter]:
    """The same for trusted code that leaves nothing behind, such as a test: one interpreter serves many."""
    return _here().interpreter_again(profile)


async def execute(code: str, *, timeout: float | None = None, limits: Limits | None = None) -> Executed:
    """Run a piece of Python once, in a fresh sandbox that is used for nothing else.

    The sandbox has the smallest profile that has loaded what the code imports.
    """
    async with interpreter_once(limits, profiles.smallest(code)) as interpreter:
        return await interpreter.exec(code, timeout=timeout)


async def close_sandboxes() -> None:
    """In a script: end what `open_sandbox` started on this event loop. A server does that itself."""
    if (provider := _of_loops.pop(asyncio.get_running_loop(), None)) is not None:
        await provider.close()


def usual_limits() -> Limits:
    """The operator's limits, to start from: `replace(usual_limits(), wall_seconds=60)`."""
    provider = provided()
    return Limits() if provider is None else provider.limits


def in_force() -> Report | None:
    """The isolation of the sandboxes here; None before the first sandbox."""
    provider = provided()
    return None if provider is None else provider.report


def provided() -> Provider | None:
    """The provider of this context, if there is one."""
    found = here.get()
    return found if isinstance(found, Provider) else None


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """For plain functions, which a server runs in threads: `box = blocking(open_sandbox())`, `blocking(box.exec(…))`.

    The server's event loop does the work, and this thread waits for it.
    """
    provider = provided()
    loop = None if provider is None else provider.loop
    try:
        if loop is None:
            raise RuntimeError("there is no server here to do this; in a script, use asyncio.run(…)")
        if _is_on_a_loop():
            raise RuntimeError("this would block an event loop: write `await` instead of `blocking`")
    except RuntimeError:
        work.close()
        raise
    return asyncio.run_coroutine_threadsafe(work, loop).result()


async def _interpreter(backend: Backend, limits: Limits, profile: Profile) -> Interpreter:
    if isinstance(backend, Interpreting):
        return await backend.open_interpreter(limits, profile=profile)
    return await backend.open(limits, profile=profile)


def _give_back(places: Places | None) -> None:
    if places is not None:
        places.give_back()


def described(report: Report) -> str:
    """The isolation in one line."""
    layers = "; ".join(f"{layer}: {how}" for layer, how in report.layers.items())
    missing = ", ".join(one.feature for one in report.missing)
    return f"sandboxes: {report.backend}, isolation {report.level} ({layers})" + f", without {missing}" * bool(missing)


def _here() -> Provider:
    if (provider := provided()) is not None:
        return provider
    for ended in [loop for loop in _of_loops if loop.is_closed()]:
        del _of_loops[ended]
    return _of_loops.setdefault(asyncio.get_running_loop(), Provider())


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
