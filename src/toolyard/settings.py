"""Every setting once, with its help. Flags, TOOLYARD_* variables and the reference page come from this class."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from toolyard.core.errors import ToolyardError
from toolyard.core.nearness import did_you_mean
from toolyard.sandboxes.base import Level, Network
from toolyard.sandboxes.base import Limits as SandboxLimits

T = TypeVar("T")

_HOST = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?", re.ASCII)
_ORIGIN = re.compile(r"file://|[A-Za-z][A-Za-z0-9+.-]*://" + _HOST.pattern, re.ASCII)

_ORIGIN_WITH_PATH = re.compile(r"https?://" + _HOST.pattern + r"(/[A-Za-z0-9._~/-]*)?", re.ASCII)

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZES = "a number of bytes, or a size such as 512M or 2G"

_SANDBOX = SandboxLimits(output_bytes=2**20)


class SettingsError(ToolyardError):
    """A setting has an invalid value; the message says which, and what to write instead."""


def knob(default: T, help: str, *, zero: bool = False, divided: bool = False) -> T:
    """A setting. A number must be more than 0, unless `zero` says that 0 has a meaning. A `divided` number is for the
    whole server: several gateways share it in equal parts."""
    made: T = field(default=default, metadata={"help": help, "zero": zero, "divided": divided})
    return made


@dataclass(frozen=True, slots=True)
class Settings:
    # Where
    host: str = knob("127.0.0.1", "address to listen on; anything but loopback needs --api-key or --allow-anonymous")
    port: int = knob(8080, "port to listen on; 0 picks a free one", zero=True)
    gateways: int = knob(1, "processes that share the port; any of them answers for all sessions")
    protocol: tuple[str, ...] = knob((), "serve only this protocol, at the root (repeatable; default: all of them)")
    # What
    tools: str = knob("", "serve these built-in tools, separated by commas, as an environment called toolbox")
    apis: str = knob(
        "", "files and folders, separated by commas, that describe HTTP APIs: their operations become tools of `apis`"
    )
    api_base_url: str = knob(
        "", "base URL of those APIs, if not the one in their description: URL, or NAME=URL,NAME=URL"
    )
    api_keys: str = knob("", "a JSON file with the keys of those APIs")
    data_dir: tuple[str, ...] = knob(
        (), "directory of the server below which a trainer may name files, such as `db_path` for sql (repeatable)"
    )
    retrieval: Literal["words", "embeddings"] = knob(
        "words", "how a search finds tools: by words, or also by meaning (extra `embeddings`)"
    )
    # Where sessions live
    placement: Literal["local", "process", "pool", "ray"] = knob(
        "local",
        "where sessions live: in this process, in a process each, in a pool of processes, or on a Ray cluster",
    )
    pool_processes: int = knob(0, "processes of the pool; 0: one for each processor", zero=True, divided=True)
    process_memory_bytes: int = knob(0, "memory of one process with sessions, beside what is loaded; 0: any", zero=True)
    process_cpu_seconds: float = knob(0, "processor time of one process with sessions; 0: any", zero=True)
    ray_address: str = knob(
        "", "Ray cluster: auto for the one of this machine, or its address; empty starts one here, for this server"
    )
    ray_actors: int = knob(
        0,
        "actors on each node of the cluster; 0: one for each processor, or just one if its sessions have processes",
        zero=True,
    )
    ray_cpus: float = knob(0, "processors that Ray reserves for an actor, unless its environment says", zero=True)
    ray_inside: Literal["local", "process", "pool"] = knob("local", "where sessions live in an actor, as --placement")
    # Who
    api_key: str = knob("", "key that clients must send, as X-API-Key or as Authorization: Bearer")
    allow_anonymous: bool = knob(
        False,
        "ask for no key although others can reach the server: on a non-loopback address, or from sandboxes with "
        "--sandbox-network host",
    )
    allow_host: tuple[str, ...] = knob(
        (),
        "a name, or name:port, by which clients reach this server (repeatable); needed beside loopback names where no "
        "key is asked for on loopback, and once given, no other name is answered",
    )
    allow_origin: tuple[str, ...] = knob(
        (), "let web pages of this origin, such as http://localhost:6274, use this server (repeatable)"
    )
    # Agents
    agent_port: int | None = knob(
        None,
        "a second port, for agents alone, which needs no key: it has nothing but /agent/; 0 picks a free one",
        zero=True,
    )
    agent_host: str = knob("", "address of the agents' port; without it, that of --host")
    agent_url: str = knob("", "base of the URLs for agents, if they reach this server by another address than trainers")
    agent_token_seconds: float = knob(
        86_400, "an agent's token is good for this long, and never longer than its session"
    )
    # How long
    idle_seconds: float = knob(900, "close a session after this long without a request or a ping")
    setup_seconds: float = knob(1800, "give up on an environment's setup() after this long")
    call_seconds: float = knob(3600, "stop a tool call after this long; it is reported as timed out, with no reward")
    teardown_seconds: float = knob(30, "give up on an environment's teardown() after this long")
    drain_seconds: float = knob(30, "when the server is stopped, wait this long for running calls", zero=True)
    replay_seconds: float = knob(60, "keep a result this long for a client that lost its connection", zero=True)
    outcome_seconds: float = knob(
        600, "keep the outcome of a session for this long after its end, for GET /sessions/{id}/outcome", zero=True
    )
    ping_seconds: float = knob(10, "send a sign of life this often while a call runs")
    starting_seconds: float = knob(
        0,
        "answer 503 to a request for the prompt, the messages, or tools that only the session knows, when setup() "
        "takes longer than this; 0 lets it wait. Calls always wait, with signs of life",
        zero=True,
    )
    head_seconds: float = knob(
        30, "answer 408 to a request whose head takes longer than this; a connection that says nothing is closed"
    )
    body_seconds: float = knob(
        30, "answer 408 to a request when its body is not complete and this long brings less than 16 KiB of it"
    )
    unread_seconds: float = knob(
        120, "close a connection whose client reads less than 16 KiB of a waiting answer in this time"
    )
    keep_alive_seconds: float = knob(75, "close a connection that waits this long for its next request")
    sweep_seconds: float = knob(1.0, "look for deadlines and idle sessions this often")
    # How much
    max_sessions: int = knob(20_000, "sessions open at once; one more is answered 503 with Retry-After", divided=True)
    max_concurrent_calls: int = knob(4096, "tool calls running at once; others wait their turn", divided=True)
    max_queued_calls: int = knob(
        16_384, "tool calls waiting at once; one more is answered 503 with Retry-After", zero=True, divided=True
    )
    threads: int = knob(512, "threads, at most, for environments written with plain functions", divided=True)
    body_bytes: int = knob(16 * 2**20, "largest request body; a larger one is answered 413")
    bodies_bytes: int = knob(
        64 * 2**20, "memory for request bodies that are not complete, all together; beyond it they wait", divided=True
    )
    max_connections: int = knob(
        0,
        "connections at once; one more takes the place of one that is silent or idle, or is answered 503 with "
        "Retry-After; 0: half of the open files that each process may have",
        zero=True,
        divided=True,
    )
    output_bytes: int = knob(4 * 2**20, "longest output of a tool, in characters; the rest is cut, with a note")
    replay_bytes: int = knob(64 * 2**20, "memory for kept results, of all sessions together", zero=True, divided=True)
    # Untrusted code
    sandbox: str = knob(
        "auto",
        "what isolates untrusted code: native, bubblewrap, docker, podman, landlock, subprocess (no isolation, for "
        "development), or auto, the first that isolates well enough",
    )
    min_isolation: Level = knob(  # noqa: RUF009  # a Literal
        "L3-nolimit", "refuse to run untrusted code with less isolation than this"
    )
    sandbox_seconds: float = knob(_SANDBOX.wall_seconds, "stop a program in a sandbox after this long")
    sandbox_memory_bytes: int = knob(_SANDBOX.memory_bytes, "memory of a sandbox")
    sandbox_processes: int = knob(_SANDBOX.processes, "processes in a sandbox at once")
    sandbox_disk_bytes: int = knob(
        _SANDBOX.disk_bytes, "files in the workspace of a sandbox, all together; as much again in /tmp"
    )
    sandbox_output_bytes: int = knob(
        _SANDBOX.output_bytes, "output of a program in a sandbox; one that writes more is stopped"
    )
    sandbox_network: Network = knob(  # noqa: RUF009  # a Literal
        _SANDBOX.network, "network of a sandbox: none, its own loopback, or this host's"
    )
    sandbox_image: str = knob("", "container image for docker and podman, if not a plain one with Python")
    sandbox_python: str = knob(
        "",
        "the Python, 3.11 or newer, that code in sandboxes runs with, and whose packages it finds, as a path such as "
        "/srv/agents/bin/python; not for containers, whose image has its own. Without it, the server's",
    )
    allow_visible_source: bool = knob(
        False,
        "serve environments although programs in sandboxes can read their source and what else they hide: with "
        "--sandbox subprocess, which has no walls",
    )
    sandboxes_at_once: int = knob(
        0,
        "sandboxes that are being made, or that run one piece of code, at the same time; others wait their turn; "
        "0: 8 for each processor, and up to 32 while processors are idle",
        zero=True,
        divided=True,
    )
    sandboxes_ready: int = knob(2, "sandboxes to keep ready in advance", zero=True, divided=True)
    # verl-tool's wire
    verl_request_seconds: float = knob(
        0,
        "answer 408 to a batch that takes longer; it goes on, and the same request again finds it; 0: never",
        zero=True,
    )
    verl_repeat_seconds: float = knob(
        30,
        "keep an undelivered answer this long, for a trainer that repeats its request; 0: act again",
        zero=True,
    )
    verl_done_if_invalid: bool = knob(False, "end a trajectory whose text calls no tool")
    verl_explain_invalid: bool = knob(False, "say in the observation which tools there are when a text calls none")
    # XAgent's ToolServer
    toolserver_wait_seconds: float = knob(
        45, "answer 450 to a tool call that takes longer; the client then asks for its result, and waits as long again"
    )
    toolserver_keep_seconds: float = knob(86_400, "keep the files of a closed node this long")
    toolserver_keep_bytes: int = knob(
        8 * 2**30, "files of closed nodes, all together; beyond this, the oldest go first", divided=True
    )
    # MCP
    agent_sees_rewards: bool = knob(
        False,
        "tell agents the reward and the end of their episode, in `_meta` of MCP results and in answers below /agent/; "
        "without it, only trainers",
    )
    mcp_instructions: bool = knob(
        True, "tell MCP clients the session's prompt as the server's instructions, for hosts that show no prompts"
    )
    # What is kept
    record: str = knob(
        "",
        "record sessions in this file, to list, show and replay them; without it nothing is recorded",
    )
    record_bytes: int = knob(
        4 * 2**30, "drop the oldest episodes when that file grows beyond this; episodes of `toolyard eval` stay"
    )
    record_fraction: float = knob(1.0, "record only this share of the sessions, chosen at random")
    # How
    studio: bool = knob(True, "serve Studio, the pages for people, at /studio/, and show them to browsers that open /")
    latch_finished: bool = knob(True, "refuse tool calls after one that returned finished=True")
    errors: Literal["none", "exception", "stacktrace"] = knob(
        "exception", "how much of an unexpected exception clients see"
    )
    log_format: Literal["text", "json"] = knob("text", "how log lines are written")
    log_level: Literal["debug", "info", "warning", "error"] = knob("info", "the least severe log lines to show")

    def __post_init__(self) -> None:
        for knob_ in dataclasses.fields(self):
            value = getattr(self, knob_.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if not math.isfinite(value):
                raise SettingsError(f"{knob_.name} is {value}; it must be a finite number")
            if value < 0:
                raise SettingsError(f"{knob_.name} is {value}; it cannot be negative")
            if value == 0 and not knob_.metadata["zero"]:
                raise SettingsError(f"{knob_.name} is {value}; it must be more than 0")
        for name, port in (("port", self.port), ("agent_port", self.agent_port or 0)):
            if port > 65535:
                raise SettingsError(f"{name} is {port}; it must be from 0 to 65535")
        if self.agent_url and not _ORIGIN_WITH_PATH.fullmatch(self.agent_url):
            raise SettingsError(
                f"agent_url is {self.agent_url!r}; it must be the beginning of a URL, such as http://tools.example:8081"
            )
        for host in self.allow_host:
            if not _HOST.fullmatch(host):
                raise SettingsError(
                    f"allow_host is {host!r}; it must be a name, such as tools.example or tools.example:8080, and in "
                    f"ASCII, as clients send it"
                )
        for origin in self.allow_origin:
            if not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"allow_origin is {origin!r}; it must be an origin, such as http://localhost:6274, and in ASCII, "
                    f"as browsers send it. Neither * nor null is one: that would let in every page"
                )

    def check_exposure(self) -> None:
        """Refuse an address that other machines can reach without a key, unless a setting allows it."""
        if not (is_loopback(self.host) or self.api_key or self.allow_anonymous):
            raise SettingsError(
                f"{self.host} can be reached from other machines, and no key is asked for. Set --api-key (or the "
                f"variable TOOLYARD_API_KEY), or say --allow-anonymous if everybody who can reach it may use it"
            )

    def check_sandbox_network(self) -> None:
        """Refuse to let programs in sandboxes reach the server without a key, unless a setting allows it."""
        if self.sandbox_network == "host" and not (self.api_key or self.allow_anonymous):
            raise SettingsError(
                "with --sandbox-network host, programs in sandboxes reach this server, and no key is asked for. Set "
                "--api-key (or the variable TOOLYARD_API_KEY), or say --allow-anonymous (TOOLYARD_ALLOW_ANONYMOUS=1) "
                "if they may use it"
            )

    def pick(self, group: type[T]) -> T:
        """The values that a group of options, such as Limits, consists of."""
        names = [f.name for f in dataclasses.fields(group)]  # type: ignore[arg-type]  # groups are dataclasses
        return group(**{name: getattr(self, name) for name in names})

    def part(self) -> Self:
        """The settings of one of several gateways; with one gateway, all of them."""
        if self.gateways == 1:
            return self
        pool = self.pool_processes or os.cpu_count() or 1
        whole = dataclasses.replace(self, pool_processes=pool)
        divided = [knob_.name for knob_ in dataclasses.fields(self) if knob_.metadata["divided"]]
        return dataclasses.replace(whole, **{name: -(-getattr(whole, name) // self.gateways) for name in divided})

    def sandbox_limits(self) -> SandboxLimits:
        """The default limits of a sandbox."""
        return SandboxLimits(
            wall_seconds=self.sandbox_seconds,
            memory_bytes=self.sandbox_memory_bytes,
            processes=self.sandbox_processes,
            disk_bytes=self.sandbox_disk_bytes,
            output_bytes=self.sandbox_output_bytes,
            network=self.sandbox_network,
        )

    @classmethod
    def read(cls, given: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Self:
        """Read settings from `given`, then TOOLYARD_* variables, then the defaults."""
        values: dict[str, Any] = {}
        kinds = get_type_hints(cls)
        for knob_ in dataclasses.fields(cls):
            variable = variable_of(knob_.name)
            if (value := given.get(knob_.name)) is not None:
                values[knob_.name] = tuple(value) if isinstance(value, list) else value
            elif variable in environ:
                kind = size if is_size(knob_.name) else kinds[knob_.name]
                values[knob_.name] = _from_text(environ[variable], kind, variable)
        return cls(**values)


_PREFIX = "TOOLYARD_"

OTHER_VARIABLES = (
    "TOOLYARD_BROWSER_ALLOW",
    "TOOLYARD_BROWSER_CHROMIUM",
    "TOOLYARD_BROWSER_SECONDS",
    "TOOLYARD_BROWSER_SESSIONS",
    "TOOLYARD_BROWSER_START",
    "TOOLYARD_LAUNCHER",
    "TOOLYARD_SEARCH_CORPUS",
    "TOOLYARD_SQL_ROOT",
    "TOOLYARD_WEB_READER",
)
"""Variables that single tools read. They are no settings of the server."""


def _meant(name: str, known: Sequence[str]) -> str:
    """What may be meant, without the beginning that all variables share: it makes any two of them look alike."""
    found = did_you_mean(name.removeprefix(_PREFIX), [one.removeprefix(_PREFIX) for one in known])
    return found.replace("'", f"'{_PREFIX}", 1)


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that looks like a setting and is none. Nobody reads it, so it changes nothing."""
    known = [*(variable_of(knob_.name) for knob_ in dataclasses.fields(Settings)), *OTHER_VARIABLES]
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known:
            yield f"the variable {name} is no setting of Toolyard, so it has no effect{_meant(name, known)}"


