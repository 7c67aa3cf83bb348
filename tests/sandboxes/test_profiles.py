"""Which Python a piece of code gets, and what that has loaded."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.tiers import thorough
from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import Profile, Provider, execute, profiles
from toolyard.sandboxes.installation import own, using
from toolyard.sandboxes.native import helper_argv
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.rootfs import place
from toolyard.sandboxes.view import View

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def backend(anyio_backend: str):
    started = NativeBackend(templates=1)
    await started.start()
    yield started
    await started.close()


@pytest.mark.parametrize(
    ("code", "profile"),
    [
        ("import math, json", "plain"),
        ("import numpy", "numeric"),
        ("def f():\n    from numpy.linalg import inv", "numeric"),
        ("import sympy", "symbolic"),
        ("import numpy as np\nimport sympy", "symbolic"),
        ("import pandas", "analytic"),
        ("import pandas, sympy, numpy", "analytic"),
        ("import scipy", "scientific"),
        ("import numpy, sympy\nfrom scipy import stats", "scientific"),
        ("import os, \\\n    numpy.linalg as la", "numeric"),
        ("x = 1; import numpy", "numeric"),
        ("try: import numpy\nexcept ImportError: pass", "numeric"),
        ("\tfrom scipy.stats import (\n    norm,\n)", "scientific"),
        ("import os  # not numpy", "plain"),
        ("from . import numpy", "plain"),
        ("numpy = 1", "plain"),
        ("import", "plain"),
        ("\0", "plain"),
        ("(" * 10_000, "plain"),
    ],
)
def test_the_smallest_profile_that_has_loaded_what_is_imported_is_chosen(code: str, profile: str):
    assert profiles.smallest(code) == profile


@pytest.mark.parametrize(
    "code",
    [
        "import numpy\n" + "x = [1, 2, 3]\n" * 60_000,
        "numpy" + ";" * 800_000,
        "numpy" + "\nimport " * 100_000,
        "numpy\nimport " + "a," * 400_000,
        "numpy\nimport " + " " * 800_000,
        "numpy: " + "\t" * 400_000 + ":" + "\t" * 400_000,
    ],
    ids=["program", "semicolons", "imports", "names", "spaces", "tabs"],
)
def test_what_a_model_wrote_holds_nobody_up_however_long_it_is(code: str):
    began = time.process_time()
    profiles.smallest(code)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("profile", "has", "lacks"),
    [
        ("plain", [], ["numpy", "pandas", "scipy", "sympy"]),
        ("numeric", ["numpy"], ["pandas", "scipy", "sympy"]),
        thorough(("symbolic", ["numpy", "sympy"], ["pandas", "scipy"])),
        thorough(("scientific", ["numpy", "pandas", "scipy.stats", "sympy"], [])),
    ],
)
async def test_a_profile_has_loaded_its_libraries_and_no_others(
    backend: NativeBackend, profile: Profile, has: list[str], lacks: list[str]
):
    async with await backend.open(profile=profile) as sandbox:
        told = await sandbox.exec(f"import sys\n[name for name in {[*has, *lacks]!r} if name in sys.modules]")
        imported = await sandbox.exec("import numpy\nfloat(numpy.ones(3).sum())")
    assert told.value == repr(has)
    assert imported.value == "3.0"


def test_sympy_alone_is_enough_for_its_profile():
    with using(replace(own(), libraries={"sympy": "sympy/__init__.py"})):
        found = [profiles.smallest(f"import {name}") for name in ("sympy", "numpy", "pandas")]
    assert found == [
        "symbolic",
        "plain",
        "plain",
    ]


async def test_code_is_executed_once_in_a_sandbox_that_nobody_else_uses():
    async with Provider("native"):
        first = await execute("import os\nleft = open('left', 'w').write('x')\nos.listdir()")
        second = await execute("import os\n(os.listdir(), 'left' in dir())")
        slow = await execute("while True: pass", timeout=0.2)
        science = await execute("import numpy, sys\nfloat(numpy.ones(3).sum())")
    assert (first.value, second.value, science.value) == ("['left']", "([], False)", "3.0")
    assert slow.timed_out


async def test_a_template_has_loaded_everyday_modules_and_no_threads(backend: NativeBackend):
    async with await backend.open() as sandbox:
        executed = await sandbox.exec("import sys, os\n('json' in sys.modules, len(os.listdir('/proc/self/task')))")
    assert executed.value == "(True, 1)"


async def test_ipython_is_ready_to_go_with_its_magics(backend: NativeBackend):
    async with await backend.open(profile="ipython") as sandbox:
        assert (await sandbox.exec("!echo from a shell")).stdout.strip() == "from a shell"
        assert (await sandbox.exec("%%capture said\nprint(1)\n")).error is None
        assert (await sandbox.exec("said.stdout")).value == r"'1\n'"
        assert (await sandbox.exec("1 / 0")).error.name == "ZeroDivisionError"
        assert (await sandbox.exec("x = 20; x + 1")).value == "21"
        (branch,) = await sandbox.fork()
        async with branch:
            assert (await branch.exec("x + 2")).value == "22"


async def test_each_scientific_sandbox_draws_its_own_numbers_and_its_branches_the_same(backend: NativeBackend):
    draw = "import numpy, random\n(numpy.random.rand(), random.random())"
    async with await backend.open(profile="scientific") as one, await backend.open(profile="scientific") as other:
        assert (await one.exec(draw)).value != (await other.exec(draw)).value
        left, right = await one.fork(2)
        async with left, right:
            drawn = {(await sandbox.exec(draw)).value for sandbox in (one, left, right)}
        assert len(drawn) == 1


_USED = """
import concurrent.futures, logging, queue, threading
pool = concurrent.futures.ThreadPoolExecutor(2)
squares = list(pool.map(lambda n: n * n, range(3)))
pool.shutdown()
lock, done = threading.RLock(), queue.Queue()
lock.acquire()
logging.getLogger().warning("once")
"""
_WORKS = """
thread = threading.Thread(target=lambda: done.put((threading.main_thread().name, threading.active_count())))
with lock:
    thread.start()
    thread.join(5)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda n: n + 1, squares))
