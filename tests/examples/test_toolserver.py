"""The agent's session through the ToolServer: it brings home the picture that the docs show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "examples" / "toolserver" / "plot.py"


@pytest.mark.timeout(120)
def test_it_plots_in_the_notebook_and_saves_the_figure(tmp_path):
    picture = tmp_path / "plot.png"
    done = subprocess.run([sys.executable, SCRIPT, "--png", picture], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *shown, last = done.stdout.splitlines()
    assert first == "the notebook showed 1 picture"
    assert {"temperatures.csv", "temperatures.png", "python_notebook.ipynb"} <= set(shown)
    assert last == f"saved as {picture}"
    image = Image.open(picture).convert("RGB")
    assert image.size == (640, 360)
    colours = {colour for _, colour in image.getcolors(image.width * image.height)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours
