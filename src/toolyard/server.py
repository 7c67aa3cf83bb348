"""`Server`: joins all parts. Environments in, one ASGI application out."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from toolyard import logs
from toolyard.adapters import adapt, session_toolsets, with_tools
from toolyard.asgi import Door, HttpOptions, Within
from toolyard.connections import open_files
from toolyard.core.environment import Environment, needs_sandbox
from toolyard.core.errors import DefinitionError
from toolyard.core.meaning import MeaningModel
from toolyard.core.search import use_model
from toolyard.episodes.recorder import Recorder, RecordOptions
from toolyard.episodes.schema import connect
from toolyard.gate import Allowed, Gate
from toolyard.gateways.elsewhere import Elsewhere
from toolyard.gateways.several import Several
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
from toolyard.serving import DrainingServer, SecondPort, are_local, config_of, listen_all, tune_process
from toolyard.settings import Settings, SettingsError, is_loopback, unknown_variables
from toolyard.studio.parts import Options as StudioOptions
from toolyard.studio.route import Studio
from toolyard.tools.data_files import use_data_dirs
from toolyard.tools.environment import named_toolsets
from toolyard.tools.offered import workable
from toolyard.tools.sandboxed import SandboxedToolset
from toolyard.web_socket import NO_UPGRADES, Upgrades

log = logging.getLogger("toolyard.server")


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
        part = self.settings.part()
        with using(Installation.at(self.settings.sandbox_python)):
            environments = with_tools(environments, named_toolsets(self.settings.tools)) + apis_of(self.settings)
            if not environments:
                raise DefinitionError("there is no environment to serve")
            self.environments: Sequence[type[Environment]] = [workable(adapt(each)) for each in environments]
            offered = [*session_toolsets(environments), *toolsets]
            hidden = hidden_by([*self.environments, *offered])
            self._placement = placement_of(part, self.environments, offered)
        model = loaded_model(self.settings)  # before any fork, so that processes share it
        self.runtime = Runtime(self.environments, self._placement, part.pick(Limits), toolsets=offered)
        self.sandboxes = sandboxes_of(part, ready=part.sandboxes_ready, hidden=hidden)
        self.runtime.at_start.append(self.sandboxes.enter)
        self._needs_sandbox = any(map(needs_sandbox, [*environments, *offered]))
        self.protocols = protocols_of(self.settings, runs_code=self._needs_sandbox)
        options = part.pick(HttpOptions)
        routes = routes_of(self.protocols, self.runtime, part)
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
        self._uvicorn: DrainingServer | None = None

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
        self._uvicorn = DrainingServer(
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
        if (model := loaded_model(part)) is not None:
            use_model(model)
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


def loaded_model(settings: Settings) -> MeaningModel | None:
    load = model_of(settings)
    return load() if load is not None else None


def data_dirs_of(settings: Settings) -> Sequence[str]:
    """The folders as absolute paths, because workers start elsewhere. Nodes of a cluster may have other folders."""
    for folder in settings.data_dir:
        if settings.placement != "ray" and not os.path.isdir(folder):
            raise SettingsError(f"data_dir is {folder!r}, and there is no such directory")
    return [os.path.abspath(folder) for folder in settings.data_dir]


def placement_of(settings: Settings, environments: Sequence[type[Environment]], toolsets: Sequence[type]) -> Placement:
    if settings.placement == "local":
        return LocalPlacement(settings.threads)
    elsewhere = settings.placement == "ray"  # on another machine, the same classes may have other paths
    python = python_of(settings)
    provider = provider_of(settings, at_once=places_in_actor(settings) if elsewhere else settings.sandboxes_at_once)
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


def provider_of(settings: Settings, *, at_once: int) -> partial[Provider]:
    """How workers make their provider of sandboxes. It holds plain values, because they may be on other machines."""
    return partial(
        Provider,
        settings.sandbox,
        settings.min_isolation,
        limits=settings.sandbox_limits(),
        image=settings.sandbox_image,
        at_once=at_once,
        python=python_of(settings),
        allow_visible_source=settings.allow_visible_source,
    )


def python_of(settings: Settings) -> str:
    """The Python of sandboxes, by an absolute path: workers start elsewhere."""
    return settings.sandbox_python and os.path.abspath(os.path.expanduser(settings.sandbox_python))


def sandboxes_of(settings: Settings, *, ready: int = 0, hidden: Sequence[Path] = ()) -> Provider:
    """The provider of sandboxes of this process."""
    make = provider_of(settings, at_once=settings.sandboxes_at_once)
    return make(ready=ready, share=settings.gateways, hidden=hidden)


def door_of(tokens: Tokens, runtime: Runtime, settings: Settings) -> AgentDoor:
    """The door that the tokens open, with MCP behind it."""
    tokens.door.face = mcp.ForAgents(runtime, settings.pick(mcp.Options), own=OWN, most=MOST)
    return tokens.door


def routes_of(protocols: Iterable[str], runtime: Runtime, settings: Settings) -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    for name in protocols:
        module = importlib.import_module(PROTOCOLS[name])
        routes += module.routes(runtime, settings.pick(module.Options))
    for route in routes:
        if isinstance(route, OpenEnv):
            route.tasks = Ors(runtime, settings.pick(HttpOptions))
    return routes
