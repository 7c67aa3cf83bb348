"""Hostile programs that want more than their share of processes, memory, disk, files and output.

Numbers refer to the design's list of attacks; those with a letter were added to it. Where no cgroup limits a sandbox as
a whole (level L3-nolimit), less is promised, and each case says what.
"""

from __future__ import annotations

import asyncio
import resource
import time

import pytest

from tests.sandboxes.hostile import PRELUDE, Box, Played, Stage, Suite
from toolyard.core.errors import SandboxError
from toolyard.sandboxes.base import Limits

pytestmark = pytest.mark.thorough

SUITE = Suite()

MIB = 2**20
FEW = Limits(processes=24, wall_seconds=1.0)
SMALL = Limits(memory_bytes=160 * MIB, wall_seconds=10.0)


async def usable(box: Box) -> None:
    """The sandbox is as good as new, except for what the interpreter kept."""
    assert await box.alive()
    ran = await box.sandbox.run(["sh", "-c", "echo hello | cat"])
    assert ran.stdout == b"hello\n", ran


# ---- Processes


async def explode(stage: Stage, box: Box, code: str) -> None:
    """Run a bomb in the interpreter and as a program. It gets no more processes than its limit."""
    async with stage.counted(box) as seen:
        executed = await box.python(code)
        assert executed.killed_by == "wall" or executed.state_lost or executed.error, executed
        await usable(box)
        ran = await box.run(["python3", "-c", code])
        assert ran.exit_code != 0, ran
        await usable(box)
    assert 10 < max(seen) <= box.sandbox.limits.processes + 1, seen
    assert len(stage.members(box)) <= 2, "nothing but its agent and its interpreter is left"


