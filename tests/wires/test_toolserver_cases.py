"""The conformance cases of the ToolServer's tools, by number, over its wire. Those of the wire are in other files."""

from __future__ import annotations

import asyncio
import base64
import io
import zipfile
from collections.abc import AsyncIterator, Iterator
from functools import partial

import anyio
import pytest

from tests.wires.toolserver_wire import Node
from tests.wires.wire import until
from toolyard.sandboxes.base import WORKSPACE
from toolyard.testing import Running, running
from toolyard.tools.workspace import Workspace

pytestmark = pytest.mark.anyio

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([Workspace], toolserver_wait_seconds=20) as server:
        yield server


@pytest.fixture
async def node(served: Running) -> AsyncIterator[Node]:
    async with Node(served.url) as node:
        await node.cookie()
        yield node
        await node.post("/release_session")
    await until(lambda: not served.server.runtime.sessions)


async def write(node: Node, content: str, **more: object) -> str:
    return await node.execute("FileSystemEnv_write_to_file", filepath="a.txt", content=content, **more)


async def test_108_109_files_survive_closing_and_nothing_survives_releasing(node):
    await write(node, "kept")
    await node.execute("shell_command_executor", command="mkdir -p d && ln -s ../a.txt d/link && chmod 700 a.txt")
    await node.execute("PythonNotebook_execute_cell", code="x = 41")
    await node.answer("/close_session")
    assert (await node.post("/get_workspace_structure")).status_code == 503
    await node.answer("/reconnect_session")
    shown = await node.execute("shell_command_executor", command="cat d/link; stat -c %a a.txt")
    assert shown["data"]["display"] == "\nstdout:\nkept\n700\n"
    assert "x = 41" in await node.execute("PythonNotebook_print_notebook")
    assert "NameError" in await node.detail("PythonNotebook_execute_cell", code="x + 1")
    await node.answer("/release_session")
    assert (await node.post("/reconnect_session")).json().startswith("invalid node_id")


@pytest.mark.thorough
async def test_108_a_node_whose_programs_leave_no_room_for_others_is_closed_all_the_same(node):
    await write(node, "kept")
    await node.asked("ShellEnv_write_stdin", content="while true; do sleep 1000 & done 2>/dev/null")
    await until_full(node)
    assert await node.answer("/close_session") == f"Close session: {node.node_id}"
    await node.answer("/reconnect_session")
    shown = await node.execute("shell_command_executor", command="cat a.txt; ps ax | grep -c '[s]leep 1000'", kill=True)
    assert shown["data"]["display"] == "\nstdout:\nkept\n0\n"


async def until_full(node: Node) -> None:
    with anyio.fail_after(30):
        while (await node.asked("shell_command_executor", command="true")).status_code == 200:
            pass


async def test_113_parameters_are_described(node):
    told = await node.answer("/get_json_schema_for_tools", ["FileSystemEnv_read_from_file", "nope"])
    assert told["missing_tools"] == ["nope"]
    parameters = told["tools_json"][0]["parameters"]
    assert parameters["required"] == ["filepath"]
    assert parameters["properties"]["line_number"]["type"] == "integer"


async def test_115_to_117_a_file_is_written_and_read_with_numbers_before_its_lines(node):
    body = {"tool": "FileSystemEnv_write_to_file", "parameters": {"filepath": "a.txt", "content": "l1\nl2"}}
    assert (await node.post("/execute_tool", json=body)).json() == "    1: l1\n    2: l2\n"
    assert await write(node, "new", line_number=2) == "    1: l1\n    2: new\n    3: l2\n"
    assert await write(node, "over", line_number=2, overwrite=True) == "    1: l1\n    2: over\n    3: l2\n"
    assert await node.execute("FileSystemEnv_read_from_file", filepath="a.txt", line_number=3) == "    3: l2\n"
    assert "out of range" in await node.detail("FileSystemEnv_read_from_file", filepath="a.txt", line_number=9)
    assert "not within workspace" in await node.detail("FileSystemEnv_read_from_file", filepath="../x")
    assert await write(node, "only", truncating=True) == "    1: only\n"


async def test_118_the_tree_of_files_is_a_text(node):
    await node.execute("FileSystemEnv_write_to_file", filepath="sub/b.txt", content="x")
    tree = await node.execute("FileSystemEnv_print_filesys_struture", return_root=True)
    assert tree.startswith(f"Global Root Work Directory: {WORKSPACE}\n")
    assert "    - sub/\n        - b.txt\n" in tree


