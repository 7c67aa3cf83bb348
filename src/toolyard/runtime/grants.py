"""`Grants`: tokens, each of which lets an agent into one session, and into nothing else."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolyard.core.errors import GrantNotFound, TooManyGrants
from toolyard.placement.base import SessionSpec
from toolyard.runtime.journal import Journal, Why
from toolyard.runtime.lifecycle import State
from toolyard.runtime.session import Session

MOST = 64
"""Tokens of one session that are valid at the same time."""
_MARK = "agt-"
"""Every token begins with it, which distinguishes tokens from other text."""
_BYTES = 24
_SHAPE = re.compile(rf"{_MARK}[\w-]{{16,}}", re.ASCII)


def new_token() -> str:
    return _MARK + secrets.token_urlsafe(_BYTES)


def hide_tokens(text: str) -> str:
    """The text without the tokens in it."""
    return _SHAPE.sub(f"{_MARK}[hidden]", text) if _MARK in text else text


@dataclass(eq=False, slots=True)
class Granted:
    """The agents' access to one session."""

    session: Session
    until: dict[bytes, float] = field(default_factory=dict)
    """When each of its tokens expires, by the digest of the token."""
    requests: int = 0
    """How many of its agents' requests are being answered."""

    def is_valid(self, digest: bytes) -> bool:
        ends = self.until.get(digest)
        return ends is not None and time.monotonic() < ends and self.session.state is not State.CLOSED


class Grants:
    """Tokens are looked up by a digest that is made with a secret key.

    So an agent that tries tokens cannot choose how much of a digest matches: the time of a look-up tells it nothing.
    The process keeps no token in memory.
    """

    def __init__(self, journal: Journal) -> None:
        self._key = secrets.token_bytes(32)
        self._by_token: dict[bytes, Granted] = {}
        self._by_session: dict[str, Granted] = {}
        self._journal = journal

    def give(self, session: Session, token: str, seconds: float) -> None:
        """Let holders of this token into the session, for this long."""
        if self._closed not in self._journal.closed:
            self._journal.closed.append(self._closed)
        granted = self._by_session.setdefault(session.id, Granted(session))
        self._drop(granted, [digest for digest in granted.until if not granted.is_valid(digest)])
        if len(granted.until) >= MOST:
            raise TooManyGrants(f"this session has {MOST} valid tokens; revoke one first")
        digest = self.digest(token)
        granted.until[digest] = time.monotonic() + seconds
        self._by_token[digest] = granted

    def find(self, token: str) -> Granted:
        digest = self.digest(token)
        granted = self._by_token.get(digest)
        if granted is None or not granted.is_valid(digest):
            raise GrantNotFound("there is no such token")
        return granted

    def revoke(self, session: Session, token: str | None = None) -> int:
        """Take back one token of a session, or all. Return how many there were."""
        granted = self._by_session.get(session.id)
        if granted is None:
            return 0
        digests = list(granted.until) if token is None else [self.digest(token)]
        return self._drop(granted, [digest for digest in digests if digest in granted.until])

    def digest(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode(errors="surrogatepass"), key=self._key, digest_size=32).digest()

    def _drop(self, granted: Granted, digests: Sequence[bytes]) -> int:
        for digest in digests:
            del granted.until[digest]
            del self._by_token[digest]
        return len(digests)

    def _closed(self, spec: SessionSpec, why: Why, seconds: float) -> None:
        if (granted := self._by_session.pop(spec.session_id, None)) is not None:
            self._drop(granted, list(granted.until))