@SUITE.case("01", limits=FEW, alone=True)
async def a_fork_bomb_in_python(stage: Stage, box: Box) -> None:
    await explode(
        stage,
        box,
        """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    )


@SUITE.case("01a", limits=FEW, alone=True)
async def a_fork_bomb_that_ignores_signals_and_leaves_its_group(stage: Stage, box: Box) -> None:
    await explode(
        stage,
        box,
        """
import os, signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        if os.fork():
            os.setsid()
    except OSError:
        pass
""",
    )


@SUITE.case("02", limits=FEW, alone=True)
async def a_fork_bomb_in_bash(stage: Stage, box: Box) -> None:
    async with stage.counted(box) as seen:
        began = time.monotonic()
        await box.bash("bomb() { bomb | bomb & }; bomb; wait; sleep 10")
        assert time.monotonic() - began < 10
        await usable(box)
    assert 10 < max(seen) <= box.sandbox.limits.processes + 1, seen
    assert len(stage.members(box)) <= 2


@SUITE.case("02a", limits=FEW, alone=True)
async def a_fork_bomb_in_the_session_s_shell(stage: Stage, box: Box) -> None:
    await box.shell("bomb() { bomb | bomb & }; bomb; wait; sleep 10")
    await usable(box)
    again = await box.sandbox.shell("echo hello")
    assert again.stdout == b"hello\n", again


@SUITE.case("62", limits=FEW)
async def a_loop_that_starts_programs(stage: Stage, box: Box) -> None:
    code = """
import subprocess
started = []
try:
    while True:
        started.append(subprocess.Popen(["sleep", "1000"]))
except OSError as error:
    print(len(started), type(error).__name__)
"""
    executed = await box.python(code)
    count, error = executed.stdout.split()
    assert error == "BlockingIOError"
    assert int(count) < box.sandbox.limits.processes
    await box.python("[each.kill() or each.wait() for each in started]")
    ran = await box.run(["python3", "-c", code])
    assert ran.stdout.split()[1] == b"BlockingIOError"
    await usable(box)
    assert len(stage.members(box)) <= 2


@SUITE.case("55", limits=FEW)
async def a_thread_bomb(stage: Stage, box: Box) -> None:
    code = """
import threading
count, over = 0, threading.Event()
try:
    while True:
        threading.Thread(target=over.wait, daemon=True).start()
        count += 1
except RuntimeError:
    print(count)
over.set()
"""
    executed = await box.python(code)
    assert 5 < int(executed.stdout) < box.sandbox.limits.processes
    ran = await box.run(["python3", "-c", code])
    assert 5 < int(ran.stdout) < box.sandbox.limits.processes
    await usable(box)


# ---- Memory


@SUITE.case("03", limits=SMALL)
async def a_bomb_on_the_heap(stage: Stage, box: Box) -> None:
    """The kernel kills it; without a cgroup the kernel refuses it more memory, and it may go on."""
    code = "hoard = []\nwhile True:\n    hoard.append(bytearray(8 << 20))"
    executed = await box.python(code)
    ran = await box.run(["python3", "-c", code])
    if stage.enforced:
        assert executed.killed_by == "memory"
        assert executed.state_lost
        assert ran.killed_by == "memory"
    else:
        assert executed.error is not None or executed.killed_by == "memory"
        assert executed.error is None or executed.error.name == "MemoryError"
        assert ran.killed_by == "memory" or b"MemoryError" in ran.stderr
        await box.sandbox.exec("hoard.clear()")
    assert executed.usage.memory_bytes <= box.sandbox.limits.memory_bytes + 32 * MIB, "and what it shares with others"
    await usable(box)


@SUITE.case("03a", limits=SMALL)
async def a_bomb_in_one_piece(stage: Stage, box: Box) -> None:
    """The interpreter gets an error in time, as in any Python, or ends."""
    executed = await box.python("hoard = b'x' * (1 << 40)")
    assert executed.error is not None
    assert executed.error.name == "MemoryError"
    executed = await box.python("import mmap; hoard = mmap.mmap(-1, 1 << 30); hoard.write(bytes(1 << 20) * 1000)")
    assert executed.killed_by == "memory" or executed.error is not None
    await usable(box)


MANY_CHILDREN = """
import os, time
for _ in range(16):
    if os.fork() == 0:
        hoard = bytearray(24 << 20)
        for at in range(0, len(hoard), 4096):
            hoard[at] = 1
        time.sleep(1)
        os._exit(0)
ended = [os.wait()[1] for _ in range(16)]
print(sum(map(bool, ended)))
"""


@SUITE.case("04", limits=SMALL)
async def many_children_that_each_take_little(stage: Stage, box: Box) -> None:
    """384 MiB of 160. Without a cgroup the server only checks now and then, so they can have it for a moment."""
    executed = await box.python(MANY_CHILDREN)
    ran = await box.run(["python3", "-c", MANY_CHILDREN])
    if stage.enforced:
        for text in (executed.stdout, ran.stdout.decode()):
            assert not text or int(text) >= 8, "at least half of them were ended"
        assert executed.stdout or executed.killed_by == "memory"
        assert ran.stdout or ran.killed_by == "memory"
    else:
        assert executed.killed_by == "memory"
        assert ran.killed_by == "memory"
    await usable(box)


HOARD_FILES = """
import os
files, size = [], 0
try:
    while size < 300 << 20:
        files.append(os.memfd_create("hoard"))
        for _ in range(4):
            size += os.write(files[-1], bytes(1 << 20))
except OSError as error:
    print(type(error).__name__, error.errno)
print(len(files), size >> 20)
"""


@SUITE.case("05", limits=SMALL)
async def files_in_memory_that_have_no_name(stage: Stage, box: Box) -> None:
    """Without a cgroup only the number of files and the size of each is limited, for each process."""
    executed = await box.python(HOARD_FILES)
    ran = await box.run(["python3", "-c", HOARD_FILES])
    if stage.enforced:
        assert executed.killed_by == "memory"
        assert ran.killed_by == "memory"
    else:
        assert executed.killed_by in (None, "memory")
        assert ran.killed_by in (None, "memory")
        await box.sandbox.exec("[os.close(file) for file in files]")
    await usable(box)


@SUITE.case("05a", limits=Limits(open_files=32, file_bytes=2 * MIB))
async def files_in_memory_are_bounded_by_number_and_size(stage: Stage, box: Box) -> None:
    executed = await box.python(HOARD_FILES)
    ran = await box.run(["python3", "-c", HOARD_FILES])
    for done in (executed, ran):
        assert done.killed_by == "file_size" or "27" in str(done.stdout), "a file that would be too large"  # EFBIG
    smaller = HOARD_FILES.replace("range(4)", "range(2)")
    executed = await box.python(smaller)
    error, _, count, size = executed.stdout.split()
    assert error == "OSError"
    assert int(count) < 32
    assert int(size) <= 64
    await usable(box)


@SUITE.case("05b", limits=SMALL)
async def shared_memory_of_the_old_kind(stage: Stage, box: Box) -> None:
    """System V segments, attached or not, count as the sandbox's memory, and go with it."""
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
size = 0
while size < 320 << 20:
    number = libc.shmget(0, 16 << 20, 0o1600)
    if number < 0:
        break
    at = libc.shmat(number, None, 0)
    if at == ctypes.c_void_p(-1).value:
        break
    ctypes.memset(at, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    size += 16 << 20
print(size >> 20)
"""
    ran = await box.run(["python3", "-c", code])
    if stage.enforced:
        assert ran.killed_by == "memory", ran
    else:
        assert ran.killed_by in (None, "memory")
    await stage.check()


# ---- Disk


@SUITE.case("06", limits=Limits(disk_bytes=8 * MIB, file_bytes=4 * MIB))
async def fill_the_disk(stage: Stage, box: Box) -> None:
    """The workspace and the place for temporary files each hold their limit; then there is no more space."""
    code = """
import os, sys
folder, size = sys.argv[1], 0
try:
    for number in range(100):
        with open(f"{folder}/{number}", "wb", 0) as file:
            for _ in range(3):
                size += file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, size >> 20)
"""
    for folder in ("/home/work", "/home/tmp", "/tmp", "/dev/shm"):
        ran = await box.run(["python3", "-c", code, folder])
        assert ran.stdout in (b"28 8\n", b"28 7\n"), ran  # ENOSPC
        await box.sandbox.run(["sh", "-c", f"rm -f {folder}/*"])
    executed = await box.python("import sys; sys.argv[1:] = ['.']" + code)
    assert executed.stdout in ("28 8\n", "28 7\n")
    too_large = "open('large', 'wb', 0).write(bytes(5 << 20))"
    ran = await box.run(["python3", "-c", f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); {too_large}"])
    assert ran.killed_by == "file_size" or b"No space left" in ran.stderr
    await box.sandbox.run(["sh", "-c", "rm -f *"])
    ran = await box.run(["sh", "-c", "head -c 6000000 /dev/zero > large"])
    assert b"File size limit exceeded" in ran.stderr, "which the shell tells of its child"
    assert [entry.size <= 4 * MIB for entry in await box.sandbox.list()] == [True]
    await usable(box)


@SUITE.case("06a", limits=Limits(disk_bytes=4 * MIB, file_bytes=1 << 50))
async def files_with_holes(stage: Stage, box: Box) -> None:
    """A file may look large. Its content is limited all the same, and reading it does not harm the server."""
    made = await box.python("import os; file = open('holes', 'wb'); file.truncate(1 << 40); os.stat('holes').st_blocks")
    assert made.value == "0"
    filled = await box.python("os.posix_fallocate(file.fileno(), 0, 1 << 30)")
    assert filled.error is not None
    assert filled.error.name == "OSError"
    await usable(box)


@SUITE.case("07", limits=Limits(disk_files=200))
async def fill_the_disk_with_names(stage: Stage, box: Box) -> None:
    code = """
import os, sys
def count(make):
    made = 0
    try:
        while made < 1000:
            make(f"{folder}/{made}")
            made += 1
    except OSError as error:
        os.system(f"rm -rf {folder}/*")
        return error.errno, made
    return None, made
for folder in ("/home/work", "/home/tmp"):
    for make in (lambda path: open(path, "w").close(), os.mkdir, lambda path: os.symlink("/", path), os.mkfifo):
        number, made = count(make)
        assert number == 28 and made <= 200, (number, made)
    open(f"{folder}/first", "w").close()
    number, made = count(lambda path: os.link(f"{folder}/first", path))
    assert number == 28 and made <= 200, (number, made)
print("bounded")
"""
    assert (await box.python(code)).stdout == "bounded\n"
    assert (await box.run(["python3", "-c", code])).stdout == b"bounded\n"
    await usable(box)


@SUITE.case("07a")
async def directories_in_directories(stage: Stage, box: Box) -> None:
    """As deep as possible; closing the sandbox and reading the workspace still work."""
    executed = await box.python("""
import os
depth = 0
try:
    while depth < 1500:
        os.mkdir("d")
        os.chdir("d")
        depth += 1
except OSError:
    pass
print(depth)
""")
    assert int(executed.stdout) > 1000
    assert [entry.name for entry in await box.sandbox.list()] == ["d"]
    await stage.check()


@SUITE.case("59", limits=Limits(memory_bytes=128 * MIB, disk_bytes=256 * MIB, wall_seconds=10.0))
async def a_disk_that_takes_the_memory(stage: Stage, box: Box) -> None:
    """Files are in memory, and stay when their program ends. That may lose the sandbox, and the result says so."""
    code = """
import os, sys
for number in range(5):
    with open(f"{sys.argv[1]}/{number}", "wb", 0) as file:
        for _ in range(48):
            file.write(bytes(1 << 20))
"""
    try:
        for folder in ("/home/work", "/dev/shm"):
            ran = await box.run(["python3", "-c", code, folder])
            assert ran.killed_by in ("memory", None)
            assert ran.exit_code or not stage.enforced
        assert (await box.sandbox.exec("1")).isolation == stage.backend.report().level
    except SandboxError:
        assert stage.enforced
    await stage.check()


# ---- Files, and what else there is a number of


@SUITE.case("08", limits=Limits(open_files=64))
async def open_files_without_end(stage: Stage, box: Box) -> None:
    code = """
import os, socket, select
def count(make):
    made = []
    try:
        while len(made) < 1000:
            made.append(make())
    except OSError as error:
        return len(made), error.errno
    finally:
        for each in made:
            os.close(each) if isinstance(each, int) else each.close()
    return len(made), None
for make in (lambda: os.open("/dev/null", os.O_RDONLY), lambda: os.open(".", os.O_RDONLY), socket.socket,
             lambda: socket.socket(socket.AF_UNIX), select.epoll, lambda: os.eventfd(0), lambda: os.memfd_create("x"),
             lambda: os.pidfd_open(os.getpid()), lambda: os.open("/dev/ptmx", os.O_RDWR)):
    made, number = count(make)
    assert made < 64 and number in (24, 28), (made, number)  # of ptys a sandbox has even fewer
print("bounded")
"""
    assert (await box.python(code)).stdout == "bounded\n"
    assert (await box.run(["python3", "-c", code])).stdout == b"bounded\n"
    await usable(box)


@SUITE.case("08a")
async def take_what_all_users_share(stage: Stage, box: Box) -> None:
    """The kernel has few inotify instances and pending signals for each user of the host. The next sandbox has its
    own."""
    code = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
instances = 0
while libc.inotify_init1(0) >= 0:
    instances += 1
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
pending = 0
while libc.sigqueue(os.getpid(), 40, 0) == 0:
    pending += 1
os.close(3) if __name__ != "__main__" else None
watch, watches = libc.inotify_init1(0), 0
timers, room = 0, ctypes.c_long()
while libc.timer_create(0, None, ctypes.byref(room)) == 0 and timers < 5000:
    timers += 1
print(instances, pending, timers)
"""
    first = await box.python(code)
    instances, pending, _ = map(int, first.stdout.split())
    assert instances <= 16
    assert pending <= 1024
    async with stage.open() as other:
        second = await other.python(code)
        assert second.stdout.split()[:2] == first.stdout.split()[:2], "as many as the first"
    limit = resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]
    assert pending < limit / 4


