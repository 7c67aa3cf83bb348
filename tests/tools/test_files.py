"""`FileSystemEnv`: cases 115 to 118, and malicious workspaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from tests.wires.wire import Wire
from toolyard import tool
from toolyard.core.errors import ToolError
from toolyard.sandboxes.base import WORKSPACE
from toolyard.testing import Running, running
from toolyard.tools import files
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.file_lines import SHOWN_MOST, edited, numbered
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.sandboxed import SandboxedToolset

pytestmark = pytest.mark.anyio


class Programs(SandboxedToolset):
    """What an agent can do to its workspace besides the file tools."""

    @tool
    async def run(self, code: str) -> str:
        """Run Python to its end."""
        finished = await (await self.sandbox()).run(["python3", "-c", code], timeout=60)
        if finished.exit_code:
            raise ToolError(finished.stderr.decode())
        return finished.stdout.decode()


class Yard(ToolsEnvironment):
    toolsets = (FileSystemEnv, Programs)

    @classmethod
    def name(cls) -> str:
        return "yard"


class Agent:
    """One session, with its tools as methods."""

    def __init__(self, wire: Wire, sid: str) -> None:
        self._wire = wire
        self._sid = sid

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self._wire.call(self._sid, name, arguments, env="yard")

    async def read(self, filepath: str, **more: Any) -> str:
        return (await self.call("read_from_file", {"filepath": filepath, **more})).text

    async def write(self, filepath: str, content: str, **more: Any) -> str:
        return (await self.call("write_to_file", {"filepath": filepath, "content": content, **more})).text

    async def tree(self, **more: Any) -> str:
        return (await self.call("print_filesys_struture", more)).text

    async def run(self, code: str) -> str:
        return (await self.call("run", {"code": "import os\n" + code})).text

    async def refused(self, filepath: str, content: str | None = None, **more: Any) -> str:
        """The agent's error for a failed read or write."""
        name = "read_from_file" if content is None else "write_to_file"
        written = {} if content is None else {"content": content}
        failure = (await self.call(name, {"filepath": filepath, **written, **more})).failure
        return str(failure["error"]).removeprefix(f"Tool {name!r} failed: ")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Yard]) as server:
        yield server


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    async with Wire(server.url) as wire:
        sid = await wire.open(env_name="yard")
        yield Agent(wire, sid)
        await wire.end(sid)


# What the wire promises.


async def test_what_is_written_comes_back_with_line_numbers(agent: Agent) -> None:
    assert await agent.write("a.txt", "l1\nl2") == "    1: l1\n    2: l2\n"
    assert await agent.run("print(repr(open('a.txt').read()))") == "'l1\\nl2\\n'\n"
    assert await agent.write("a.txt", "l3\n") == "    1: l1\n    2: l2\n    3: l3\n"


async def test_lines_are_inserted_before_a_line_or_take_the_place_of_as_many(agent: Agent) -> None:
    await agent.write("a.txt", "l1\nl2\nl3")
    assert await agent.write("a.txt", "new", line_number=2) == "    1: l1\n    2: new\n    3: l2\n    4: l3\n"
    replaced = await agent.write("a.txt", "x\ny", line_number=2, overwrite=True)
    assert replaced == "    1: l1\n    2: x\n    3: y\n    4: l3\n"
    assert await agent.write("a.txt", "only", truncating=True) == "    1: only\n"


async def test_a_file_is_read_from_any_line_and_numbers_from_the_end_are_the_true_ones(agent: Agent) -> None:
    await agent.write("a.txt", "l1\nl2\nl3")
    assert await agent.read("a.txt", line_number=2) == "    2: l2\n    3: l3\n"
    assert await agent.read("a.txt", line_number=0) == "    1: l1\n    2: l2\n    3: l3\n"
    assert await agent.read("a.txt", line_number=-1) == "    3: l3\n"
    assert await agent.read("a.txt", line_number=-3) == await agent.read("a.txt")
    for line in (4, 9, -4):
        assert await agent.refused("a.txt", line_number=line) == f"Line number {line} is out of range."


async def test_a_new_file_begins_at_its_first_line_and_gets_its_folders(agent: Agent) -> None:
    assert await agent.write("a/b/c.txt", "x", line_number=1) == "    1: x\n"
    assert await agent.write("a/b/d.txt", "x", line_number=0) == "    1: x\n"
    assert await agent.refused("new.txt", "x", line_number=2) == "File new.txt not found in workspace."
    assert await agent.refused("new.txt") == "File new.txt not found in workspace."
    assert "new.txt" not in await agent.tree()


async def test_an_empty_file_is_nothing_to_read_and_no_error(agent: Agent) -> None:
    assert await agent.write("empty.txt", "") == ""
    assert await agent.read("empty.txt") == ""
    assert await agent.refused("empty.txt", line_number=2) == "Line number 2 is out of range."


async def test_the_tree_shows_files_then_folders_indented_by_four(agent: Agent) -> None:
    await agent.write("sub/b.txt", "x")
    await agent.write("z.txt", "x")
    tree = "- workspace/\n    - z.txt\n    - sub/\n        - b.txt\n"
    assert await agent.tree() == tree
    assert await agent.tree(return_root=True) == f"Global Root Work Directory: {WORKSPACE}\n{tree}"


async def test_a_path_may_begin_with_the_place_of_the_workspace_or_with_its_name(agent: Agent) -> None:
    await agent.write("workspace/a.txt", "x")
    for path in ("a.txt", "./a.txt", "b/../a.txt", f"{WORKSPACE}/a.txt", "workspace/a.txt"):
        assert await agent.read(path) == "    1: x\n", path
    await agent.run("os.mkdir('workspace')")
    assert await agent.refused("workspace/a.txt") == "File workspace/a.txt not found in workspace."
    assert await agent.write("workspace/a.txt", "inner") == "    1: inner\n"
    assert await agent.read("a.txt") == "    1: x\n"


async def test_what_belongs_to_others_is_neither_shown_nor_touched(agent: Agent) -> None:
    await agent.run(
        "for name in ('.git', 'venv', 'a/__pycache__', 'a/node_modules', '.toolyard'):\n"
        "    os.makedirs(name); open(name + '/x', 'w').close()\n"
        "open('python_notebook.ipynb', 'w').close()"
    )
    assert await agent.tree() == "- workspace/\n    - a/\n"
    for path in (".git/x", "a/__pycache__/x", ".toolyard/x", "python_notebook.ipynb"):
        assert await agent.refused(path) == f"File {path} not found in workspace."
        assert await agent.refused(path, "y") == f"File {path} is not within workspace."


async def test_its_helpers_are_not_tools(agent: Agent) -> None:
    answer = await agent.call("_place", {"filepath": "a.txt"})
    assert answer.failure["error"].startswith("'_place' is not a valid tool")


# Nothing leads out, and nothing hangs.


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", f"{WORKSPACE}/../x", "..", "link", "out/passwd", "up/x", "folder/x"]
)
async def test_no_path_leads_out_of_the_workspace(agent: Agent, path: str) -> None:
    await agent.run(
        "os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'out')\n"
        "os.symlink('..', 'up'); os.symlink('../../tmp', 'folder')"
    )
    for refused in (await agent.refused(path), await agent.refused(path, "x")):
        assert refused == f"File {path} is not within workspace."
    assert "passwd" not in await agent.tree()


async def test_a_link_that_stays_inside_is_followed(agent: Agent) -> None:
    await agent.write("real/a.txt", "x")
    await agent.run("os.symlink('real', 'folder'); os.symlink('real/a.txt', 'a.txt')")
    assert await agent.read("folder/a.txt") == await agent.read("a.txt") == "    1: x\n"
    assert await agent.tree() == "- workspace/\n    - a.txt\n    - folder\n    - real/\n        - a.txt\n"


