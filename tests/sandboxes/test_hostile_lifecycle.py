"""Hostile programs that do not end, that end badly, or that try to outlast their end.

Numbers refer to the design's list of attacks, 33 to 63; those with a letter were added to it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.sandboxes.hostile import Box, Played, Stage, Suite, refused
from toolyard.sandboxes.base import Executed, Finished, Limits
from toolyard.sandboxes.endings import how_ended

pytestmark = pytest.mark.thorough

SUITE = Suite()

_SOON = 3.0
"""The limit for quick operations, on a machine that is busy with other work."""

_LIVING = """
def living():
    import os
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            with open(f"/proc/{name}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(name))
    return found
living()
"""


async def _check_alone(box: Box) -> None:
    """Nothing is left in the sandbox but process 1 and the interpreter."""
    deadline = time.monotonic() + _SOON
    while (found := (await box.sandbox.exec(_LIVING)).value) != "[]":
        assert time.monotonic() < deadline, f"still there: {found}"
        await asyncio.sleep(0.02)


async def _check_ended(box: Box, code: str, status: int) -> tuple[Executed, Finished]:
    """The code ends its process with this status, in the interpreter and as a program, and the session goes on."""
    executed = await box.python(code)
    assert executed.state_lost
    assert executed.killed_by is None
    assert executed.error is not None
    assert executed.error.name == "InterpreterEnded"
    assert executed.error.message == f"the interpreter {how_ended(status)}", executed
    assert await box.alive()
    ran = await box.run(["python3", "-c", code])
    ended_as = (status, None) if status >= 0 else (128 - status, -status)
    assert (ran.exit_code, ran.signal, ran.killed_by) == (*ended_as, None), ran
    return executed, ran


async def _check_killed_in_time(box: Box, code: str) -> None:
    """The code does not end by itself. Its time limit ends it, with everything that it started."""
    began = time.monotonic()
    executed = await box.python(code, seconds=0.4)
    assert executed.timed_out, executed
    assert time.monotonic() - began < 0.4 + _SOON
    assert await box.alive()
    await _check_alone(box)
    ran = await box.run(["python3", "-c", code], seconds=0.6)
    assert ran.timed_out, ran
    assert ran.exit_code == 124
    await _check_alone(box)


# ---- It will not end


@SUITE.case("33")
async def a_program_that_stops_itself_and_its_children(stage: Stage, box: Box) -> None:
    await _check_killed_in_time(
        box,
        """
import os, signal
for _ in range(3):
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)
""",
    )


_DAEMON = """
import os, sys, time
sys.stdout.flush()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


@SUITE.case("34")
async def a_daemon(stage: Stage, box: Box) -> None:
    ran = await box.run(["python3", "-c", _DAEMON])
    assert ran.exit_code == 0
    await _check_alone(box)
    executed = await box.python(_DAEMON + "while True: pass", seconds=0.4)
    assert executed.timed_out
    await _check_alone(box)
    await box.python(_DAEMON + "os._exit(1)")
    await _check_alone(box)
    assert (await box.python(_DAEMON)).error is None
    # It lives as long as the sandbox, of which nothing may be left.


@SUITE.case("34b")
async def a_chain_of_processes_of_which_each_lives_for_a_moment(stage: Stage, box: Box) -> None:
    chain = """
import os, time
def chain():
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
"""
    ran = await box.run(["python3", "-c", chain + "chain(); time.sleep(0.2)"])
    assert ran.exit_code == 0
    await _check_alone(box)
    executed = await box.python(chain + "chain(); os._exit(3)")
    assert executed.state_lost
    assert await box.alive()
    await _check_alone(box)
    assert (await box.python(chain + "chain()")).error is None  # until the sandbox is closed


@SUITE.case("35")
async def a_daemon_that_holds_the_output_open(stage: Stage, box: Box) -> None:
    began = time.monotonic()
    ran = await box.bash("echo before; (sleep 1000 &) ; echo after")
    assert (ran.exit_code, ran.stdout, ran.killed_by) == (0, b"before\nafter\n", None)
    shell = await box.shell("echo before; (sleep 1000 &) ; echo after")
    assert (shell.exit_code, shell.stdout, shell.killed_by) == (0, b"before\nafter\n", None)
    executed = await box.python("print('before')" + _DAEMON + "print('after')")
    assert (executed.stdout, executed.error, executed.killed_by) == ("before\nafter\n", None, None)
    assert time.monotonic() - began < _SOON


