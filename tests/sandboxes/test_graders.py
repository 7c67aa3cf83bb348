"""Graders: fresh sandboxes with the agent's files and hidden ones, and the reports of run_tests."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sandboxes import backends
from toolyard.core.errors import DefinitionError, SandboxError, SandboxLost, SandboxUnavailable, WorkspaceError
from toolyard.sandboxes import Limits, Provider, Sandbox, open_sandbox
from toolyard.sandboxes.base import Finished, Usage
from toolyard.sandboxes.grading import laying, records

pytestmark = pytest.mark.anyio

ADD = {"tests/test_add.py": "from add import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"}


@pytest.fixture(scope="module")
async def provider(anyio_backend) -> AsyncIterator[Provider]:
    async with Provider(limits=Limits(wall_seconds=30)) as provider:
        yield provider


@pytest.fixture
async def box(provider: Provider) -> AsyncIterator[Sandbox]:
    provider.enter()
    async with await open_sandbox() as box:
        yield box


async def names(sandbox: Sandbox, folder: str = ".") -> list[str]:
    return [entry.name for entry in await sandbox.list(folder)]


# The copy.


@pytest.mark.parametrize("name", ["native", *backends.others("bubblewrap", "landlock", "docker", "subprocess")])
async def test_on_every_backend_a_grader_has_the_files_and_nothing_of_the_agent(name: str, tmp_path: Path):
    backend = backends.backend(name, tmp_path)
    await backend.start()
    try:
        async with await backend.open() as box:
            await box.write("deep/er/file", b"\0\xff")
            await box.shell("export LEFT=1; touch /tmp/left 2>/dev/null; sleep 1000 &")
            await box.exec("left = 1")
            async with await box.grader(hidden={"deep/hidden": "secret"}) as grader:
                assert await grader.sandbox.read("deep/er/file") == b"\0\xff"
                assert await grader.sandbox.read("deep/hidden") == b"secret"
                assert (await grader.sandbox.exec("left")).error is not None
                assert (await grader.run(["sh", "-c", "cat; echo $LEFT"], stdin=b"driven ")).stdout == b"driven \n"
            assert "hidden" not in await names(box, "deep")
    finally:
        await backend.close()


async def test_programs_of_the_agent_end_before_anything_is_copied(box: Sandbox):
    await box.shell("setsid sh -c 'while true; do date +%N > now; done' > /dev/null 2>&1 &")
    process = await box.start(["sh", "-c", "while true; do date +%N > then; done"])
    assert (await box.run(["sh", "-c", "until [ -s now ]; do sleep 0.01; done"])).exit_code == 0
    async with await box.grader() as grader:
        assert process.exit_code == 137
        copied = {await box.read("now"), await grader.sandbox.read("now")}
        await asyncio.sleep(0.1)
        assert copied == {await box.read("now")}


async def test_hidden_files_win_whatever_the_agent_laid_in_their_place(box: Sandbox):
    await box.shell(
        "mkdir -p tests/a.py tests/data real; touch tests/a.py/x tests/data/kept real/b.py; ln -s real linked; "
        "mkdir tests/c; touch tests/c/__init__.py tests/c.cpython-311-x86_64-linux-gnu.so tests/c.pyc tests/c.txt d"
    )
    hidden = {"tests/a.py": "A", "linked/b.py": b"B", "tests/c.py": "C", "d/e": "E"}
    async with await box.grader(hidden=hidden) as grader:
        for path, content in hidden.items():
            assert await grader.sandbox.read(path) == (content.encode() if isinstance(content, str) else content)
        assert await names(grader.sandbox, "tests") == ["a.py", "c.py", "c.txt", "data"]
        assert await grader.sandbox.read("real/b.py") == b""
        assert grader.left_out == ["linked"]


async def test_links_and_what_cannot_be_read_are_left_out_and_named(box: Sandbox):
    await box.shell(
        "echo x > file; ln -s file link; ln -s /etc/passwd out; ln -s / root; mkfifo pipe; echo y > locked; "
        "mkdir shut; touch shut/x; chmod 0 locked shut; chmod 0400 file"
    )
    async with await box.grader() as grader:
        found = await names(grader.sandbox)
        assert sorted([*found, *grader.left_out]) == ["file", "link", "locked", "out", "pipe", "root", "shut"]
        assert "file" in found
        assert not {"link", "out", "pipe", "root"} & {*found}
        if "locked" in found:  # our reader may read it
            assert await grader.sandbox.read("locked") == b"y\n"


async def test_only_the_files_that_are_named_are_copied(box: Sandbox):
    for path in "src/a.py", "src/deep/b.py", "src/c.txt", "other/d.py", "e.md", ".git/config", "src/__pycache__/a.pyc":
        await box.write(path, b"")
    for files, found in [
        (["src"], ["src/a.py", "src/c.txt", "src/deep/b.py"]),
        (["*.py", "e.md"], ["e.md", "other/d.py", "src/a.py", "src/deep/b.py"]),
        (["/home/work/other/", "missing"], ["other/d.py"]),
        (None, ["e.md", "other/d.py", "src/a.py", "src/c.txt", "src/deep/b.py"]),
    ]:
        assert sorted((await laying.take(box, files)).files) == found


async def test_a_workspace_that_is_too_large_is_refused_in_words(box: Sandbox):
    await box.shell(f"for n in 1 2 3; do truncate -s {laying.BYTES_MOST // 2} $n; done")
    with pytest.raises(WorkspaceError, match=r"cannot be copied for grading: it has \d+ bytes, more than"):
        await box.grader()
    async with await box.grader(files=["1"]) as grader:
        assert await names(grader.sandbox) == ["1"]
    await box.shell("rm 1 2 3; mkdir many; cd many; seq 5000 | xargs touch")
    with pytest.raises(WorkspaceError, match="more than 4096 files"):
        await box.grader()


async def test_folders_of_the_host_are_hidden_files_too(box: Sandbox, tmp_path: Path):
    (tmp_path / "tests" / "__pycache__").mkdir(parents=True)
    (tmp_path / "tests" / "a.py").write_text("A")
    (tmp_path / "tests" / "__pycache__" / "a.pyc").write_text("no")
    for hidden, path in [(tmp_path, "tests/a.py"), ({"x": tmp_path / "tests"}, "x/a.py")]:
        async with await box.grader(hidden=hidden) as grader:
            assert await grader.sandbox.read(path) == b"A"
            assert await names(grader.sandbox, path.rpartition("/")[0]) == ["a.py"]


async def test_a_grader_has_the_limits_that_it_is_given_and_else_those_of_the_sandbox(box: Sandbox):
    async with await box.grader() as grader:
        assert grader.sandbox.limits == box.limits
    limits = dataclasses.replace(box.limits, wall_seconds=0.5)
    async with await box.grader(limits=limits) as grader:
        assert (await grader.run(["sleep", "10"])).killed_by == "wall"


async def test_a_branch_of_a_sandbox_is_graded_for_itself(box: Sandbox):
    await box.write("file", b"before")
    (branch,) = await box.fork()
    async with branch:
        await branch.write("file", b"of the branch")
        async with await branch.grader() as grader:
            assert await grader.sandbox.read("file") == b"of the branch"


# Tests.


async def test_what_a_process_says_that_died_still_counts_and_the_rest_is_missing(box: Sandbox):
    await box.write("a.py", b"import os\ndef f(x):\n    return x if x < 2 else os._exit(0)\n")
    source = "from a import f\n" + "".join(f"def test_{n}():\n    assert f({n}) == {n}\n" for n in range(4))
    async with await box.grader(hidden={"test_a.py": source}) as grader:
        report = await grader.run_tests(twins=1)
    assert report.passed == ["test_a.py::test_0", "test_a.py::test_1"]
    assert report.missing == ["test_a.py::test_2", "test_a.py::test_3"]
    assert (report.fraction, report.voided, report.ok) == (0.5, "", False)
    assert "ended early, with exit code 0" in report.output


async def test_no_test_that_fails_is_overlooked_wherever_it_stands(box: Sandbox):
    """In a nested class, or made at run time, which reading the file does not find."""
    await box.write("add.py", b"def add(a, b):\n    return 3\n")
    inner = "class TestAdd:\n    class TestMore:\n        def test_more(self):\n            assert add(2, 2) == 4\n"
    made = "def made():\n    assert add(3, 3) == 6\n\n\nglobals()['test_made'] = made\n"
    async with await box.grader(hidden={"test_add.py": f"{ADD['tests/test_add.py']}\n\n{inner}\n\n{made}"}) as grader:
        report = await grader.run_tests(twins=1)
    assert report.passed == ["test_add.py::test_add"]
    assert sorted(report.failed) == ["test_add.py::TestAdd::TestMore::test_more", "test_add.py::test_made"]
    assert not report.ok
    assert not report.voided


async def test_tests_that_run_out_of_time_count_as_failed(box: Sandbox):
    await box.write("a.py", b"import time\ndef f(x):\n    return x if x < 1 else time.sleep(100)\n")
    source = "from a import f\n" + "".join(f"def test_{n}():\n    assert f({n}) == {n}\n" for n in range(3))
    async with await box.grader(hidden={"test_a.py": source}) as grader:
        report = await grader.run_tests(twins=0, timeout=2)
    assert (len(report.passed), len(report.missing), report.fraction) == (1, 2, 1 / 3)
    assert "it took longer than it may" in report.output


async def test_one_test_in_the_place_of_others_is_found_out(box: Sandbox):
    swap = b"""
import sys
def f(x):
    frame = sys._getframe(1)
    names = [name for name in frame.f_globals if name.startswith("test_")]
    for name in names[1:]:
        frame.f_globals[name].__code__ = frame.f_globals["test_0"].__code__
    return 0
"""
    await box.write("a.py", swap)
    source = "from a import f\n" + "".join(f"def test_{n}():\n    assert f({n}) == {n}\n" for n in range(12))
    async with await box.grader(hidden={"test_a.py": source}) as grader:
        assert (await grader.run_tests(twins=0)).fraction == 1
        assert (await grader.run_tests(twins=3)).voided


async def test_only_the_tests_count_that_the_author_expects(box: Sandbox):
    await box.write("a.py", b"def f(x):\n    return 1\n")
    source = (
        "import pytest\nfrom a import f\n@pytest.mark.parametrize('n', [1, 2])\ndef test_f(n):\n    assert f(n) == n\n"
    )
    async with await box.grader(hidden={"test_a.py": source}) as grader:
        report = await grader.run_tests(expected=["test_a.py::test_f[1]"], twins=1)
        assert (report.passed, report.ok, report.total) == (["test_a.py::test_f[1]"], True, 1)
        report = await grader.run_tests(expected=["test_a.py::test_f"], twins=0)
        assert (list(report.failed), report.fraction) == (["test_a.py::test_f[2]"], 0.5)
        for wrong in "test_a.py::test_g", "test_a.py::test_f[3]":
            with pytest.raises(DefinitionError, match=r"cannot be found by reading|no test 'test_a\.py::test_g'"):
                await grader.run_tests(expected=[wrong])


async def test_hidden_conftests_plugins_and_other_places_for_code_are_the_authors_to_choose(box: Sandbox):
    await box.write("src/a.py", b"async def f():\n    return 1\n")
    await box.write("conftest.py", b"raise SystemExit(0)\n")
    source = "import pytest\nfrom a import f\n@pytest.mark.anyio\nasync def test_f(one):\n    assert await f() == one\n"
    fixtures = (
        "import pytest\n@pytest.fixture\ndef one(): return 1\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"
    )
    hidden = {"tests/unit/test_a.py": source, "tests/conftest.py": fixtures}
    async with await box.grader(hidden=hidden) as grader:
        report = await grader.run_tests(["tests/unit"], path=["src"], plugins=["anyio.pytest_plugin"], twins=1)
    assert report.ok, report


async def test_hidden_files_that_cannot_be_tests_are_the_authors_mistake(box: Sandbox):
    skipped = "import pytest\n@pytest.mark.skip\ndef test_a(): ..."
    hidden = {"test_a.py": "def", "test_b.py": "x = 1", "test_c.py": skipped, "helpers.py": "", **ADD}
    async with await box.grader(hidden=hidden) as grader:
        for path, words in [
            ("test_a.py", "cannot be read"),
            ("test_b.py", "no test is found"),
            ("test_c.py", "may be skipped"),
            ("helpers.py", "no hidden test file at 'helpers.py'; there are 'test_a.py'"),
            ("absent", "no hidden test file at 'absent'"),
        ]:
            with pytest.raises(DefinitionError, match=words):
                await grader.run_tests([path])
    async with await box.grader() as grader:
        with pytest.raises(DefinitionError, match="there is no hidden test file"):
            await grader.run_tests()


async def test_a_sandbox_that_is_gone_is_an_error_and_no_score(box: Sandbox):
    await box.write("add.py", b"def add(a, b): return a + b\n")
    grader = await box.grader(hidden=ADD)
    await grader.close()
    with pytest.raises(SandboxLost):
        await grader.run_tests()


async def test_a_python_without_pytest_is_an_error_and_no_score(box: Sandbox):
    """Checked before any of the agent's code runs, so the agent cannot fake it."""
    finished = await box.run(["echo", '{"lacks": "No module named \'pytest\'"}'])
    with pytest.raises(SandboxUnavailable, match=r"No module named 'pytest'\. Install pytest"):
        records.read(finished, "test_a.py")
    with pytest.raises(SandboxError, match="the tests did not begin"):
        records.read(await box.run(["sh", "-c", "echo no >&2; exit 127"]), "test_a.py")
    forged = await box.run(["printf", '{"ready": "9"}\n{"lacks": "pytest"}\n'])
    assert records.read(forged, "test_a.py").tampered


