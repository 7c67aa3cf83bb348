"""The least that a text tool can do, written as a coroutine and as a plain function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from toolyard import Environment, Given, tool


@dataclass(frozen=True)
class Anything:
    """Takes every text as a call."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> Mapping[str, Any]:
        return {"text": text[:10]}

    def answer(self, text: str, result: str) -> str:
        return result


class Trivial(Environment):
    turns = 0

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[Mapping[str, Any]]:
        return [{}]

    def get_prompt(self) -> str:
        return "Say something."

    @tool(form=Anything())
    async def base(self, text: str, trajectory_id: Annotated[str, Given()] = "") -> str:
        """Answer with the number of the turn."""
        self.turns += 1
        return f"Base observation for {trajectory_id} in turn {self.turns}"


class TrivialPlain(Trivial):
    @tool(form=Anything())
    def base(self, text: str, trajectory_id: Annotated[str, Given()] = "") -> str:  # type: ignore[override]
        """Answer with the number of the turn."""
        self.turns += 1
        return f"Base observation for {trajectory_id} in turn {self.turns}"