async def test_121_a_command_shows_both_of_its_outputs_and_how_it_ended(node):
    shown = await node.execute("shell_command_executor", command="echo hi")
    assert shown == {"type": "simple", "data": {"ReturnCode": 0, "display": "\nstdout:\nhi\n"}}
    shown = await node.execute("shell_command_executor", command="echo o; echo e >&2")
    assert shown["data"]["display"] == "\nstderr:\ne\n\nstdout:\no\n"
    assert (await node.detail("shell_command_executor", command="exit 3"))["ReturnCode"] == 3


async def test_122_cells_of_the_notebook_are_numbered_and_can_be_replaced(node):
    run = "PythonNotebook_execute_cell"
    shown = await node.execute(run, code="print('hello world')")
    assert shown == {"type": "composite", "data": ["cell_index: 0", "hello world\n"]}
    assert await node.execute(run, code="x=3") == "cell_index: 1"
    assert (await node.detail(run, code="1/0")).startswith("cell_index: 2\n")
    shown = await node.execute(run, code="print('other', x)", cell_index=0)
    assert shown == {"type": "composite", "data": ["cell_index: 0", "other 3\n"]}
    assert "out of range" in await node.detail(run, code="1", cell_index=99)


async def test_123_a_figure_is_a_binary_part_without_a_name(node):
    shown = await node.execute("PythonNotebook_execute_cell", code=FIGURE)
    words, figure = shown["data"]
    assert words == "cell_index: 0"
    text, picture = figure["data"]
    assert text.startswith("<Figure size ")
    assert set(picture) == {"type", "media_type", "data"}
    assert picture["media_type"] == "image/png"
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [None, {}])
async def test_125_an_interactive_shell_says_when_to_ask_again(node, arguments):
    detail = await node.detail("ShellEnv_write_stdin", 450, content="sleep 1; echo done")
    assert detail["next_calling"] == "ShellEnv_read_stdout"
    assert await node.execute(detail["next_calling"], **(detail["arguments"] if arguments is None else {})) == "done\n"


async def test_127_a_shell_that_has_ended_says_so(node):
    await node.asked("ShellEnv_write_stdin", content="exit")
    with anyio.fail_after(10):
        while (response := await node.asked("ShellEnv_read_stdout")).status_code != 500:
            pass
    assert "ended" in response.json()["detail"]
    assert (await node.get("/alive")).json() == "alive"


async def test_128_reading_a_file_is_found_among_all_tools(node):
    found = await node.answer("/retrieving_tools", {"question": "read a file"})
    assert "FileSystemEnv_read_from_file" in found["retrieved_tools"]


NEW = '''
@toolwrapper()
def greet(who: str, loud: bool = False):
    """Greet somebody.

    :param string who: Whom.
    :param boolean? loud: Whether to shout.
    """
    return {"greeting": f"Hello {who}" + "!" * loud}
'''


async def test_129_a_new_tool_is_taken_once_and_runs_in_the_sandbox(node, served):
    made = await node.answer("/register_new_tool", {"tool_name": "greet", "code": NEW})
    assert made["name"] == "greet"
    assert made["parameters"]["required"] == ["who"]
    assert set(made["parameters"]["properties"]) == {"who", "loud"}
    assert "greet" in (await node.answer("/get_available_tools", {}))["available_tools"]
    assert await node.execute("greet", who="Ann") == {"type": "simple", "data": {"greeting": "Hello Ann"}}
    for name, code, words in (
        ("greet", NEW, "Tool: greet has no labels or replicated!"),
        ("broken", "def broken(:", "Failed to execute new tool code: SyntaxError"),
        ("absent", "def other(): pass", "Failed to find tool, please verify the tool_name!"),
        ("bare", "def bare(): pass", "Tool: bare has no labels or replicated!"),
    ):
        response = await node.post("/register_new_tool", json={"tool_name": name, "code": code})
        assert response.status_code == 406, response.text
        assert response.json()["detail"].startswith(f"Error happens when registering new tool:\n{words}")
    await node.answer("/close_session")
    await node.answer("/reconnect_session")
    assert await node.execute("greet", who="Bo", loud=True) == {"type": "simple", "data": {"greeting": "Hello Bo!"}}
    async with Node(served.url) as other:
        await other.cookie()
        assert (await other.detail("greet", 404, who="x")).startswith("The tool greet is not found! ")
        await other.post("/release_session")


async def test_130_to_132_files_go_in_and_out(node):
    parts = {"file": ("../../x", b"data"), "filename": ("filename", b"x")}
    response = await node.post("/upload_file", files=parts)
    assert (response.status_code, response.json()) == (200, {"message": "Upload Success!"})
    for path in ("x", "workspace/x"):
        response = await node.post("/download_file", json={"file_path": path})
        assert (response.status_code, response.content) == (200, b"data")
    assert (await node.post("/download_file", json={"file_path": "../secret"})).status_code == 404
    assert (await node.post("/download_file", json={"file_path": "missing"})).json()["detail"]
    archive = zipfile.ZipFile(io.BytesIO((await node.post("/download_workspace")).content))
    assert archive.namelist() == ["x"]
    structure = await node.answer("/get_workspace_structure")
    assert structure == {"name": "workspace", "type": "directory", "children": [{"name": "x", "type": "file"}]}


