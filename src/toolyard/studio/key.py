"""Who may see Studio: a browser gives the key once, and has a cookie from then on. Writes need a token beside it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from functools import cached_property

_DAYS = 7
_WRONG_MOST = 8
"""Wrong keys that one address may try in a minute."""
_MINUTE = 60.0
_ADDRESSES_MOST = 1024


class Key:
    """Checks the key, the cookie and the token. It is made before gateways start: all of them hold equal ones."""

    def __init__(self, api_key: str) -> None:
        self._api_key = api_key.encode()
        self._random = secrets.token_bytes(32)
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    @property
    def is_needed(self) -> bool:
        return bool(self._api_key)

    @cached_property
    def _secret(self) -> bytes:
        """What cookies are signed with. It follows from the key, so that a cookie outlives a restart. It is slow to
        compute, so that nobody finds the key by trying keys on a cookie."""
        if not self._api_key:
            return self._random
        return hashlib.scrypt(self._api_key, salt=b"toolyard studio", n=2**14, r=8, p=1)

    @cached_property
    def cookie_name(self) -> str:
        """Cookies do not know ports: each key has a name of its own, so that servers on one host keep apart."""
        return f"toolyard-studio-{self._sign(b'name')[:8]}"

    def is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogatepass"), self._api_key)

    def new_cookie(self) -> str:
        said = f"{int(time.time()) + _DAYS * 86_400}.{secrets.token_urlsafe(16)}"
        return f"{said}.{self._sign(said.encode())}"

    @property
    def cookie_seconds(self) -> int:
        return _DAYS * 86_400

    def is_cookie(self, given: str) -> bool:
        """Whether this server, or one with the same key, has made this cookie, and it is not too old."""
        said, _, signature = given.rpartition(".")
        right = self._sign(said.encode(errors="replace"))
        if not hmac.compare_digest(signature.encode(errors="replace"), right.encode()):
            return False
        return int(said.partition(".")[0]) > time.time()

    def token(self, cookie: str) -> str:
        """What a page sends with each write. A page of another site cannot read it."""
        return self._sign(b"write " + cookie.encode(errors="replace"))

    def is_token(self, given: str, cookie: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token(cookie).encode())

    # Wrong keys.

    def must_wait(self, address: str) -> int:
        """For how many seconds this address may try no more keys."""
        now = time.monotonic()
        tries = [at for at in self._wrong.get(address, ()) if now - at < _MINUTE]
        return 0 if len(tries) < _WRONG_MOST else max(int(tries[0] + _MINUTE - now), 1)

    def was_wrong(self, address: str) -> None:
        now = time.monotonic()
        tries = [at for at in self._wrong.pop(address, ()) if now - at < _MINUTE]
        self._wrong[address] = [*tries, now]
        if len(self._wrong) > _ADDRESSES_MOST:
            self._wrong.popitem(last=False)

    def _sign(self, said: bytes) -> str:
        return hmac.new(self._secret, said, "sha256").hexdigest()
