"""Writes the result of an action for trainers: an observation, whether the trajectory is over, and validity."""

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


Result: TypeAlias = Observed | str
"""Bare text stands for the usual case: a valid observation of a trajectory that goes on."""

FINISHED = Observed("", done=True, valid=True)


def observe(result: CallResult, form: Form, text: str, *, with_images: bool) -> Observed:
    """The result of a call, as its form writes it after the text that asked for it."""
    if isinstance(result, ToolFailure):
        return _failed(result, form, text)
    written = form.answer(text, result.text or named_images(result.blocks))
    metadata = result.metadata or {}
    more = _shown(metadata, form) if metadata else {}
    if result.reward is not None:
        more["reward"] = result.reward
    if result.rewards:
        more["rewards"] = result.rewards
    if with_images:  # a trainer that sent no image cannot read one
        more |= _images(result)
    valid = metadata.get("valid") is not False
    return Observed({"obs": written, **more} if more else written, result.finished, valid)


def refused(problem: str) -> Observed:
    """The observation of an action that could not be tried, through a fault of the trainer or of the server."""
    return Observed({"obs": "", "error": problem, "invalid_reason": problem}, done=True, valid=False)


def lost(message: str, reason: str = "lost") -> Observed:
    """The observation of a failure of the infrastructure. It has no reward and ends the trajectory, as the trainer
    itself ends one that it lost."""
    observation = {"obs": message, "error": message, "reason": reason, "retryable": True, "reward": None}
    return Observed(observation, done=True, valid=False)


def _failed(failure: ToolFailure, form: Form, text: str) -> Observed:
    if failure.retryable:
        return lost(failure.message, failure.reason)
    over = failure.finished or failure.reason == "episode_finished"
    return Observed(form.answer(text, failure.message), done=over, valid=failure.reason == "tool_failed")


def _shown(metadata: Mapping[str, Any], form: Form) -> dict[str, Any]:
    names = metadata.keys() - {"valid"} if form.shown is EVERYTHING else form.shown
    return {name: metadata[name] for name in names if name in metadata}


def _images(output: ToolOutput) -> Mapping[str, Any]:
    images = [f"data:{one.mimeType};base64,{one.data}" for one in output.blocks if isinstance(one, ImageBlock)]
    return {"image": images[0] if len(images) == 1 else images} if images else {}