def size(text: str) -> int:
    """The bytes that `2G`, `512M`, `64 KiB` or `1000` says. Raises ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size")
    number, unit = found.groups()
    return round(float(number) * _UNITS[(unit or "").upper()])


def is_size(name: str) -> bool:
    """Whether a setting is a number of bytes, which may be written as a size."""
    return name.endswith("_bytes")


def size_text(number: int) -> str:
    """`4G` for a round number, else the number."""
    for unit in ("T", "G", "M", "K"):
        if number and number % _UNITS[unit] == 0:
            return f"{number // _UNITS[unit]}{unit}"
    return str(number)


def variable_of(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def given_kind(kind: Any) -> Any:
    """The type of a written value; a setting that may be None is left out instead."""
    return next((one for one in get_args(kind) if one is not NoneType), kind) if isinstance(kind, UnionType) else kind


def _from_text(text: str, kind: Any, variable: str) -> object:
    kind = given_kind(kind)
    if get_origin(kind) is tuple:
        return tuple(filter(None, map(str.strip, text.split(","))))
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise SettingsError(f"{variable} is {text!r}; it must be one of {', '.join(get_args(kind))}")
        return text
    if kind is bool:
        if text.lower() not in ("1", "true", "yes", "0", "false", "no"):
            raise SettingsError(f"{variable} is {text!r}; it must be true or false")
        return text.lower() in ("1", "true", "yes")
    try:
        return kind(text)
    except ValueError:
        wanted = {int: "a whole number", size: SIZES}.get(kind, "a number")
        raise SettingsError(f"{variable} is {text!r}; it must be {wanted}") from None
