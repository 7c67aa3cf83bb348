"""Episodes for other programs: lines of JSON, Parquet, conversations for fine-tuning, and ATIF."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from toolyard.core.encoding import encode
from toolyard.core.output import JsonObject
from toolyard.core.pictures import PICTURES
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import Episode, Step, Store
from toolyard.version import __version__

Shape: TypeAlias = Literal["episodes", "steps", "messages", "atif"]
SHAPES: tuple[Shape, ...] = ("episodes", "steps", "messages", "atif")
FORMATS = ("jsonl", "parquet")

_ROWS_AT_ONCE = 10_000


def rows(store: Store, episodes: Iterator[Episode], shape: Shape, images: Path) -> Iterator[JsonObject]:
    """One object for each line. Images of ATIF are files in the folder `images`."""
    for episode in episodes:
        steps = store.steps(episode)
        prompt = store.prompt(episode)
        match shape:
            case "episodes":
                yield {**episode.whole(steps), "prompt": prompt}
            case "steps":
                for step in steps:
                    yield row_of_step(episode, step)
            case "messages":
                yield {"id": episode.id, "return": episode.total, "messages": messages(prompt or [], steps)}
            case "atif" if prompt or steps:  # ATIF has no form for an empty episode
                yield atif(episode, prompt or [], steps, images)


def row_of_step(episode: Episode, step: Step) -> JsonObject:
    return {"episode": episode.id, "environment": episode.environment, "run": episode.run, **step.as_json()}


def write(lines: Iterator[JsonObject], out: Path, form: str) -> int:
    """Write all objects. Return how many."""
    if form == "parquet":
        return _write_parquet(lines, out)
    count = 0
    with out.open("wb") as file:
        for line in lines:
            file.write(encode(line) + b"\n")
            count += 1
    return count


def _write_parquet(lines: Iterator[JsonObject], out: Path) -> int:
    """Values without a fixed shape, such as arguments, become JSON."""
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise StoreError("Parquet needs an extra: pip install 'toolyard[parquet]'") from error
    writer, count = None, 0
    try:
        for batch in _batches(map(_flat, lines)):
            schema = writer.schema if writer is not None else None
            table = pyarrow.Table.from_pylist(batch, schema=schema or _schema(pyarrow, batch[0]))
            writer = writer or parquet.ParquetWriter(out, table.schema)
            writer.write_table(table)
            count += len(batch)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        parquet.write_table(pyarrow.table({}), out)
    return count


_NUMBERS = {"return", "reward", "queued_seconds", "ran_seconds"}
_WHOLE = {"index", "number", "parent_step"}
_BOOLS = {"finished", "complete"}


def _schema(pyarrow: Any, row: JsonObject) -> Any:  # pyarrow has no types
    def kind(name: str) -> Any:
        if name in _NUMBERS:
            return pyarrow.float64()
        if name in _WHOLE or (name == "steps" and isinstance(row[name], int)):
            return pyarrow.int64()
        return pyarrow.bool_() if name in _BOOLS else pyarrow.string()

    return pyarrow.schema([(name, kind(name)) for name in row])


def _flat(line: JsonObject) -> JsonObject:
    return {
        name: encode(value).decode() if isinstance(value, dict | list | tuple) else value
        for name, value in line.items()
    }


def _batches(lines: Iterator[JsonObject]) -> Iterator[list[JsonObject]]:
    batch: list[JsonObject] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


# Conversations.


def messages(prompt: Sequence[JsonObject], steps: Sequence[Step]) -> Sequence[JsonObject]:
    """Messages in the form of OpenAI's chat: the prompt, then each call with its result.

    Tool results are only text there, so their images come in a user message.
    """
    found: list[JsonObject] = []
    if prompt:
        found.append({"role": "user", "content": _content(prompt)})
    for step in steps:
        call_id = f"call_{step.number}"
        function = {"name": step.tool, "arguments": encode(step.arguments).decode()}
        call = {"id": call_id, "type": "function", "function": function}
        found.append({"role": "assistant", "content": step.said, "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": call_id, "content": _in_words(step.blocks)})
        if pictures := [block for block in step.blocks if is_picture(block)]:
            found.append({"role": "user", "content": _content(pictures)})
    return found


def is_picture(block: JsonObject) -> bool:
    """Whether the block is an image of a kind that all readers of these formats know."""
    return block["type"] == "image" and block["mimeType"] in PICTURES


def _in_words(blocks: Sequence[JsonObject]) -> str:
    return "\n".join(block["text"] if block["type"] == "text" else f"[image: {block['mimeType']}]" for block in blocks)


def _content(blocks: Sequence[JsonObject]) -> str | Sequence[JsonObject]:
    if not any(map(is_picture, blocks)):
        return _in_words(blocks)
    return [
        {"type": "image_url", "image_url": {"url": f"data:{block['mimeType']};base64,{block['data']}"}}
        if is_picture(block)
        else {"type": "text", "text": _in_words([block])}
        for block in blocks
    ]


# ATIF.


def atif(episode: Episode, prompt: Sequence[JsonObject], steps: Sequence[Step], images: Path) -> JsonObject:
    """A trajectory for Harbor and others. The format has no field for rewards, so they stand in `extra`."""
    shown = _Shown(episode, images)
    found = [{"step_id": 1, "source": "user", "message": shown.content(prompt)}] if prompt else []
    for step in steps:
        call_id = f"call_{step.number}"
        result = {"source_call_id": call_id, "content": shown.content(step.blocks)}
        found.append(
            {
                "step_id": len(found) + 1,
                "timestamp": step.at,
                "source": "agent",
                "message": step.said or "",
                "tool_calls": [
                    {"tool_call_id": call_id, "function_name": step.tool, "arguments": dict(step.arguments)}
                ],
                "observation": {"results": [result]},
                "extra": {"reward": step.reward, "outcome": step.outcome, "finished": step.finished},
            }
        )
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": episode.id,
        "agent": {"name": episode.labels.get("agent", "unknown"), "version": episode.labels.get("version", "unknown")},
        "steps": found,
        "final_metrics": {"extra": {"return": episode.total, "outcome": episode.outcome}},
        "extra": {
            "environment": episode.environment,
            "split": episode.split,
            "index": episode.index,
            "run": episode.run,
            "toolyard": __version__,
        },
    }


class _Shown:
    """Blocks in the form of ATIF: an image is a file beside the document."""

    def __init__(self, episode: Episode, folder: Path) -> None:
        self._episode = episode
        self._folder = folder
        self._count = 0

    def content(self, blocks: Sequence[JsonObject]) -> str | Sequence[JsonObject]:
        shown = [self._image(block) or {"type": "text", "text": _in_words([block])} for block in blocks]
        return shown if any(part["type"] == "image" for part in shown) else _in_words(blocks)

    def _image(self, block: JsonObject) -> JsonObject | None:
        """The image as a file; None if other readers would not know it."""
        data = picture(block) if is_picture(block) else None
        if data is None:
            return None
        self._count += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        kind = block["mimeType"]
        path = self._folder / f"{self._episode.file_name}-{self._count}.{PICTURES[kind]}"
        path.write_bytes(data)
        return {"type": "image", "source": {"media_type": kind, "path": f"{self._folder.name}/{path.name}"}}


def picture(block: JsonObject) -> bytes | None:
    """The bytes of an image; None if its data is not base64."""
    try:
        return base64.b64decode(block["data"]) or None
    except ValueError:
        return None
