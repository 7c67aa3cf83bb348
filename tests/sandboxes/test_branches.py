"""Forks of a live session: what a branch has, what it lacks, and hostile code in forked sessions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandboxes.hostile import PRELUDE, USUAL, Box, Played, Stage, Suite, refused
from toolyard.core.errors import CannotFork, SandboxLost
from toolyard.sandboxes.base import Sandbox

pytestmark = pytest.mark.thorough

SUITE = Suite()


_MANY = replace(USUAL, processes=160)
_HASTY = replace(USUAL, wall_seconds=1.0)
"""Fork hooks that hang get the time of a piece of code."""
_SOON = 5.0


async def _value(sandbox: Sandbox, code: str) -> str | None:
    executed = await sandbox.exec(code)
    assert executed.error is None, executed.error.traceback
    assert not executed.state_lost, executed
    return executed.value


async def _close(sandboxes: Sequence[Sandbox]) -> None:
    for sandbox in sandboxes:
        await sandbox.close()


# ---- What a branch has


@SUITE.case("b0")
async def output_that_code_closed_is_there_again_in_a_branch(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import os; os.close(0); os.close(1)")
    branches = await box.sandbox.fork(1)
    try:
        for sandbox in (box.sandbox, *branches):
            executed = await sandbox.exec("os.write(1, b'said') and os.fstat(0) and print(' it')")
            assert executed.error is None, executed.error
            assert executed.stdout == "said it\n"
    finally:
        await _close(branches)


@SUITE.case("b1")
async def everything_is_there_in_a_branch(stage: Stage, box: Box) -> None:
    prepared = await box.sandbox.exec("""
import os, random, signal, tempfile
os.makedirs("a/b/c")
with open("a/b/c/file", "w") as file:
    file.write("deep")
os.chmod("a/b/c/file", 0o741)
os.utime("a/b/c/file", (1000, 2000))
os.chmod("a/b/c", 0o555)
os.symlink("b/c/file", "a/link")
os.mkfifo("a/fifo")
with open("/tmp/other", "w") as file:
    file.write("temporary")
os.chdir("a")
log = open("log.txt", "w+")
log.write("0123456789")
log.seek(4)
appended = open("appended", "ab")
appended.write(b"one ")
appended.flush()
folder = os.open(".", os.O_RDONLY)
variables = {"x": [1, 2, 3]}
counting = iter(range(10))
next(counting)
os.environ["MINE"] = "yes"
os.umask(0o027)
signal.signal(signal.SIGUSR1, lambda *_: variables.update(signalled=True))
def function(y):
    return variables["x"] + [y]