logging.getLogger().warning("twice")
print(done.get_nowait(), told, threading.active_count(), lock._is_owned())
"""


@pytest.mark.parametrize("profile", ["plain", "ipython", "analytic"])
async def test_threads_and_locks_work_in_a_branch_of_code_that_has_used_them(backend: NativeBackend, profile: Profile):
    """Hooks of the profile's libraries do not run, and need not: no thread can be inside them."""
    async with await backend.open(profile=profile) as sandbox:
        assert (await sandbox.exec(_USED)).error is None
        (branch,) = await sandbox.fork()
        async with branch:
            for one in (branch, sandbox):
                told = await one.exec(_WORKS)
                assert (told.error, told.stdout) == (None, "('MainThread', 2) [1, 2, 5] 1 True\n")


_LOOP = """
import asyncio, os
os.fstat(asyncio.get_running_loop()._ssock.fileno()).st_ino, await asyncio.to_thread(int, "7")
"""


@pytest.mark.parametrize("profile", ["plain", "ipython", "analytic"])
async def test_a_branch_awaits_in_a_loop_of_its_own(backend: NativeBackend, profile: Profile):
    """With a shared loop, each would take the other's wake-ups, and one sandbox could write to another."""
    async with await backend.open(profile=profile) as sandbox:
        assert (await sandbox.exec("import asyncio\nawait asyncio.sleep(0)")).error is None
        (branch,) = await sandbox.fork()
        async with branch:
            (other,) = await branch.fork()
            async with other:
                told = [(await one.exec(_LOOP)).value for one in (sandbox, branch, other)]
                assert len(set(told)) == 3, told
                assert all(one is not None and one.endswith(", 7)") for one in told), told


_TEMPLATE = """
{load}
from toolyard.sandboxes.native import session
session.watch_for_hooks()
print(session._now.hooked)
"""


@pytest.mark.parametrize(
    ("load", "hooked"), [("import threading, logging", False), ("import asyncio", sys.version_info >= (3, 12))]
)
def test_a_template_that_has_loaded_asyncio_tells_it_of_forks_if_it_wants_to_hear_of_them(load: str, hooked: bool):
    """In a separate process: this one has loaded asyncio."""
    code = helper_argv.command("native.session")[-1].partition("from toolyard")[0] + _TEMPLATE.replace("{load}", load)
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == f"{hooked}\n"


async def test_the_main_thread_has_the_number_of_its_process(backend: NativeBackend):
    async with await backend.open(profile="analytic") as sandbox:
        executed = await sandbox.exec("import os, threading\nthreading.main_thread().native_id == os.getpid()")
    assert executed.value == "True"


async def test_children_of_the_code_draw_their_own_numbers(backend: NativeBackend):
    async with await backend.open() as sandbox:
        await sandbox.exec("import os, random\nrandom.seed(1)")
        executed = await sandbox.exec("""
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, str(random.random()).encode())
    os._exit(0)
os.wait()
float(os.read(reads, 100)) != random.random()
""")
    assert executed.value == "True"


async def test_modules_that_were_not_preloaded_can_be_imported(backend: NativeBackend):
    async with await backend.open(profile="scientific") as sandbox:
        executed = await sandbox.exec("import numpy.polynomial.legendre, wave, threading, subprocess, hypothesis\n1")
    assert (executed.value, executed.error) == ("1", None)


async def test_a_profile_whose_packages_are_not_installed_is_refused_by_name(backend: NativeBackend):
    other = NativeBackend(templates=1, view=View(replace(own(), libraries={})))
    await other.start()
    try:
        with pytest.raises(SandboxUnavailable, match="'ipython' needs IPython"):
            await other.open(profile="ipython")
    finally:
        await other.close()


def test_what_a_private_directory_would_cover_is_shown_elsewhere():
    assert place("/usr/lib/python3") == "/usr/lib/python3"
    assert place("/tmp/venv") == "/opt/tmp/venv"
    assert place("/home/work/venv") == "/opt/home/work/venv"
    assert place("/home/worker/venv") == "/home/worker/venv"
    assert place("/tmpfs/venv") == "/tmpfs/venv"
