"""`toolyard new`: its files work without changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import first
from tests.warm import toolyard


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def new(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return toolyard("new", *arguments, cwd=folder)


def test_what_it_writes_passes_its_own_test_and_the_strict_check(tmp_path: Path):
    done = new(tmp_path, "word_game")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_word_game.py", "word_game.py"]
    tested = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "test_word_game.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout
    checked = toolyard("check", "word_game.py", "--strict", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "WordGame holds together" in checked.stdout


def test_it_says_what_to_do_next(tmp_path: Path):
    said = new(tmp_path, "word_game").stdout
    for command in (
        "toolyard check word_game.py",
        "python -m pytest test_word_game.py",
        "toolyard serve word_game.py",
    ):
        assert command in said


@pytest.mark.thorough
def test_what_it_writes_is_typed_and_formatted(tmp_path: Path):
    assert new(tmp_path, "a_much_longer_name_than_most").returncode == 0
    for command in (
        ("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "a_much_longer_name_than_most.py"),
        ("ruff", "format", "--line-length", "120", "--check", "."),
        ("ruff", "check", "."),
    ):
        done = run(tmp_path, *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", first(["word_game", "WordGame", "word-game", "Word Game"], 1))
def test_a_name_may_be_written_as_module_class_or_words(tmp_path: Path, name: str):
    assert new(tmp_path, name).returncode == 0
    assert "class WordGame(Environment):" in (tmp_path / "word_game.py").read_text()


@pytest.mark.thorough
def test_it_writes_into_another_folder(tmp_path: Path):
    done = new(tmp_path, "word_game", "--into", "envs/mine")
    assert done.returncode == 0
    assert "toolyard serve envs/mine/word_game.py" in done.stdout
    tested = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "envs/mine/test_word_game.py")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("taken", ["word_game.py", "test_word_game.py"])
def test_it_never_overwrites_and_then_writes_nothing(tmp_path: Path, taken: str):
    (tmp_path / taken).write_text("mine")
    done = new(tmp_path, "word_game")
    assert done.returncode == 2
    assert f"{taken} is there already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    first(
        [
            ("9lives", "cannot be the name of a Python module"),
            ("naïve", "cannot be the name of a Python module"),
            ("../up", "cannot be the name of a Python module"),
            ("random", "there is a Python module 'random' already"),
            ("class", "means something in Python itself"),
            ("none", "means something in Python itself"),
            ("health", "that is a path of ORS itself"),
        ]
    ),
)
def test_a_name_that_would_not_work_is_refused_and_nothing_is_written(tmp_path: Path, name: str, said: str):
    done = new(tmp_path, name)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
