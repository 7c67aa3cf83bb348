"""An environment whose sessions report where they run, hang, crash and count. For tests of placements."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time

from tests.forks import refusing
from toolyard import Environment, ToolError, ToolOutput, tool


class Counting(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"start": n} for n in range(10)]

    def get_prompt(self):
        return f"count from {self.count}"

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.count = 0
        time.sleep(task_spec.get("slow", 0))
        if task_spec.get("never"):  # no other Python code runs meanwhile
            re.match("(a+)+$", "a" * 64 + "b")

    def setup(self):
        if self.task_spec.get("fail"):
            raise ValueError("setup boom")
        self.count = self.task_spec.get("start", 0)

    def teardown(self):
        if path := self.task_spec.get("tell"):
            with open(path, "a") as file:
                file.write(f"{self.count}\n")

    @tool
    async def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @tool
    def add_in_a_thread(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @tool
    async def where(self) -> int:
        return os.getpid()

    @tool
    async def say(self, text: str) -> str:
        print(text)
        return "said"

    @tool
    async def secret(self) -> str:
        return self.secrets.get("key", "")

    @tool
    async def value(self, kind: str) -> object:
        return {"none": None, "pair": (1, "a"), "bytes": b"\x00\xff", "dict": {"é": [1.5, None]}, "text": "ü\ud800"}[
            kind
        ]

    @tool
    async def no_json(self) -> ToolOutput:
        return ToolOutput(metadata={"loop": object()}, reward=1.0, finished=True)

    @tool
    async def tell_kind(self, number: float) -> str:
        return f"{number} {self.task_spec.get('number')}"

    @tool
    async def refuse(self) -> str:
        raise ToolError("not today", detail={"code": 7})

    @tool
    async def boom(self) -> str:
        raise ValueError("boom")

    @tool(concurrent=True)
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @tool(concurrent=True)
    def hang(self, seconds: float = 600) -> str:
        time.sleep(seconds)
        return "woke up"

    @tool
    async def spin(self) -> str:
        while True:
            pass

    @tool
    def burn(self, seconds: float) -> int:
        rounds, end = 0, time.process_time() + seconds
        while time.process_time() < end:
            rounds += 1
        return rounds

    @tool
    def crash(self, how: str) -> str:
        match how:
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
        return how

    @tool
    def take(self, megabytes: int) -> str:
        return f"{len(bytearray(megabytes * 2**20))} bytes"

    @tool
    def start_a_child(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    @tool
    def start_a_daemon(self, seconds: int = 600) -> list[int]:
        """With a child. It has a group of its own, no parent, and nothing open that we have."""
        sleeps = f"sleep {seconds} & echo $! & exec sleep {seconds}"
        script = f"setsid sh -c '{sleeps}' </dev/null 2>/dev/null & echo $!"
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
            assert shell.stdout is not None
            return sorted(int(shell.stdout.readline()) for _ in range(2))

    @tool
    async def forbid_forks(self, after: int) -> str:
        """As a system does that has no room for more processes."""
        os.fork = refusing(range(after + 1, 100))
        return "forbidden"

    @tool
    async def end_copies(self) -> str:
        """Whatever is forked from its process is over at once, as if all were well."""
        os.register_at_fork(after_in_child=lambda: os._exit(0))
        return "they will end"

    @tool
    def crash_with_a_copy(self, path: str) -> str:
        """Ends its process, of which there is a copy then, with everything open that it has."""
        if (copy := os.fork()) == 0:
            os.setsid()
            time.sleep(600)
        with open(path, "w") as file:
            file.write(str(copy))
        os._exit(3)

    @tool
    async def finish(self) -> ToolOutput:
        return ToolOutput(reward=float(self.count), finished=True)


class Repeating(Counting):
    """The same calls lead to the same state."""

    replayable = True

    @tool
    def lean_on(self, path: str) -> str:
        """Ends its process once there is such a file."""
        if os.path.exists(path):
            os._exit(4)
        return "held"

    @tool
    def doze(self, path: str) -> str:
        """Takes its time once there is such a file."""
        time.sleep(2 if os.path.exists(path) else 0)
        return "awake"


class Forking(Counting):
    """Supports forks."""

    def fork(self):
        made = Forking(self.task_spec, self.secrets)
        made.count = self.count
        return made
