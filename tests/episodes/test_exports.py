"""Episodes for other programs: lines of JSON, Parquet, conversations, and one HTML file in a real browser."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
from playwright.sync_api import sync_playwright

from tests.browser.site import chromium
from tests.episodes.stores import PNG, graded, recording
from toolyard.cli import main

SCRIPT = "</pre><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "runs.db"
    with recording(path) as player:
        player.play(("say", {"text": "first é\u2028"}), *graded(0.5), index=1, run="r", labels={"agent": "a"})
        player.play(("picture", {}), ("picture", {"kind": "image/svg+xml"}), ("refuse", {}), index=2)
        player.play(task={"n": 0})
        player.play(("say", {"text": SCRIPT}), (SCRIPT, {}), ("picture", {"kind": SCRIPT}), task={"n": SCRIPT})
    return path


@pytest.fixture
def exported(path, tmp_path):
    """The content of an exported file."""

    def run(shape: str, *words: str) -> list[dict[str, Any]]:
        out = tmp_path / f"{shape}.jsonl"
        assert main(["episodes", "export", str(out), "--as", shape, "--store", str(path), *words]) == 0
        return [json.loads(line) for line in out.read_text("utf-8").split("\n")[:-1]]

    return run


def test_an_exported_episode_is_as_it_is_shown(exported, path, capsys):
    episodes = exported("episodes")
    assert len(episodes) == 4
    capsys.readouterr()
    for episode in episodes:
        assert main(["episodes", "show", episode["id"], "--store", str(path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        del shown["scores"]
        assert episode == shown


def test_only_what_is_chosen_is_exported(exported):
    assert [one["index"] for one in exported("episodes", "--run", "r")] == [1]
    assert exported("steps", "--environment", "maze") == []
    assert [one["index"] for one in exported("episodes", "--limit", "2")] == [1, 2]


def test_each_step_names_its_episode(exported):
    steps = exported("steps")
    (first, *_) = exported("episodes")
    assert [(one["tool"], one["reward"]) for one in steps if one["episode"] == first["id"]] == [
        *(("say", None), ("grade", 0.5))
    ]
    assert (steps[0]["run"], steps[0]["environment"], steps[0]["arguments"]) == ("r", "quiz", {"text": "first é\u2028"})


def well_formed(messages: Sequence[dict[str, Any]]) -> None:
    """Valid for OpenAI's chat: each call is answered at once, and tools return only text."""
    asked: list[str] = []
    for message in messages:
        match message["role"]:
            case "user":
                assert not asked
                assert isinstance(message["content"], str | list)
            case "assistant":
                assert not asked
                asked = [call["id"] for call in message["tool_calls"]]
                assert all(
                    isinstance(json.loads(call["function"]["arguments"]), dict) for call in message["tool_calls"]
                )
            case "tool":
                assert message["tool_call_id"] == asked.pop(0)
                assert isinstance(message["content"], str)
            case role:
                raise AssertionError(role)
    assert not asked


def test_conversations_are_well_formed(exported):
    found = exported("messages")
    for one in found:
        assert list(one) == ["id", "return", "messages"]
        well_formed(one["messages"])
    first, second = found[0]["messages"], found[1]["messages"]
    assert first[0] == {"role": "user", "content": "Question 1?"}
    assert first[2] == {"role": "tool", "tool_call_id": "call_1", "content": "first é\u2028"}
    assert second[2]["content"] == "look:\n[image: image/png]\nseen?"
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert second[3] == {"role": "user", "content": [image]}
    assert second[5]["content"] == "look:\n[image: image/svg+xml]\nseen?"
    assert [one["return"] for one in found] == [0.5, None, None, None]


def test_images_of_atif_are_files_beside_it(exported, tmp_path):
    found = exported("atif")
    assert len(found) == 4
    (_, shown, _, text) = (
        step["observation"]["results"][0]["content"] for step in [found[1]["steps"][0] | EMPTY, *found[1]["steps"][1:]]
    )
    image = shown[1]["source"]
    assert (tmp_path / image["path"]).read_bytes() == base64.b64decode(PNG)
    assert image == {"media_type": "image/png", "path": f"atif-images/{found[1]['session_id']}-1.png"}
    assert text.endswith("not like that")


EMPTY = {"observation": {"results": [{"content": ""}]}}


@pytest.mark.parametrize("shape", ["episodes", "steps", "messages", "atif"])
def test_parquet_holds_the_same_as_json(exported, path, tmp_path, shape):
    lines = exported(shape)
    out = tmp_path / f"{shape}.parquet"
    words = ["--as", shape, "--format", "parquet", "--store", str(path)]
    assert main(["episodes", "export", str(out), *words]) == 0
    table = pandas.read_parquet(out)
    assert list(table.columns) == list(lines[0])
    for row, line in zip(table.to_dict("records"), lines, strict=True):
        for name, value in line.items():
            found = json.loads(row[name]) if isinstance(value, dict | list) else row[name]
            assert found == value or (value is None and pandas.isna(found)), name
    if shape == "steps":
        assert str(table["reward"].dtype) == "float64"
    assert main(["episodes", "export", str(out), *words, "--environment", "maze"]) == 0
    assert len(pandas.read_parquet(out)) == 0


def test_without_its_package_parquet_says_what_to_install(path, tmp_path):
    program = (
        "import sys; sys.modules['pyarrow'] = None; from toolyard.cli import main; "
        f"sys.exit(main(['episodes', 'export', '{tmp_path}/x', '--format', 'parquet', '--store', '{path}']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        *(2, "toolyard episodes: Parquet needs an extra: pip install 'toolyard[parquet]'\n"),
    )


# One HTML file.


@pytest.fixture
def bundle(path, tmp_path, exported) -> Path:
    out = tmp_path / "out.html"
    ids = [one["id"] for one in exported("episodes")]
    assert main(["episodes", "bundle", *ids, str(out), "--store", str(path)]) == 0
    return out


def test_a_bundle_is_one_file_that_needs_no_other(bundle):
    page = bundle.read_text("utf-8")
    assert "default-src 'none'" in page
    assert "<script>" not in page
    assert "http://" not in page
    assert page.count(f'<img alt="an image" src="data:image/png;base64,{PNG}">') == 1


@pytest.mark.thorough
def test_in_a_browser_a_bundle_shows_text_and_images_and_runs_nothing(bundle):
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), chromium_sandbox=False)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(bundle.as_uri())
        text = page.inner_text("body")
        loaded = page.evaluate("[...document.images].map(image => image.naturalWidth)")
        counts = page.evaluate(
            "['script', 'iframe', 'h2', 'table a'].map(one => document.querySelectorAll(one).length)"
        )
        title = page.title()
        browser.close()
    assert title == "4 episodes"
    assert SCRIPT in text
    assert "not like that" in text
    assert loaded == [1]
    assert counts == [0, 0, 4, 4]
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