""")
    assert prepared.error is None, prepared.error
    branches = await box.sandbox.fork(2)
    for branch in branches:
        assert await _value(branch, "variables, next(counting), function(4)") == "({'x': [1, 2, 3]}, 1, [1, 2, 3, 4])"
        assert (
            await _value(branch, "os.getcwd(), os.environ['MINE'], oct(os.umask(0))")
            == "('/home/work/a', 'yes', '0o27')"
        )
        assert await _value(branch, "log.read(3), log.tell()") == "('456', 7)"
        assert await _value(branch, "open('link').read(), open('/tmp/other').read()") == "('deep', 'temporary')"
        assert (
            await _value(branch, "about = os.stat('b/c/file'); oct(about.st_mode), about.st_mtime")
            == "('0o100741', 2000.0)"
        )
        assert (
            await _value(branch, "oct(os.stat('b/c').st_mode), oct(os.lstat('fifo').st_mode)[:5]")
            == "('0o40555', '0o106')"
        )
        assert (
            await _value(branch, "appended.write(b'two'), appended.flush(), open('appended').read()")
            == "(3, None, 'one two')"
        )
        assert await _value(branch, "sorted(os.listdir(folder))") == "['appended', 'b', 'fifo', 'link', 'log.txt']"
        assert await _value(branch, "os.kill(os.getpid(), signal.SIGUSR1); variables['signalled']") == "True"
        assert await branch.read("a/b/c/file") == b"deep"
    assert await _value(box.sandbox, "variables, next(counting), log.read(3)") == "({'x': [1, 2, 3]}, 1, '456')"
    assert await _value(box.sandbox, "open('appended').read()") == "'one '"
    await _close(branches)


@SUITE.case("b2")
async def a_branch_has_all_that_a_sandbox_has(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("x = 1")
    await box.sandbox.shell("y=1; cd /tmp")
    await box.sandbox.write("shared", b"before")
    (branch,) = await box.sandbox.fork()
    assert branch.report() == box.sandbox.report()
    assert branch.limits == box.sandbox.limits
    assert (await branch.run(["cat", "shared"])).stdout == b"before"
    assert (await branch.run(["sh", "-c", "exit 3"])).exit_code == 3
    assert (await branch.run(["sleep", "100"], timeout=0.2)).timed_out
    assert (await branch.shell("cat shared; z=5")).stdout == b"before"
    assert (await branch.shell("echo $z$y; pwd")).stdout == b"5\n/home/work\n", "the shell itself is not copied"
    await branch.write("own/file", b"mine")
    assert [entry.name for entry in await branch.list()] == ["own", "shared"]
    assert [entry.name for entry in await box.sandbox.list()] == ["shared"]
    assert (await box.sandbox.shell("echo $y; pwd")).stdout == b"1\n/tmp\n"
    assert (await branch.exec("while True: pass", timeout=0.2)).timed_out
    assert await _value(branch, "x") == "1"
    ended = await branch.exec("import os; os._exit(3)")
    assert ended.state_lost
    assert await _value(branch, "open('shared').read(), open('own/file').read()") == "('before', 'mine')"
    assert (await branch.exec("print('x' * 10**6)")).killed_by == "output"
    await branch.close()
    with pytest.raises(SandboxLost):
        await branch.exec("1")
    assert await _value(box.sandbox, "x") == "1"


@SUITE.case("b3")
async def random_numbers_go_on_from_the_same_place(stage: Stage, box: Box) -> None:
    await box.sandbox.exec(
        "import os, random, uuid; own = random.Random(5); own.random(); random.seed(7); random.random()"
    )
    branches = await box.sandbox.fork(3)
    family = [box.sandbox, *branches]
    assert len({await _value(one, "random.random(), own.random()") for one in family}) == 1
    assert len({await _value(one, "random.random(), own.random()") for one in family}) == 1
    assert (
        len({await _value(one, "os.urandom(16), uuid.uuid4(), random.SystemRandom().random()") for one in family}) == 4
    )
    await box.sandbox.exec("random.seed(7); expected = random.random()")
    assert await _value(box.sandbox, "random.seed(7); random.random() == expected") == "True"
    await _close(branches)


@SUITE.case("b21")
async def hooks_for_forks_find_the_branch_as_it_will_be(stage: Stage, box: Box) -> None:
    prepared = await box.sandbox.exec("""
import os
os.mkdir("a")
os.chdir("a")
log, other = open("log", "w"), open("other", "w")
def reopen():
    global log
    log = open("log", "a")
    powers = next(line for line in open("/proc/self/status") if line.startswith("CapEff"))
    print(os.getcwd(), powers.split()[1], file=log, flush=True)
os.register_at_fork(before=log.close, after_in_child=reopen)
other.write("kept")
""")
    assert prepared.error is None, prepared.error
    (branch,) = await box.sandbox.fork()
    said = await branch.exec("print(open('log').read(), end=''); other.close(); print(open('other').read())")
    assert said.error is None, said.error
    assert said.stdout == "/home/work/a 0000000000000000\nkept\n"
    of_parent = await box.sandbox.exec("print(open('log').read())")
    assert of_parent.stdout == "\n", "what the hook of the branch does, it does there"
    await branch.close()


@SUITE.case("b27")
async def hooks_are_called_however_they_were_registered_and_by_whoever_came_last(stage: Stage, box: Box) -> None:
    """Hooks of the template's libraries do not run, unless the code has hooks: then all run."""
    await box.sandbox.exec("import os, posix; told = []; real = os.fork")
    (unhooked,) = await box.sandbox.fork()
    assert await _value(unhooked, "told") == "[]"
    wrong = await box.sandbox.exec("os.register_at_fork(afterwards=print)")
    assert wrong.error is not None, "as ever"
    await box.sandbox.exec("posix.register_at_fork(before=lambda: told.append('before'))")
    await box.sandbox.exec("os.register_at_fork(after_in_child=lambda: told.append('child'))")
    await box.sandbox.exec("os.register_at_fork(after_in_parent=lambda: told.append('parent'))")
    (hooked,) = await box.sandbox.fork()
    (again,) = await hooked.fork()
    assert await _value(box.sandbox, "told") == "['before', 'parent']"
    assert await _value(again, "told") == "['before', 'child', 'before', 'child']"
    await _close([again, hooked, unhooked])


@SUITE.case("b24")
async def a_branch_knows_on_which_processor_it_runs(stage: Stage, box: Box) -> None:
    """The kernel notes the processor in memory that each process must register."""
    await box.sandbox.exec("""
import ctypes, os
def followed():
    for one in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {one})
        yield ctypes.CDLL(None).sched_getcpu() == one
""")
    (branch,) = await box.sandbox.fork()
    (twig,) = await branch.fork()
    for sandbox in (box.sandbox, branch, twig):
        assert await _value(sandbox, "all(followed())") == "True"
    await _close([twig, branch])


