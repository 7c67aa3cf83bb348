"""Reads from a request which run of its client a new session belongs to, for the record of its episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from urllib.parse import unquote

from toolyard.asgi import HttpError, Request
from toolyard.core.output import JsonObject
from toolyard.placement.base import Origin

_RUN, _LABELS, _SAID = b"x-toolyard-run", b"x-toolyard-labels", b"x-toolyard-said"
_RUN_MOST = 200
_LABELS_MOST = 32
_LABEL_MOST = 1000


def origin_of(request: Request, wire: str) -> Origin:
    """The run and the labels that the headers name. Raises `HttpError` if they cannot be read."""
    run, labels = request.header(_RUN), request.header(_LABELS)
    if len(run) > _RUN_MOST or not run.isprintable():
        raise HttpError(400, f"X-Toolyard-Run is one line of at most {_RUN_MOST} characters")
    return Origin(wire, run, _labels(labels) if labels else {})


def said_in(request: Request) -> str:
    """What the model wrote beside the call, from the client's header."""
    text = request.header(_SAID)
    return unquote(text) if text else ""


def found_in(fields: JsonObject, origin: Origin) -> Origin:
    """The origin with the run and the labels from a trainer's fields; ignores all other fields."""
    run, labels = fields.get("run"), fields.get("labels")
    if not isinstance(run, str | int):
        return origin
    known = labels if isinstance(labels, dict) else {}
    return dataclasses.replace(origin, run=str(run)[:_RUN_MOST], labels=_as_text(known))


def _labels(given: str) -> Mapping[str, str]:
    try:
        labels = json.loads(given)
    except ValueError:
        labels = None
    if not isinstance(labels, dict) or len(labels) > _LABELS_MOST:
        raise HttpError(400, f'X-Toolyard-Labels is a JSON object of at most {_LABELS_MOST} texts: {{"step": "12"}}')
    return _as_text(labels)


def _as_text(labels: JsonObject) -> Mapping[str, str]:
    first = list(labels.items())[:_LABELS_MOST]
    return {str(name)[:_LABEL_MOST]: str(value)[:_LABEL_MOST] for name, value in first}
