"""A client of OpenEnv's WebSocket that reads frames strictly, in the terms of its protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.wires.wire import strict_json


class Closed(Exception):
    """The socket is closed."""


class Error(Exception):
    """A frame of the type `error`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.message, self.code = data.pop("message"), data.pop("code")
        super().__init__(f"{self.code}: {self.message}")
        self.more = data


@dataclass(frozen=True)
class Seen:
    """A frame of the type `observation`."""

    observation: dict[str, Any]
    reward: float | None
    done: bool
    metadata: dict[str, Any] | None

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        assert {"observation", "reward", "done"} <= data.keys() <= {"observation", "reward", "done", "metadata"}
        assert data.get("metadata") != {}, "it is there only if it holds something"
        assert not {"reward", "done"} & data["observation"].keys()
        return cls(data["observation"], data["reward"], data["done"], data.get("metadata"))


class Player:
    """Connects with its first message."""

    def __init__(self, url: str, path: str = "", headers: Mapping[str, str] = {}, **more: Any) -> None:
        self.url = url
        self.path = path
        self._headers = headers
        self._more = more
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.close()

    async def connected(self) -> ClientConnection:
        if self._socket is None:
            address = self.url.replace("http", "ws", 1) + self.path
            wanted = {"max_size": 2**27, "proxy": None, "additional_headers": self._headers, **self._more}
            self._socket = await connect(address, **wanted)
        return self._socket

    # Messages and answers.

    async def say(self, text: str | bytes) -> None:
        await (await self.connected()).send(text)

    async def hear(self) -> dict[str, Any]:
        try:
            frame: dict[str, Any] = strict_json(await (await self.connected()).recv())
        except ConnectionClosed as closed:
            raise Closed(closed.rcvd) from None
        return frame

    async def ask(self, message: object) -> dict[str, Any]:
        """The data of the answer. Raises `Error` for a frame of that type."""
        text = message if isinstance(message, str) else json.dumps(message)
        with suppress(ConnectionClosed):  # the last frame before its end may say why
            await self.say(text)
        frame = await self.hear()
        assert frame.keys() == {"type", "data"}
        if frame["type"] == "error":
            raise Error(frame["data"])
        data: dict[str, Any] = frame["data"]
        kind = {"reset": "observation", "step": "observation"}.get(message["type"], message["type"])  # type: ignore[index]
        assert frame["type"] == kind
        return data

    async def refused(self, message: object) -> Error:
        try:
            told = await self.ask(message)
        except Error as error:
            return error
        raise AssertionError(f"it was answered: {told}")

    async def reset(self, **data: object) -> Seen:
        return Seen.of(await self.ask({"type": "reset", "data": data}))

    async def tools(self) -> dict[str, dict[str, Any]]:
        seen = Seen.of(await self.ask({"type": "step", "data": {"type": "list_tools"}}))
        assert (seen.reward, seen.observation.keys()) == (None, {"metadata", "tools"})
        assert all(spec.keys() == {"name", "description", "input_schema"} for spec in seen.observation["tools"])
        return {spec["name"]: spec for spec in seen.observation["tools"]}

    async def step(self, tool: str, **arguments: object) -> Seen:
        action = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return Seen.of(await self.ask({"type": "step", "data": action}))

    async def state(self) -> dict[str, Any]:
        return await self.ask({"type": "state"})

    async def rpc(self, method: str, **params: object) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.ask({"type": "mcp", "data": message})

    # Its end.

    async def vanish(self) -> None:
        """Read no more, so that pings get no answer."""
        assert self._socket is not None
        self._socket.transport.pause_reading()

    @property
    def has_vanished(self) -> bool:
        return self._socket is not None and not self._socket.transport.is_reading()

    async def close(self) -> None:
        if self._socket is not None:
            if self.has_vanished:
                self._socket.transport.abort()
                return
            with suppress(ConnectionClosed, asyncio.TimeoutError):
                await self._socket.close()
