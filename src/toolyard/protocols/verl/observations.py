"""What became of an action, as trainers read it: an observation, whether the trajectory is over, and validity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from toolyard.core.forms import EVERYTHING, Form
from toolyard.core.output import CallResult, ImageBlock, ToolFailure, ToolOutput, named_images

Observation: TypeAlias = str | Mapping[str, Any]


class Observed(NamedTuple):
    observation: Observation
    done: bool
    valid: bool


Told: TypeAlias = Observed | str
"""Bare text is an observation of a trajectory that goes on, and valid, as most are."""

FINISHED = Observed("", done=True, valid=True)


def observe(result: CallResult, form: Form, text: str, *, with_images: bool) -> Observed:
    """The result of a call, written after the text that asked for it."""
    if isinstance(result, ToolFailure):
        return _failed(result, form, text)
    written = form.answer(text, result.text or named_images(result.blocks))
    metadata = result.metadata or {}
    more = _shown(metadata, form) if metadata else {}
    if result.reward is not None:
        more["reward"] = result.reward
    if with_images:  # whoever sent no picture cannot read one
        more |= _images(result)
    valid = metadata.get("valid") is not False
    return Observed({"obs": written, **more} if more else written, result.finished, valid)


def refused(problem: str) -> Observed:
    """Of an action that could not even be tried, for a reason that lies with the trainer or with us."""
    return Observed({"obs": "", "error": problem, "invalid_reason": problem}, done=True, valid=False)


def lost(message: str, reason: str = "lost") -> Observed:
    """Ours, not the agent's: no reward, and the trajectory ends, as the trainer itself ends one that it lost."""
    told = {"obs": message, "error": message, "reason": reason, "retryable": True, "reward": None}
    return Observed(told, done=True, valid=False)


def _failed(failure: ToolFailure, form: Form, text: str) -> Observed:
    if failure.retryable:
        return lost(failure.message, failure.reason)
    over = failure.reason == "episode_finished"
    return Observed(form.answer(text, failure.message), done=over, valid=failure.reason == "tool_failed")


def _shown(metadata: Mapping[str, Any], form: Form) -> dict[str, Any]:
    names = metadata.keys() - {"valid"} if form.shown is EVERYTHING else form.shown
    return {name: metadata[name] for name in names if name in metadata}


def _images(output: ToolOutput) -> Mapping[str, Any]:
    images = [f"data:{one.mimeType};base64,{one.data}" for one in output.blocks if isinstance(one, ImageBlock)]
    return {"image": images[0] if len(images) == 1 else images} if images else {}
