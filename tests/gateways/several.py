"""`toolyard serve --gateways` as a separate process, and what is visible of it outside."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import httpx2

from tests.command import TOOLYARD, WarmCommand
from tests.wires.wire import Wire

WORLD = Path(__file__).with_name("world.py")
COUNT = 3


class Several(WarmCommand):
    """A server of several gateways."""

    def __init__(self, folder: Path, *args: str, count: int = COUNT, **variables: str) -> None:
        self.folder = folder
        self.count = count
        serve = [TOOLYARD, "serve", str(WORLD), "--port", "0", "--gateways", str(count)]
        super().__init__([*serve, *args], env={"YARD": str(folder), **variables})

    def started(self) -> Several:
        self.until("Stop with Ctrl-C")
        return self

    @property
    def url(self) -> str:
        return self.until(r"http://127\.0\.0\.1:\d+").group()

    def gateways(self) -> list[int]:
        """The pids of the gateways."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def owner(self, name: str) -> int:
        """The number of the gateway that has a session."""
        return crc32(name.encode()) % self.count

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
                raise

    # Files that show the state of the world.

    def came(self, key: str) -> int:
        return len(list(self.folder.glob(f"{key}-came-*")))

    def go(self, key: str) -> None:
        (self.folder / f"{key}-go").touch()

    def ended(self) -> int:
        """How many sessions were torn down."""
        return len(list(self.folder.glob("ended-*")))


@asynccontextmanager
async def at(several: Several, number: int) -> AsyncIterator[Wire]:
    """A client with one connection, to the gateway of this number. The system chooses the gateway of a connection; an
    id issued over it shows which one."""
    for _ in range(200):
        async with Wire(several.url, limits=httpx2.Limits(max_connections=1, keepalive_expiry=60)) as wire:
            sid = (await wire.post("/create_session")).json()["sid"]
            if several.owner(sid) == number:
                yield wire
                return
    raise AssertionError(f"no connection led to gateway {number}")


def alive(pid: int) -> bool:
    """Whether it runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
