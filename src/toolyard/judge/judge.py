"""`Judge`: asks a model for a verdict by a rubric. Without a verdict the call is lost, and gets no score."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from toolyard.core.encoding import encode_sorted
from toolyard.core.errors import DefinitionError, ServiceUnavailable, ToolError
from toolyard.judge.cache import Cache
from toolyard.judge.endpoint import Endpoint, Trouble, pause_before
from toolyard.judge.rubric import Criterion, Nonsense, Rubric, Verdict

_VERSION = 1
"""The version of the judge's instructions: other instructions give other verdicts."""


class Judge:
    """A model behind any endpoint that speaks OpenAI's chat completions. Make one, and use it for all sessions.

    `base_url` and `api_key` default to the environment variables OPENAI_BASE_URL and OPENAI_API_KEY. `more` adds fields
    to each request, such as `{"max_tokens": 1000}`. A verdict comes within `deadline` seconds and `tries` questions, or
    not at all. The same text under the same rubric gets the same verdict, from memory or from the file `cache`, if you
    name one.
    """

    def __init__(
        self,
        model: str,
        criteria: Sequence[Criterion],
        *,
        instructions: str = "",
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = 0.0,
        more: Mapping[str, Any] = {},
        deadline: float = 120.0,
        tries: int = 5,
        cache: str | os.PathLike[str] | None = None,
        most_characters: int = 100_000,
    ) -> None:
        if not deadline > 0 or tries < 1 or most_characters < 1:
            raise DefinitionError("a judge needs a positive deadline, at least one try, and texts of some length")
        self.rubric = Rubric(tuple(criteria), instructions)
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._temperature = temperature
        self._more = dict(more)
        self._deadline = deadline
        self._tries = tries
        self._most = most_characters
        self._cache = Cache(cache)

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the criteria, for `ToolOutput(rewards=verdict.rewards, weights=judge.weights)`."""
        return {one.name: one.weight for one in self.rubric.criteria}

    async def ask(self, text: str, *, about: Mapping[str, str] = {}) -> Verdict:
        """Judge a text of an agent. `about` is what else the judge should know, by name: a task, a right answer.

        Raises `ServiceUnavailable` if there is no verdict, and `ToolError` if the text is too long, which the agent can
        correct.
        """
        if len(text) > self._most:
            raise ToolError(f"the text has {len(text):,} characters; at most {self._most:,} are judged")
        key = self._key(text, about)
        if (verdict := await self._known(key)) is not None:
            return verdict
        verdict = await self._asked(text, about)
        await asyncio.to_thread(self._cache.keep, key, {"scores": verdict.scores, "reasons": verdict.reasons})
        return verdict

    async def _asked(self, text: str, about: Mapping[str, str]) -> Verdict:
        troubles: list[Exception] = []
        try:
            async with asyncio.timeout(self._deadline) as deadline:
                return await self._until(deadline.when() or 0.0, text, about, troubles)
        except TimeoutError:
            last = f"; before that: {troubles[-1]}" if troubles else ""
            raise ServiceUnavailable(f"the judge gave no verdict within {self._deadline:g} s{last}") from None

    async def _until(self, due: float, text: str, about: Mapping[str, str], troubles: list[Exception]) -> Verdict:
        """Ask until there is a verdict, or no try is left, or the next one would come too late."""
        now = asyncio.get_running_loop().time
        while len(troubles) < self._tries:
            if troubles:
                pause = pause_before(len(troubles), troubles[-1])
                if now() + pause >= due:
                    break
                await asyncio.sleep(pause)
            try:
                return await self._once(text, about)
            except (Trouble, Nonsense) as error:
                troubles.append(error)
        raise ServiceUnavailable(f"the judge gave no verdict; tries: {len(troubles)}, the last: {troubles[-1]}")

    async def _once(self, text: str, about: Mapping[str, str]) -> Verdict:
        mark = _mark(text, *about.values())
        messages = self.rubric.messages(_clean(text), {name: _clean(said) for name, said in about.items()}, mark)
        return self.rubric.read(await self._endpoint().ask(messages), mark)

    def _endpoint(self) -> Endpoint:
        base_url = self._base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        api_key = self._api_key if self._api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        return Endpoint(base_url, api_key, self._model, self._temperature, self._more)

    def _key(self, text: str, about: Mapping[str, str]) -> str:
        asked = [_VERSION, self._model, self._temperature, self._more, self.rubric.system, text, [*about.items()]]
        return hashlib.sha256(encode_sorted(asked)).hexdigest()

    async def _known(self, key: str) -> Verdict | None:
        said = await asyncio.to_thread(self._cache.find, key)
        return None if said is None else self.rubric.remembered(said)


def _mark(*texts: str) -> str:
    """A random word that is in none of the texts."""
    while True:
        mark = secrets.token_hex(8)
        if not any(mark in text for text in texts):
            return mark


def _clean(text: str) -> str:
    """The text without broken characters, which endpoints refuse."""
    return text.encode("utf-8", "replace").decode()