@pytest.mark.parametrize("make", ["os.mkfifo('it')", "os.mkdir('it')", "import socket; socket.socket(1).bind('it')"])
async def test_only_files_are_read_and_written_and_nobody_waits_for_a_pipe(agent: Agent, make: str) -> None:
    await agent.run(make)
    with anyio.fail_after(10):
        assert await agent.refused("it") == "File it is not a file."
        assert await agent.refused("it", "x") == "File it is not a file."


async def test_a_link_to_itself_and_a_file_that_is_no_folder_are_told_as_they_are(agent: Agent) -> None:
    await agent.run("os.symlink('round', 'round'); open('file', 'w').close()")
    assert "symbolic links" in await agent.refused("round")
    assert await agent.refused("file/x") == "File file/x cannot be used: Not a directory."
    assert await agent.refused("file/x", "y") == "File file/x cannot be used: Not a directory."
    assert "No such file" not in await agent.refused("x" * 300)
    assert "null character" in await agent.refused("a\0b")


async def test_what_is_no_text_is_not_written_so_that_a_text_stays_one(agent: Agent) -> None:
    await agent.write("a.txt", "l1")
    assert "null character" in await agent.refused("a.txt", "l2\0")
    assert await agent.write("a.txt", "l2") == "    1: l1\n    2: l2\n"


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0", b"caf\xe9", b"a\0b", "café".encode("utf-16")])
async def test_a_binary_file_is_refused_in_words_and_left_as_it_is(agent: Agent, data: bytes) -> None:
    await agent.run(f"open('it', 'wb').write({data!r})")
    assert await agent.refused("it") == "File it is not a text file: it is not UTF-8."
    assert await agent.refused("it", "x") == "File it is not a text file: it is not UTF-8."
    assert await agent.run("print(open('it', 'rb').read())") == f"{data!r}\n"
    assert await agent.write("it", "x", truncating=True) == "    1: x\n"


async def test_a_long_file_is_shown_in_parts_that_say_where_to_read_on(agent: Agent) -> None:
    await agent.run("open('long.csv', 'w').writelines(f'row {n:06}\\n' for n in range(1_000_000))")
    first = await agent.read("long.csv")
    assert first.startswith("    1: row 000000\n")
    assert first.endswith(" 9090: row 009089\n[cut here: read on from line 9091 of 1000000]\n")
    assert (await agent.read("long.csv", line_number=9091)).startswith(" 9091: row 009090\n")
    assert await agent.read("long.csv", line_number=-1) == "1000000: row 999999\n"
    assert await agent.write("long.csv", "end", line_number=1_000_001) == first.replace("1000000]", "1000001]")


async def test_a_line_without_end_is_cut(agent: Agent) -> None:
    await agent.run("open('line', 'w').write('é' * 1_000_000)")
    assert await agent.read("line") == "    1: " + "é" * SHOWN_MOST + "\n[cut here: the line goes on]\n"


async def test_a_file_that_changes_while_it_is_read_does_no_harm(agent: Agent) -> None:
    await agent.write("busy", "line")
    writer = "while not os.path.exists('stop'):\n    with open('busy', 'w') as file: file.write('line\\n' * 200_000)"
    sizes = set()
    async with anyio.create_task_group() as group:
        group.start_soon(agent.run, writer)
        with anyio.fail_after(30):
            while len(sizes) < 2:
                shown = await agent.read("busy")
                assert shown == "" or shown.startswith("    1: line")
                sizes.add(len(shown))
        await agent.write("stop", "")


