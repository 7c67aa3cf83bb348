"""What the training recipes are made of, and the little loop: it learns, and both wires teach the same."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from toolyard import Client
from toolyard.loading import load_targets
from toolyard.testing import check_environment, running

FOLDER = Path(__file__).parents[2] / "examples" / "training"


@pytest.mark.parametrize("name", ["cups.py", "remainder.py"])
def test_each_environment_passes_the_check(name):
    (environment,) = load_targets([str(FOLDER / name)]).environments
    report = check_environment(environment)
    assert report.ok, str(report)


@pytest.fixture(scope="module")
def remainder() -> Iterator[Client]:
    environments = load_targets([str(FOLDER / "remainder.py")]).environments
    with running(environments) as server, Client(server.url) as client:
        yield client


def test_half_of_the_reward_is_for_the_first_right_program_and_half_for_the_answer(remainder):
    with remainder.environment("remainder").session(split="long", index=5) as session:
        asked = session.get_prompt()[0].text
        for word, sign in {"plus": "+", "minus": "-", "times": "*"}.items():
            asked = asked.replace(word, sign)
        program = f"a, b, c, d = map(int, input().split())\nprint(({asked}) % 5)"
        first = session.call_tool("python_code", {"code": program})
        again = session.call_tool("python_code", {"code": program})
        answer = session.call_tool("answer", {"remainder": int(first.blocks[0].text)})
    assert [first.reward, again.reward, answer.reward, answer.finished] == [0.5, 0, 0.5, True]


def test_a_wrong_program_spoils_its_half_and_the_numbers_are_in_no_answer(remainder):
    with remainder.environment("remainder").session(split="long", index=5) as session:
        numbers = session.call_tool("python_code", {"code": "print(input())"})
        assert len(numbers.blocks[0].text.split()) == 4
        assert numbers.reward == 0
        assert not {*numbers.blocks[0].text.split()} & {*session.get_prompt()[0].text.split()}
        assert session.call_tool("answer", {"remainder": 7}).reward == 0


def drawn(*options: str | Path) -> str:
    command = [sys.executable, FOLDER / "curves.py", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_curves_are_drawn_light_and_dark(tmp_path):
    told = tmp_path / "run.json"
    told.write_text(json.dumps({"title": "A run", "learns": {"1": [0.1, 0.9]}, "frozen": {"1": [0.1, 0.1]}}))
    drawn(told, "--to", tmp_path / "run")
    papers = []
    for name in ("light", "dark"):
        with Image.open(tmp_path / f"run-{name}.png") as picture:
            papers.append(sum(picture.convert("RGB").getpixel((1, 1))))
    assert papers[0] > 700
    assert papers[1] < 200


def test_curves_of_a_whole_run_are_those_of_its_tables(tmp_path):
    tables = {"learns": {"1": {"rewards": [0.1, 0.9]}}, "frozen": {"1": {"rewards": [0.1, 0.1]}}}
    whole, plain = tmp_path / "whole.json", tmp_path / "plain.json"
    whole.write_text(json.dumps({"tables": tables}))
    plain.write_text(json.dumps({name: {"1": one["1"]["rewards"]} for name, one in tables.items()}))
    drawn(whole)
    drawn(plain)
    assert whole.with_suffix(".png").read_bytes() == plain.with_suffix(".png").read_bytes()


@pytest.mark.parametrize(
    ("learns", "frozen", "verdict"),
    [
        ({"1": [0.2, 0.2, 0.5, 0.9], "2": [0.2, 0.3, 0.6, 0.8]}, {"1": [0.2] * 4}, True),
        ({"1": [0.2, 0.2, 0.5, 0.9], "2": [0.2, 0.3, 0.2, 0.3]}, {"1": [0.2] * 4}, False),
        ({"1": [0.9, 0.9, 0.9, 0.9]}, {"1": [0.2] * 4}, False),
        ({"1": [0.2, 0.2, 0.5, 0.9]}, {"1": [0.2] * 4, "2": [0.2, 0.2, 0.8, 0.8]}, False),
        ({"1": [0.2, 0.2, 0.5, 0.9]}, {}, False),
    ],
    ids=["rise", "one seed does not", "no rise", "a frozen one is as good", "no control"],
)
def test_the_verdict_wants_every_seed_above_its_start_and_above_every_frozen_one(monkeypatch, learns, frozen, verdict):
    monkeypatch.syspath_prepend(FOLDER)
    assert importlib.import_module("curves").rises(learns, frozen) is verdict


@pytest.mark.timeout(120)
def test_the_reward_rises_over_verl_and_the_curve_over_ors_is_the_same(tmp_path):
    command = [sys.executable, FOLDER / "train.py", "--steps", "40", "--png", tmp_path / "curve.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    verl, ors, verdict, _ = done.stdout.splitlines()
    assert verdict == "the curves are the same"
    first, *_, last = [float(reward) for reward in verl.removeprefix("verl: ").replace("… ", "").split()]
    assert first < 0.4
    assert last > 0.7
    assert verl.removeprefix("verl: ") == ors.removeprefix("ors: ")
    picture = Image.open(tmp_path / "curve.png")
    assert picture.size == (640, 360)
    colours = {colour for _, colour in picture.convert("RGB").getcolors(picture.width * picture.height)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours
