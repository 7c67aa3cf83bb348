"""A server in a process of its own that can tell what it holds. Run by test_leaks.py; prints its address."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time

from toolyard import Environment, ToolOutput, tool
from toolyard.server import Server
from toolyard.serving import listen
from toolyard.settings import Settings

THREADS = 16


class Small(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(100)]

    def get_prompt(self):
        return "?"

    async def setup(self):
        self.notes = ["a little state"] * 10

    def teardown(self):
        self.notes.clear()

    @tool
    async def modern(self, text: str) -> str:
        """On the loop."""
        return text

    @tool
    def plain(self, text: str) -> str:
        """In a thread."""
        return text

    @tool
    def hold(self) -> str:
        """A thread, for a while."""
        time.sleep(0.5)
        return "done"

    @tool
    async def slow(self, seconds: float) -> str:
        """For a while."""
        await asyncio.sleep(seconds)
        return "done"

    @tool
    async def held(self) -> ToolOutput:
        """What the server holds now."""
        gc.collect()
        runtime = server.runtime
        return ToolOutput(
            metadata={
                "sessions": len(runtime.sessions),
                "background": len(runtime.shared.background),
                "calls": len(runtime.shared.calls),
                "kept": len(runtime.shared.replays),
                "outcomes": runtime.ended.count,
                "coroutines": len(asyncio.all_tasks()),
                "threads": threading.active_count(),
                "instances": sum(isinstance(thing, Small) for thing in gc.get_objects()),
            }
        )


if __name__ == "__main__":
    settings = Settings(
        threads=THREADS,
        idle_seconds=float(sys.argv[1]),
        outcome_seconds=0.5,  # what sessions came to is kept for so long, and would look like a leak
        sweep_seconds=0.1,
        log_level="error",
    )
    server = Server([Small], settings=settings)
    socket = listen("127.0.0.1", 0)
    print(socket.getsockname()[1], flush=True)
    server.serve(socket)
