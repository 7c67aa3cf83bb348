"""An environment that writes to standard streams while a program uses them for its protocol."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio

from toolyard import Environment, ToolOutput, tool

print("loaded")


def note(what: str) -> None:
    with (Path(os.environ["YARD"]) / "notes").open("a") as notes:
        notes.write(f"{what}\n")


class Noisy(Environment):
    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.told = []
        if task_spec["name"].startswith("slow"):
            note("making")
            while not (Path(os.environ["YARD"]) / "go").exists():
                time.sleep(0.02)
        note("made")

    @classmethod
    def list_splits(cls):
        return ["easy", "hard", "slow"]

    @classmethod
    def list_tasks(cls, split):
        return [{"name": f"{split} {n}"} for n in range(2)]

    def get_prompt(self):
        return f"Do what is {self.task_spec['name']}."

    def teardown(self):
        note("ended")

    @tool
    def shout(self, text: str) -> str:
        """Print, in all ways that there are."""
        print(f"print {text}", flush=True)
        os.write(1, f"write {text}\n".encode())
        os.system(f"echo system {text}")
        sys.__stdout__.write(f"stdout {text}\n")
        return f"{text}{sys.stdin.read()}"

    @tool
    async def tell(self, text: str) -> str:
        """Remember."""
        self.told.append(text)
        return " ".join(self.told)

    @tool(concurrent=True)
    async def rest(self, seconds: float) -> str:
        """Take a while."""
        note("resting")
        await anyio.sleep(seconds)
        return "rested"

    @tool
    async def end(self) -> ToolOutput:
        """End it."""
        return ToolOutput(reward=1.0, finished=True)
