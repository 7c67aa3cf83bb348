"""A server with live sandboxes, to be killed: `python -m benchmarks.sandbox_victim 20`.

Every sandbox has an interpreter, a shell, and a program that the shell started in the background. It prints `ready`
when all of them are there.
"""

from __future__ import annotations

import asyncio
import sys

from toolyard.sandboxes import start


async def main(count: int) -> None:
    backend = await start("native", "L3-nolimit", ready=2)
    for _ in range(count):
        sandbox = await backend.open()
        await sandbox.exec("kept = list(range(1000))")
        await sandbox.shell("sleep 1000 & true")
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
