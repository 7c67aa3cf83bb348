"""Runs the training recipes of the examples as their users do, and reads what they leave behind."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tests.peers import venvs
from toolyard.episodes.store import Episode, Filter, Store

FOLDER = venvs.PROJECT / "examples" / "training"


@dataclass(frozen=True)
class Recipe:
    """A program of examples/training, and the folder for what it writes."""

    name: str
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "curve"

    @property
    def store(self) -> Path:
        return self.folder / "episodes.db"

    def start(self, *options: str, out: str = "curve") -> subprocess.Popen[str]:
        python = venvs.interpreter(venvs.TRAINING)
        places = ["--out", str(self.folder / out), "--record", str(self.store)]
        return subprocess.Popen(
            [python, FOLDER / f"{self.name}.py", *options, *places],
            env=venvs.environ(PYTHONPATH=str(venvs.PROJECT / "src"), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1"),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str, out: str = "curve", statuses: Sequence[int] = (0,)) -> str:
        process = self.start(*options, out=out)
        said, _ = process.communicate()
        assert process.returncode in statuses, f"{self.name} ended with {process.returncode}:\n{said[-5000:]}"
        return said

    def told(self, name: str = "curve.json") -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / name).read_text())
        return read

    def episodes(self, run: str) -> list[Episode]:
        with Store([self.store]) as store:
            return list(store.episodes(Filter(run=run)))

    def steps_of(self, run: str) -> Counter[str]:
        """How many episodes of a run have each label `step`."""
        return Counter(episode.labels["step"] for episode in self.episodes(run))

    def draws(self, name: str) -> bool:
        """Whether there is a picture that shows more than one colour."""
        with Image.open(self.folder / name) as picture:
            return picture.format == "PNG" and picture.convert("L").getextrema() != (255, 255)
