"""`Server`: joins all parts. Environments in, one ASGI application out."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import resource
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from toolyard import logs
from toolyard.adapters import adapt, session_toolsets, with_tools
from toolyard.asgi import Door, HttpOptions, Within
from toolyard.connections import ConnectionLimits, Connections, most_connections, open_files
from toolyard.core.counting import counted
from toolyard.core.environment import Environment, needs_sandbox
from toolyard.core.errors import DefinitionError
from toolyard.core.meaning import MeaningModel
from toolyard.core.search import use_model
from toolyard.episodes.recorder import Recorder, RecordOptions
from toolyard.episodes.schema import connect
from toolyard.gate import Allowed, Gate
from toolyard.gateways.elsewhere import Elsewhere
from toolyard.gateways.several import Several
from toolyard.http_protocol import GatheringProtocol
from toolyard.placement.base import Placement
from toolyard.placement.fork_server import ProcessLimits
from toolyard.placement.local import LocalPlacement
from toolyard.placement.process import PoolPlacement, ProcessPlacement
from toolyard.placement.worker_side import Served
from toolyard.protocols import ALWAYS, PROTOCOLS, RUN_CODE, mcp
from toolyard.protocols.agent.door import MOST, OWN, AgentDoor
from toolyard.protocols.agent.tokens import Tokens
from toolyard.protocols.openenv import OpenEnv
from toolyard.protocols.ors import Ors
from toolyard.runtime.limits import Limits
from toolyard.runtime.runtime import Runtime, by_name
from toolyard.sandboxes.hidden import hidden_by
from toolyard.sandboxes.installation import Installation, here, using
from toolyard.sandboxes.places import PER_PROCESSOR
from toolyard.sandboxes.provider import Provider
from toolyard.settings import Settings, SettingsError, is_loopback, unknown_variables, variable_of
from toolyard.studio.parts import Options as StudioOptions
from toolyard.studio.route import Studio
from toolyard.tools.data_files import use_data_dirs
from toolyard.tools.environment import named_toolsets
from toolyard.tools.offered import workable
from toolyard.tools.sandboxed import SandboxedToolset
from toolyard.web_socket import NO_UPGRADES, Upgrades

log = logging.getLogger("toolyard.server")

_FILES_MOST = 2**20
"""The most files that Linux lets a process open, even without a limit."""


class Server:
    """Serves environments: `Server([Env]).run(port=8080)`, or hand `.app` to any ASGI server.

    Environments may be ours, or classes written for `ors`, `openreward` or verl-tool. A client may ask for one of
    `toolsets` by name when it opens a session. `studio=False` leaves out the pages for people.
    """

    def __init__(
        self,
        environments: Sequence[type],
        *,
        toolsets: Sequence[type] = (),
        settings: Settings | None = None,
        studio: bool | None = None,
    ) -> None:
        self.settings = settings or Settings.read({})
        if studio is not None:
            self.settings = replace(self.settings, studio=studio)
        if isinstance(environments, type):
            raise DefinitionError(f"Server takes a list of classes; write Server([{environments.__name__}])")
        python = Installation.at(self.settings.sandbox_python)
        with using(python):
            environments = with_tools(environments, named_toolsets(self.settings.tools))
        environments += apis_of(self.settings)
        if not environments:
            raise DefinitionError("there is no environment to serve")
        with using(python):
            self.environments: Sequence[type[Environment]] = [workable(adapt(each)) for each in environments]
        offered = [*session_toolsets(environments), *toolsets]
        load = model_of(self.settings)
        model = load() if load is not None else None  # before any fork, so that processes share it
        part = self.settings.part()
        with using(python):
            hidden = hidden_by([*self.environments, *offered])
            self._placement = placement_of(part, self.environments, offered)
        self.runtime = Runtime(self.environments, self._placement, part.pick(Limits), toolsets=offered)
        self.sandboxes = sandboxes_of(part, ready=part.sandboxes_ready, hidden=hidden)
        self.runtime.at_start.append(self.sandboxes.enter)
        self._needs_sandbox = any(map(needs_sandbox, [*environments, *offered]))
        self.protocols = protocols_of(self.settings, runs_code=self._needs_sandbox)
        options = part.pick(HttpOptions)
        routes = [route for protocol in self.protocols for route in routes_of(protocol, self.runtime, part)]
        for route in routes:
            if isinstance(route, OpenEnv):
                route.tasks = Ors(self.runtime, options)
        self.studio = Studio(self.runtime, part.pick(StudioOptions), [*routes]) if part.studio else None
        if self.studio is not None:
            routes.insert(0, self.studio)
        enter = partial(here.set, self.sandboxes)
        self._tokens = next((route for route in routes if isinstance(route, Tokens)), None)
        behind = [door_of(self._tokens, self.runtime, part)] if self._tokens is not None else []
        """The routes behind the agents' door."""
        self._elsewhere = [Elsewhere(routes, options), Elsewhere(behind, options)]
        first = [[one] if part.gateways > 1 else [] for one in self._elsewhere]
        agents = Door([*first[1], *behind], self._lifespan, replace(options, api_key=""), enter)
        door = Door([*first[0], *routes], self._lifespan, options, enter, agents if behind else None)
        self._upgrades = Upgrades(lambda path: door.socket_route(path) is not None, self._elsewhere[0].give)
        self._gate = Gate(door, options, part.pick(Allowed))
        within = partial(around, model=model, folders=data_dirs_of(part))
        self.app: ASGIApp = within(self._gate)
        self.agent_app: ASGIApp = within(Gate(agents, options, Allowed(allow_origin=part.allow_origin)))
        """The application of the agents' port: nothing but the agents' door."""
        self.recorder = recorder_of(part)
        self._uvicorn: _DrainingFirst | None = None

    def run(self, host: str | None = None, port: int | None = None) -> None:
        """Serve until interrupted."""
        settings = self.settings
        host = settings.host if host is None else host
        port = settings.port if port is None else port
        logs.configure(settings.log_format, settings.log_level)
        if not (is_loopback(host) or settings.api_key or settings.allow_anonymous):
            log.warning("%s can be reached from other machines, and no key is asked for", host)
        if settings.sandbox_network == "host" and not (settings.api_key or settings.allow_anonymous):
            log.warning("programs in sandboxes have this host's network: they reach this server, which asks for no key")
        sockets = listen_all(host, port, settings.gateways)
        served, port = ", ".join(self.runtime.environments), sockets[0].getsockname()[1]  # port 0 means a free one
        tune_process()
        try:
            self.serve(*sockets, on_start=partial(log.info, "serving %s on http://%s:%d", served, host, port))
        except KeyboardInterrupt:  # uvicorn raises it again when all is torn down; there is no more to say
            log.info("stopped")

    def serve(self, *sockets: socket.socket, on_start: Callable[[], None] = lambda: None) -> None:
        """Serve on sockets that are already open. Raises `SandboxUnavailable`, before it answers any request, if an
        environment needs a better sandbox than this host has.

        With several gateways, call this in the main thread, and while there is no other thread.
        """
        for warning in unknown_variables(os.environ):
            log.warning("%s", warning)
        if (most := self.settings.part().max_connections) >= (files := open_files()):
            log.warning(
                "max_connections lets a process have %d connections, but ulimit -n lets it have %d open files",
                *(most, files),
            )
        for_agents = self._listen_for_agents()
        try:
            if self.settings.gateways == 1:
                self._serve_here(sockets, for_agents, on_start, self.runtime.drain)
            else:
                self._serve_in_several(sockets, for_agents, on_start)
        finally:
            for opened in for_agents:
                opened.close()

    @property
    def agent_port(self) -> int | None:
        """The port for agents alone, while the server runs; None if there is none."""
        return self._tokens.port if self._tokens is not None else None

    def _listen_for_agents(self) -> Sequence[socket.socket]:
        settings = self.settings
        if settings.agent_port is None:
            return ()
        assert self._tokens is not None
        host = settings.agent_host or settings.host
        opened = listen_all(host, settings.agent_port, settings.gateways, "--agent-port")
        self._tokens.port = opened[0].getsockname()[1]
        return opened

    def _serve_in_several(
        self, sockets: Sequence[socket.socket], for_agents: Sequence[socket.socket], on_start: Callable[[], None]
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SettingsError("several gateways can only be started from the main thread of a process")
        settings = self.settings
        patience = settings.drain_seconds + settings.teardown_seconds
        several = Several(settings.gateways, [sockets, for_agents], api_key=settings.api_key, patience=patience)

        def live(number: int, ready: Callable[[], None]) -> None:
            gateway, (mine, mine_for_agents) = several.become(number)
            for one in self._elsewhere:
                one.join(gateway)
            self.runtime.owners = gateway.owners

            def on_start() -> None:
                assert self._uvicorn is not None
                gateway.start(self.app, self._uvicorn.adopt)
                ready()

            async def drain() -> None:
                await self.runtime.drain()
                await several.drained()

            self._serve_here(mine, mine_for_agents, on_start, drain)

        several.run(live, on_start)

    def _serve_here(
        self,
        sockets: Sequence[socket.socket],
        for_agents: Sequence[socket.socket],
        on_start: Callable[[], None],
        drain: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        settings = self.settings.part()
        config = config_of(self.app, settings, self._upgrades, lifespan="on")
        second = SecondPort(config_of(self.agent_app, settings, NO_UPGRADES, lifespan="off"), for_agents)
        if not self.settings.api_key and are_local(sockets):
            self._gate.require_known_host()
        self._placement.prepare()
        self._uvicorn = _DrainingFirst(
            config, second, runtime=self.runtime, prepare=self._start_sandboxes, on_start=on_start, drain=drain
        )
        self._uvicorn.run(sockets=list(sockets))

    def stop(self) -> None:
        """Call this from another thread: drain, tear down, and let `serve` return."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[Runtime]:
        """Sessions without a port, for programs that open them themselves."""
        part = self.settings.part()
        load = model_of(part)
        if load is not None:
            use_model(load())
        use_data_dirs(data_dirs_of(part))
        async with self._lifespan():
            yield self.runtime

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        self._placement.prepare()
        try:
            await self._start_sandboxes()
            with logs.following(self.runtime.journal), self._recording():
                async with self.runtime.running():
                    self.runtime.shared.background.start(self._warm_up())
                    yield
        finally:
            await self.sandboxes.close()
            await self._placement.stop()

    def _recording(self) -> AbstractContextManager[None]:
        return self.recorder.recording(self.runtime.journal) if self.recorder is not None else nullcontext()

    async def _start_sandboxes(self) -> None:
        """Start sandboxes now if an environment needs them. Otherwise the first session that uses one waits for it."""
        self.sandboxes.enter()
        if self._needs_sandbox:
            await self.sandboxes.start()

    async def _warm_up(self) -> None:
        """Prepare the profiles of sandboxes that tools use, while the server already answers requests."""
        toolsets = [toolset for environment in self.environments for toolset in environment.toolsets]
        wanted = {toolset.profile for toolset in toolsets if issubclass(toolset, SandboxedToolset)}
        for profile in sorted(wanted - {"plain"}):
            await self.sandboxes.warm(profile)


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


class _DrainingFirst(uvicorn.Server):
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


def listen_all(host: str, port: int, count: int, flag: str = "--port") -> Sequence[socket.socket]:
    """A socket for each gateway, all on the same port: the kernel spreads connections over them."""
    first = listen(host, port, flag=flag)  # not shared, so that this fails if another server has the port
    if count == 1:
        return [first]
    port = first.getsockname()[1]
    first.close()
    return [listen(host, port, shared=True, flag=flag) for _ in range(count)]


def listen(host: str, port: int, *, shared: bool = False, flag: str = "--port") -> socket.socket:
    """Open the port. Raises `SettingsError`, with advice, if that fails."""
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
        variable = variable_of(flag[2:].replace("-", "_"))
        asked = "Only root may use this port." if isinstance(error, PermissionError) else "Is another server using it?"
        raise SettingsError(
            f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}. "
            f"{asked} Choose another with {flag} or {variable}; {flag} 0 takes any free one"
        ) from None
    return opened


def are_local(sockets: Sequence[socket.socket]) -> bool:
    """Whether programs of this machine, browsers among them, can connect to the sockets, and other machines cannot.

    Sockets of other families, such as those with a path, do not count: no browser can connect to them.
    """
    reached = [opened for opened in sockets if opened.family in (socket.AF_INET, socket.AF_INET6)]
    return bool(reached) and all(is_loopback(opened.getsockname()[0]) for opened in reached)


def around(app: ASGIApp, *, model: MeaningModel | None, folders: Sequence[str]) -> ASGIApp:
    """The application, with the model and the folders set for all code that runs in it."""
    if model is not None:
        app = Within(app, partial(use_model, model))
    return Within(app, partial(use_data_dirs, folders)) if folders else app


def protocols_of(settings: Settings, *, runs_code: bool) -> Sequence[str]:
    """The protocols that the settings name; or all, without those that run code unless the server runs code anyway."""
    for name in settings.protocol:
        if name not in PROTOCOLS:
            raise SettingsError(f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}")
    usual = [name for name in PROTOCOLS if runs_code or name not in RUN_CODE]
    wanted = {*(settings.protocol or usual), *ALWAYS}
    if settings.agent_port is not None:
        wanted.add("agent")
    return [name for name in PROTOCOLS if name in wanted]


def apis_of(settings: Settings) -> list[type]:
    if not settings.apis:
        return []  # importing them takes memory, and a tenth of the time to start
    module = importlib.import_module("toolyard.tools.apis.environment")
    found = module.api_environment(settings.apis, base_url=settings.api_base_url, keys=settings.api_keys)
    return [] if found is None else [found]


def model_of(settings: Settings) -> Callable[[], MeaningModel] | None:
    """The function that loads the model for tool search, once for each process. It is an extra, and takes memory."""
    if settings.retrieval == "words":
        return None
    load: Callable[[], MeaningModel] = importlib.import_module("toolyard.embeddings").word_vectors
    return load


def data_dirs_of(settings: Settings) -> Sequence[str]:
    """The folders as absolute paths, because workers start elsewhere. Nodes of a cluster may have other folders."""
    for folder in settings.data_dir:
        if settings.placement != "ray" and not os.path.isdir(folder):
            raise SettingsError(f"data_dir is {folder!r}, and there is no such directory")
    return [os.path.abspath(folder) for folder in settings.data_dir]


def placement_of(settings: Settings, environments: Sequence[type[Environment]], toolsets: Sequence[type]) -> Placement:
    if settings.placement == "local":
        return LocalPlacement(settings.threads)
    # The following may be sent to other machines, so it holds plain values and not the settings.
    python = settings.sandbox_python and os.path.abspath(os.path.expanduser(settings.sandbox_python))
    provider = partial(
        Provider,
        settings.sandbox,
        settings.min_isolation,
        limits=settings.sandbox_limits(),
        image=settings.sandbox_image,
        at_once=places_in_actor(settings) if settings.placement == "ray" else settings.sandboxes_at_once,
        python=python,
        allow_visible_source=settings.allow_visible_source,
    )
    elsewhere = settings.placement == "ray"  # on another machine, the same classes may have other paths
    hides = partial(hidden_by, [*environments, *toolsets], missing_ok=elsewhere)
    hidden = hides()
    load = model_of(settings)
    folders = data_dirs_of(settings)

    def enter() -> None:
        use_data_dirs(folders)
        if load is not None:
            use_model(load())
        with using(Installation.at(python)):
            found = [*hidden, *hides()] if elsewhere else hidden
        provider(hidden=found).enter()

    served = Served(by_name(environments), {toolset.__name__: toolset for toolset in toolsets}, settings.threads, enter)
    limits = ProcessLimits(settings.process_memory_bytes, settings.process_cpu_seconds)
    if settings.placement == "process":
        return ProcessPlacement(served, limits)
    if settings.placement == "ray":
        return ray_placement(served, limits, settings)
    return PoolPlacement(served, limits, size=settings.pool_processes)


def ray_placement(served: Served, limits: ProcessLimits, settings: Settings) -> Placement:
    """The placement on Ray. Ray is an extra and takes a while to load, so it is imported only for this placement."""
    ray = importlib.import_module("toolyard.placement.ray")
    inside = ray.Inside(settings.ray_inside, limits, settings.pool_processes)
    placement: Placement = ray.RayPlacement(
        served, ray.RayOptions(inside, settings.ray_address, settings.ray_actors, settings.ray_cpus)
    )
    return placement


def places_in_actor(settings: Settings) -> int:
    """How many sandboxes one actor makes at once; 0: the default of its node."""
    if settings.sandboxes_at_once or settings.ray_actors == 1 or settings.ray_inside != "local":
        return settings.sandboxes_at_once
    return PER_PROCESSOR  # there is an actor for each processor


def recorder_of(settings: Settings) -> Recorder | None:
    """The recorder, if the settings name a file. Raises `StoreError` at once if the file cannot be used."""
    if not settings.record:
        return None
    settings = replace(settings, record=os.path.abspath(settings.record))
    connect(Path(settings.record), create=True).close()
    return Recorder(settings.pick(RecordOptions))


def sandboxes_of(settings: Settings, *, ready: int = 0, hidden: Sequence[Path] = ()) -> Provider:
    return Provider(
        settings.sandbox,
        settings.min_isolation,
        limits=settings.sandbox_limits(),
        ready=ready,
        image=settings.sandbox_image,
        at_once=settings.sandboxes_at_once,
        share=settings.gateways,
        python=settings.sandbox_python,
        hidden=hidden,
        allow_visible_source=settings.allow_visible_source,
    )


def door_of(tokens: Tokens, runtime: Runtime, settings: Settings) -> AgentDoor:
    """The door that the tokens open, with MCP behind it."""
    tokens.door.face = mcp.ForAgents(runtime, settings.pick(mcp.Options), own=OWN, most=MOST)
    return tokens.door


def routes_of(protocol: str, runtime: Runtime, settings: Settings) -> list[BaseRoute]:
    module = importlib.import_module(PROTOCOLS[protocol])
    routes: list[BaseRoute] = module.routes(runtime, settings.pick(module.Options))
    return routes
