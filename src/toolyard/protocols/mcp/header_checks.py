"""Checks that the headers of a request of the modern era match its body. The first difference counts."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from toolyard.asgi import Headers
from toolyard.protocols.mcp.messages import (
    CLIENT_CAPABILITIES,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    MODERN_VERSION,
    PROTOCOL_VERSION,
    Asked,
    RpcError,
    unsupported,
)

_VERSION, _METHOD, _NAME = b"mcp-protocol-version", b"mcp-method", b"mcp-name"
_ROUTING = frozenset((_VERSION, _METHOD, _NAME))
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that the name header repeats, for methods that have one."""
BEGIN, END = "=?base64?", "?="


def check_headers(asked: Asked, headers: Headers) -> None:
    """Raise `RpcError` for the first check that fails."""
    given = routing(headers)
    version = check_meta(asked.params)
    if version != given.get(_VERSION):
        raise _differs("MCP-Protocol-Version", given.get(_VERSION), version)
    if given.get(_METHOD) != asked.method:
        raise _differs("Mcp-Method", given.get(_METHOD), asked.method)
    if (parameter := NAMED_BY.get(asked.method)) is not None:
        named, wanted = given.get(_NAME), asked.params.get(parameter)
        if named != wanted and (named is None or _decoded(named) != wanted):
            raise _differs("Mcp-Name", named, wanted)
    if version != MODERN_VERSION:
        raise unsupported(version)


def routing(headers: Headers) -> dict[bytes, str]:
    """The headers by which proxies route a request. Raises if one occurs twice."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in _ROUTING:
            if name in found:
                raise RpcError(HEADER_MISMATCH, f"the header {name.decode()} stands there twice")
            found[name] = value.decode("latin-1").strip()
    return found


def check_meta(params: dict[str, Any]) -> str:
    """The version that the body itself names."""
    meta = params.get("_meta")
    if type(meta) is not dict:
        raise RpcError(INVALID_PARAMS, "params._meta is missing, with the protocol version and client capabilities")
    version = meta.get(PROTOCOL_VERSION)
    if type(version) is not str:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {PROTOCOL_VERSION}")
    if type(meta.get(CLIENT_CAPABILITIES)) is not dict:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {CLIENT_CAPABILITIES}")
    return version


def _differs(header: str, given: str | None, said: object) -> RpcError:
    was = "is missing" if given is None else f"is {given[:200]!r}"
    return RpcError(HEADER_MISMATCH, f"the header {header} {was}, and the body says {str(said)[:200]!r}")


def _decoded(value: str) -> str | None:
    """Text outside printable ASCII travels as base64; None if that is not what an encoder writes."""
    if not (value.startswith(BEGIN) and value.endswith(END)):
        return value
    written = value[len(BEGIN) : -len(END)]
    try:
        data = base64.b64decode(written, validate=True)
        return data.decode() if base64.b64encode(data).decode() == written else None
    except (binascii.Error, ValueError):
        return None
