"""A real HTTP server that answers as an endpoint of the Chat Completions API does, with what a test wants it to say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.client.scripted import Asked, Scripted, answer, scripted

Body = dict[str, Any]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def said(
    text: str | None = None, *calls: tuple[str, object], finish: str | None = None, usage: Body = USAGE, **more: Any
) -> bytes:
    """A message. The arguments of a call are JSON, or a text that is sent as it is."""
    written = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": written} if written else {}), **more}
    reason = finish or ("tool_calls" if calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return answer(json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode())


def refused(status: str, message: str = "no", *headers: str, code: str | None = None) -> bytes:
    return answer(json.dumps({"error": {"message": message, "code": code}}).encode(), *headers, status=status)


def streamed(*chunks: Body, ends: bool = True) -> bytes:
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    body = (lines + ("data: [DONE]\n\n" if ends else "")).encode()
    return answer(body, kind="text/event-stream")


class Model:
    """What an endpoint was asked, and how many at once."""

    def __init__(self, reply: Callable[[Body], bytes | None]) -> None:
        self.reply = reply
        self.bodies: list[Body] = []
        self.url = ""
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> bytes | None:
        body = json.loads(asked.body)
        with self._lock:
            self.bodies.append(body)
        return self.reply(body)

    @property
    def last(self) -> Sequence[Body]:
        """The messages of the last request."""
        messages: Sequence[Body] = self.bodies[-1]["messages"]
        return messages


@contextmanager
def model(reply: Callable[[Body], bytes | None]) -> Iterator[Model]:
    made = Model(reply)
    with scripted(made) as server:
        made.url = f"{server.url}/v1"
        yield made


def in_turn(*answers: bytes | None) -> Callable[[Body], bytes | None]:
    """Each answer once, and the last for ever."""
    left = list(answers)

    def reply(_: Body) -> bytes | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


__all__ = ["Body", "Model", "Scripted", "in_turn", "model", "refused", "said", "streamed"]
