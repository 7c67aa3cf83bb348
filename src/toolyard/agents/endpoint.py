"""`Endpoint`: a model behind the Chat Completions API; repeats a request until the model answers or the tries are used.

The `openai` package makes the requests. It is an extra, loaded when an endpoint is made.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from toolyard.agents.playing import AgentStopped, EndpointFailed
from toolyard.agents.replies import Reply, joined, reply_of
from toolyard.agents.rollout import Tokens
from toolyard.core.errors import ToolyardError, describe
from toolyard.core.output import JsonObject

_ANSWERING = 600.0
"""The most seconds without a byte of an answer."""
_WAIT_MOST = 600.0
"""The most seconds that an endpoint may ask us to wait; beyond that, we give up."""
_WAITS_MOST = 60
"""How many such waits do not count as tries."""
_LATER = (408, 409, 425, 429)
_NO_MONEY = "insufficient_quota"
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|(prompt|input) (is )?too long|too many (input )?tokens", re.I
)


class EvalExtraMissing(ToolyardError):
    """The package openai is not installed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an exception of a request means."""

    what: str
    again: bool
    """Whether the same request may succeed later."""
    wait: float | None = None
    """Seconds that the endpoint asks us to wait."""
    too_long: bool = False


class Endpoint:
    """One model at one address. Any number of episodes may share it; if it asks to wait, they all do.

    `options` are fields of every request, such as `temperature`. A request gets this many tries within `trying`
    seconds; a wait that `Retry-After` asks for does not count. The first pause lasts `pause` seconds, each later one
    twice as long.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        options: JsonObject = {},
        stream: bool = False,
        tries: int = 5,
        trying: float = 60.0,
        pause: float = 0.5,
    ) -> None:
        try:
            self._openai: Any = importlib.import_module("openai")
        except ImportError:
            raise EvalExtraMissing("asking a model needs the package openai: pip install 'toolyard[eval]'") from None
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"  # local servers mostly need none
        self._client = self._openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=_ANSWERING)
        self.model = model
        self._options = dict(options)
        self._stream = stream
        self.counted: Callable[[Tokens], None] = lambda tokens: None
        """Called with the tokens of each answer."""
        self._trying: Callable[[], _Trying] = partial(_Trying, tries, trying, pause)
        self._not_before = 0.0

    async def aclose(self) -> None:
        await self._client.close()

    async def reply(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject] = (),
        *,
        excuse: Callable[[float], None] = lambda seconds: None,
    ) -> Reply:
        """Ask for the next message of a conversation. `excuse` is called with the seconds that the endpoint makes us
        wait.

        Raises `EndpointFailed`, or `AgentStopped` if the conversation is too long for the model.
        """
        body = {"model": self.model, "messages": list(messages), **({"tools": list(tools)} if tools else {})}
        trying = self._trying()
        while True:
            await self._when_welcome(excuse)
            trying.begin()
            try:
                reply = await self._ask({**body, **self._options})
            except Exception as error:  # the package's, or an answer of an unexpected shape
                await self._wait(trying, self._meant(error), excuse)
            else:
                self.counted(reply.tokens)
                return reply

    async def _ask(self, body: dict[str, Any]) -> Reply:
        extra = {"extra_body": {name: body.pop(name) for name in list(body) if name not in _KNOWN}}
        create = self._client.chat.completions
        if not self._stream:
            raw = await create.with_raw_response.create(**body, **extra)
            return reply_of(json.loads(raw.http_response.content))
        chunks = await create.create(**body, **extra, stream=True, stream_options={"include_usage": True})
        return reply_of(joined([chunk async for chunk in _dumped(chunks)]))

    async def _when_welcome(self, excuse: Callable[[float], None]) -> None:
        while (seconds := self._not_before - time.monotonic()) > 0:
            excuse(seconds)
            await asyncio.sleep(seconds)

    async def _wait(self, trying: _Trying, refusal: Refusal, excuse: Callable[[float], None]) -> None:
        """Wait before the next try. Raises if none is left."""
        if refusal.too_long:
            raise AgentStopped("context_too_long", refusal.what)
        seconds = trying.pause(refusal)
        if refusal.wait:
            self._not_before = max(self._not_before, time.monotonic() + refusal.wait)
            seconds = random.uniform(0, min(1.0, refusal.wait / 4))  # so that not all come back at the same moment
            excuse(seconds)
        await asyncio.sleep(seconds)

    def _meant(self, error: Exception) -> Refusal:
        what = describe(error.__cause__ or error)
        if not isinstance(error, self._openai.APIStatusError):
            return Refusal(what, again=True)  # the connection broke, or the answer made no sense
        what = f"HTTP {error.status_code}: {error.message}"
        status, said = error.status_code, f"{error.code} {error.message}"
        if status in (400, 413, 422) and _TOO_LONG.search(said):
            return Refusal(what, again=False, too_long=True)
        again = (status in _LATER or status >= 500) and error.code != _NO_MONEY
        return Refusal(what, again, retry_after(error.response.headers))


class _Trying:
    """The tries of one request, and their time."""

    def __init__(self, tries_most: int, seconds_most: float, pause: float) -> None:
        self._tries_most, self._seconds_most, self._pause = tries_most, seconds_most, pause
        self._tries = 0
        self._waits = 0
        self._seconds = 0.0
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def pause(self, refusal: Refusal) -> float:
        """Seconds until the next try."""
        self._seconds += time.monotonic() - self._began
        told = bool(refusal.wait) and self._waits < _WAITS_MOST
        self._waits += told
        self._tries += not told
        if not refusal.again:
            raise EndpointFailed(f"the endpoint refused: {refusal.what}")
        if (refusal.wait or 0) > _WAIT_MOST:
            raise EndpointFailed(f"the endpoint asks to wait for {refusal.wait:.0f} s: {refusal.what}")
        if self._tries >= self._tries_most or self._seconds >= self._seconds_most:
            raise EndpointFailed(f"gave up after {self._tries} tries in {self._seconds:.0f} s: {refusal.what}")
        if told:
            return 0.0
        delay: float = min(8.0, self._pause * 2 ** (self._tries - 1)) * random.uniform(0.5, 1)
        self._seconds += delay
        return delay


async def _dumped(chunks: Any) -> AsyncIterator[JsonObject]:  # Any: the package's stream
    async for chunk in chunks:
        yield chunk.model_dump(warnings=False)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds to wait, from headers that give milliseconds, seconds or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            seconds = float(text) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds > 0 else None
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


_KNOWN = frozenset(
    {"model", "messages", "tools", "temperature", "max_tokens", "max_completion_tokens", "seed", "top_p"}
)
"""Fields that the package takes by name; it sends others unchanged."""
