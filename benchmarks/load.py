"""Load on a server: what to send, and what it cost. loadgen.c does the sending; see there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.servers import Started

SESSION = "{the-id-of-a-session-goes-in-here--}"
"""Stands for the session's id in a request, and has its length."""
COOKIE = "{the-name-of-a-node-as-its-cookie-has-it-after-node_id=-is-here}"
"""Stands for the value of a cookie that an answer set, and has its length."""


@dataclass(frozen=True)
class Step:
    """A request, sent `repeat` times in a row: once before or after all load, or in every pass of the loop."""

    phase: Literal["setup", "loop", "teardown"]
    method: str
    path: str
    body: str = ""
    accept: str = "*/*"
    repeat: int = 1
    session: Literal["keep", "new", "take", "cookie", "unsaid"] = "keep"
    """`keep` sends the request to the session, `new` to a new one, `take` reads the session's id from its answer;
    `cookie` names the session by a cookie, `unsaid` by no header. A `new` step in the loop makes every pass a whole
    session."""
    key: str = ""
    """The server's key, if it requires one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of the request."""

    def encode(self) -> bytes:
        lines = [
            f"{self.method} {self.path} HTTP/1.1",
            "Host: 127.0.0.1:8080",  # some servers require a port, and none checks which
            f"Accept: {self.accept}",
            "Accept-Encoding: gzip, deflate",
            "User-Agent: ors-sdk/0.1.0",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.key:
            lines.append(f"X-API-Key: {self.key}")
        if self.body:
            lines.append("Content-Type: application/json")
        if self.method == "POST":
            lines.append(f"Content-Length: {len(self.body)}")
        if self.session == "cookie":
            lines.append(f"Cookie: node_id={COOKIE}")
        elif self.session in ("keep", "new") and SESSION not in self.body:  # verl-tool's wire has ids in the body
            lines.append(f"X-Session-ID: {SESSION}")
        request = "\r\n".join([*lines, "", self.body]).encode()
        rule = "keep" if self.session in ("cookie", "unsaid") else self.session
        head = f"{self.phase} {self.repeat} {rule} {len(request)}\n"
        return head.encode() + request + b"\n"


@dataclass(frozen=True)
class Load:
    """What passes through the loop took, in seconds."""

    seconds: float
    passes: int
    requests: int
    p50: float
    p99: float
    bytes: int
    server_user: float
    server_system: float
    own_cpu: float
    """CPU of the load generator."""
    reconnects: int

    @property
    def cpu(self) -> float:
        """CPU of the server's processes per pass."""
        return (self.server_user + self.server_system) / self.passes

    @property
    def interval(self) -> float:
        """Between the ends of two passes, of any connection."""
        return self.seconds / self.passes

    @property
    def generator_busy(self) -> float:
        """The part of one core that the load generator used; near 1 it would be the bottleneck."""
        return self.own_cpu / self.seconds


def drive(
    generator: Path, server: Started, steps: Sequence[Step], *, connections: int, seconds: float = 0, passes: int = 0
) -> Load:
    """Load a server for so many seconds, or for so many passes."""
    limits = [server.port, server.pid, connections, seconds, passes]
    plan = b"".join(step.encode() for step in steps)
    done = subprocess.run([str(generator), *map(str, limits)], input=plan, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit("The load did not go through; what was measured would mean nothing.")
    return Load(**json.loads(done.stdout))
