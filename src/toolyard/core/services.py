"""Tells a service that is down from a bug, by the exception alone: `blame_of(error)`.

It imports no client library. The name of the exception's class and its package are enough.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Literal, TypeAlias

from toolyard.core.errors import BrowserError, SandboxError, ServiceUnavailable

Blame: TypeAlias = Literal["lost", "timed_out"]

_CLIENTS = {
    "httpx": {"NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"},
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ProtocolError", "NewConnectionError", "MaxRetryError", "ProxyError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "openai": {"APIConnectionError"},
    "anthropic": {"APIConnectionError"},
    "botocore": {"ConnectionError", "HTTPClientError"},
    "redis": {"ConnectionError", "TimeoutError"},
    "websockets": {"ConnectionClosed"},
    "anyio": {"BrokenResourceError", "ClosedResourceError", "EndOfStream"},
    "socket": {"gaierror", "herror"},
    "ssl": {"SSLError"},
}
"""By package: the exceptions that a client raises when it gets no answer. Their subclasses count, too."""
_SAME_AS = {"httpx2": "httpx", "httpcore": "httpx", "httpcore2": "httpx"}
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""The host or the server has no more files or memory to give: no call of an agent's is at fault."""
_TOO_BUSY = {408, 425, 429}
_GRPC = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
_ERROR_CODES = {"urllib", "google"}
"""Packages whose exceptions hold the HTTP status in `code`. In other packages `code` is some other number."""


def blame_of(error: BaseException) -> Blame | None:
    """The infrastructure failure that this exception stands for; None if it is a bug, or anything else.

    Only the exception itself counts, not its cause: an author who turned one exception into another had a reason. A
    group counts only if each of its exceptions does.
    """
    if isinstance(error, BaseExceptionGroup):
        found = {blame_of(one) for one in error.exceptions}
        return None if None in found else "timed_out" if found == {"timed_out"} else "lost"
    if isinstance(error, SandboxError | BrowserError | ServiceUnavailable) or is_shortage(error) or _is_service(error):
        return "lost"
    return "timed_out" if isinstance(error, TimeoutError) else None


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def _is_service(error: BaseException) -> bool:
    if (status := _status(error)) is not None:
        return status >= 500 or status in _TOO_BUSY
    reason = _field(error, "reason")
    if isinstance(reason, BaseException) and "urllib" in _packages(error):  # URLError, which is raised for bad URLs too
        return blame_of(reason) is not None
    if isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return True
    return any(name in _CLIENTS.get(_SAME_AS.get(package, package), ()) for package, name in _ancestry(error))


def _status(error: BaseException) -> int | None:
    """The HTTP status that the exception holds, or 503 for gRPC's words for it; None if there was no answer."""
    packages = _packages(error)
    if "grpc" in packages:
        code = _field(error, "code")
        named = _field(code() if callable(code) else code, "name")
        return 503 if named in _GRPC else None
    numbers = [_field(_field(error, "response"), "status_code"), _field(error, "status_code"), _field(error, "status")]
    if packages & _ERROR_CODES:
        numbers.append(_field(error, "code"))
    return next((number for number in numbers if isinstance(number, int) and 100 <= number <= 599), None)


def _packages(error: BaseException) -> set[str]:
    return {package for package, _ in _ancestry(error)}


def _ancestry(error: BaseException) -> Iterator[tuple[str, str]]:
    for kind in type(error).__mro__:
        yield kind.__module__.partition(".")[0], kind.__name__


def _field(value: object, name: str) -> object:
    try:
        return getattr(value, name, None)
    except Exception:  # a property of a client library's class
        return None
