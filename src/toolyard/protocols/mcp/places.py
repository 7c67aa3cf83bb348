"""Where a request comes in, and so which session it is for. Other modules may bring places of their own."""

from __future__ import annotations

from typing import Protocol

from toolyard.core.environment import Environment
from toolyard.protocols.mcp.content import unavailable
from toolyard.runtime.grants import Grants
from toolyard.runtime.session import Session


class Place(Protocol):
    @property
    def environment(self) -> type[Environment]:
        """The environment whose name the server has here."""

    @property
    def key(self) -> str:
        """What tells its clients' requests apart from those of other places: ids of requests are unique only here."""

    @property
    def repeats(self) -> str:
        """The `Mcp-Session-Id` that goes with each answer; empty if there is none."""

    @property
    def needs_handshake(self) -> bool:
        """Whether only clients that say `initialize` can be served."""

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
    """A session as one token opens it: what other tokens' clients call is not this one's to cancel.

    While `most` calls run, or so many requests are under way that this one is `in_crowd`, it can only be told so.
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
    """There is no session, only the tools that an environment shows to everybody."""

    __slots__ = ("environment",)
    key = ""
    repeats = ""
    needs_handshake = False

    def __init__(self, environment: type[Environment]) -> None:
        self.environment = environment

    async def session(self, method: str) -> Session | None:
        return None