# ---- What it lacks


@SUITE.case("b4")
async def branches_know_nothing_of_each_other(stage: Stage, box: Box) -> None:
    await box.sandbox.exec(
        "import os, signal, socket, subprocess, time; x = 0; f = open('file', 'w+'); f.write('0'); f.flush()"
    )
    branches = await box.fork(3)
    for number, branch in enumerate(branches, 1):
        told = await branch.python(
            f"x = {number}; f.write('{number}'); f.flush(); open('only-{number}', 'w').close(); "
            f"open('/tmp/only-{number}', 'w').close(); sleeping = subprocess.Popen(['sleep', '1000'])"
        )
        assert told.error is None
    await box.sandbox.exec("x = 'parent'; f.write('P'); f.flush()")
    for number, branch in enumerate(branches, 1):
        assert await _value(branch.sandbox, "x, open('file').read()") == f"({number}, '0{number}')"
        assert await _value(branch.sandbox, "sorted(os.listdir('.')), os.listdir('/tmp')") == (
            f"(['file', 'only-{number}'], ['only-{number}'])"
        )
        others = "set(filter(str.isdigit, os.listdir('/proc'))) - {'1', str(os.getpid()), str(sleeping.pid)}"
        assert await _value(branch.sandbox, others) == "set()", "it sees its agent, itself and its child"
    assert await _value(box.sandbox, "x, open('file').read(), os.listdir('.')") == "('parent', '0P', ['file'])"
    attack = """
for pid in {-1, *range(2, 300)} - {os.getpid()}:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
"""
    assert (await branches[0].python(attack)).error is None
    for branch in branches[1:]:
        assert await _value(branch.sandbox, "sleeping.poll(), x > 1") == "(None, True)"
    assert await _value(box.sandbox, "x") == "'parent'"


@SUITE.case("b5")
async def branches_cannot_meet(stage: Stage, box: Box) -> None:
    """Neither in shared memory, nor by a socket, nor by a file of the kernel."""
    await box.sandbox.exec("import ctypes, os, socket; libc = ctypes.CDLL(None)")
    one, two = await box.fork(2)
    bound = await one.python("""
shared = libc.shmget(0x77, 4096, 0o1666)
listener = socket.socket(socket.AF_UNIX); listener.bind("\\0meet"); listener.listen()
by_file = socket.socket(socket.AF_UNIX); by_file.bind("/tmp/meet"); by_file.listen()
with open("/dev/shm/shared", "w") as file:
    file.write("secret")
shared >= 0
""")
    assert bound.value == "True", bound
    for other in (two, box):
        outcomes = await other.python("""
found = {"shm": libc.shmget(0x77, 4096, 0), "file": os.path.exists("/dev/shm/shared")}
for name in ("\\0meet", "/tmp/meet"):
    with socket.socket(socket.AF_UNIX) as client:
        found[name] = client.connect_ex(name) != 0
print(found)
""")
        assert outcomes.stdout == "{'shm': -1, 'file': False, '\\x00meet': True, '/tmp/meet': True}\n"


