"""The page on episodes shows what the commands print for a store that a real server recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from toolyard import Client
from toolyard.cli import main
from toolyard.loading import load_targets
from toolyard.testing import running

PAGE = ROOT / "docs" / "episodes.md"
SNIPPET = ROOT / "docs" / "snippets" / "regraded.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "runs.db"
    with running(load_targets([str(SNIPPET)]).environments, record=str(path)) as server, Client(server.url) as client:
        for words in (["piano"], ["Piano "], ["", "map"]):
            with client.environments.get("riddle").session(split="train", index=0) as session:
                session.get_prompt()
                for word in words:
                    session.call_tool("answer", {"word": word}) if word else session.call_tool("hint", {})
    return path


def steady(text: str) -> str:
    """Without what differs each time: ids, times, seconds."""
    text = re.sub(r"\b[0-9a-f]{21}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?", "TIME", text)
    return re.sub(r"\d+\.\d{3} s", "SECONDS", text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("episodes list", 0),
        ("episodes show ID", 0),
        ("episodes stats", 0),
        ("episodes search letters", 0),
        (f"replay {SNIPPET}", 0),
        (f"rescore {SNIPPET}", 0),
    ],
)
def test_the_page_shows_what_a_command_prints(store, capsys, words, code):
    assert main(["episodes", "list", "--store", str(store)]) == 0
    newest = capsys.readouterr().out.splitlines()[1].split()[0]
    assert main([*words.replace("ID", newest).split(), "--store", str(store)]) == code
    printed = steady(capsys.readouterr().out).strip()
    assert printed
    assert f"```text\n{printed}\n```" in steady(PAGE.read_text())
