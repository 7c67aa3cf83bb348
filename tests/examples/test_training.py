"""The little training loop: it learns, and both wires teach the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from toolyard.loading import load_targets
from toolyard.testing import check_environment

FOLDER = Path(__file__).parents[2] / "examples" / "training"


def test_the_environment_passes_the_check():
    (environment,) = load_targets([str(FOLDER / "cups.py")]).environments
    report = check_environment(environment)
    assert report.ok, str(report)


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
