"""A text by its lines, which begin at 1: shown with their numbers, and edited. No list is made of all of them: a file
can have millions."""

from __future__ import annotations

SHOWN_MOST = 100_000
"""Characters of a text that are shown at once."""

_STEP = 64 * 1024


def numbered(text: str, line: int = 1) -> str | None:
    """The lines from this one on, as far as they may be shown at once; None if there is no such line.

    0 is the first line too, and -1 is the last. An empty text is shown as nothing.
    """
    if not text:
        return "" if line in (0, 1) else None
    count = text.count("\n") + (not text.endswith("\n"))
    first = line + count + 1 if line < 0 else line or 1
    if not 1 <= first <= count:
        return None
    start = _start_of(text, first)
    piece = text[start : start + SHOWN_MOST]
    is_cut = start + SHOWN_MOST < len(text)
    if is_cut and "\n" in piece:
        piece = piece[: piece.rindex("\n") + 1]
    lines = piece.replace("\r\n", "\n").removesuffix("\n").split("\n")
    numbered = "\n".join(f"{number:>5}: {shown}" for number, shown in enumerate(lines, first))
    if is_cut:
        rest = f"read on from line {first + len(lines)} of {count}" if piece.endswith("\n") else "the line goes on"
        return f"{numbered}\n[cut here: {rest}]\n"
    return numbered + "\n" * piece.endswith("\n")


def edited(text: str, content: str, line: int | None, *, overwrite: bool) -> str:
    """With these lines at the end, or else before a line, or in the place of as many lines from that one on.

    Every line is ended, also the last. A line that is past the end is the end.
    """
    text, content = _ended(text), _ended(content)
    if line is None:
        return text + content
    end = text.count("\n") + 1
    first = min(max(line + end if line < 0 else line, 1), end)
    after = min(first + content.count("\n"), end) if overwrite else first
    return text[: _start_of(text, first)] + content + text[_start_of(text, after) :]


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _start_of(text: str, line: int) -> int:
    """Where this line begins. It must be there, or be the next after the last."""
    at, ahead = 0, line - 1
    while (passed := text.count("\n", at, at + _STEP)) < ahead:
        at += _STEP
        ahead -= passed
    for _ in range(ahead):
        at = text.index("\n", at) + 1
    return at
