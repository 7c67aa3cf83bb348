"""Makes a store as large as after a training run, to look at: `python -m benchmarks.large_store runs.db`.

It has 100,000 episodes of several runs with tasks and prompts of real sizes, one episode of 300,000 steps, one with a
result of 5 MB, some with images, a tree of forks, and named rewards. A server's writer writes the special ones.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolyard.core.encoding import encode
from toolyard.core.environment import Environment
from toolyard.core.output import ImageBlock, Reply, TextBlock, ToolFailure, ToolOutput
from toolyard.episodes.events import Closed, Deed, Open, Opened, Prompted, Stepped
from toolyard.episodes.rows import EPISODE, STEP
from toolyard.episodes.schema import connect
from toolyard.episodes.writer import Batch
from toolyard.placement.base import Origin, SessionSpec, Task

BEGAN = 1.76e9
"""When the first episode opened."""
RUNS = ("grpo-17", "grpo-18", "grpo-19", "baseline")
TASKS = 500
STEPS = 3
LONG_RESULT = 5 * 2**20
_AT_ONCE = 2000
_WORDS = (
    *("the", "river", "wall", "door", "key", "lamp", "stone", "bread", "letter"),
    *("answer", "file", "error", "value", "list", "index", "count", "result", "total"),
)
_TOOLS = ("read_file", "python", "search", "submit")


@dataclass(frozen=True)
class Special:
    """The ids of the special episodes."""

    long: str
    large: str
    images: str
    root: str
    """The root of a tree of forks."""


def fill(path: Path, *, episodes: int = 100_000, steps: int = 300_000, result: int = LONG_RESULT) -> Special:
    connection = connect(path, create=True)
    connection.execute("PRAGMA synchronous = OFF")
    for first in range(0, episodes, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, episodes))
        made = [_Made(number, episodes) for number in numbers]
        connection.execute("BEGIN IMMEDIATE")
        offset = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM episodes").fetchone()[0] - first
        connection.executemany(EPISODE, (one.episode for one in made))
        connection.executemany(STEP, (row for one in made for row in one.rows(one.number + offset)))
        connection.executemany(
            "UPDATE episodes SET prompt = ?, closed = ?, why = 'deleted', steps = ?, total = ?, rewards = ?, "
            "finished = ?, outcome = ?, complete = 1 WHERE number = ?",
            ((*one.ended, one.number + offset) for one in made),
        )
        connection.execute("COMMIT")
    connection.execute("ANALYZE")
    connection.close()
    return _special(path, steps, result)


class _Made:
    """An episode as a server would have recorded it."""

    def __init__(self, number: int, of: int) -> None:
        dice = random.Random(number)
        self.number = number
        self.run = RUNS[number * len(RUNS) // of]
        self.task = dice.randrange(TASKS)
        self.opened = BEGAN + number * 0.7
        self.steps = 1 + dice.randrange(2 * STEPS - 1)
        progress = number * len(RUNS) % of / of
        luck = dice.random() < 0.15 + 0.6 * progress * (1 - self.task / TASKS)
        self.correct = float(luck)
        self.style = round(dice.random(), 2)
        self.outcome = dice.choices(("finished", "closed", "idle", "lost"), (90, 6, 3, 1))[0]
        self.total = self.correct + 0.1 * self.style if self.outcome == "finished" else None
        self.failed = dice.random() < 0.2
        self._dice = dice

    @property
    def episode(self) -> Sequence[object]:
        task = {"seed": self.task, "question": _prose(self.task, 60), "tests": _prose(self.task + 1, 120)}
        labels = {"step": str(self.number // 64)}
        return (
            *(f"{self.number:021x}", f"s-{self.number}", None, None, "maze", "train", self.task, json.dumps(task)),
            *("ors", self.run, json.dumps(labels), self.opened, 0, "0.1.0", ""),
        )

    @property
    def ended(self) -> Sequence[object]:
        prompt = json.dumps([{"type": "text", "text": _prose(self.task, 150)}])
        done = self.outcome == "finished"
        rewards = json.dumps({"correct": self.correct, "style": self.style}) if done else None
        closed = self.opened + self.steps * 1.5
        return prompt, closed, self.steps, self.total, rewards, done, self.outcome

    def rows(self, rowid: int) -> Iterator[Sequence[object]]:
        for step in range(1, self.steps + 1):
            last = step == self.steps
            given = last and self.outcome == "finished"
            outcome = (
                "tool_failed" if self.failed and step == 1 else "lost" if last and self.outcome == "lost" else "ok"
            )
            blocks = json.dumps([{"type": "text", "text": _prose(self.number * 7 + step, 40)}])
            rewards = json.dumps({"correct": self.correct, "style": self.style}) if given else None
            yield (
                *(rowid, step, "submit" if given else _TOOLS[step % 3], json.dumps({"text": _prose(step, 6)}), None),
                *(
                    "I look first, then I answer." if step == 1 else None,
                    outcome,
                    blocks,
                    self.total if given else None,
                ),
                *(rewards, given, None, 0.0001, self._dice.random(), self.opened + step, 0),
            )


def _special(path: Path, steps: int, result: int) -> Special:
    connection = connect(path, create=True)
    try:
        writer = _Played(connection, BEGAN + 1e6)
        return Special(
            long=writer.play(_endless(steps), why="long"),
            large=writer.play([("read_file", ToolOutput(blocks=[TextBlock(text="x" * result)]))], why="large"),
            images=writer.play([("look", _picture(shade)) for shade in range(8)], why="images"),
            root=writer.forked(),
        )
    finally:
        connection.close()


def _endless(steps: int) -> Iterator[tuple[str, Reply]]:
    for number in range(1, steps + 1):
        if number % 9973 == 0:
            yield "python", ToolFailure("tool_failed", f"the program failed at {number}")
        elif number % 4999 == 0:
            yield "submit", ToolOutput(blocks=[TextBlock(text=f"partly right at {number}")], reward=0.01)
        else:
            yield _TOOLS[number % 3], _prose(number, 30)


def _picture(shade: int) -> ToolOutput:
    image = ImageBlock(data=base64.b64encode(png(240, 160, shade)).decode(), mimeType="image/png")
    return ToolOutput(blocks=[TextBlock(text=f"picture {shade}"), image])


def png(width: int, height: int, shade: int) -> bytes:
    """An image with a gradient."""
    rows = b"".join(
        b"\0" + bytes(part for x in range(width) for part in (x % 256, (y + shade * 32) % 256, 160))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Maze(Environment):
    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]


class _Played:
    """Episodes that go through a server's writer."""

    def __init__(self, connection: sqlite3.Connection, at: float) -> None:
        self._connection = connection
        self._at = at

    def play(
        self, calls: Sequence[tuple[str, Reply]] | Iterator[tuple[str, Reply]], why: str, parent: Open | None = None
    ) -> str:
        one = self._opened(why, parent)
        batch = Batch()
        batch.events += [Opened(one, self._at), Prompted(one, [TextBlock(text=f"An episode that is {why}.")])]
        for tool, reply in calls:
            batch.events.append(self._step(one, tool, reply))
            if len(batch.events) >= _AT_ONCE:
                self._write(batch)
                batch = Batch()
        batch.events.append(Closed(one, "deleted", self._at + 60))
        self._write(batch)
        return one.id

    def forked(self) -> str:
        """Three episodes that branch off at the second step of one, and one that branches off one of these."""
        root = self._opened("forked", None)
        batch = Batch()
        batch.events.append(Opened(root, self._at))
        batch.events += [self._step(root, "search", f"place {number}") for number in range(4)]
        batch.events.append(Closed(root, "deleted", self._at + 60))
        self._write(batch)
        root.begun = 2
        for branch in range(3):
            graded = ToolOutput(blocks=[TextBlock(text="graded")], reward=branch / 2, finished=True)
            self.play([("search", f"branch {branch}"), ("submit", graded)], "forked", root)
        return root.id

    def _opened(self, why: str, parent: Open | None) -> Open:
        self._at += 1
        task = Task({"why": why}, "train", 10_000)
        spec = SessionSpec(f"s-{why}-{self._at}", Maze, task, origin=Origin("ors", "special", {"why": why}))
        one = Open(hashlib.sha256(f"{why} {self._at}".encode()).hexdigest()[:21], spec, encode(task.spec))
        if parent is not None:
            one.parent, one.parent_step = parent, parent.begun
        return one

    def _step(self, one: Open, tool: str, reply: Reply) -> Stepped:
        one.begun += 1
        deed = Deed(one, tool, encode({"text": f"step {one.begun}"}), b"", "")
        deed.at = self._at + one.begun * 0.01
        return Stepped(deed, reply, 0.0001, 0.002)

    def _write(self, batch: Batch) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        batch.write(self._connection)
        self._connection.execute("COMMIT")


def _prose(seed: int, words: int) -> str:
    return " ".join(_WORDS[(seed * 7 + place * place * 3 + place) % len(_WORDS)] for place in range(words))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_store", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--episodes", type=int, default=100_000, metavar="N")
    parser.add_argument("--steps", type=int, default=300_000, metavar="N", help="of the longest episode")
    args = parser.parse_args()
    print(fill(args.path, episodes=args.episodes, steps=args.steps))


if __name__ == "__main__":
    main()
