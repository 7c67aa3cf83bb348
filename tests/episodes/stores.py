"""Stores for tests: a real server's records of a few sessions that a real client played."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.wires.wire import _NO_TLS, Answer
from tests.worlds import OneTask
from toolyard import ImageBlock, TextBlock, ToolError, ToolOutput, tool
from toolyard.testing import running

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="  # one pixel


class Quiz(OneTask):
    """Tasks with numbers, and tools with given answers."""

    @classmethod
    def list_tasks(cls, split):
        return [{"n": number} for number in range(10)]

    def get_prompt(self):
        return f"Question {self.task_spec['n']}?"

    @tool
    async def say(self, text: str) -> str:
        """Say it back."""
        return text

    @tool
    async def picture(self, data: str = PNG, kind: str = "image/png") -> ToolOutput:
        """An image between two texts."""
        image = ImageBlock(data=data, mimeType=kind)
        return ToolOutput(blocks=[TextBlock(text="look:"), image, TextBlock(text="seen?")])

    @tool
    async def grade(self, reward: float, last: bool = True) -> ToolOutput:
        """Give a reward."""
        return ToolOutput(blocks=[TextBlock(text="graded")], reward=reward, finished=last, metadata={"by": "hand"})

    @tool
    async def refuse(self) -> str:
        """Fail as an author wants it."""
        raise ToolError("not like that")


class Player:
    """Plays sessions on a server that records."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def play(
        self,
        *calls: tuple[str, Mapping[str, Any]],
        index: int | None = None,
        task: Mapping[str, Any] | None = None,
        run: str = "",
        labels: Mapping[str, str] = {},
    ) -> None:
        """One episode, from its opening to its end."""
        sid = f"s-{uuid.uuid4()}"
        headers = {"X-Session-ID": sid, "X-Toolyard-Run": run}
        opening = {**headers, "X-Toolyard-Labels": json.dumps(labels)} if labels else headers
        chosen = {"task_spec": task or {"n": 0}} if index is None else {"split": "train", "index": index}
        assert self._post("/create", opening, chosen).status_code == 200
        self._client.get("/quiz/prompt", headers=headers)
        for name, arguments in calls:
            Answer.of(self._post("/quiz/call", headers, {"name": name, "input": arguments}))
        assert self._post("/delete", headers, {}).status_code == 200

    def _post(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> httpx2.Response:
        """In ASCII, so that lone surrogates get there as well."""
        return self._client.post(path, headers=headers, content=json.dumps(body))


@contextmanager
def recording(path: Path, *, environments: Sequence[type] = (), **settings: Any) -> Iterator[Player]:
    """The server writes everything by the end of the block."""
    with (
        running(environments or [Quiz], record=str(path), **settings) as server,
        httpx2.Client(base_url=server.url, verify=_NO_TLS, timeout=30, trust_env=False) as client,
    ):
        yield Player(client)


def graded(*rewards: float) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Calls that return these rewards; the last one ends the episode."""
    last = len(rewards) - 1
    return [("grade", {"reward": reward, "last": number == last}) for number, reward in enumerate(rewards)]
