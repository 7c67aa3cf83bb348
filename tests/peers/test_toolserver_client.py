"""XAgent's client, as re-created in xagent_client.py, against the real server."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.xagent_client import ServerError, Status, XAgentClient
from toolyard.testing import Running, running
from toolyard.tools.workspace import Workspace

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([Workspace], toolserver_wait_seconds=2) as server:
        yield server


@pytest.fixture
def client(served: Running, tmp_path: Path) -> Iterator[XAgentClient]:
    client = XAgentClient(served.url, tmp_path)
    client.pause = 0.05
    client.lazy_init()
    yield client
    client.close()


def test_137_a_whole_run_goes_through(client, tmp_path):
    names, schemas = client.get_available_tools(unwanted=("ShellEnv_write_stdin",))
    assert "FileSystemEnv_read_from_file" in names
    assert [schema["name"] for schema in schemas] == names
    for step in range(3):
        tree = client.execute_command_client("FileSystemEnv_print_filesys_struture", {"return_root": True})
        assert tree[0] is Status.TOOL_CALL_SUCCESS
        assert isinstance(tree[1], str)
        arguments = {"filepath": "notes.txt", "content": f"step {step}\n"}
        assert client.execute_command_client("FileSystemEnv_write_to_file", arguments)[0] is Status.TOOL_CALL_SUCCESS
    assert client.execute_command_client("nope", {})[0] is Status.HALLUCINATE_NAME
    assert client.execute_command_client("calculator", {"nope": 1})[0] is Status.TOOL_CALL_FAILED
    retrieved, described = client.retrieve_tools("run a shell command")
    assert "shell_command_executor" in retrieved
    assert len(described) == len(retrieved)
    assert client.get_schemas(retrieved)["missing_tools"] == []
    archive = zipfile.ZipFile(client.download_all_files())
    assert archive.read("notes.txt") == b"step 0\nstep 1\nstep 2\n"
    client.close()
    with pytest.raises(ServerError, match="node is not running"):
        client.execute_command_client("calculator", {"expression": "1"})


def test_123_124_pictures_and_bytes_survive_its_unwrapping(client, tmp_path):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    status, shown = client.execute_command_client("PythonNotebook_execute_cell", {"code": code})
    assert status is Status.TOOL_CALL_SUCCESS
    words, (_text, saved) = shown
    assert (words, saved["media_type"]) == ("cell_index: 0", "image/png")
    assert (tmp_path / saved["file_name"]).read_bytes().startswith(b"\x89PNG")
    status, shown = client.execute_command_client("shell_command_executor", {"command": "echo hi"})
    assert shown == {"ReturnCode": 0, "display": "\nstdout:\nhi\n"}


def test_126_a_long_command_ends_well_because_the_continuation_waits(client):
    status, shown = client.execute_command_client("shell_command_executor", {"command": "sleep 5; echo done"})
    assert (status, shown["display"]) == (Status.TOOL_CALL_SUCCESS, "\nstdout:\ndone\n")
    status, shown = client.execute_command_client("ShellEnv_write_stdin", {"content": "sleep 3; echo late"})
    assert (status, shown) == (Status.TOOL_CALL_SUCCESS, "late\n")


def test_130_131_files_are_brought_and_fetched(client, tmp_path):
    source = tmp_path / "data.bin"
    source.write_bytes(bytes(range(256)) * 100)
    assert client.upload_file(source) == {"message": "Upload Success!"}
    source.unlink()
    assert client.download_file("data.bin").read_bytes() == bytes(range(256)) * 100
    assert client.get_workspace_structure()["children"] == [{"name": "data.bin", "type": "file"}]


def test_ten_agents_at_once_do_not_meet(served, tmp_path):
    seen: dict[int, object] = {}

    def work(number: int) -> None:
        agent = XAgentClient(served.url, tmp_path)
        agent.pause = 0.05
        agent.lazy_init()
        agent.execute_command_client("FileSystemEnv_write_to_file", {"filepath": "n", "content": str(number)})
        agent.execute_command_client("PythonNotebook_execute_cell", {"code": f"n = {number}"})
        code = "print(n, open('n').read().strip())"
        seen[number] = agent.execute_command_client("PythonNotebook_execute_cell", {"code": code})[1]
        agent.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == {number: ["cell_index: 1", f"{number} {number}\n"] for number in range(10)}