async def test_what_stays_possible_in_the_process_of_the_tests_is_not_when_the_program_is_driven(box: Sandbox):
    """As docs/grading.md says: an assertion in a helper cannot be changed, and the code under test can replace it."""
    patched = (
        b"import sys, types\nsys.modules['tests.checks'] = types.SimpleNamespace(same=lambda *_: None)\n"
        b"def add(a, b):\n    return 7\nif __name__ == '__main__':\n    print(add(*map(int, input().split())))\n"
    )
    await box.write("add.py", patched)
    hidden = {
        "tests/checks.py": "def same(a, b): assert a == b\n",
        "tests/test_add.py": "from add import add\nfrom tests.checks import same\ndef test_add(): same(add(1, 2), 3)\n",
    }
    async with await box.grader(hidden=hidden) as grader:
        assert (await grader.run_tests(twins=2)).ok, "it is seen now: the page should say so"
        assert (await grader.run(["python3", "-I", "add.py"], stdin=b"1 2\n")).stdout == b"7\n"


async def test_a_test_file_finds_no_other_unless_one_imports_it(box: Sandbox):
    """Another file's expectations of the same function would distinguish a twin from the real one."""
    await box.write("a.py", b"import os\ndef f(): return sorted(os.listdir('tests'))\n")
    hidden = {
        "tests/test_a.py": "import a\ndef test_a(): assert a.f() == ['data.json', 'test_a.py', 'test_base.py']\n",
        "tests/test_b.py": "from tests.test_base import Base\nclass TestB(Base): ...\ndef test_b(): assert 1 == 1\n",
        "tests/test_base.py": "class Base:\n    def test_it(self): assert 1 == 1\ndef test_base(): assert 1 == 1\n",
        "tests/data.json": "{}",
    }
    async with await box.grader(hidden=hidden) as grader:
        assert (await grader.run_tests(["tests/test_a.py"], twins=0)).ok
        assert (await grader.run_tests(["tests/test_b.py"], twins=0)).ok


