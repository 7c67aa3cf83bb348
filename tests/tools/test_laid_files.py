"""Files that an author puts into the workspace: every tool of the session finds them, with their modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import OneTask
from toolyard import Client, Environment
from toolyard.client import ToolCallFailed
from toolyard.core.errors import DefinitionError
from toolyard.sandboxes import open_sandbox
from toolyard.testing import running
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.python_code import PythonCode
from toolyard.tools.shell_executor import ShellExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "bin" / "run.sh").chmod(0o700)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "fixed.txt").write_text("fixed")
    (tmp_path / "fixed.txt").chmod(0o400)
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    return tmp_path


async def test_a_sandbox_opens_with_the_files_of_a_folder_and_what_their_owner_may_do(sandboxes, folder):
    async with await open_sandbox(files=folder) as box:
        seen = await box.run(["find", ".", "-type", "f", "-printf", "%P %m\n"])
        assert sorted(seen.stdout.decode().split("\n")[:-1]) == ["bin/run.sh 755", "data.csv 644", "fixed.txt 444"]
        assert (await box.run(["./bin/run.sh"])).stdout == b"ran\n"


async def test_files_have_the_names_that_the_author_says(sandboxes, folder):
    files = {"a/table.csv": folder / "data.csv", "b": folder / "bin", "note.txt": "hé", "raw": b"\0\1"}
    async with await open_sandbox(files=files) as box:
        assert await box.read("a/table.csv") == b"a,b\n1,2\n"
        assert await box.read("b/run.sh") == b"#!/bin/sh\necho ran\n"
        assert (await box.read("note.txt"), await box.read("raw")) == ("hé".encode(), b"\0\1")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a\0b"])
async def test_a_path_that_leads_out_of_the_workspace_is_the_authors_mistake(sandboxes, path):
    with pytest.raises(ValueError, match="the files of the task cannot be laid into the workspace"):
        await open_sandbox(files={path: "x"})


@pytest.fixture(params=["local", "pool"])
def placement(request):
    return request.param


def test_every_tool_of_a_session_finds_them_and_each_session_has_its_own(placement, folder):
    class Tables(OneTask):
        toolsets = [FileSystemEnv, ShellExecutor]
        workspace_files = {"data.csv": folder / "data.csv", "bin": folder / "bin"}

    with running([Tables], placement=placement, pool_processes=1) as server, Client(server.url) as client:
        tables = client.environments.get("tables")
        with tables.session({}) as one, tables.session({}) as other:
            assert "a,b" in one.call_tool("read_from_file", {"filepath": "data.csv"}).text
            ran = one.call_tool("shell_command_executor", {"command": "bin/run.sh; rm data.csv"}).text
            assert "ran" in ran
            assert "a,b" in other.call_tool("read_from_file", {"filepath": "data.csv"}).text


def test_a_task_says_which_files_it_has(folder):
    class ByTask(OneTask):
        toolsets = [FileSystemEnv]

        def setup(self) -> None:
            self.workspace_files = {"task.txt": self.task_spec["text"]}

    with (
        running([ByTask]) as server,
        Client(server.url) as client,
        client.environments.get("bytask").session({"text": "seven"}) as session,
    ):
        assert "seven" in session.call_tool("read_from_file", {"filepath": "task.txt"}).text


def test_a_file_that_is_not_there_is_a_bug_of_the_author_and_the_agent_is_not_told_to_correct_it(tmp_path):
    class Gone(OneTask):
        toolsets = [FileSystemEnv]
        workspace_files = {"data.csv": tmp_path / "nope.csv"}

    with (
        running([Gone]) as server,
        Client(server.url) as client,
        client.environments.get("gone").session({}) as session,
        pytest.raises(ToolCallFailed) as failed,
    ):
        session.call_tool("print_filesys_struture", {})
    assert failed.value.reason == "tool_raised"


@pytest.mark.parametrize(
    ("files", "toolsets", "problem"),
    [
        (
            {"a": Path("data.csv")},
            [FileSystemEnv],
            r"workspace_files\['a'\] is relative to nothing; write Path\(__file__\)",
        ),
        (Path("data"), [FileSystemEnv], r"workspace_files is relative to nothing"),
        ({"a": 1}, [FileSystemEnv], r"workspace_files\['a'\] is 1; it must be text, bytes or a pathlib.Path"),
        ({1: "a"}, [FileSystemEnv], r"it must be text, bytes or a pathlib.Path"),
        ("data", [FileSystemEnv], r"workspace_files is 'data'; it must be"),
        ({"a": "x"}, [], "has workspace_files and no workspace"),
        ({"a": "x"}, [PythonCode], "has workspace_files and no workspace"),
    ],
)
def test_files_that_cannot_be_laid_are_refused_when_the_class_is_defined(files, toolsets, problem):
    with pytest.raises(DefinitionError, match=problem):
        type("Wrong", (Environment,), {"workspace_files": files, "toolsets": toolsets})
