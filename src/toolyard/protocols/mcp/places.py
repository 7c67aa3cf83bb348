"""Places where requests come in, each of which knows the session. Other modules may define their own places."""

from __future__ import annotations

from typing import Protocol

from toolyard.core.environment import Environment
from toolyard.protocols.mcp.content import unavailable
from toolyard.runtime.grants import Grants
from toolyard.runtime.session import Session


class Place(Protocol):
    @property
    def environment(self) -> type[Environment]:
        """The environment that names the server here."""

    @property
    def key(self) -> str:
        """Distinguishes this place's requests from those of others: ids of requests are unique only within a place."""

    @property
    def repeats(self) -> str:
        """The `Mcp-Session-Id` that goes with each answer; empty if there is none."""

    @property
    def needs_handshake(self) -> bool:
        """Whether clients must send `initialize` first."""

    async def session(self, method: str) -> Session | None:
        """The session that a request with this method is for; None if it is for none. May open it, and may raise.

        A notification has no method here.
        """


class InSession:
    """The URL names the session."""

    __slots__ = ("_session",)
    repeats = ""
    needs_handshake = False

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def environment(self) -> type[Environment]:
        return self._session.spec.environment

    @property
    def key(self) -> str:
        return self._session.id

    async def session(self, method: str) -> Session | None:
        self._session.touch()
        return self._session


class OfAgent(InSession):
    """A session as one token opens it. Its client cannot cancel calls of other tokens' clients.

    It refuses a call while `most` calls run, or if there are so many requests that this one is `in_crowd`.
    """

    __slots__ = ("_grants", "_in_crowd", "_most", "_token")

    def __init__(self, session: Session, grants: Grants, token: str, *, most: int, in_crowd: bool) -> None:
        super().__init__(session)
        self._grants = grants
        self._token = token
        self._most = most
        self._in_crowd = in_crowd

    @property
    def key(self) -> str:
        return self._grants.digest(self._token).hex()

    async def session(self, method: str) -> Session | None:
        is_full = self._in_crowd or (method == "tools/call" and self._session.running >= self._most)
        if method and is_full:
            message = f"{self._most} requests or calls of this session are under way; wait for some of them"
            raise unavailable(message, "busy")
        return await super().session(method)


class Nowhere:
    """There is no session, only the tools that an environment shows to all clients."""

    __slots__ = ("environment",)
    key = ""
    repeats = ""
    needs_handshake = False

    def __init__(self, environment: type[Environment]) -> None:
        self.environment = environment

    async def session(self, method: str) -> Session | None:
        return None
