"""Requests that no client of verl-tool should send, and their answers: 4xx with a reason, never 5xx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wires.verl_wire import Steps, Trainer, observed
from tests.wires.wire import request_bytes, strict_json, talk
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Steps], body_bytes=100_000) as server:
        yield server


@pytest.fixture
async def trainer(steps: Running) -> AsyncIterator[Trainer]:
    async with Trainer(steps.url) as trainer:
        yield trainer


GOOD: dict[str, Any] = {"trajectory_ids": ["a"], "actions": ["x"]}


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        ({"actions": ["x", "y"]}, ["body"], "Value error, Length of actions must match trajectory_ids"),
        ({"actions": []}, ["body"], "Value error, Length of actions must match trajectory_ids"),
        ({"extra_fields": []}, ["body"], "Value error, Length of extra_fields must match trajectory_ids"),
        ({"extra_fields": [{}, {}]}, ["body"], "Value error, Length of extra_fields must match trajectory_ids"),
        ({"trajectory_ids": [], "actions": []}, ["body", "trajectory_ids"], "List should have at least 1 item"),
        ({"trajectory_ids": None}, ["body", "trajectory_ids"], "Input should be a valid list"),
        ({"trajectory_ids": "a"}, ["body", "trajectory_ids"], "Input should be a valid list"),
        ({"trajectory_ids": [None]}, ["body", "trajectory_ids", 0], "Input should be a valid string"),
        ({"trajectory_ids": [["a"]]}, ["body", "trajectory_ids", 0], "Input should be a valid string"),
        ({"actions": [None]}, ["body", "actions", 0], "Input should be a valid string"),
        ({"actions": [1]}, ["body", "actions", 0], "Input should be a valid string"),
        ({"extra_fields": {}}, ["body", "extra_fields"], "Input should be a valid list"),
        ({"extra_fields": ["x"]}, ["body", "extra_fields", 0], "Input should be a valid dictionary"),
        ({"finish": True}, ["body", "finish"], "Input should be a valid list"),
        ({"is_last_step": ["maybe"]}, ["body", "is_last_step", 0], "Input should be a valid boolean"),
    ],
)
async def test_82_what_is_wrong_with_a_batch_is_said_with_its_place(trainer, change, where, said):
    response = await trainer.post("/get_observation", json=GOOD | change)
    assert response.status_code == 422
    (problem,) = response.json()["detail"]
    assert problem["loc"] == where
    assert problem["msg"].startswith(said)


@pytest.mark.parametrize("missing", ["trajectory_ids", "actions"])
async def test_82_a_list_that_is_not_there_is_named(trainer, missing):
    body = {name: value for name, value in GOOD.items() if name != missing}
    response = await trainer.post("/get_observation", json=body)
    assert response.status_code == 422
    assert response.json()["detail"][0] | {"input": None} == {
        "type": "missing",
        "loc": ["body", missing],
        "msg": "Field required",
        "input": None,
    }


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 50_000, b"[]]"])
async def test_82_a_body_that_is_no_object_is_refused(trainer, body):
    response = await trainer.post("/get_observation", content=body)
    assert response.status_code == 422
    assert strict_json(response.content)["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_extra_fields_may_be_nested_but_not_without_end(trainer, opening, closing):
    def nested(levels: int) -> bytes:
        value = opening * levels + b"1" + closing * levels
        return b'{"trajectory_ids":["deep"],"actions":["<note>x</note>"],"extra_fields":[{"n":' + value + b"}]}"

    (one,) = observed(await trainer.post("/get_observation", content=nested(150)), 1)
    assert one.valid
    response = await trainer.post("/get_observation", content=nested(500))
    assert response.status_code == 422
    assert response.json()["detail"][0]["ctx"] == {"error": "it is nested too deeply"}


async def test_an_empty_entry_of_extra_fields_is_as_good_as_none(trainer):
    (one,) = await trainer.batch(["null"], ["<note>x</note>"], extra_fields=[None])
    assert one.valid


async def test_nobody_else_can_enter_a_session_by_naming_it_like_a_trajectory(trainer):
    """A trajectory and a session of another protocol are separate, whatever their names."""
    await trainer.act("shared", "<note>mine</note>")
    assert not await trainer.alive("shared")
    await trainer.open("shared", env_name="steps")
    assert (await trainer.act("shared", "<note>again</note>")).text == "\n<notes>mine again</notes>\n"


async def test_a_body_that_is_too_large_is_told_so(trainer):
    response = await trainer.post("/get_observation", json=GOOD | {"actions": ["x" * 200_000]})
    assert response.status_code == 413
    assert "larger than 100000 bytes" in response.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/get_observation"), ("POST", "/verl/health")])
async def test_another_method_is_answered_405_with_the_right_one(trainer, method, path):
    response = await trainer.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] in ("GET", "POST")


async def test_a_slash_at_the_end_does_no_harm(trainer):
    assert (await trainer.post("/get_observation/", json=GOOD)).status_code == 200


async def test_a_probe_of_a_path_below_is_answered_without_a_redirect(trainer):
    """One of verl-tool's scripts sends this and accepts any answer."""
    assert (await trainer.get("/get_observation/health")).status_code == 404


async def test_bytes_that_are_not_http_are_answered_and_the_server_goes_on(steps, trainer):
    assert talk(steps.url, b"\x00\x01\x02\r\n\r\n").startswith(b"HTTP/1.1 400")
    half = json.dumps(GOOD).encode()[:-3]
    assert talk(steps.url, request_bytes("POST", "/get_observation", body=half)).startswith(b"HTTP/1.1 422")
    assert (await trainer.get("/health")).json()["status"] == "ok"


strange = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["trajectory_ids", "actions", "extra_fields", "finish", "is_last_step", "stdin", "environment"])


@pytest.mark.thorough
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(body=st.dictionaries(names, strange, max_size=7))
def test_whatever_is_sent_is_answered_and_never_with_5xx(steps, body):
    with httpx2.Client(base_url=steps.url, timeout=20, trust_env=False) as client:
        response = client.post("/get_observation", content=json.dumps(body).encode())
    assert response.status_code in (200, 422), response.text
    strict_json(response.content)


@pytest.mark.thorough
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=st.text(max_size=60), extra=st.dictionaries(st.text(max_size=8), strange, max_size=4), finish=strange)
def test_any_text_and_any_extra_field_of_one_trajectory_is_answered(steps, text, extra, finish):
    wanted = {"trajectory_ids": ["fuzz"], "actions": [text], "extra_fields": [extra | {"finish": finish}]}
    with httpx2.Client(base_url=steps.url, timeout=20, trust_env=False) as client:
        observed(client.post("/get_observation", content=json.dumps(wanted).encode()), 1)
