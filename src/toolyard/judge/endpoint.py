"""`Endpoint`: a server that speaks OpenAI's chat completions, asked again while tries and time are left."""

from __future__ import annotations

import email.utils
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from toolyard.core.errors import ServiceUnavailable
from toolyard.judge.rubric import Nonsense
from toolyard.tools.http import HttpAnswer, client, received

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_WORTH_ANOTHER_TRY = {408, 409, 425, 429}
_TOO_LONG = "the judge: its answer is too long"


class Trouble(Exception):
    """The endpoint failed, but may answer later: after `pause` seconds, if it says so."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    api_key: str
    model: str
    temperature: float | None
    more: Mapping[str, Any]

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's answer. Raises `Trouble` or `Nonsense` if it is worth another try, else `ServiceUnavailable`."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, **self.more}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        answer = await self._post(json.dumps(body).encode())
        if answer.status in _WORTH_ANOTHER_TRY or answer.status >= 500:
            raise Trouble(self._said(answer), _retry_after(answer.headers.get("retry-after")))
        if answer.status != 200:
            raise ServiceUnavailable(f"the judge: {self._said(answer)}")
        return _content(answer)

    async def _post(self, body: bytes) -> HttpAnswer:
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ServiceUnavailable("the judge: its key has characters that cannot be sent")
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            async with (
                client(url, timeout=None) as asked,  # the judge's deadline bounds it
                asked.stream("POST", url, content=body, headers=headers) as response,
            ):
                return await received(response, ServiceUnavailable(_TOO_LONG))
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise ServiceUnavailable(f"the judge at {url!r} cannot be asked: {error}") from None
        except httpx2.HTTPError as error:
            raise Trouble(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def _said(self, answer: HttpAnswer) -> str:
        text = answer.text[:500]
        return f"HTTP {answer.status}: {text.replace(self.api_key, '[key]') if self.api_key else text}"


def pause_before(tries: int, trouble: Exception) -> float:
    """Seconds to wait before another try: as long as the endpoint says, or twice as long each time. After an answer
    that was no verdict, there is no wait."""
    if not isinstance(trouble, Trouble):
        return 0.0
    grown = min(_FIRST_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE)
    return trouble.pause if trouble.pause is not None else grown * random.uniform(0.5, 1.0)


def _retry_after(value: str | None) -> float | None:
    """The header as seconds; it may hold a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        due = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(due.timestamp() - time.time(), 0.0)


def _content(answer: HttpAnswer) -> str:
    try:
        choice = json.loads(answer.body)["choices"][0]
        content, ending = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise Nonsense("the answer is no chat completion") from None
    if not isinstance(content, str):
        raise Nonsense("the answer has no text")
    if ending == "length":
        raise Nonsense("the answer breaks off: the model reached its limit of tokens")
    return content
