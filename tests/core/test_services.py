"""Which exceptions of a tool tell of a service that is down, and which of a bug."""

from __future__ import annotations

import concurrent.futures
import errno
import http.client
import socket
import sqlite3
import ssl
import urllib.error
from email.message import Message
from types import SimpleNamespace

import aiohttp
import anyio
import httpx2
import pytest
import requests
import urllib3

from toolyard.core.errors import SandboxLost, ServiceUnavailable, ToolError
from toolyard.core.services import blame_of


def http_status(status: int) -> httpx2.HTTPStatusError:
    request = httpx2.Request("POST", "http://judge")
    return httpx2.HTTPStatusError("it says no", request=request, response=httpx2.Response(status, request=request))


def requests_status(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("it says no", response=response)


def urllib_status(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://judge", status, "no", Message(), None)


def aiohttp_status(status: int) -> aiohttp.ClientResponseError:
    return aiohttp.ClientResponseError(None, (), status=status)  # type: ignore[arg-type]


def of_library(module: str, *names: str, **fields: object) -> Exception:
    """An exception as a library that is not installed here raises it; the last name is its class."""
    kind: type[Exception] = Exception
    for name in names:
        kind = type(name, (kind,), {"__module__": module})
    error = kind("it says no")
    vars(error).update(fields)
    return error


class Stubborn(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("there was none")


DOWN = [
    ServiceUnavailable("the judge is down"),
    SandboxLost("it died"),
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    ConnectionResetError("reset"),
    BrokenPipeError("pipe"),
    http.client.RemoteDisconnected("gone"),
    socket.gaierror(socket.EAI_AGAIN, "no name server"),
    OSError(errno.EHOSTUNREACH, "no route"),
    OSError(errno.ETIMEDOUT, "timed out"),
    OSError(errno.EMFILE, "too many open files"),
    OSError(errno.ENFILE, "too many open files in system"),
    OSError(errno.ENOMEM, "no memory for a fork"),
    ssl.SSLError("handshake"),
    urllib.error.URLError(ConnectionRefusedError()),
    urllib.error.URLError(TimeoutError("timed out")),
    urllib.error.URLError(socket.gaierror()),
    *(
        made(status)
        for made in (http_status, requests_status, urllib_status, aiohttp_status)
        for status in (500, 503, 429)
    ),
    httpx2.ConnectError("refused"),
    httpx2.ReadTimeout("slow"),
    httpx2.PoolTimeout("slow"),
    httpx2.RemoteProtocolError("garbage"),
    requests.ConnectionError("refused"),
    requests.ReadTimeout("slow"),
    urllib3.exceptions.MaxRetryError(None, "http://judge"),  # type: ignore[arg-type]
    urllib3.exceptions.ReadTimeoutError(None, None, "slow"),  # type: ignore[arg-type]
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.ClientPayloadError(),
    anyio.BrokenResourceError(),
    of_library("openai", "OpenAIError", "APIError", "APIConnectionError", "APITimeoutError"),
    of_library("openai", "OpenAIError", "APIError", "InternalServerError", status_code=500),
    of_library("anthropic", "APIError", "RateLimitError", status_code=429),
    of_library("httpx", "TransportError", "NetworkError", "ConnectError"),
    of_library("google.api_core.exceptions", "GoogleAPICallError", "ServiceUnavailable", code=503),
    of_library("grpc.aio._call", "RpcError", "AioRpcError", code=lambda: SimpleNamespace(name="UNAVAILABLE")),
    ExceptionGroup("several", [ConnectionError(), TimeoutError()]),
    ExceptionGroup("several", [ExceptionGroup("more", [httpx2.ConnectError("x")])]),
]
SLOW = [TimeoutError(), concurrent.futures.TimeoutError(), TimeoutError("the read timed out")]
BUGS = [
    ValueError("no"),
    KeyError("x"),
    RuntimeError("no"),
    ToolError("no"),
    FileNotFoundError(errno.ENOENT, "no file"),
    PermissionError(errno.EACCES, "no"),
    OSError(errno.ENOSPC, "full"),
    sqlite3.OperationalError("locked"),
    httpx2.UnsupportedProtocol("no scheme"),
    httpx2.LocalProtocolError("wrong"),
    httpx2.InvalidURL("wrong"),
    requests.exceptions.MissingSchema("wrong"),
    urllib.error.URLError("unknown url type: judge"),
    *(made(status) for made in (http_status, requests_status, urllib_status, aiohttp_status) for status in (400, 404)),
    of_library("openai", "OpenAIError", "APIError", "AuthenticationError", status_code=401),
    of_library("grpc", "RpcError", code=lambda: SimpleNamespace(name="INVALID_ARGUMENT")),
    of_library("author", "Oddity", code=503),
    Stubborn(),
    ExceptionGroup("several", [ConnectionError(), ValueError()]),
]


@pytest.mark.parametrize("error", DOWN, ids=repr)
def test_an_exception_of_a_client_that_got_no_answer_tells_of_a_service_that_is_down(error):
    assert blame_of(error) == "lost"


@pytest.mark.parametrize("error", SLOW, ids=repr)
def test_a_timer_of_the_tool_itself_is_a_time_out(error):
    assert blame_of(error) == "timed_out"
    assert blame_of(ExceptionGroup("several", [error, error])) == "timed_out"


@pytest.mark.parametrize("error", BUGS, ids=repr)
def test_everything_else_is_a_bug(error):
    assert blame_of(error) is None


def test_what_an_author_made_of_a_failed_connection_is_the_authors_word():
    error = ValueError("the judge said nothing")
    error.__cause__ = ConnectionError()
    assert blame_of(error) is None
