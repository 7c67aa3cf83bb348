"""A family of sandboxes against a model of it: dictionaries of variables and files, for operations in any order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule, run_state_machine_as_test

from toolyard.core.errors import CannotFork, SandboxLost, WorkspaceError
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.sandbox import NativeSandbox

pytestmark = pytest.mark.thorough

T = TypeVar("T")

SANDBOXES_MOST = 8
ANSWER_SECONDS = 20.0

names = st.sampled_from(("x", "y", "z"))
numbers = st.integers(-(10**9), 10**9)
paths = st.sampled_from(("a", "b", "d/a", "d/b", "d/e/a"))
contents = st.binary(max_size=40) | st.sampled_from((b"", b"\0" * 300_000, os.urandom(1_000_000)))


@dataclass(slots=True)
class Model:
    """The expected content of a sandbox."""

    variables: dict[str, int] = field(default_factory=dict)
    shell: dict[str, int] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def branch(self) -> Model:
        """A fork has its own, fresh shell."""
        return Model(dict(self.variables), {}, dict(self.files))

    def listed(self, directory: str) -> list[tuple[str, str, int]] | None:
        """Name, kind and size of a directory's entries. A directory's own size is up to the kernel."""
        inside = {path.removeprefix(f"{directory}/") for path in self.files if path.startswith(f"{directory}/")}
        if directory == ".":
            inside = set(self.files)
        elif not inside:
            return None
        found = {(path.partition("/")[0], "directory", 0) for path in inside if "/" in path}
        prefix = "" if directory == "." else f"{directory}/"
        found |= {(path, "file", len(self.files[prefix + path])) for path in inside if "/" not in path}
        return sorted(found)


@dataclass(slots=True, eq=False)
class Pair:
    """A sandbox and its model."""

    sandbox: NativeSandbox
    model: Model


class Family(RuleBasedStateMachine):
    """All operations on sandboxes, in any order, with their expected results."""

    backend: NativeBackend
    do: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine in the event loop."""

    boxes = Bundle("boxes")
    closed = Bundle("closed")

    def __init__(self) -> None:
        super().__init__()
        self.living: list[Pair] = []

    def ask(self, work: Awaitable[T]) -> T:
        async def within() -> T:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await work

        return self.do(within())

    def teardown(self) -> None:
        for box in self.living:
            self.ask(box.sandbox.close())

    # Sandboxes.

    @rule(target=boxes)
    def open(self) -> Any:
        if len(self.living) >= SANDBOXES_MOST:
            return multiple()
        box = Pair(self.ask(self.backend.open()), Model())
        self.living.append(box)
        return box

    @rule(target=boxes, box=boxes, count=st.integers(1, 3))
    def fork(self, box: Pair, count: int) -> Any:
        if len(self.living) + count > SANDBOXES_MOST:
            return multiple()
        branches = self.ask(box.sandbox.fork(count))
        assert len(branches) == count
        new = [Pair(branch, box.model.branch()) for branch in branches]
        self.living += new
        return multiple(*new)

    @rule(box=boxes)
    def fork_with_a_thread(self, box: Pair) -> None:
        code = "import threading; go = threading.Event(); t = threading.Thread(target=go.wait); t.start()"
        assert self.ask(box.sandbox.exec(code)).error is None
        with pytest.raises(CannotFork):
            self.ask(box.sandbox.fork())
        assert self.ask(box.sandbox.exec("go.set(); t.join()")).error is None

    @rule(target=closed, box=consumes(boxes))
    def close(self, box: Pair) -> Pair:
        self.ask(box.sandbox.close())
        self.living.remove(box)
        return box

    @rule(box=closed, path=paths)
    def use_one_that_is_closed(self, box: Pair, path: str) -> None:
        sandbox = box.sandbox
        for work in (
            sandbox.exec("1"),
            sandbox.run(["true"]),
            sandbox.shell("true"),
            sandbox.read(path),
            sandbox.fork(),
        ):
            with pytest.raises(SandboxLost):
                self.ask(work)

    # Variables.

    @rule(box=boxes, name=names, number=numbers)
    def assign(self, box: Pair, name: str, number: int) -> None:
        assert self.ask(box.sandbox.exec(f"{name} = {number}")).error is None
        box.model.variables[name] = number

    @rule(box=boxes, name=names)
    def look(self, box: Pair, name: str) -> None:
        came = self.ask(box.sandbox.exec(name))
        if name in box.model.variables:
            assert (came.value, came.error) == (str(box.model.variables[name]), None)
        else:
            assert came.error is not None
            assert came.error.name == "NameError"

    @rule(box=boxes, name=names)
    def add_in_all_at_once(self, box: Pair, name: str) -> None:
        """Three pieces of code for one interpreter, and one for each of the other sandboxes."""
        mine = [box.sandbox.exec(f"{name} = globals().get({name!r}, 0) + 1") for _ in range(3)]
        others = [other for other in self.living if other is not box]
        theirs = [other.sandbox.exec(f"{name} = globals().get({name!r}, 0) - 1") for other in others]
        assert all(came.error is None for came in self.ask(_gather(*mine, *theirs)))
        box.model.variables[name] = box.model.variables.get(name, 0) + 3
        for other in others:
            other.model.variables[name] = other.model.variables.get(name, 0) - 1

    @rule(box=boxes, status=st.integers(0, 255))
    def end_the_interpreter(self, box: Pair, status: int) -> None:
        came = self.ask(box.sandbox.exec(f"import os; os._exit({status})"))
        assert came.state_lost
        assert came.error is not None
        assert came.error.message.endswith(f" {status}")
        box.model.variables.clear()

    @rule(box=boxes, seconds=st.floats(0, 0.05))
    def interrupt_the_interpreter(self, box: Pair, seconds: float) -> None:
        came = self.ask(box.sandbox.exec("while True: pass", timeout=seconds))
        assert came.killed_by == "wall"
        if came.state_lost:
            box.model.variables.clear()

    @rule(box=boxes, name=names, number=numbers)
    def assign_in_the_shell(self, box: Pair, name: str, number: int) -> None:
        came = self.ask(box.sandbox.shell(f"{name}={number}"))
        assert (came.exit_code, came.state_lost) == (0, False)
        box.model.shell[name] = number

    @rule(box=boxes, name=names)
    def look_in_the_shell(self, box: Pair, name: str) -> None:
        came = self.ask(box.sandbox.shell(f"printf %s ${name}"))
        assert came.stdout == str(box.model.shell.get(name, "")).encode()

    @rule(box=boxes, status=st.integers(0, 255))
    def end_the_shell(self, box: Pair, status: int) -> None:
        came = self.ask(box.sandbox.shell(f"exit {status}"))
        assert (came.exit_code, came.state_lost) == (status, True)
        box.model.shell.clear()

    # Files.

    @rule(box=boxes, path=paths, data=contents)
    def write(self, box: Pair, path: str, data: bytes) -> None:
        self.ask(box.sandbox.write(path, data))
        box.model.files[path] = data

    @rule(box=boxes, path=paths, number=numbers, way=st.sampled_from(("exec", "run", "shell")))
    def write_inside(self, box: Pair, path: str, number: int, way: str) -> None:
        folder, sandbox = os.path.dirname(path) or ".", box.sandbox
        script = f"mkdir -p {folder} && printf %s {number} >{path}"
        code = f"import os; os.makedirs({folder!r}, exist_ok=True); open({path!r}, 'w').write('{number}')"
        ways = {"exec": lambda: sandbox.exec(code), "run": lambda: sandbox.run(["sh", "-c", script])}
        came = self.ask(ways.get(way, lambda: sandbox.shell(script))())
        assert came.killed_by is None
        assert getattr(came, "exit_code", 0) == 0
        assert getattr(came, "error", None) is None
        box.model.files[path] = str(number).encode()

    @rule(box=boxes, path=paths)
    def read(self, box: Pair, path: str) -> None:
        if path in box.model.files:
            assert self.ask(box.sandbox.read(path)) == box.model.files[path]
        else:
            with pytest.raises(WorkspaceError):
                self.ask(box.sandbox.read(path))

    @rule(box=boxes, path=paths, way=st.sampled_from(("exec", "run", "shell")))
    def measure_inside(self, box: Pair, path: str, way: str) -> None:
        """The size of a file as programs see it."""
        sandbox = box.sandbox
        code = f"import os; os.path.getsize({path!r}) if os.path.exists({path!r}) else -1"
        script = f"if [ -e {path} ]; then stat -c %s {path}; else echo -1; fi"
        expected = str(len(box.model.files[path])) if path in box.model.files else "-1"
        if way == "exec":
            assert self.ask(sandbox.exec(code)).value == expected
        else:
            work = sandbox.run(["sh", "-c", script]) if way == "run" else sandbox.shell(script)
            assert self.ask(work).stdout.decode().strip() == expected

    @rule(box=boxes, directory=st.sampled_from((".", "d", "d/e")))
    def list_a_directory(self, box: Pair, directory: str) -> None:
        expected = box.model.listed(directory)
        if expected is None:
            with pytest.raises(WorkspaceError):
                self.ask(box.sandbox.list(directory))
            return
        came = self.ask(box.sandbox.list(directory))
        assert [(one.name, one.kind, one.size if one.kind == "file" else 0) for one in came] == expected

    @rule(box=boxes, data=contents)
    def read_and_write_at_once(self, box: Pair, data: bytes) -> None:
        """In all sandboxes, while programs run in this one."""
        writing = [other.sandbox.write("a", data) for other in self.living]
        running = [box.sandbox.run(["sh", "-c", f"exit {code}"]) for code in (0, 7, 255)]
        *_, first, second, third = self.ask(_gather(*writing, *running))
        assert [first.exit_code, second.exit_code, third.exit_code] == [0, 7, 255]
        for other in self.living:
            other.model.files["a"] = data
        assert self.ask(_gather(*(other.sandbox.read("a") for other in self.living))) == [data] * len(self.living)


async def _gather(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def family(request: pytest.FixtureRequest) -> Iterator[type[Family]]:
    """Sandboxes of one backend, of which nothing is left."""
    trouble: list[object] = []
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: trouble.append(context))

        async def start() -> tuple[NativeBackend, int]:
            before = len(os.listdir("/proc/self/fd"))
            backend = NativeBackend()
            await backend.start()
            return backend, before

        async def close() -> None:
            await backend.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert len(os.listdir("/proc/self/fd")) == before

        backend, before = runner.run(start())
        try:
            yield type("FamilyHere", (Family,), {"backend": backend, "do": staticmethod(runner.run)})
        finally:
            runner.run(close())
    assert not trouble, trouble


def test_a_family_of_sandboxes_is_as_a_few_dictionaries(family: type[Family]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    wanted = settings(max_examples=10, stateful_step_count=40, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(family, settings=wanted)
