"""Which values a setting takes."""

from __future__ import annotations

import dataclasses
import math

import pytest

from toolyard.settings import Settings, SettingsError

NUMBERS = [field.name for field in dataclasses.fields(Settings) if type(field.default) in (int, float)]
ZERO_MEANS_SOMETHING = {
    "drain_seconds",
    "max_connections",
    "max_queued_calls",
    "pool_processes",
    "port",
    "outcome_seconds",
    "process_cpu_seconds",
    "process_memory_bytes",
    "ray_actors",
    "ray_cpus",
    "replay_bytes",
    "replay_seconds",
    "sandboxes_at_once",
    "sandboxes_ready",
    "starting_seconds",
    "verl_repeat_seconds",
    "verl_request_seconds",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_zero_is_refused_where_nothing_would_work_with_it(name):
    if name in ZERO_MEANS_SOMETHING:
        assert getattr(Settings(**{name: 0}), name) == 0
    else:
        with pytest.raises(SettingsError, match=f"{name} is 0; it must be more than 0"):
            Settings(**{name: 0})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_must_be_finite(name, value):
    with pytest.raises(SettingsError, match=f"{name} is {value}; it must be a finite number"):
        Settings(**{name: value})


def test_a_variable_is_held_to_the_same():
    with pytest.raises(SettingsError, match=r"ping_seconds is 0\.0; it must be more than 0"):
        Settings.read({}, {"TOOLYARD_PING_SECONDS": "0"})
