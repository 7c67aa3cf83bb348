"""Sessions that clients open with `initialize`, at the URL of an environment and a task."""

from __future__ import annotations

import hashlib
import uuid
from urllib.parse import parse_qs

from toolyard.core.environment import Environment
from toolyard.core.errors import SessionFailed, ToolyardError, describe
from toolyard.placement.base import Origin, SessionSpec, Task
from toolyard.protocols.mcp.messages import INVALID_PARAMS, INVALID_REQUEST, RpcError
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session

_TASK = ("split", "index")


class ByHandshake:
    """The `Mcp-Session-Id` names the session; without one, `initialize` opens it.

    The id is the session's own, so a trainer finds the session by it. It begins with a digest of the URL, and is
    invalid at any other URL.
    """

    __slots__ = ("_digest", "_origin", "_query", "_runtime", "environment", "repeats")
    needs_handshake = True

    def __init__(
        self, runtime: Runtime, environment: type[Environment], query: str, session_id: str, origin: Origin
    ) -> None:
        self.environment = environment
        self.repeats = session_id
        self._runtime = runtime
        self._origin = origin
        self._query = query
        self._digest = hashlib.blake2s(f"{environment.name().lower()}?{query}".encode(), digest_size=6).hexdigest()

    @property
    def key(self) -> str:
        return self.repeats

    async def session(self, method: str) -> Session | None:
        if self.repeats:
            found = self.found()
            found.touch()
            return found
        if method != "initialize":
            raise RpcError(INVALID_REQUEST, "Bad Request: Missing session ID", status=400)
        session_id = self._runtime.owners.draw(lambda: f"{self._digest}-{uuid.uuid4()}")
        task = await self._task()
        session = await self._open(SessionSpec(session_id, self.environment, task, origin=self._origin))
        self.repeats = session_id
        return session

    async def _open(self, spec: SessionSpec) -> Session:
        """Open a session, and wait until it is set up."""
        try:
            session = await self._runtime.open(spec)
            await session.ready()
        except ToolyardError:
            await self._runtime.close(spec.session_id, "failed")
            raise
        except Exception as error:  # the author's constructor
            raise SessionFailed(describe(error)) from error
        return session

    def found(self) -> Session:
        """The session, if it was opened here and is not over."""
        session = self._runtime.sessions.get(self.repeats)
        if session is None or not self.repeats.startswith(f"{self._digest}-"):
            self.repeats = ""
            raise RpcError(INVALID_REQUEST, "Session not found", status=404)
        return session

    async def _task(self) -> Task:
        """The task that the URL names; without a name the first."""
        given = parse_qs(self._query, keep_blank_values=True)
        if unknown := given.keys() - {*_TASK}:
            raise RpcError(INVALID_PARAMS, f"the URL says {min(unknown)[:200]!r}; it may say split and index")
        tasks = self._runtime.tasks(self.environment)
        split = given["split"][-1] if "split" in given else (await tasks.splits())[0].name
        index = given["index"][-1] if "index" in given else "0"
        try:
            number = int(index[:20])
        except ValueError:
            raise RpcError(INVALID_PARAMS, f"index is {index[:200]!r}; it must be a whole number") from None
        return await tasks.at(split, number)
