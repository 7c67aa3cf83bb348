"""Where a request comes in, and so which session it is for. Other modules may bring places of their own."""

from __future__ import annotations

from typing import Protocol

from toolyard.core.environment import Environment
from toolyard.protocols.mcp.content import unavailable
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
        """The session that a request with this method is for; None if it is for none. May open it, and may raise."""


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


class InBusySession(InSession):
    """The same, where a call has to wait outside while so many run."""

    __slots__ = ("_most",)

    def __init__(self, session: Session, most: int) -> None:
        super().__init__(session)
        self._most = most

    async def session(self, method: str) -> Session | None:
        if method == "tools/call" and self._session.running >= self._most:
            raise unavailable(f"{self._most} calls of this session run or wait already", "busy")
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
