"""Serves an application with uvicorn: opens ports, bounds connections, and lets calls end before connections do."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import uvicorn
from starlette.types import ASGIApp

from toolyard.connections import ConnectionLimits, Connections, most_connections
from toolyard.core.counting import counted
from toolyard.http_protocol import GatheringProtocol
from toolyard.runtime.runtime import Runtime
from toolyard.settings import Settings, SettingsError, is_loopback, variable_of
from toolyard.web_socket import NO_UPGRADES, Upgrades

log = logging.getLogger("toolyard.server")

_FILES_MOST = 2**20
"""The most files that Linux lets a process open, even without a limit."""


def listen_all(host: str, port: int, count: int, flag: str = "--port") -> Sequence[socket.socket]:
    """A socket for each gateway, all on the same port: the kernel spreads connections over them."""
    first = listen(host, port, flag=flag)  # not shared, so that this fails if another server has the port
    if count == 1:
        return [first]
    port = first.getsockname()[1]
    first.close()
    return [listen(host, port, shared=True, flag=flag) for _ in range(count)]


def listen(
    host: str, port: int, *, shared: bool = False, flag: str = "--port", is_setting: bool = True
) -> socket.socket:
    """Open the port. Raises `SettingsError`, with advice, if that fails. A setting has a variable beside its flag."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        opened.bind((host, port))
        opened.listen(2048)
    except (OSError, UnicodeError) as error:
        opened.close()
        choice = f"{flag} or {variable_of(flag[2:].replace('-', '_'))}" if is_setting else flag
        asked = "Only root may use this port." if isinstance(error, PermissionError) else "Is another server using it?"
        raise SettingsError(
            f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}. "
            f"{asked} Choose another with {choice}; {flag} 0 takes any free one"
        ) from None
    return opened


def are_local(sockets: Sequence[socket.socket]) -> bool:
    """Whether programs of this machine, browsers among them, can connect to the sockets, and other machines cannot.

    Sockets of other families, such as those with a path, do not count: no browser can connect to them.
    """
    reached = [opened for opened in sockets if opened.family in (socket.AF_INET, socket.AF_INET6)]
    return bool(reached) and all(is_loopback(opened.getsockname()[0]) for opened in reached)


class SecondPort(NamedTuple):
    """Another application that the same process serves."""

    config: uvicorn.Config
    sockets: Sequence[socket.socket]


def config_of(app: ASGIApp, settings: Settings, upgrades: Upgrades, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_of(settings, upgrades),
        ws="none",  # connections upgrade themselves
        ws_max_size=settings.body_bytes,
        ws_ping_interval=settings.ping_seconds,
        ws_ping_timeout=settings.idle_seconds,  # a client that computes for long answers no pings meanwhile
        ws_per_message_deflate=False,  # it costs more than it saves: memory for each socket, time for each message
        lifespan=lifespan,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=10,  # for answers under way; what takes long has been drained before
        log_config=None,
    )


def protocol_of(settings: Settings, upgrades: Upgrades = NO_UPGRADES) -> type[asyncio.Protocol]:
    """The factory of connections, all of which share their limits.

    With a port for agents, each port has half: agents that open many connections leave trainers theirs.
    """
    limits = settings.pick(ConnectionLimits)
    if settings.agent_port is not None:
        most = most_connections(limits.max_connections)
        limits = replace(limits, max_connections=max(most // 2, 1), bodies_bytes=max(limits.bodies_bytes // 2, 1))
    made = partial(GatheringProtocol, everyone=Connections(limits), upgrades=upgrades)
    return cast(type[asyncio.Protocol], made)  # uvicorn only calls it


def tune_process() -> None:
    """Tune a process that only serves: raise its limit of open files, and let the garbage collector run less often and
    on fewer objects."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, _FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    gc.collect()
    gc.freeze()  # all that is loaded now stays for ever
    gc.set_threshold(50_000, 20, 20)  # sessions come and go by the thousand, and few are part of a cycle


class DrainingServer(uvicorn.Server):
    """Lets calls end and closes sessions while clients are still connected, so that each gets the result of its call.

    It calls `prepare` before the lifespan: uvicorn does not raise errors of the lifespan to the caller of `run`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        second: SecondPort,
        *,
        runtime: Runtime,
        prepare: Callable[[], Awaitable[None]],
        on_start: Callable[[], None],
        drain: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(config)
        self._second = second
        self._runtime = runtime
        self._prepare = prepare
        self._on_start = on_start
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._prepare()
        await super().startup(sockets)
        await self._listen_on_second()
        self._on_start()

    async def _listen_on_second(self) -> None:
        config, sockets = self._second
        config.load()
        connected = self._connected(config)
        for opened in sockets:  # uvicorn closes what is among its servers
            server = await asyncio.get_running_loop().create_server(connected, sock=opened, backlog=config.backlog)
            self.servers.append(server)

    def _connected(self, config: uvicorn.Config) -> Callable[[], asyncio.Protocol]:
        """The factory of protocols for new connections."""
        made = cast(Callable[..., asyncio.Protocol], config.http_protocol_class)
        return partial(made, config=config, server_state=self.server_state, app_state=self.lifespan.state)

    def adopt(self, opened: socket.socket, head: bytes) -> None:
        """Go on with a connection that another gateway has accepted. `head` are the bytes it has read."""
        self._runtime.shared.background.start(self._adopt(opened, head))

    async def _adopt(self, opened: socket.socket, head: bytes) -> None:
        opened.setblocking(False)
        try:
            made = await asyncio.get_running_loop().connect_accepted_socket(self._connected(self.config), opened)
        except OSError as error:  # the client has gone
            opened.close()
            log.debug("a connection from another gateway is over already: %s", error)
            return
        made[1].data_received(head)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        calls, seconds = self._runtime.calls, self._runtime.limits.drain_seconds
        sessions = len(self._runtime.sessions)
        log.info("stopping: %s running, %s open", counted(calls, "call"), counted(sessions, "session"))
        if calls:
            log.info(
                "waiting up to %g s for calls to end (--drain-seconds); a second Ctrl-C stops them at once", seconds
            )
        draining = asyncio.ensure_future(self._drain())
        told = False
        while not draining.done():
            if self.force_exit:  # a second interrupt: do not wait for calls any longer
                if not told and self._runtime.calls:
                    log.info("stopping %s; sessions are still torn down", counted(self._runtime.calls, "call"))
                    told = True
                self._runtime.stop_calls()
            await asyncio.wait((draining,), timeout=0.1)
        self.force_exit = False  # every session is closed, and the rest takes no time
        await super().shutdown(sockets)
        if self.force_exit:  # an interrupt since then: uvicorn has left the application as it was
            await self.lifespan.shutdown()
        for connection in list(self.server_state.connections):  # clients that did not read their answer in that time
            connection.transport.abort()
        await asyncio.sleep(0)
