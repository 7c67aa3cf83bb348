"""A step as a row: what the store keeps of a call, without the session's secrets and what redact() removes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from toolyard.core.encoding import encode
from toolyard.core.output import (
    AskAgain,
    Block,
    ImageBlock,
    JsonObject,
    Reply,
    TextBlock,
    ToolFailure,
    ToolOutput,
)
from toolyard.core.tool import MARK
from toolyard.episodes.events import Stepped

log = logging.getLogger("toolyard.episodes")

LONG = 4096
"""Texts up to this many characters stand in the row; longer ones in a table of their own."""
ASK_AGAIN = "ask_again"
"""The key in a step's metadata that names the tool to call for the result, if the tool returned `AskAgain`."""
_SECRET_LEAST = 6
"""Shorter secrets would match everywhere."""
_INSTEAD = "[secret]"

EPISODE = (
    "INSERT INTO episodes (id, session, parent, parent_step, environment, split, task_index, task, wire, run, labels, "
    "opened, stays, toolyard, source, steps, finished, outcome, complete) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 'open', 0)"
)
_VALUES = f"({', '.join('?' * 16)})"
STEP = f"INSERT INTO steps VALUES {_VALUES}"
STEPS_AT_ONCE = 32
STEPS = f"INSERT INTO steps VALUES {', '.join([_VALUES] * STEPS_AT_ONCE)}"
"""Many rows in one statement: each statement releases the interpreter, and has to wait to get it back."""

_TEXTS = ("arguments", "given", "said", "metadata")
_NOTHING: JsonObject = {"arguments": {}, "said": None, "blocks": [], "metadata": None}


@dataclass(slots=True)  # not frozen: that costs a microsecond for each
class Row:
    number: int
    tool: str
    arguments: str
    given: str | None
    said: str | None
    outcome: str
    blocks: Sequence[JsonObject]
    reward: float | None
    finished: bool
    metadata: str | None
    queued: float
    ran: float | None
    at: float
    altered: bool = False
    """Something was removed, so its call cannot be repeated."""

    @classmethod
    def of(cls, event: Stepped) -> Row:
        deed, result = event.deed, event.result
        blocks, reward, finished, metadata = seen(result)
        row = cls(
            number=deed.number,
            tool=whole(deed.tool),
            arguments=deed.arguments.decode(),
            given=deed.given.decode() or None,
            said=whole(deed.said) if deed.said else None,
            outcome=result.reason if isinstance(result, ToolFailure) else "ok",
            blocks=blocks,
            reward=reward,
            finished=finished,
            metadata=encode(metadata).decode() if metadata else None,
            queued=event.waited,
            ran=event.ran,
            at=deed.at,
        )
        spec = deed.of.spec
        if spec.secrets and (secrets := [value for value in spec.secrets.values() if len(value) >= _SECRET_LEAST]):
            row = row.without(secrets)
        redact = _redact_of(spec.environment)  # type: ignore[arg-type]  # a class has a hash
        return row if redact is None else row.redacted(redact)

    def without(self, secrets: Sequence[str]) -> Row:
        """A copy in which other words replace secrets, wherever the call or its result repeats one."""
        kept: dict[str, Any] = {name: _hide(getattr(self, name), secrets) for name in _TEXTS}
        blocks = json.loads(_hide(encode(self.blocks).decode(), secrets) or "[]")
        same = blocks == self.blocks and all(value == getattr(self, name) for name, value in kept.items())
        return self if same else replace(self, **kept, blocks=blocks, altered=True)

    def redacted(self, redact: Callable[[JsonObject], JsonObject | None]) -> Row:
        """A copy after the author's redact(). If redact() fails, the copy keeps no words of the call."""
        shown = {
            "tool": self.tool,
            "arguments": json.loads(self.arguments),
            "said": self.said,
            "blocks": list(self.blocks),
            "metadata": json.loads(self.metadata) if self.metadata else None,
        }
        before = encode(shown)
        try:
            left = redact(shown) or {}
            after = {name: left.get(name, empty) for name, empty in _NOTHING.items()}
            if encode({**shown, **after}) == before:
                return self
            blocks = [
                plain(block) if isinstance(block, TextBlock | ImageBlock) else block for block in after["blocks"] or ()
            ]
            metadata = encode(after["metadata"]).decode() if after["metadata"] else None
            arguments = encode(after["arguments"] or {}).decode()
            return replace(
                self,
                arguments=arguments,
                said=None if after["said"] is None else whole(after["said"]),
                blocks=blocks,
                metadata=metadata,
                given=None,
                altered=True,
            )
        except Exception:  # the author's redact()
            log.exception("redact() failed, so nothing of a call of %s is kept", self.tool)
            return replace(self, arguments="{}", given=None, said=None, blocks=[], metadata=None, altered=True)

    @property
    def rewards(self) -> JsonObject | None:
        """The named rewards."""
        found = json.loads(self.metadata).get("rewards") if self.metadata and '"rewards"' in self.metadata else None
        return found if isinstance(found, dict) else None

    def values(self, episode: int, blocks: str, rewards: JsonObject | None) -> Sequence[Any]:
        return (
            *(episode, self.number, self.tool, self.arguments, self.given, self.said, self.outcome, blocks),
            *(self.reward, None if rewards is None else json.dumps(rewards), self.finished, self.metadata),
            *(self.queued, self.ran, self.at, self.altered),
        )


def seen(result: Reply) -> tuple[Sequence[JsonObject], float | None, bool, JsonObject | None]:
    """A result's blocks, its reward, whether it ended the episode, and its metadata."""
    match result:
        case str():
            return [_text(result)], None, False, None
        case ToolFailure():
            return [_text(result.message)], None, result.finished, result.metadata
        case AskAgain():
            return [], None, False, {ASK_AGAIN: result.tool}
        case ToolOutput():
            return [plain(block) for block in result.blocks], result.reward, result.finished, result.metadata


def plain(block: Block) -> JsonObject:
    """A block as JSON, with its detail if it has one."""
    if isinstance(block, ImageBlock):
        made: JsonObject = {"type": "image", "data": block.data, "mimeType": block.mimeType}
    else:
        made = _text(block.text)
    return made if block.detail is None else {**made, "detail": block.detail}


def hook_of(environment: type, name: str) -> Callable[..., Any] | None:
    """An optional hook of an environment; a tool of the same name does not count."""
    found = getattr(environment, name, None)
    return found if callable(found) and not hasattr(found, MARK) else None


def whole(text: str) -> str:
    """The text without lone surrogates, which no database accepts. JSON keeps them."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@cache
def _redact_of(environment: type) -> Callable[..., Any] | None:
    return hook_of(environment, "redact")


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _hide(text: str | None, secrets: Sequence[str]) -> str | None:
    for secret in secrets if text else ():
        for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
            text = (text or "").replace(written, _INSTEAD)
    return text
