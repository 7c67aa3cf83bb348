"""For each case of verl-tool's wire, a server that fails it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.mutant import Exchange, Mutation, at, header, put, second_time, status, told

_PATH = "/get_observation"


def reverse(answer: dict[str, Any]) -> None:
    for name in ("observations", "dones", "valids"):
        answer[name].reverse()


def refusing(what: bytes) -> Mutation:
    """A server that refuses requests that contain this."""
    return at(_PATH, status(422), when=lambda exchange: what in exchange.request)


def has_number(exchange: Exchange) -> bool:
    return any(isinstance(one, int) for one in exchange.asked.get("trajectory_ids", ()))


VERL: Mapping[str, Mutation] = {
    "E66": at(_PATH, put(processing_time_ms=None)),
    "E70": at(_PATH, put(observations=[{"text": "x"}])),
    "E77": at(_PATH, put(dones=[True])),
    "E77b": at(_PATH, put(observations=[{"obs": "", "invalid_reason": "no tool"}])),
    "E78": at(_PATH, second_time(put(valids=[False]))),
    "E79": at(_PATH, put(dones=[False])),
    "E80": at(_PATH, told(lambda answer: answer["dones"].__setitem__(0, False))),
    "E81": at(_PATH, told(lambda answer: answer["dones"].sort())),
    "E82": at(_PATH, status(400, was=422)),
    "E83": at(_PATH, status(422), when=has_number),
    "E84": refusing(b"null"),
    "E85": refusing(b"NaN"),
    "E86": refusing(b"public_tests"),
    "E98": at(_PATH, told(reverse)),
    "E100": at(_PATH, second_time(put(observations=["another"]))),
    "E101": at("/health", put(status="ok")),
    "E103": at(_PATH, header("Content-Type", "text/plain")),
}