async def test_133_two_nodes_share_nothing(node, served):
    await write(node, "mine")
    await node.execute("shell_command_executor", command="sleep 60 & echo", run_async=True)
    async with Node(served.url) as other:
        await other.cookie()
        seen = await other.execute("shell_command_executor", command="ls -A; ps ax | grep -c '[s]leep 60' || true; env")
        assert "a.txt" not in seen["data"]["display"]
        assert "\n0\n" in seen["data"]["display"]
        await other.post("/release_session")


async def test_134_the_calculator_tells_mistakes_as_results(node):
    assert await node.execute("calculator", expression="1+2") == 3
    assert await node.execute("calculator", expression="1/0") == "Error: division by zero"


async def test_135_the_interpreter_runs_the_last_code_only(node):
    await node.execute("run_interpreter", code="print('first')")
    shown = await node.execute("run_interpreter", code="print('second')")
    assert shown == {"type": "simple", "data": {"ReturnCode": 0, "Output": "second\n"}}


async def test_requests_that_race_on_one_node_come_one_after_the_other(node):
    body = {"tool_name": "greet", "code": NEW}
    made = await asyncio.gather(*(node.post("/register_new_tool", json=body) for _ in range(3)))
    assert sorted(response.status_code for response in made) == [200, 406, 406]
    await asyncio.gather(*(write(node, f"line {n}") for n in range(8)))
    lines = (await node.execute("FileSystemEnv_read_from_file", filepath="a.txt")).splitlines()
    assert sorted(line.partition(": ")[2] for line in lines) == [f"line {n}" for n in range(8)]
    cells = await asyncio.gather(*(node.execute("PythonNotebook_execute_cell", code=f"print({n})") for n in range(6)))
    assert sorted(cell["data"][0] for cell in cells) == [f"cell_index: {n}" for n in range(6)]
    typed = await asyncio.gather(*(node.asked("ShellEnv_write_stdin", content=f"echo {n}") for n in range(4)))
    assert {response.status_code for response in typed} <= {200, 450}
    uploads = (node.post("/upload_file", files={"file": ("u", bytes([n]) * 1_000_000)}) for n in range(4))
    assert [response.status_code for response in await asyncio.gather(*uploads)] == [200] * 4
    content = (await node.post("/download_file", json={"file_path": "u"})).content
    assert len(content) == 1_000_000


async def test_a_release_that_races_with_everything_leaves_nothing(node, served):
    async def all_of_it() -> None:
        async with anyio.create_task_group() as group:
            for path in ("/download_workspace", "/get_workspace_structure", "/get_available_tools", "/close_session"):
                group.start_soon(node.post, path)
            group.start_soon(partial(node.asked, "shell_command_executor", command="sleep 30"))
            group.start_soon(partial(node.asked, "PythonNotebook_execute_cell", code="while True: pass"))
            group.start_soon(node.post, "/release_session")
            group.start_soon(node.post, "/reconnect_session")

    with anyio.fail_after(60):
        await all_of_it()
    await node.post("/release_session")
    await until(lambda: not served.server.runtime.sessions)
    assert served.server.runtime.calls == 0


async def test_the_same_tools_are_an_environment_over_ors(served):
    async with Node(served.url) as client:
        sid = await client.open(env_name="workspace", task_spec={})
        await client.call(sid, "write_to_file", {"filepath": "n.py", "content": "n = 6"}, env="workspace")
        shown = await client.call(sid, "execute_cell", {"code": "from n import n; n * 7"}, env="workspace")
        assert "42" in shown.text
        shown = await client.call(sid, "write_stdin", {"content": "sleep 0.5; cat n.py"}, env="workspace")
        assert shown.text == "n = 6\n"
        pictures = (await client.call(sid, "execute_cell", {"code": FIGURE}, env="workspace")).output["blocks"]
        assert [block["type"] for block in pictures] == ["text", "text", "image"]
        await client.end(sid)


async def test_a_model_that_writes_text_can_use_them_too(served):
    async with Node(served.url) as client:
        call = '<tool_call>{"name": "run_interpreter", "arguments": {"code": "print(6*7)"}}</tool_call>'
        body = {"trajectory_ids": ["t"], "actions": [call], "extra_fields": [{"environment": "workspace"}]}
        observation = (await client.post("/get_observation", json=body)).json()["observations"][0]
        assert '"Output": "42\\n"' in str(observation)
        await client.post("/get_observation", json={**body, "finish": [True]})