async def test_the_tree_of_a_huge_workspace_is_short_and_soon_there(agent: Agent) -> None:
    await agent.run(
        "for number in range(3000): open(f'file{number:05}', 'w').close()\n"
        "for number in range(30):\n"
        "    for inner in range(30):\n"
        "        os.makedirs(f'wide{number:02}/in{inner:02}')\n"
        "        for file in range(3): open(f'wide{number:02}/in{inner:02}/{file}', 'w').close()\n"
    )
    with anyio.fail_after(10):
        lines = (await agent.tree()).splitlines()
    assert len(lines) < files.LINES_MOST + files.DEPTH_MOST
    top = [line.strip() for line in lines if len(line) - len(line.lstrip()) == 4]
    assert top == [*(f"- file{n:05}" for n in range(10)), *(f"- wide{n:02}/" for n in range(10)), "`wrapped`"]
    inner = lines[lines.index("    - wide00/") + 1 : lines.index("    - wide01/")]
    assert [line for line in inner if line.startswith("        - ")] == [f"        - in{n:02}/" for n in range(20)]
    assert inner[-1] == "        `wrapped`"


async def test_a_deep_workspace_is_shown_as_far_as_it_is_of_use(agent: Agent) -> None:
    await agent.run("for _ in range(200): os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').close()")
    with anyio.fail_after(10):
        lines = (await agent.tree()).splitlines()
    assert lines[-1] == "    " * (files.DEPTH_MOST + 1) + "`wrapped`"
    assert len(lines) == files.DEPTH_MOST + 2
    assert await agent.read("d/" * 200 + "bottom") == ""


async def test_names_cannot_add_lines_to_the_tree(agent: Agent) -> None:
    await agent.run(r"""for name in (b'a\n- b', b'\xff', b'q"\'', b'\x1b[31m'): open(name, 'w').close()""")
    assert (await agent.tree()).splitlines() == [
        *("- workspace/", "    - \\x1b[31m", "    - a\\n- b", "    - q\"'", "    - \\udcff"),
    ]


async def test_a_full_disk_and_a_file_that_is_too_large_are_told_to_the_agent(agent: Agent) -> None:
    await agent.run(
        "try:\n    for number in range(9): open(f'large{number}', 'wb').write(bytes(60_000_000))\nexcept OSError: pass"
    )
    assert await agent.refused("x", "y" * 1_000_000) == "File x cannot be used: No space left on device."
    assert await agent.refused("large0") == "File large0 is not a text file: it is not UTF-8."


# Lines, by themselves.


@pytest.mark.parametrize(
    ("text", "line", "shown"),
    [
        ("", 1, ""),
        ("", 0, ""),
        ("", -1, None),
        ("\n", 1, "    1: \n"),
        ("a", 1, "    1: a"),
        ("a\r\nb\r\n", 1, "    1: a\n    2: b\n"),
        ("a\x0cb\u2028c\n", 1, "    1: a\x0cb\u2028c\n"),
        ("a\nb", -1, "    2: b"),
        ("a\nb", 3, None),
        ("a\nb", -3, None),
    ],
)
def test_lines_end_where_editors_end_them(text: str, line: int, shown: str | None) -> None:
    assert numbered(text, line) == shown


@pytest.mark.parametrize("line", [None, -9, -3, -1, 0, 1, 2, 3, 4, 5, 99])
@pytest.mark.parametrize("content", ["", "x", "x\ny\n", "x\ny\nz\n1\n2"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_edits_are_those_of_a_list_of_lines(line: int | None, content: str, overwrite: bool) -> None:
    lines, new = ["a\n", "b\n", "c\n"], [f"{line}\n" for line in content.split()]
    at = 3 if line is None else max(3 + line, 0) if line < 0 else max(line - 1, 0)
    lines[at : at + len(new) * (overwrite and line is not None)] = new
    assert edited("a\nb\nc", content, line, overwrite=overwrite) == "".join(lines)


def test_lines_far_into_a_text_are_found() -> None:
    text = "".join(f"{number}\n" for number in range(100_000))
    for line in (1, 2, 13_000, 65_536, 99_999, 100_000):
        assert (numbered(text, line) or "").startswith(f"{line:>5}: {line - 1}\n")
