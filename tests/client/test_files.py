"""Files of a session's workspace, as clients bring and fetch them."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.worlds import MathEnv
from toolyard import AsyncClient, Client, Environment, tool
from toolyard.client import RequestRefused, SessionGone
from toolyard.sandboxes import open_sandbox
from toolyard.testing import running
from toolyard.tools.bash_terminal import BashTerminal


class Shell(Environment):
    """A shell; its files are those of a toolset."""

    toolsets = [BashTerminal]
    replayable = True

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Do as you like."


class Own(Shell):
    """A sandbox that the author opens."""

    uses_sandbox = True
    toolsets = []
    sandbox = None

    async def setup(self):
        self.sandbox = await open_sandbox(files={"given": "by the author"})

    async def teardown(self):
        if self.sandbox is not None:
            await self.sandbox.close()

    def workspace(self):
        return self.sandbox

    @tool
    async def bash_terminal(self, command: str) -> str:
        """Run a command.

        Args:
            command: Any.
        """
        return (await self.sandbox.shell(command)).stdout.decode()


@pytest.fixture(scope="module")
def url():
    with running([Shell, Own, MathEnv]) as server:
        yield server.url


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source/empty").mkdir(parents=True)
    (tmp_path / "source/run").write_text("#!/bin/sh\ncat large | wc -c\nln -s /etc/passwd out\n")
    (tmp_path / "source/run").chmod(0o755)
    for name in ("large", "larger"):  # more than one request takes
        (tmp_path / "source" / name).write_bytes(os.urandom(7 * 2**20))
    (tmp_path / "source/link").symlink_to("run")
    os.mkfifo(tmp_path / "source/pipe")
    return tmp_path / "source"


@pytest.mark.parametrize("name", ["shell", "own"])
def test_a_folder_goes_in_and_comes_out_again(url, source, tmp_path, name):
    with Client(url) as client, client.environment(name).session(split="train", index=0) as session:
        assert session.put(source, "in") == ["pipe"]
        assert "7340032" in session.call_tool("bash_terminal", {"command": "cd in && ./link"}).text
        assert session.get("in", tmp_path / "target") == []
        target = tmp_path / "target"
        assert sorted(path.name for path in target.iterdir()) == ["empty", "large", "larger", "link", "run"]
        for path in ("large", "larger", "link"):
            assert (target / path).read_bytes() == (source / path).read_bytes()
        session.put(source / "run", "deep/program")
        session.put({"a/b": "text", "c": source / "empty"}, "named")
        session.put(source / "run")
        session.get("deep/program", tmp_path / "one")
        assert (tmp_path / "one").read_bytes() == (source / "run").read_bytes()
        assert (tmp_path / "one").stat().st_mode & 0o100
        session.get("named", tmp_path / "named")
        assert (tmp_path / "named/a/b").read_text() == "text"
        with tarfile.open(fileobj=io.BytesIO(session.pack("named"))) as tar:
            assert sorted(tar.getnames()) == ["a", "a/b", "c"]
        session.unpack(session.pack("named"), "copy")
        assert "text" in session.call_tool("bash_terminal", {"command": "cat ~/copy/a/b"}).text


@pytest.mark.anyio
async def test_the_client_that_is_awaited_does_the_same(url, source, tmp_path):
    async with AsyncClient(url) as client, client.environment("own").session(split="train", index=0) as session:
        assert await session.put(source) == ["pipe"]
        assert await session.get(".", tmp_path / "target") == []
        given = (tmp_path / "target/given").read_text()
        assert given == "by the author"
        await session.unpack(await session.pack("run"), "x")
        await session.get("x/run", tmp_path / "one")
        assert (tmp_path / "one").read_bytes() == (source / "run").read_bytes()


def test_what_cannot_be_is_refused_in_words(url, tmp_path):
    with Client(url) as client:
        with client.environment("shell").session(split="train", index=0) as session:
            for path, said in (
                ("absent", "absent: it cannot be packed: No such file"),
                ("../x", "leads out of the workspace"),
                ("/etc", "/etc: not in the workspace"),
            ):
                with pytest.raises(RequestRefused, match=said):
                    session.get(path, tmp_path / "target")
            with pytest.raises(RequestRefused, match="x: it cannot be unpacked"):
                session.unpack(b"no archive" * 100, "x")
            with pytest.raises(RequestRefused, match="the request body is larger than"):
                session.unpack(bytes(20 * 2**20))
            (tmp_path / "taken").write_text("mine")
            session.put({"a": "b"})
            with pytest.raises(FileExistsError):
                session.get(".", tmp_path / "taken")
            assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]
        with pytest.raises((SessionGone, RuntimeError)):
            session.pack()
        session = client.environment(MathEnv.name()).session(split="train", index=0)
        with session, pytest.raises(RequestRefused, match="no workspace"):
            session.put({"a": "b"})


def test_a_session_that_was_given_files_is_not_made_again_without_them(url):
    with Client(url) as client, client.environment("shell").session(split="train", index=0) as session:
        session.call_tool("bash_terminal", {"command": "true"})
        (branch,) = session.fork()
        branch.close()
        session.put({"given": "by the client"})
        with pytest.raises(RequestRefused, match="cannot be repeated"):
            session.fork()


@pytest.mark.thorough
def test_files_travel_to_a_session_in_a_process_of_its_own(source, tmp_path):
    with (
        running([Shell], placement="process") as server,
        Client(server.url) as client,
        client.environment("shell").session(split="train", index=0) as session,
    ):
        assert session.put(source, "in") == ["pipe"]
        session.get("in", tmp_path / "target")
        assert (tmp_path / "target/large").read_bytes() == (source / "large").read_bytes()
