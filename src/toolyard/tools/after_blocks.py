"""Writes a result after the text that asked for it, as verl-tool's tools with state do."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.core.forms import TOOL_CALL_END

FENCE = "```"
_FEEDBACK = "<|calling system for feedback|>"


def after_block(text: str, result: str, *, tag: str, output: str, fences: Sequence[str], called: str) -> str:
    """Wrap a result: inside a block that the text has opened for it, or else in one that matches the block of the code.

    `tag` marks the code and `output` the result. `fences` are the openings of fenced code. `called` is the template for
    the result of a `<tool_call>`, with `{}` in its place.
    """
    tagged = f"\n<{output}>\n{result}\n</{output}>\n"
    fenced = f"\n{FENCE}output\n{result}\n{FENCE}\n"
    is_fenced = any(fence in text for fence in fences)
    if text.endswith(f"{FENCE}output"):
        return f"\n{result}\n{FENCE}\n"
    if text.endswith(TOOL_CALL_END):
        return called.replace("{}", result)
    if text.endswith(f"<{output}>"):
        return f"\n{result}\n</{output}>\n"
    if f"</{tag}>" in text:
        return tagged
    if _FEEDBACK in text:
        return fenced if is_fenced else tagged if f"<{tag}>" in text else f"\n{result}\n"
    if is_fenced or text.strip(" \n").endswith(FENCE):
        return f"output\n{result}\n{FENCE}\n" if text.count(FENCE) % 2 else fenced
    return f"\n{result}\n"