@SUITE.case("b5n", limits=replace(USUAL, network="loopback"))
async def branches_have_ports_of_their_own(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import socket")
    one, two = await box.sandbox.fork(2)
    listens = "server = socket.create_server(('127.0.0.1', 8000)); server.getsockname()[1]"
    assert await _value(one, listens) == "8000"
    assert await _value(two, "socket.socket().connect_ex(('127.0.0.1', 8000)) != 0") == "True"
    assert await _value(two, listens) == "8000"
    assert (
        await _value(one, "client = socket.create_connection(('127.0.0.1', 8000)); client.getpeername()[1]") == "8000"
    )
    assert await _value(box.sandbox, "socket.socket().connect_ex(('127.0.0.1', 8000)) != 0") == "True"
    await _close([one, two])


@SUITE.case("b6")
async def a_parent_that_attacks_its_branches(stage: Stage, box: Box) -> None:
    """They live in its namespace, so it can end their interpreters, like its own, but not their agents."""
    await box.sandbox.exec("import os; x = 1")
    one, two = await box.fork(2)
    attack = """
killed, refused = [], []
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            os.kill(int(name), 9)
            killed.append(int(name))
        except PermissionError:
            refused.append(int(name))
print(1 in refused, len(refused))
"""
    assert (await box.python(attack)).stdout == "True 3\n", "its own agent and those of the two"
    for branch in (one, two):
        told = await branch.sandbox.exec("x")
        assert told.value == "1" or told.state_lost
        assert await branch.alive()
        assert (await branch.sandbox.run(["echo", "hello"])).stdout == b"hello\n"
    assert await _value(box.sandbox, "x") == "1"


# ---- What cannot be forked


_LINGERS = """
import ctypes, threading
libc = ctypes.CDLL(None)
key = ctypes.c_uint()
libc.pthread_key_create(ctypes.byref(key), libc.usleep)  # called with the value when a thread has ended for Python
t = threading.Thread(target=libc.pthread_setspecific, args=(key, ctypes.c_void_p(MICROSECONDS)))
t.start()
t.join()
"""


@SUITE.case("b7a")
async def a_thread_that_has_ended_and_is_not_quite_gone_does_not_prevent_a_fork(stage: Stage, box: Box) -> None:
    assert (await box.sandbox.exec(_LINGERS.replace("MICROSECONDS", "20_000"))).error is None
    (branch,) = await box.sandbox.fork()
    await branch.close()
    assert (await box.sandbox.exec(_LINGERS.replace("MICROSECONDS", "900_000"))).error is None
    with pytest.raises(CannotFork, match="1 threads"):
        await box.sandbox.fork()


@SUITE.case("b7")
async def what_cannot_be_copied_is_named(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import mmap, os, subprocess, tempfile, threading, time; kept = 1")
    for reason, make, unmake in (
        (
            "1 threads",
            "stop = threading.Event(); t = threading.Thread(target=stop.wait); t.start()",
            "stop.set(); t.join()",
        ),
        ("child processes", "child = subprocess.Popen(['sleep', '1000'])", "child.kill(); child.wait()"),
        ("shared", "memory = mmap.mmap(-1, 4096)", "memory.close()"),
        ("no name", "nameless = tempfile.TemporaryFile()", "nameless.close()"),
        ("no name", "gone = open('gone', 'w'); os.remove('gone')", "gone.close()"),
        ("no name", "fd = os.memfd_create('x')", "os.close(fd)"),
    ):
        assert (await box.sandbox.exec(make)).error is None, make
        with pytest.raises(CannotFork, match=reason):
            await box.sandbox.fork()
        assert (await box.sandbox.exec(unmake)).error is None, unmake
        (branch,) = await box.sandbox.fork()
        assert await _value(branch, "kept") == "1"
        await branch.close()
    await box.sandbox.exec("import multiprocessing; value = multiprocessing.Value('i')")
    with pytest.raises(CannotFork, match="shared"):
        await box.sandbox.fork()
    await box.sandbox.exec("import os; os._exit(0)")
    await box.sandbox.exec(
        "import subprocess, time; child = subprocess.Popen(['true']); time.sleep(0.1)"
    )  # ended, and not reaped
    (branch,) = await box.sandbox.fork()
    await branch.close()
    assert await box.sandbox.fork(0) == []


@SUITE.case("b22")
async def a_session_without_room_for_files_cannot_be_forked_and_goes_on(stage: Stage, box: Box) -> None:
    await box.sandbox.exec(f"{_OURS}\nheld = list(iter(open_one, None))")
    for spare in range(14):
        with contextlib.suppress(CannotFork):
            await _close(await box.sandbox.fork())
            assert spare > 10, "it could not even be told where to"
        opened = "len(os.listdir('/proc/self/fd')) - 1 - len(held)"
        assert await _value(box.sandbox, f"os.close(held.pop()); {opened}") == "8", spare
    (branch,) = await box.sandbox.fork()
    await branch.close()


@SUITE.case("b25", limits=replace(USUAL, processes=8))
async def a_fork_for_which_there_is_no_room_leaves_no_child(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import os; x = 1")
    branches: list[Sandbox] = []
    with contextlib.suppress(CannotFork):
        while len(branches) < 8:
            branches += await box.sandbox.fork()
    assert len(branches) < 8
    assert await _value(box.sandbox, "x, open(f'/proc/self/task/{os.getpid()}/children').read()") == "(1, '')"
    await _close(branches)


@SUITE.case("b26")
async def code_that_listens_for_its_children_does_not_hear_of_a_fork(stage: Stage, box: Box) -> None:
    await box.sandbox.exec(f"{_OURS}\nheard = []; signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))")
    (branch,) = await box.sandbox.fork()
    await box.sandbox.exec("ours.entrance = lambda: None")
    (other,) = await box.sandbox.fork()
    for sandbox in (box.sandbox, branch, other):
        assert await _value(sandbox, "heard") == "[]"
        assert await _value(sandbox, "(os.fork() or os._exit(0)) and os.wait()[1]") == "0"
        assert await _value(sandbox, "heard") == "[1]"
    await _close([branch, other])


@SUITE.case("b28")
async def memory_that_is_shared_is_found_wherever_it_is(stage: Stage, box: Box) -> None:
    """There is so much other memory that reading its list takes many steps."""
    await box.sandbox.exec("""
import mmap
def maps(count):  # no two alike side by side, or the kernel would make one of them
    for n in range(count):
        yield mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE * (n % 2))
held = [*maps(300)]
""")
    for before in (0, 1, 7, 40):
        await box.sandbox.exec(f"held += maps({before}); memory = mmap.mmap(-1, 4096)")
        with pytest.raises(CannotFork, match="memory is shared with others, as that of /dev/zero"):
            await box.sandbox.fork()
        await box.sandbox.exec("memory.close()")
        await _close(await box.sandbox.fork())


@SUITE.case("b29")
async def memory_that_is_not_shared_does_not_prevent_a_fork_whatever_its_file_is_called(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("""
import mmap
with open("new-s hared wxs .bin", "wb+") as file:
    file.write(b"held")
    file.flush()
    held = mmap.mmap(file.fileno(), 4, mmap.MAP_PRIVATE)
""")
    (branch,) = await box.sandbox.fork()
    assert await _value(branch, "held[:]") == "b'held'"
    await branch.close()


@SUITE.case("b20")
async def forks_that_are_refused_leave_nothing_behind(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import mmap, os; memory = mmap.mmap(-1, 4096); before = len(os.listdir('/proc'))")
    for _ in range(40):
        with pytest.raises(CannotFork, match="shared"):
            await box.sandbox.fork()
    await box.sandbox.exec("memory.close()")
    (branch,) = await box.sandbox.fork()
    assert await _value(branch, "6 * 7") == "42"
    await branch.close()
    assert await _value(box.sandbox, "len(os.listdir('/proc')) - before") == "0"


@SUITE.case("b8", limits=_MANY, alone=True)
async def branches_of_branches_until_the_kernel_will_not(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("depth = 0")
    line: list[Sandbox] = [box.sandbox]
    reason = ""
    while not reason and len(line) < 64:
        try:
            line += await line[-1].fork()
        except CannotFork as error:
            reason = str(error)
        else:
            assert await _value(line[-1], "depth += 1; depth") == str(len(line) - 1)
    assert reason == "the session cannot be forked: branches are nested as deeply as the kernel allows"
    assert 24 <= len(line) - 1 <= 32, "31 where the server is in no container"
    for depth, sandbox in enumerate(line):
        assert await _value(sandbox, "depth") == str(depth)
    (sibling,) = await line[-2].fork()  # what worked once works again
    assert await _value(sibling, "depth") == str(len(line) - 2)
    await sibling.close()
    assert (await line[-2].run(["echo", "hello"])).stdout == b"hello\n"
    deepest = await line[-1].run(["echo", "hello"])  # a program has its own namespace
    assert deepest.exit_code == 126 or deepest.stdout == b"hello\n", deepest
    await _close(line[1:])
    assert await _value(box.sandbox, "depth") == "0"


# ---- The end of one branch, and of others


@SUITE.case("b9")
async def a_branch_outlives_its_parent(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("x = [1]")
    async with stage.open() as other:
        await other.sandbox.exec("x = [1]")
        (branch,) = await other.sandbox.fork()
        (twig,) = await branch.fork()
        running = asyncio.ensure_future(other.sandbox.run(["sleep", "1000"]))
        shell = asyncio.ensure_future(other.sandbox.shell("sleep 1000"))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(_SOON):
            await other.sandbox.close()
            for waiting in (running, shell):
                with pytest.raises(SandboxLost):
                    await waiting
        with pytest.raises(SandboxLost):
            await other.sandbox.exec("1")
        await branch.close()
        assert await _value(twig, "x.append(2); x") == "[1, 2]"
        assert (await twig.run(["echo", "hello"])).stdout == b"hello\n"
        (leaf,) = await twig.fork()
        await twig.close()
        assert await _value(leaf, "x") == "[1, 2]"
        await leaf.close()


@SUITE.case("b10")
async def a_crash_or_a_timeout_of_one_hurts_no_other(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("import ctypes, os, signal; x = 1")
    branches = await box.fork(2)
    family = [box, *branches]
    crashes = [
        "os._exit(1)",
        "os.kill(os.getpid(), 9)",
        "ctypes.string_at(0)",
        "signal.signal(2, signal.SIG_IGN)\nwhile True: pass",
        "signal.signal(2, signal.SIG_IGN)\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ]
    for one, code in itertools.product(family[:2], crashes):
        others = [other for other in family if other is not one]
        for other in others:
            await other.sandbox.exec("import ctypes, os, signal; x = 1")
        await one.sandbox.exec("import ctypes, os, signal; x = 1")
        crashed = await one.python(code, seconds=0.2)
        assert crashed.state_lost
        for other in others:
            assert await _value(other.sandbox, "x") == "1", (family.index(one), code)
        assert await one.alive()


@SUITE.case("b11")
async def branches_are_closed_in_any_order(stage: Stage, box: Box) -> None:
    for in_line, order in itertools.product((True, False), itertools.permutations(range(3))):
        root = await stage.backend.open()
        await root.exec("x = 1")
        (branch,) = await root.fork()
        (other,) = await (branch if in_line else root).fork()
        family = [root, branch, other]
        for number, index in enumerate(order):
            await family[index].close()
            await family[index].close()
            for still in order[number + 1 :]:
                assert await _value(family[still], "x") == "1", (in_line, order, index, still)


@SUITE.case("b17")
async def a_branch_goes_on_if_the_session_is_closed_at_once(stage: Stage, box: Box) -> None:
    """The ancestors that forked it are still ending. With much memory that takes a while."""
    for _ in range(8):
        root = await stage.backend.open(replace(USUAL, memory_bytes=2**30))
        await root.exec("x = 1; much = [bytes(4000) for _ in range(60_000)]")
        (branch,) = await root.fork()
        await root.close()
        try:
            assert await _value(branch, "x") == "1"
        finally:
            await branch.close()


@SUITE.case("b18")
async def a_branch_that_somebody_has_stopped_is_closed_all_the_same(stage: Stage, box: Box) -> None:
    """Without Landlock's signal scope, a session can stop them: it sees its branches' processes."""
    before = stage.members(box)
    (branch,) = await box.sandbox.fork()
    (agent,) = [pid for pid, _ in stage.members(box) - before if _numbers(pid)[2:] == [1]]
    os.kill(agent, signal.SIGSTOP)
    async with asyncio.timeout(20):
        await branch.close()
    assert stage.members(box) == before
    assert (await box.sandbox.exec("6 * 7")).value == "42"


def _numbers(pid: int) -> Sequence[int]:
    """Pids of a process: here, in its sandbox, and in its branch."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return [int(number) for number in re.findall(r"^NSpid:\s*(.*)$", status, re.MULTILINE)[0].split()]


@SUITE.case("b12", limits=_MANY, alone=True)
async def thirty_branches_at_once(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("data = list(range(1000))")
    await box.sandbox.write("file", bytes(100_000))
    branches = await box.sandbox.fork(30)
    answers = await asyncio.gather(*(branch.exec(f"data.append({n}); sum(data)") for n, branch in enumerate(branches)))
    assert [answer.value for answer in answers] == [str(499500 + number) for number in range(30)]
    sizes = await asyncio.gather(*(branch.run(["wc", "-c", "file"]) for branch in branches))
    assert {size.stdout for size in sizes} == {b"100000 file\n"}
    await asyncio.gather(*(branch.close() for branch in branches))
    assert await _value(box.sandbox, "len(data)") == "1000"


@SUITE.case("b13", limits=replace(USUAL, processes=16, memory_bytes=160 * 2**20))
async def limits_are_those_of_the_family(stage: Stage, box: Box) -> None:
    branches: list[Sandbox] = []
    if stage.enforced:
        with contextlib.suppress(CannotFork):
            while len(branches) < 16:
                branches += await box.sandbox.fork()
        assert 3 <= len(branches) <= 8, len(branches)
        assert await box.alive()
        await branches.pop().close()
        await branches.pop().close()
        branches += await box.sandbox.fork()
    else:
        branches += await box.sandbox.fork(2)
    hog = await branches[0].exec("hog = bytearray(400 * 2**20)")
    assert hog.killed_by == "memory" or (hog.error is not None and hog.error.name == "MemoryError"), hog
    for sandbox in [box.sandbox, *branches]:
        assert (await sandbox.exec("6 * 7")).value == "42"
    await _close(branches)
    assert await box.alive()


# ---- Code that resists being forked


_SABOTAGE = {
    "fork raises": "os.fork = lambda: 1 / 0",
    "fork lies that it is the child": "os.fork = lambda: 0",
    "fork lies that it is the parent": "os.fork = lambda: 99999",
    "fork hangs": "os.fork = lambda: time.sleep(1000)",
    "fork is no function": "os.fork = None",
    "fork forks twice": "os.fork = lambda: [real(), real()][1]",
    "fork ends the child": "os.fork = lambda: real() or os._exit(0)",
    "fork kills the parent": "os.fork = lambda: real() or os.kill(os.getppid(), 9)",
    "hook raises before": "os.register_at_fork(before=lambda: 1 / 0)",
    "hook hangs before": "os.register_at_fork(before=lambda: time.sleep(1000))",
    "hook hangs in the child": "os.register_at_fork(after_in_child=lambda: time.sleep(1000))",
    "hook hangs in the parent": "os.register_at_fork(after_in_parent=lambda: time.sleep(1000))",
    "hook ends the child": "os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "hook forks": "done = []; os.register_at_fork(after_in_child=lambda: done or (done.append(1), real()))",
    "hook starts a thread": "os.register_at_fork(after_in_child=lambda: _thread.start_new_thread(time.sleep, (1000,)))",
    "no way to the agent": "os.close(4)",
    "nothing is open": "os.closerange(4, 256)",
    "no more files": "held = list(iter(open_one, None))",
    "hardly any files": "held = list(iter(open_one, None)); [os.close(fd) for fd in held[-12:]]",
    "children are not heard of": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "interrupts are ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); ours.fork_into = lambda _: time.sleep(99)",
    "the directory is gone": "os.mkdir('d'); os.chdir('d'); os.rmdir('/home/work/d')",
    "a file cannot be opened again": "f = open('closed', 'w'); os.chmod('closed', 0)",
    "says that it is done": "session._fork = lambda *_: ''",
    "says that it is the branch": "session._fork = lambda *_: None",
    "says a lot": "session._fork = lambda *_: 'x' * 10**6",
    "says what is no text": "session._fork = lambda *_: ['x', 5]",
    "does not move": "ours.fork_into = lambda _: real()",
    "moves halfway": "ours.fork_into = lambda of: into({fd: kind for fd, kind in of.items() if kind == 1 << 28})",
    "moves into too much": "ours.fork_into = lambda of: into({fd: 0 for fd in of})",
    "moves elsewhere": "ours.fork_into = lambda of: into({1000 + fd: kind for fd, kind in of.items()})",
    "cannot move": "ours.fork_into = lambda *_: 1 / 0",
    "moves without machine code": "ours.entrance = lambda: None",
    "never ends its helpers": "ours.entrance = lambda: None; os._exit = lambda *_: time.sleep(1000)",
    "says what nobody can show": "for _ in range(1012): deep = [deep]\nsession._fork = lambda *_: deep",
    "says half a character": "session._fork = lambda *_: 'half a character: \\ud800'",
    "leaves processes in the branch": "session._move_in = lambda *_: real() or time.sleep(1000)",
}
_OURS = """
import _thread, os, signal, sys, time
session, ours = (sys.modules[f"toolyard.sandboxes.native.{name}"] for name in ("session", "forking"))
real, into = os.fork, ours.fork_into
sys.setrecursionlimit(9000)
deep = []
def open_one():
    try:
        return os.open("/dev/null", 0)
    except OSError:
        return None
"""


@SUITE.case("b14", limits=_HASTY, alone=True)
async def code_that_sabotages_its_own_forking(stage: Stage, box: Box) -> None:
    async def sabotage(what: str, code: str) -> None:
        async with stage.open(_HASTY) as victim:
            await victim.python(f"{_OURS}\n{code}")
            began, problem = time.monotonic(), ""
            try:
                async with asyncio.timeout(10):
                    (branch,) = await victim.sandbox.fork()
            except CannotFork as error:
                problem = str(error)
            else:
                told = await branch.exec("6 * 7")
                assert told.value == "42" or told.state_lost or told.killed_by, (what, told)
                assert (await branch.run(["echo", "hello"])).stdout == b"hello\n", what
                await branch.close()
            seconds = time.monotonic() - began
            assert seconds < 8, (what, seconds)
            assert problem == problem.encode(errors="replace").decode(), what
            told = await victim.sandbox.exec("6 * 7")
            assert told.value == "42" or told.state_lost, (what, told)
            assert await victim.alive(), what

    places = asyncio.Semaphore(4)

    async def one(what: str, code: str) -> None:
        async with places:
            await sabotage(what, code)

    told = await asyncio.gather(*(one(what, code) for what, code in _SABOTAGE.items()), return_exceptions=True)
    failed = [f"{what}: {how!r}" for what, how in zip(_SABOTAGE, told, strict=True) if isinstance(how, BaseException)]
    assert not failed, failed


@SUITE.case("b19")
async def a_fork_copies_memory_once_where_it_can(stage: Stage, box: Box) -> None:
    """The slower way is one of the sabotages above."""
    known = await box.python(f"{_OURS}\nours.entrance() is not None")
    assert known.value == str(os.uname().machine == "x86_64")


@SUITE.case("b15")
async def a_branch_that_keeps_the_capabilities_of_its_namespace(stage: Stage, box: Box) -> None:
    """A process that enters a user namespace has every capability in it. Our code drops them; hostile code need not."""
    await box.python(
        f"{_OURS}\ncalls = session.syscalls; calls.Syscalls.make = lambda _: calls._prctl('DUMPABLE', 4, 1)"
    )
    (branch,) = await box.sandbox.fork()
    status = (await branch.exec("print(open('/proc/self/status').read())")).stdout
    assert "CapEff:\t0000000000000000" not in status, "it could keep none, and this shows nothing"
    kept = Box(stage, branch, branch=True)
    outcomes = await _outcomes(kept, """
attempt("mount", call, "mount", b"none", b"/home/tmp", b"tmpfs")
attempt("mount proc", call, "mount", b"none", b"/home/tmp", b"proc")
attempt("bind", call, "mount", b"/usr", b"/home/tmp", 0, 4096)
attempt("unmount", call, "umount2", b"/home/work", 2)
attempt("writable root", call, "mount", b"none", b"/", 0, 32 | 4096)
attempt("open a tree", call, "open_tree", -100, b"/", 1)
attempt("pivot", call, "pivot_root", b"/home/work", b"/home/work")
attempt("chroot", os.chroot, "/home/work")
attempt("new time", call, "unshare", 1 << 7)
for name, flag in {"user": 1 << 28, "pid": 1 << 29, "net": 1 << 30, "mnt": 1 << 17, "cgroup": 1 << 25}.items():
    attempt("new " + name, call, "unshare", flag)
    attempt("clone into new " + name, call, "clone", flag | 17)
attempt("device", os.mknod, "/home/work/disk", 0o60666, os.makedev(254, 0))
attempt("character device", os.mknod, "/home/work/mem", 0o20666, os.makedev(1, 1))
attempt("name", socket.sethostname, "pwned")
attempt("trace", call, "ptrace", 16, 1)
attempt("read", call, "process_vm_readv", 1, bytes(16), 1, bytes(16), 1)
attempt("by handle", call, "open_by_handle_at", -100, bytes(64), 0)
attempt("keys", call, "keyctl", 0, -3, 1)
attempt("bpf", call, "bpf", 5, bytes(128), 128)
attempt("packets", socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt("netlink", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 12)
attempt("log", call, "syslog", 3, bytes(16), 16)
def write(path):
    with open(path, "w") as file:
        file.write("1")
for path in ("/proc/sys/kernel/shmmax", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces",
             "/proc/sys/kernel/core_pattern", "/proc/1/mem", "/usr/pwned", "/etc/passwd", "/pwned"):
    attempt(path, write, path)
for path in ("/proc/1/root", "/proc/1/fd", "/proc/1/cwd"):
    attempt(path, os.listdir, path)
for user in (0, 1, 65534):
    attempt(f"user {user}", os.setuid, user)
tell()
""")  # fmt: skip
    refused(outcomes, "EPERM", "EACCES", "ENOSYS", "EROFS", "EINVAL", "EAFNOSUPPORT", "ESRCH")
    await branch.exec("os.kill(-1, signal.SIGKILL)")
    assert (await branch.exec("6 * 7")).value == "42"
    await branch.close()


async def _outcomes(box: Box, attack: str) -> dict[str, str]:
    """Like `Box.outcomes`, but for a branch that would not count as safe, in a sandbox that has been checked."""
    executed = await box.sandbox.exec(PRELUDE + attack)
    assert executed.error is None, executed.error
    return json.loads(executed.stdout.splitlines()[-1])


# ---- Concurrently


@SUITE.case("b16")
async def forks_calls_and_ends_at_the_same_time(stage: Stage, box: Box) -> None:
    await box.sandbox.exec("x = 0")
    results = await asyncio.gather(
        box.sandbox.fork(2),
        box.sandbox.exec("x += 1; x"),
        box.sandbox.fork(2),
        box.sandbox.run(["echo", "hello"]),
        box.sandbox.exec("x += 1; x"),
        box.sandbox.shell("echo hello"),
        box.sandbox.write("file", b"x"),
    )
    branches = [*results[0], *results[2]]
    assert [await _value(branch, "x") for branch in branches] == ["0", "0", "1", "1"]
    twigs = await asyncio.gather(*(branch.fork() for branch in branches))
    await asyncio.gather(*(branch.close() for branch in branches), *(twig.close() for (twig,) in twigs))
    assert await _value(box.sandbox, "x") == "2"
    for _ in range(5):
        (branch,) = await box.sandbox.fork()
        forking, closing = asyncio.ensure_future(branch.fork(3)), asyncio.ensure_future(branch.close())
        await closing
        try:
            for twig in await forking:
                await twig.close()
        except (CannotFork, SandboxLost):
            pass
    assert await _value(box.sandbox, "x") == "2"


@pytest.mark.parametrize("case", SUITE.cases)
def test_a_branch_is_like_its_parent_and_apart_from_all(case: str, played: Played) -> None:
    played.check(case)


def test_the_server_goes_on_to_the_end_and_leaves_nothing(played: Played) -> None:
    played.check_end()