@SUITE.case("44")
async def a_program_that_ignores_and_blocks_all_signals(stage: Stage, box: Box) -> None:
    await _check_killed_in_time(
        box,
        """
import signal
for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True:
    pass
""",
    )


@SUITE.case("44b")
async def a_program_that_catches_every_interrupt(stage: Stage, box: Box) -> None:
    await _check_killed_in_time(
        box,
        """
def stay():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
stay()
""",
    )


@SUITE.case("44c")
async def a_program_that_hangs_in_vfork(stage: Stage, box: Box) -> None:
    """While the child uses its memory, only SIGKILL reaches its sleeping parent."""
    await _check_killed_in_time(
        box,
        """
import ctypes, time
libc = ctypes.PyDLL(None)
libc.vfork.restype = ctypes.c_int
if libc.vfork() == 0:
    while True:
        time.sleep(1)
""",
    )


# ---- It ends badly


@SUITE.case("36")
async def a_program_that_closes_its_standard_files(stage: Stage, box: Box) -> None:
    closed = await box.python("import os\nfor fd in range(3): os.close(fd)\nprint('lost')")
    assert (closed.stdout, closed.state_lost) == ("lost\n", False)  # the files are restored before the flush
    again = await box.python("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (again.stdout, again.stderr, again.error) == ("out\n", "err\n", None)
    everything = await box.python("os.closerange(0, 256)")
    assert everything.state_lost
    assert await box.alive()
    ran = await box.bash("exec <&- >&- 2>&-; echo lost; exit 5")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (5, b"", b"")


@SUITE.case("37")
async def huge_arguments(stage: Stage, box: Box) -> None:
    inside = await box.python(
        "import os, sys\n"
        "try:\n    os.execv(sys.executable, [sys.executable, '-c', 'x' * 2**20])\n"
        "except OSError as error:\n    print(error.strerror)"
    )
    assert (inside.stdout, inside.state_lost) == ("Argument list too long\n", False)
    ran = await box.run(["python3", "-c", "import sys; print(len(sys.argv[1]))", "x" * 100_000])
    assert (ran.exit_code, ran.stdout) == (0, b"100000\n")
    too_long = await box.run(["echo", "x" * 2**20])
    assert too_long.exit_code in (126, 127)
    assert b"Argument list too long" in too_long.stderr
    too_many = await box.run(["echo", *(["x" * 1000] * 10_000)])
    assert too_many.exit_code in (126, 127)
    too_much = await box.run(["true"], env={"BIG": "x" * 2**20})
    assert too_much.exit_code in (126, 127)
    for argv in (["\0"], [""], [], ["\ud800"], ["/"], ["/dev/null"]):
        odd = await box.run(argv)
        assert odd.exit_code in (126, 127), odd
    assert (await box.run(["true"], env={"A=B": "C\0D"})).exit_code in (126, 127)
    assert await box.alive()


@SUITE.case("38")
async def a_program_that_leaves_by_sys_exit(stage: Stage, box: Box) -> None:
    await box.python("kept = 1")
    executed = await box.python("import sys; print('bye'); sys.exit(3)")
    assert executed.stdout == "bye\n"
    assert executed.error is not None
    assert executed.error.name == "SystemExit"
    assert not executed.state_lost
    assert (await box.python("kept")).value == "1"
    assert (await box.run(["python3", "-c", "import sys; sys.exit(3)"])).exit_code == 3


@SUITE.case("39")
async def a_program_that_leaves_at_once(stage: Stage, box: Box) -> None:
    executed, ran = await _check_ended(box, "import os; print('bye', flush=True); os._exit(7)", 7)
    assert (executed.stdout, ran.stdout) == ("bye\n", b"bye\n")


@SUITE.case("40")
async def a_program_that_aborts(stage: Stage, box: Box) -> None:
    await _check_ended(box, "import os; os.abort()", -signal.SIGABRT)


@SUITE.case("41")
async def a_program_that_kills_itself(stage: Stage, box: Box) -> None:
    await _check_ended(box, "import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)
    await _check_ended(box, "import os; os.kill(os.getpid(), 15)", -signal.SIGTERM)
    ran = await box.bash("kill -9 $PPID; kill -9 1; kill -15 1; kill -9 -1")  # its init does not react
    assert ran.exit_code in (0, 1, 137), ran
    assert ran.killed_by is None


@SUITE.case("42")
async def an_overflow_of_the_stack(stage: Stage, box: Box) -> None:
    code = "import sys; sys.setrecursionlimit(10**8)\ndef deeper(x): return max((x,), key=deeper)\ndeeper(1)"
    executed = await box.python(code)
    if not executed.state_lost:  # later Pythons count on both stacks
        assert executed.error is not None
        assert executed.error.name == "RecursionError"
    else:
        assert executed.error is None or "SIGSEGV" in executed.error.message, executed
    assert await box.alive()
    ran = await box.run(["python3", "-c", code])
    assert ran.exit_code in (1, 139), ran


@SUITE.case("43")
async def a_null_pointer(stage: Stage, box: Box) -> None:
    await _check_ended(box, "import ctypes; ctypes.string_at(0)", -signal.SIGSEGV)


# ---- Alone in its sandbox: no process of ours sees or causes its end


@SUITE.case("a1")
async def an_interpreter_that_is_alone_and_ends(stage: Stage, box: Box) -> None:
    """Process 1 ignores signals that would end another process, unless the processor raises them."""
    for code, status in (
        ("import os; os._exit(7)", 7),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("import os; os.kill(1, 9); os.kill(1, 15); os._exit(8)", 8),
        ("import os\nif os.fork() == 0:\n    os.kill(1, 9); os._exit(0)\nos.wait(); os._exit(9)", 9),
    ):
        ended = await box.alone(f"print('bye', flush=True); {code}")
        assert ended.error is not None, ended
        assert (ended.error.name, ended.killed_by, ended.state_lost) == ("InterpreterEnded", None, True)
        assert ended.error.message == f"the interpreter {how_ended(status)}", ended
        assert ended.stdout == "bye\n"
        assert ended.usage.memory_bytes > 0


@SUITE.case("a2")
async def an_interpreter_that_is_alone_and_does_not_end(stage: Stage, box: Box) -> None:
    """It is interrupted, and killed if that does not help; daemons, even stopped ones, end with it."""
    for code in (
        _DAEMON + "while True: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "import os; os.system('sleep 1000')",
        "import os, signal\nif os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()",
    ):
        began = time.monotonic()
        executed = await box.alone(f"print('begun', flush=True)\n{code}", seconds=0.3)
        assert (executed.killed_by, executed.stdout) == ("wall", "begun\n"), executed
        assert time.monotonic() - began < 0.3 + _SOON


@SUITE.case("a3", limits=Limits(cpu_seconds=0.5, memory_bytes=200 * 2**20, processes=32, output_bytes=10_000))
async def an_interpreter_that_is_alone_and_takes_too_much(stage: Stage, box: Box) -> None:
    """With everything that it started, wherever that went."""
    forks = """import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
"""
    burnt = await box.alone(forks + "        while True: pass\ntime.sleep(60)")
    assert burnt.killed_by == "cpu", burnt
    held = await box.alone(forks + "        x = b'x' * (90 << 20)\n        time.sleep(60)\ntime.sleep(60)")
    assert held.killed_by == "memory" or stage.as_root, held  # a control group kills one of them, as in any session
    alone = await box.alone("x = [b'x' * (1 << 20) for _ in range(300)]\nwhile True: pass")
    assert alone.killed_by == "memory" or (alone.error and alone.error.name == "MemoryError"), alone
    loud = await box.alone("while True: print('x' * 1000)")
    assert (loud.killed_by, len(loud.stdout)) == ("output", 10_000), loud


@SUITE.case("a4")
async def what_one_that_is_alone_says_unasked(stage: Stage, box: Box) -> None:
    """Any such message counts as a failure of the code, not of the sandbox: our own failure would not be scored."""
    say = "import os, time\ndef say(text): os.write(3, text)\n"
    for said in (
        """say(b'{"failed": "no walls", "size": 0}')""",
        """say(b'{"ready": true, "interpreter": true, "size": 0}')""",
        """say(b'nonsense')""",
        """say(b'{"id": 77, "size": 0}')""",
        """os.close(3)""",
        """os.dup2(os.open('/dev/null', os.O_RDWR), 3)""",
    ):
        executed = await box.alone(f"{say}{said}\ntime.sleep(60)", seconds=5)
        assert executed.state_lost, (said, executed)
        assert (executed.error and executed.error.name) == "InterpreterEnded" or executed.timed_out, (said, executed)


# ---- It wants more rights


@SUITE.case("45")
async def a_program_that_raises_its_limits(stage: Stage, box: Box) -> None:
    outcomes = await box.outcomes("""
for name in ("NOFILE", "FSIZE", "NPROC", "CORE", "MEMLOCK", "MSGQUEUE", "NICE", "RTPRIO"):
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    for how, most in {"no limit": 2**64 - 1, "one more": hard + 1}.items():
        for get in ("setrlimit", "prlimit64"):
            wanted = struct.pack("=2Q", most, most)
            args = (number, wanted) if get == "setrlimit" else (0, number, wanted)
            attempt(f"{how} of {name} by {get}", call, get, *args)
attempt("limits of process 1", resource.prlimit, 1, resource.RLIMIT_NOFILE, (4096, 4096))
tell()
""")
    refused(outcomes, "EPERM")


@SUITE.case("46")
async def a_program_that_wants_to_go_first(stage: Stage, box: Box) -> None:
    outcomes = await box.outcomes("""
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(f"policy {policy}", os.sched_setscheduler, 0, policy, os.sched_param(1))
attempt("nicer", os.nice, -1)
attempt("priority", os.setpriority, os.PRIO_PROCESS, 0, -20)
attempt("priority of all", os.setpriority, os.PRIO_USER, 0, -20)
attempt("first at the disk", call, "ioprio_set", 1, 0, 1 << 13)
deadline = struct.pack("=IIQiI3Q", 48, 6, 0, 0, 0, 10**6, 10**7, 10**7)
attempt("deadline", call, "sched_setattr", 0, deadline)
def spare():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
attempt("not to be killed for memory", spare)
tell()
""")
    refused(outcomes, "EPERM", "EACCES")


@SUITE.case("61")
async def a_program_that_lifts_its_confinement(stage: Stage, box: Box) -> None:
    outcomes = await box.outcomes("""
def prctl(option, *args):
    if libc.prctl(option, *(ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4])) < 0:
        raise OSError(ctypes.get_errno(), "")
attempt("new privileges", prctl, 38, 0)
attempt("no filter", prctl, 22, 0)
attempt("strict filter", prctl, 22, 1)
attempt("another filter", call, "seccomp", 1, 0, struct.pack("@HP", 0, 0))
attempt("root's rights", prctl, 28, 0)
for capability in (0, 1, 7, 12, 18, 19, 21):
    attempt(f"ambient capability {capability}", prctl, 47, 2, capability)
attempt("all capabilities", call, "capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0xffffffff] * 6))
for who in (0, 1, 65534):
    attempt(f"be user {who}", os.setuid, who)
    attempt(f"be group {who}", os.setgid, who)
attempt("groups", os.setgroups, [0])
with open("/proc/self/status") as file:
    now = [line.split() for line in file]
outcomes["status"] = " ".join(line[1] for line in now if line[0] in ("CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"))
tell()
""")
    assert outcomes.pop("status") == "0000000000000000 0000000000000000 1 2"
    refused(outcomes, "EPERM", "EINVAL", "ENOSYS")


if os.uname().machine == "x86_64":  # other machines have no second table of system calls

    @SUITE.case("51")
    async def calls_by_the_numbers_of_x32(stage: Stage, box: Box) -> None:
        await _check_ended(
            box, "import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))", -signal.SIGSYS
        )

    @SUITE.case("52")
    async def calls_by_the_numbers_of_32_bits(stage: Stage, box: Box) -> None:
        await _check_ended(
            box,
            """
import ctypes, mmap
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
            -signal.SIGSYS,
        )


def _name() -> tuple[str, str]:
    return os.uname().nodename, Path("/proc/sys/kernel/domainname").read_text()


@SUITE.case("53")
async def a_program_that_changes_the_clock_and_the_name(stage: Stage, box: Box) -> None:
    before = _name()
    outcomes = await box.outcomes("""
attempt("clock", time.clock_settime, time.CLOCK_REALTIME, time.time() + 3600)
attempt("time of day", call, "settimeofday", struct.pack("=2q", 0, 0))
attempt("adjust", call, "adjtimex", struct.pack("=I", 1) + bytes(256))
attempt("adjust a clock", call, "clock_adjtime", 0, struct.pack("=I", 1) + bytes(256))
attempt("name", socket.sethostname, "pwned")
attempt("domain", call, "setdomainname", b"pwned", 5)
def write(path):
    with open(path, "w") as file:
        file.write("b")
for path in ("sysrq-trigger", "sys/kernel/hostname", "sys/kernel/sysrq", "sys/kernel/core_pattern",
             "sys/vm/drop_caches", "1/oom_score_adj", "self/uid_map", "self/setgroups"):
    attempt(path, write, "/proc/" + path)
tell()
""")
    refused(outcomes, "EPERM", "EACCES", "ENOENT")
    assert _name() == before


@SUITE.case("57")
async def a_program_that_loosens_its_control_group(stage: Stage, box: Box) -> None:
    outcomes = await box.outcomes_beside_agent("""
def write(path, text="-1"):
    with open(path, "w") as file:
        file.write(text)
for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/proc/1/root/sys/fs/cgroup"):
    attempt("see " + folder, os.listdir, folder)
    for file in ("cgroup.procs", "tasks", "memory.limit_in_bytes", "pids.max", "release_agent", "cgroup.kill"):
        attempt(f"write {folder}/{file}", write, f"{folder}/{file}", "max")
for kind in ("cgroup", "cgroup2"):
    attempt("mount " + kind, call, "mount", b"none", b"/home/tmp", kind.encode())
    attempt("open " + kind, call, "fsopen", kind.encode())
tell()
""")
    refused(outcomes, "EPERM", "EACCES", "ENOENT")
    membership = (await box.python("print(open('/proc/self/cgroup').read())")).stdout
    assert "toolyard" not in membership, "it can see what its group is called"


@SUITE.case("58")
async def files_by_their_handles(stage: Stage, box: Box) -> None:
    """A guessed handle opens a file whatever the path to it."""
    outcomes = await box.outcomes("""
handle = struct.pack("=Ii", 128, 0) + bytes(128)
for path in (b"/", b"/usr", b"/home/work", b"/etc/passwd"):
    attempt(f"handle of {path}", call, "name_to_handle_at", -100, path, handle, bytes(4), 0)
for inode in (1, 2, 128):
    for size, kind in ((8, 1), (12, 1), (8, 0x81)):
        known = struct.pack("=IiQ", size, kind, inode) + bytes(112)
        for folder in ("/", "/usr", "/home/work"):
            fd = os.open(folder, os.O_RDONLY)
            attempt(f"open {inode} {size} {kind} {folder}", call, "open_by_handle_at", fd, known, 0)
            os.close(fd)
tell()
""")
    refused(outcomes, "EPERM")


# ---- It tries to outlast its session


def _keys_on_host() -> set[int]:
    lines = [line for kind in ("shm", "msg", "sem") for line in Path("/proc/sysvipc", kind).read_text().splitlines()]
    return {int(line.split()[0]) for line in lines if not line.strip().startswith("key")}


@SUITE.case("47")
async def shared_memory_that_is_left_behind(stage: Stage, box: Box) -> None:
    key = 0x7A000000 | os.getpid() & 0xFFFF
    code = f"""
import ctypes
libc = ctypes.CDLL(None)
print([libc.shmget({key}, 4096, 0o3666) >= 0, libc.msgget({key}, 0o3666) >= 0, libc.semget({key}, 1, 0o3666) >= 0])
"""
    assert (await box.python(code)).stdout == "[True, True, True]\n"
    again = f"""
import ctypes
libc = ctypes.CDLL(None)
print([libc.shmget({key}, 4096, 0), libc.msgget({key}, 0), libc.semget({key}, 1, 0)])
"""
    async with stage.open() as other:
        assert (await other.python(again)).stdout == "[-1, -1, -1]\n"
    assert key not in _keys_on_host()


@SUITE.case("48")
async def a_program_that_poisons_the_libraries(stage: Stage, box: Box) -> None:
    outcomes = await box.outcomes("""
import importlib.util, json.decoder, sysconfig
def write(path):
    with open(path, "ab") as file:
        file.write(b"")
def put(path):
    os.rename(own, path)
own = f"/home/work/own{os.getpid()}.py"
with open(own, "w") as file:
    file.write("raise SystemExit('poisoned')")
paths = {name: sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "scripts")}
for name, folder in paths.items():
    attempt("new in " + name, write, folder + "/poison.py")
    attempt("moved to " + name, put, folder + "/poison.py")
    attempt("folder in " + name, os.mkdir, folder + "/poison")
files = {"os": os.__file__, "json": json.decoder.__file__, "python": sys.executable, "bash": "/bin/bash"}
for name, path in files.items():
    attempt("change " + name, write, path)
    attempt("remove " + name, os.remove, path)
    attempt("rights of " + name, os.chmod, path, 0o777)
attempt("change compiled", write, importlib.util.cache_from_source(os.__file__))
attempt("change passwd", write, "/etc/passwd")
attempt("change loader", write, "/etc/ld.so.preload")
os.remove(own)
tell()
""")
    refused(outcomes, "EROFS", "EACCES", "EXDEV")


@SUITE.case("49")
async def a_program_that_poisons_its_interpreter(stage: Stage, box: Box) -> None:
    """Whatever it does to its own Python, the next sandbox of the same template has a clean one."""
    poison = """
import builtins, io, json, os, socket, struct, sys, types
def evil(*args, **options):
    raise SystemExit("poisoned")
for name in list(vars(builtins)):
    if name not in ("BaseException", "__build_class__", "__import__", "__name__"):
        setattr(builtins, name, evil)
for module in (json, os, socket, struct, io, types):
    for name in [*vars(module)]:
        if not name.startswith("__"):
            setattr(module, name, evil)
"""
    executed = await box.python(poison, seconds=2)
    assert executed.value is None
    for _ in range(2):  # the session recovers, if necessary with a new interpreter
        last = await box.python("6 * 7", seconds=2)
    assert last.value == "42", last
    async with stage.open() as other:
        assert (
            await other.sandbox.exec("import json, os; json.loads('[1]'), len(os.getcwd()) > 1")
        ).value == "([1], True)"


@SUITE.case("50")
async def a_program_that_patches_the_memory_that_it_shares(stage: Stage, box: Box) -> None:
    """Pages of the template are shared until a process writes to them. Small numbers lie where all can see them."""
    executed = await box.python("""
import ctypes
ctypes.memset(id(7) + 24, 8, 1)
print(3 + 4)
""")
    assert executed.stdout == "8\n" or executed.state_lost
    async with stage.open() as other:
        assert (await other.sandbox.exec("3 + 4")).value == "7"


# ---- It wants everything


@SUITE.case("54")
async def a_hoard_of_watches(stage: Stage, box: Box) -> None:
    executed = await box.python("""
import ctypes, os
libc = ctypes.CDLL(None)
held = []
while (fd := libc.inotify_init()) >= 0:
    held.append(fd)
while libc.inotify_add_watch(held[0], b"/home/work", 0xfff) > 1:
    pass
print(len(held))
""")
    assert 0 < int(executed.stdout) <= box.sandbox.limits.open_files
    async with stage.open() as other:  # all have the same user, or the same user made them
        assert (await other.python("import ctypes; ctypes.CDLL(None).inotify_init() > 0")).value == "True"


@SUITE.case("55", alone=True)
async def a_bomb_of_threads(stage: Stage, box: Box) -> None:
    code = """
import threading, time
count = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        count += 1
except RuntimeError:
    print(count, flush=True)
"""
    executed = await box.python(code)
    assert 0 < int(executed.stdout) <= box.sandbox.limits.processes
    assert await box.alive()
    await box.python("import os; os._exit(0)")
    ran = await box.run(["python3", "-c", code + "import os; os._exit(0)"])
    assert 0 < int(ran.stdout) <= box.sandbox.limits.processes
    assert await box.alive()


@SUITE.case("56")
async def a_hoard_of_descriptors_in_flight(stage: Stage, box: Box) -> None:
    """Descriptors in flight belong to no process. Each pair here sends its own ends into itself."""
    executed = await box.python("""
import os, socket
sent = 0
try:
    while True:
        left, right = socket.socketpair()
        fd = os.open("/dev/null", os.O_RDONLY)
        for _ in range(1000):
            socket.send_fds(left, [b"x"], [fd, left.fileno(), right.fileno()] * 80)
            sent += 240
except OSError as error:
    print(sent, error.strerror)
""")
    sent, problem = executed.stdout.split(maxsplit=1)
    assert "references" in problem or "Too many open files" in problem, problem
    assert int(sent) < 100_000
    assert await box.alive()


@SUITE.case("59", limits=Limits(disk_bytes=8 * 2**20))
async def a_program_that_fills_shared_memory(stage: Stage, box: Box) -> None:
    code = """
import os
written = 0
try:
    for number in range(100):
        with open(f"/dev/shm/fill{number}", "wb", buffering=0) as file:
            for _ in range(1024):
                written += file.write(bytes(4096))
except OSError as error:
    print(written, error.strerror)
"""
    for _ in range(2):
        written, problem = (await box.python(code)).stdout.split(maxsplit=1)
        assert problem == "No space left on device\n"
        assert int(written) <= 8 * 2**20
    await box.sandbox.write("still.txt", b"there is room in the workspace")
    assert await box.alive()


@SUITE.case("60", limits=Limits(cpus=0.5), alone=True)
async def a_program_that_takes_all_processors(stage: Stage, box: Box) -> None:
    code = """
import os, time
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            pass
        os._exit(0)
    children.append(pid)
used = sum(sum(os.wait4(pid, 0)[2][:2]) for pid in children)
print(used)
"""
    began = time.monotonic()
    executed = await box.python(code)
    seconds = time.monotonic() - began
    assert executed.error is None
    if stage.enforced:
        assert float(executed.stdout) < 0.5 * seconds * 1.3 + 0.2, f"{executed.stdout} s in {seconds} s"


@SUITE.case("62", alone=True)
async def a_loop_that_starts_programs(stage: Stage, box: Box) -> None:
    code = """
import subprocess, sys
started = []
while True:
    try:
        started.append(subprocess.Popen(["sleep", "1000"]))
    except OSError:
        pass
"""
    executed = await box.python(code, seconds=0.4)
    assert executed.timed_out
    await _check_alone(box)
    full = await box.sandbox.run(["true"])  # unreaped ones may still count
    assert full.exit_code in (0, 126), full
    assert (await box.sandbox.exec("import os; os._exit(0)")).state_lost
    assert (await box.sandbox.run(["true"])).exit_code == 0
    for program in (["python3", "-c", code], ["bash", "-c", "while true; do sleep 1000 & done"]):
        ran = await box.run(program, seconds=0.6)
        assert ran.killed_by in ("wall", "output") or ran.exit_code != 0, ran
        await _check_alone(box)


@SUITE.case("63")
async def a_program_that_removes_everything(stage: Stage, box: Box) -> None:
    await box.sandbox.write("mine/deep/file", b"this it may remove")
    here = sorted(os.listdir("/usr")), sorted(os.listdir("/usr/bin"))
    ran = await box.bash("rm -rf --no-preserve-root /home / 2>/dev/null", seconds=3)
    assert ran.exit_code != 0, ran
    assert list(await box.sandbox.list()) == []
    swept = await box.python("import shutil; shutil.rmtree('/', ignore_errors=True)", seconds=2)
    assert not swept.state_lost
    assert (sorted(os.listdir("/usr")), sorted(os.listdir("/usr/bin"))) == here
    assert (await box.run(["python3", "-c", "print(1)"])).stdout == b"1\n"
    await box.sandbox.write("again", b"and it goes on")
    assert await box.alive()


@pytest.mark.parametrize("case", SUITE.cases)
def test_a_hostile_program_ends_when_it_should_and_takes_nobody_with_it(case: str, played: Played) -> None:
    played.check(case)


def test_the_server_goes_on_to_the_end_and_leaves_nothing(played: Played) -> None:
    played.check_end()