@SUITE.case("08b")
async def watch_every_file_of_the_host(stage: Stage, box: Box) -> None:
    executed = await box.python("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd, watches = libc.inotify_init1(0), set()
for folder, _, names in os.walk("/usr"):
    for name in names:
        watches.add(libc.inotify_add_watch(fd, os.path.join(folder, name).encode(), 2))
    if -1 in watches or len(watches) > 10000:
        break
print(len(watches), -1 in watches)
""")
    count, refused = executed.stdout.split()
    assert refused == "True"
    assert int(count) <= 2048


@SUITE.case("08c")
async def take_every_terminal_of_the_host(stage: Stage, box: Box) -> None:
    """The kernel has `kernel.pty.max` of them in all. The next sandbox gets some."""
    code = """
import os
held = []
try:
    while len(held) < 200:
        held.append(os.openpty())
except OSError as error:
    print(len(held), error.strerror)
"""
    assert (await box.python(code)).stdout == "16 No space left on device\n"
    async with stage.open() as other:
        assert (await other.python("import os; os.openpty() and 1")).value == "1"


# ---- Output


@SUITE.case("09", limits=Limits(output_bytes=100_000))
async def output_without_end(stage: Stage, box: Box) -> None:
    """It is cut at the limit, and the program ends; the server's memory does not grow with it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for stream in ("stdout", "stderr"):
        began = time.monotonic()
        executed = await box.python(f"import sys\nwhile True:\n    sys.{stream}.write('x' * 10000)")
        assert executed.killed_by == "output"
        assert len(getattr(executed, stream)) == 100_000
        ran = await box.run(["sh", "-c", "yes >&2" if stream == "stderr" else "yes"])
        assert ran.killed_by == "output"
        assert len(getattr(ran, stream)) == 100_000
        assert time.monotonic() - began < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    await usable(box)


@SUITE.case("09a", limits=Limits(output_bytes=50_000))
async def output_of_many_at_once(stage: Stage, box: Box) -> None:
    """Also from processes that the code has left behind: they cannot fill the server between calls."""
    flood = """
import os
for _ in range(4):
    if os.fork() == 0:
        while True:
            os.write(1, b'x' * 65536)
"""
    executed = await box.python(flood, seconds=2)
    assert len(executed.stdout) <= 50_000
    await asyncio.sleep(0.3)
    last = await box.sandbox.exec("print('mine')")
    assert len(last.stdout) <= 50_000
    ran = await box.run(["python3", "-c", flood + "\nimport time; time.sleep(10)"], seconds=5)
    assert ran.killed_by == "output"
    assert len(ran.stdout) == 50_000


@SUITE.case("09b")
async def values_and_errors_without_end(stage: Stage, box: Box) -> None:
    """The interpreter's answers are limited like its output."""
    executed = await box.python("'x' * 50_000_000")
    assert executed.value is not None
    assert len(executed.value) < MIB
    executed = await box.python("raise ValueError('x' * 50_000_000)")
    assert executed.error is not None
    assert len(executed.error.message) + len(executed.error.traceback) < MIB
    executed = await box.python("raise type('E' * 10_000_000, (Exception,), {})('x')")
    assert executed.error is not None or executed.state_lost
    await usable(box)


@SUITE.case("60", limits=Limits(cpus=0.5, wall_seconds=2.0, processes=32))
async def all_processors_at_once(stage: Stage, box: Box) -> None:
    """Eight processes that compute. With a cgroup they share half a processor; without, they take all."""
    code = (
        PRELUDE
        + """
children = []
for _ in range(8):
    if os.fork() == 0:
        while True:
            pass
time.sleep(1.5)
"""
    )
    ran = await box.run(["python3", "-c", code + "time.sleep(10)"])
    assert ran.killed_by == "wall"
    await usable(box)
    assert len(stage.members(box)) <= 2
    measured = await box.sandbox.run(
        [
            "python3",
            "-c",
            "import time\nend = time.time() + 1\nwhile time.time() < end: pass\nprint(time.process_time())",
        ]
    )
    if stage.enforced:
        assert float(measured.stdout) < 0.85, "half a second, and what the period leaves"


@SUITE.case("60a", limits=Limits(cpu_seconds=1.0, wall_seconds=30.0))
async def processor_time_of_processes_that_soon_end(stage: Stage, box: Box) -> None:
    """Each has left its parent, and ends before it has used much."""
    code = """
import os, time
while True:
    ends, held = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < 0.2: pass
        os._exit(0)
    os.close(held)
    os.wait()
    os.read(ends, 1)
    os.close(ends)
"""
    assert (await box.python(code)).killed_by == "cpu"
    assert (await box.run(["python3", "-c", code])).killed_by == "cpu"
    assert (await box.alone(code)).killed_by == "cpu"


@pytest.mark.parametrize("case", SUITE.cases)
def test_a_hostile_program_does_not_get_more_than_its_share(case: str, played: Played) -> None:
    played.check(case)


def test_the_server_does_not_notice_and_nothing_is_left(played: Played) -> None:
    played.check_end()
