"""Exports are valid for their readers: ATIF for Harbor's own models, conversations for OpenAI's types."""

from __future__ import annotations

import pytest

from tests.episodes.stores import graded, recording
from toolyard.cli import main

pytestmark = pytest.mark.thorough


def test_harbor_reads_our_trajectories_and_openai_our_conversations(client, tmp_path):
    path = tmp_path / "runs.db"
    with recording(path) as player:
        player.play(("say", {"text": "é\u2028\x1b"}), *graded(0, 1), index=1, labels={"agent": "mine", "version": "2"})
        player.play(("picture", {}), ("picture", {"kind": "image/svg+xml"}), ("picture", {"data": "%"}), ("refuse", {}))
        player.play()
    files = {shape: str(tmp_path / f"{shape}.jsonl") for shape in ("atif", "messages")}
    for shape, out in files.items():
        assert main(["episodes", "export", out, "--as", shape, "--store", str(path)]) == 0
    seen = client("harbor", "read_exports", url="", **files)
    assert seen["errors"] == []
    assert seen["trajectories"] == [["mine", 4, False], ["unknown", 5, True], ["unknown", 1, False]]
    turn, pictured = "assistant tool", "assistant tool user"
    assert seen["roles"] == [
        *(f"user {turn} {turn} {turn}", f"user {pictured} {turn} {pictured} {turn}", "user"),
    ]
