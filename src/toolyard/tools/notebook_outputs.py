"""Reads outputs of notebook cells from a sandbox, which is not trusted, and shows them as text or as blocks."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from toolyard.core.output import Block, ImageBlock, TextBlock, image_block
from toolyard.core.pictures import PICTURES
from toolyard.sandboxes.cell_runner import BEGINS, ENDS

try:
    import nbformat as _nbformat

    nbformat: Any = _nbformat  # nbformat has no types
except ImportError:
    nbformat = None

OUTPUTS_MOST = 1000
"""The most outputs of a cell."""
WRAPPED = "`Wrapped`"
"""Stands for a picture in plain text."""

_MARK = re.compile(f"{BEGINS}([0-9a-f]{{8}})([a-z0-9]{{1,4}}){ENDS}")
"""A mark of this cell, or of an earlier one that has left something running."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PICTURES = tuple(PICTURES)
"""Kinds of pictures; of several forms of one output, the first of these is shown."""
_SHOWN = ("application/json", *_PICTURES)
_UNSEEN = "text/html"
"""Not shown if the output also has a plain text."""

_CHANGES_MOST = 500
"""After this many outputs of a cell, text of both streams is joined."""
_OUTPUT_BYTES = 100
"""Bytes that an output takes beside its texts."""

Output = Any
"""An output, as `nbformat` has it."""


# Reading.


def merged(written: str, token: str, items: Sequence[Output]) -> list[Output]:
    """The text and the other outputs of a cell, in the order of the marks in the text."""
    text, *parts = _MARK.split(written)
    outputs, stream, left = writing("stdout", text), "stdout", dict(enumerate(items))
    for owner, mark, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        match mark if owner == token else "":
            case "o" | "e":
                stream = "stdout" if mark == "o" else "stderr"
            case "c":
                outputs.clear()
            case _ if mark.isdecimal() and int(mark) in left:
                outputs.append(left.pop(int(mark)))
        _join(outputs, writing(stream, text))
    return [*outputs, *left.values()]


def output_of(said: object) -> Output:
    """Read an output. Raises ValueError, TypeError or LookupError if it is malformed."""
    if not isinstance(said, Mapping):
        raise TypeError(f"{said!r:.100} is no output")
    match kind := said.get("output_type"):
        case "stream":
            name = said.get("name")
            if name not in ("stdout", "stderr"):
                raise ValueError(f"there is no stream {name!r:.100}")
            return nbformat.v4.new_output("stream", name=name, text=_text(said["text"]))
        case "display_data":
            return nbformat.v4.new_output(kind, data=_bundle(said["data"]))
        case "execute_result":
            return nbformat.v4.new_output(
                kind, data=_bundle(said["data"]), execution_count=count_of(said["execution_count"])
            )
        case "error":
            lines = [_text(line) for line in said["traceback"]]
            return failure(_text(said["ename"]), _text(said["evalue"]), lines)
    raise ValueError(f"there is no output of type {kind!r:.100}")


def failure(name: str, message: str, lines: Sequence[str]) -> Output:
    return nbformat.v4.new_output(
        "error", ename=name, evalue=message, traceback=[_COLOURS.sub("", line) for line in lines]
    )


def writing(stream: str, text: str) -> list[Output]:
    return [nbformat.v4.new_output("stream", name=stream, text=text)] if text else []


def note(text: str) -> Output:
    """A note of Toolyard among a cell's outputs."""
    return nbformat.v4.new_output("stream", name="stderr", text=f"[{text}]\n")


def count_of(said: object) -> int | None:
    if said is not None and (type(said) is not int or not 0 <= said < 2**53):
        raise ValueError(f"{said!r:.100} is no count")
    return said


def outputs_of(said: object) -> list[Output]:
    if not isinstance(said, list) or len(said) > OUTPUTS_MOST:
        raise ValueError("that is no list of outputs, or it is too long")
    return [output_of(one) for one in said]


def _join(outputs: list[Output], more: Sequence[Output]) -> None:
    """Add outputs; join text of the same stream, and of both streams if they alternate too often."""
    for output in more:
        last: Output = outputs[-1] if outputs else output
        is_stream = bool(outputs) and last.output_type == "stream"
        if is_stream and (last.name == output.name or len(outputs) > _CHANGES_MOST):
            last.text += output.text
        else:
            outputs.append(output)


def _bundle(said: object) -> dict[str, str]:
    if not isinstance(said, Mapping):
        raise TypeError(f"{said!r:.100} is no bundle of texts and pictures")
    return {kind: _text(one) for kind, one in said.items() if isinstance(one, str | list)}


def _text(said: object) -> str:
    """Read a text, which notebooks may also write as a list of lines."""
    if isinstance(said, list):
        return "".join(map(_text, said)) if all(isinstance(line, str) for line in said) else orjson.dumps(said).decode()
    if not isinstance(said, str):
        raise TypeError(f"{said!r:.100} is no text")
    return said


# Showing.


def blocks_of(outputs: Sequence[Output]) -> Iterator[Block]:
    """The outputs as blocks for a model. If an output has several blocks, they share a number."""
    for number, output in enumerate(outputs):
        blocks = [_block(kind, text) for kind, text in _seen(output)]
        group = {"group": number} if len(blocks) > 1 else None
        yield from (block.model_copy(update={"detail": group}) for block in blocks)


def text_of(outputs: Sequence[Output]) -> str:
    """The outputs as text, each on lines of its own."""
    texts = [WRAPPED if kind in _PICTURES else text for output in outputs for kind, text in _seen(output)]
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts[:-1]) + "".join(texts[-1:])


def has_failed(outputs: Sequence[Output]) -> bool:
    return any(output.output_type == "error" for output in outputs)


def size_of(outputs: Sequence[Output]) -> int:
    """About how many bytes of a file the outputs take."""
    texts = (text for output in outputs for _, text in _parts(output))
    return sum(map(length, texts)) + _OUTPUT_BYTES * len(outputs)


def length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _parts(output: Output) -> Sequence[tuple[str, str]]:
    match output.output_type:
        case "stream":
            return [("text/plain", output.text)]
        case "error":
            return [("text/plain", "\n".join(output.traceback) or f"{output.ename}: {output.evalue}")]
    return sorted(output.data.items(), key=lambda part: part[0] != "text/plain")


def _seen(output: Output) -> Sequence[tuple[str, str]]:
    """The forms of an output to show to a model, text first."""
    parts = [(kind, text) for kind, text in _parts(output) if kind.startswith("text/") or kind in _SHOWN]
    pictures = sorted((kind for kind, _ in parts if kind in _PICTURES), key=_PICTURES.index)
    parts = [part for part in parts if part[0] not in pictures[1:]] or list(_parts(output))
    if any(kind == "text/plain" for kind, _ in parts):
        parts = [(kind, text) for kind, text in parts if kind != _UNSEEN]
    return parts


def _block(kind: str, text: str) -> TextBlock | ImageBlock:
    if kind in _PICTURES:
        try:
            return image_block(base64.b64decode(text))
        except (binascii.Error, ValueError, TypeError):
            return TextBlock(text=f"[{kind} that is no picture]")
    return TextBlock(text=text)