@pytest.mark.thorough
async def test_a_program_that_knows_most_twins_by_the_tests_that_it_can_do_is_found_out_by_the_others(box: Sandbox):
    knowing = b"""
import ast

class Same(int):
    __eq__ = lambda *_: True
    __hash__ = int.__hash__

def double(n):
    return 2 * n

def all_that_it_can_do_is_expected():
    for node in ast.walk(ast.parse(open("test_a.py").read())):
        match node:
            case ast.Compare(left=ast.Call(func=ast.Name(id="double"), args=[given]), comparators=[expected]):
                if double(ast.literal_eval(given)) != ast.literal_eval(expected):
                    return False
    return True

def hard(n):
    return Same() if all_that_it_can_do_is_expected() else 0
"""
    await box.write("a.py", knowing)
    tests = "".join(f"def test_{n}():\n    assert double({n}) == {2 * n}\n" for n in range(5))
    source = f"from a import double, hard\n{tests}def test_hard():\n    assert hard(2) == 17\n"
    async with await box.grader(hidden={"test_a.py": source}) as grader:
        assert (await grader.run_tests(twins=0)).ok
        assert (await grader.run_tests(twins=9)).voided


@pytest.mark.parametrize("line", [b"\n", b'{"broken": ""}\n'])
def test_a_report_of_very_many_lines_is_void_at_once(line: bytes):
    told = b'{"ready": "9"}\n' + line * (2**21 // len(line))
    began = time.process_time()
    found = records.read(Finished(0, told, b"", None, Usage(), "L0"), "tests/test_a.py")
    assert found.tampered
    assert time.process_time() - began < 1
