"""Hostile programs that attack the sandbox's machinery: its control socket, its template, the server's access to the
workspace, and the output pipes."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sandboxes.hostile import Box, Played, Stage, Suite, refused
from toolyard.core.errors import CannotFork, WorkspaceError
from toolyard.sandboxes.base import Entry, Executed, Limits

pytestmark = pytest.mark.thorough

SUITE = Suite()

_SOON = 5.0
_MEMORY = 24 * 2**20
"""The most by which the server may grow after an attack on its memory."""

_SPEAK = """
import json, os, socket, sys, threading, time
control = socket.socket(fileno=os.dup(3))
def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
def asked():
    '''The number of the request that this code is part of.'''
    frame = sys._getframe()
    while "request" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["request"]["id"]
def say(header, payload=b""):
    control.send(json.dumps({"size": len(payload), **header}).encode())
    if payload:
        control.send(payload)
def answer(value="'forged'", error=None, id=None, **more):
    '''As the interpreter itself would.'''
    payload = json.dumps({"value": value, "error": error}).encode()
    say({"id": asked() if id is None else id, "cpu": 0.0, "peak": 0, "wall": 0.0, **more}, payload)
"""


def _check_truthful(executed: Executed) -> None:
    """The code did not run, and the result says so; or it ran, with a well-formed result."""
    assert executed.value is None or isinstance(executed.value, str), executed
    json.dumps([executed.value, executed.stdout, executed.stderr]).encode()
    assert 0 <= executed.usage.cpu_seconds < 1e6
    assert 0 <= executed.usage.memory_bytes < 2**50
    if executed.error is not None:
        parts = (executed.error.name, executed.error.message, executed.error.traceback)
        assert all(isinstance(part, str) for part in parts), executed
        "".join(parts).encode()
    if executed.state_lost:
        assert executed.error is not None or executed.killed_by is not None, executed


async def _check_recovers(box: Box) -> None:
    """At most one piece of code loses the interpreter; the next one gets a new one."""
    next_one = await box.sandbox.exec("6 * 7", timeout=2)
    _check_truthful(next_one)
    assert next_one.value == "42" or next_one.state_lost, next_one
    assert await box.alive()


@dataclass
class _Host:
    """The server's resources, for comparison."""

    descriptors: int
    memory: int
    tasks: int

    @classmethod
    async def settled(cls) -> _Host:
        """Wait until nothing has changed for a while: the server makes spare sandboxes."""
        deadline = time.monotonic() + _SOON
        same, last = 0, cls.now()
        while same < 5 and time.monotonic() < deadline:
            await asyncio.sleep(0.04)
            now = cls.now()
            same = same + 1 if now.descriptors == last.descriptors else 0
            last = now
        return last

    @classmethod
    def now(cls) -> _Host:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(len(os.listdir("/proc/self/fd")), resident, len(asyncio.all_tasks()))

    async def check(self) -> None:
        """Nothing has been kept since."""
        deadline = time.monotonic() + _SOON
        while (now := _Host.now()).descriptors > self.descriptors or now.tasks > self.tasks:
            assert time.monotonic() < deadline, f"{self} before, {now} now"
            await asyncio.sleep(0.02)
        assert now.memory - self.memory < _MEMORY, f"{self} before, {now} now"


# ---- The control socket


@SUITE.case("c1", alone=True)
async def messages_that_are_none(stage: Stage, box: Box) -> None:
    sizes = [-1, 2**63, 2**64, 10**30, "9" * 5000, '"5"', "null", "NaN", "Infinity", "1e999", 1.5, "[1]", "{}", "true"]
    headers = [
        b"{",
        b"null",
        b"[]",
        b"1",
        b'"id"',
        b"{}",
        b"\xff\xfe\x00",
        b"\x00" * 1000,
        b"",
        b'{"id": 1}',
        *(f'{{"id": ID, "size": {size}}}'.encode() for size in sizes),
        b'{"id": ID, "size": 1048577}',
        b'{"id": ID, "size": 0, "size": -5}',
        b"[" * 30_000,
        b'{"a":' * 10_000,
        b'{"id": ID, "size": 0, "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"id": ID, "size": 0, "x": "' + b"a" * 60_000 + b'"}',
        b'{"id": ID, "size": 0, "x": "' + b"a" * 90_000 + b'"}',
        b'{"id": ID, "size": 0, "x": ' + b"9" * 60_000 + b"}",
        *(f'{{"id": {id}, "size": 0}}'.encode() for id in (-1, 0, 2**63, '"1"', "[1]", "{}", "null", "NaN", "1e3")),
        b'{"ended": 1, "size": 0}',
        b'{"ready": true, "size": 0}',
        b'{"failed": "yes", "size": 0}',
        b'{"op": "exec", "id": ID, "size": 0}',
    ]
    before = await _Host.settled()
    for header in headers:
        attack = f"{_SPEAK}\ncontrol.send({header!r}.replace(b'ID', str(asked()).encode()))"
        told = await box.python(attack, seconds=0.3)
        _check_truthful(told)
        assert told.state_lost, (header[:80], told)
        assert await box.alive(), header[:80]
    await before.check()


@SUITE.case("c2")
async def a_message_without_its_payload_and_a_payload_without_its_message(stage: Stage, box: Box) -> None:
    for attack in (
        "say({'id': asked(), 'size': 100})",
        "say({'id': asked(), 'size': 2**20})",
        "say({'id': asked(), 'size': 5}, b'12345678')",
        "say({'id': asked(), 'size': 5}, b'123')",
        "say({'id': asked(), 'size': 2**20}, b'x' * 60000)",
        "control.send(b'x' * 60000)",
    ):
        told = await box.python(f"{_SPEAK}\n{attack}", seconds=0.3)
        _check_truthful(told)
        assert told.state_lost, (attack, told)
        await _check_recovers(box)


@SUITE.case("c3")
async def an_answer_before_it_is_asked_for_and_one_too_many(stage: Stage, box: Box) -> None:
    twice = await box.python(f"{_SPEAK}\nanswer()")  # the interpreter itself answers too
    assert twice.value == "'forged'", "it may lie about its own session"
    await _check_recovers(box)
    for ahead in (1, 2, 1000):
        told = await box.python(f"{_SPEAK}\nanswer(id=asked() + {ahead})")
        _check_truthful(told)
        assert told.value != "'forged'"
        await _check_recovers(box)
    later = await box.python(
        f"{_SPEAK}\nlater = lambda number: (time.sleep(0.1), answer(id=number))\n"
        "threading.Thread(target=later, args=[asked() + 1]).start()"
    )
    assert later.error is None
    await asyncio.sleep(0.2)
    await _check_recovers(box)
    race = f"""{_SPEAK}
def often(number):
    try:
        while True:
            answer(id=number + 1)
    except OSError:
        pass
threading.Thread(target=often, args=[asked()]).start()
"""
    for _ in range(5):
        _check_truthful(await box.python(race))
        _check_truthful(await box.sandbox.exec("6 * 7", timeout=2))
    await _check_recovers(box)


@SUITE.case("c4", alone=True)
async def descriptors_for_the_server(stage: Stage, box: Box) -> None:
    before = await _Host.settled()
    for attack in (
        "give(b'x')",
        "give(json.dumps({'id': asked(), 'size': 0}).encode())",
        "give(json.dumps({'id': asked(), 'size': 5}).encode()); give(b'x')",
        "give(json.dumps({'size': 0}).encode())",
        "socket.send_fds(control, [b'{}'], [control.fileno()] * 250)",
    ):
        give = "fds = [os.open('/dev/null', 0)] * 50\ndef give(said): socket.send_fds(control, [said], fds)"
        told = await box.python(f"{_SPEAK}\n{give}\n{attack}", seconds=0.3)
        _check_truthful(told)
        await _check_recovers(box)
    await before.check()


@SUITE.case("c5", alone=True)
async def a_flood(stage: Stage, box: Box) -> None:
    before = await _Host.settled()
    header = "json.dumps({'id': asked(), 'size': 2**20}).encode()"
    for packet in ("b'x' * 60000", "b'{}'", "b''", header, "b'x'"):
        attack = f"""{_SPEAK}
packet = {packet}
while True:
    try:
        control.send(packet)
    except OSError:
        time.sleep(0.01)
"""
        began = time.monotonic()
        told = await box.python(attack, seconds=0.4)
        assert time.monotonic() - began < _SOON
        _check_truthful(told)
        assert told.state_lost
        assert await box.alive()
    drops = f"control.send({header})\nwhile True: control.send(b'x'); time.sleep(0.001)"
    drip = await box.python(f"{_SPEAK}\n{drops}", seconds=0.4)
    assert (drip.killed_by, drip.state_lost) == ("wall", True)
    assert await box.alive()
    await before.check()


@SUITE.case("c6")
async def a_control_socket_that_is_closed_or_replaced(stage: Stage, box: Box) -> None:
    for attack in (
        "os.close(3)",
        "os.close(3); os.close(control.fileno())",
        "control.shutdown(socket.SHUT_RDWR)",
        "control.shutdown(socket.SHUT_WR)",
        "control.shutdown(socket.SHUT_RD)",
        "os.dup2(os.open('/dev/null', os.O_RDWR), 3)",
        "os.dup2(os.open('/dev/zero', os.O_RDWR), 3)",
        "os.dup2(os.pipe()[1], 3)",
        "left, right = pair(); os.dup2(left.fileno(), 3)",
        "os.dup2(4, 3)",
        "os.dup2(3, 4)",
        "os.dup2(3, 1); os.dup2(3, 2)",
    ):
        told = await box.python(f"{_SPEAK}\n{attack}", seconds=0.3)
        _check_truthful(told)
        await _check_recovers(box)


@SUITE.case("c7")
async def a_guest_that_never_reads(stage: Stage, box: Box) -> None:
    """It has answered in the interpreter's place and sleeps on; more is sent to it than the socket holds."""
    asleep = await box.python(f"{_SPEAK}\nanswer(); time.sleep(1000)")
    assert asleep.value == "'forged'"
    began = time.monotonic()
    told = await box.sandbox.exec("#" * 8_000_000, timeout=0.4)
    assert time.monotonic() - began < _SOON
    assert (told.killed_by, told.state_lost) == ("wall", True)
    assert await box.alive()
    await box.python(f"{_SPEAK}\nanswer(); time.sleep(1000)")
    waiting = asyncio.ensure_future(box.sandbox.exec("#" * 8_000_000))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await box.alive()


@SUITE.case("c8")
async def a_child_that_answers(stage: Stage, box: Box) -> None:
    child = await box.python(f"{_SPEAK}\nif os.fork() == 0: answer(); time.sleep(1000)\ntime.sleep(1000)", seconds=5)
    assert child.value == "'forged'"
    both = await box.sandbox.exec("6 * 7", timeout=0.4)  # both possible readers sleep
    assert both.state_lost
    assert await box.alive()
    readers = f"""{_SPEAK}
for _ in range(5):
    if os.fork() == 0:
        while True:
            try:
                request = json.loads(control.recv(65536)); control.recv(65536)
                answer(id=request["id"])
            except Exception:
                pass
"""
    await box.python(readers, seconds=1)
    for _ in range(5):
        _check_truthful(await box.sandbox.exec("6 * 7", timeout=0.5))
    _check_truthful(await box.sandbox.exec("import os; os._exit(1)", timeout=0.5))
    _check_truthful(await box.sandbox.exec("6 * 7", timeout=0.5))  # answered by its interpreter or by a child
    assert (await box.sandbox.run(["echo", "hello"])).stdout == b"hello\n"


@SUITE.case("c9", alone=True)
async def forged_results(stage: Stage, box: Box) -> None:
    before = await _Host.settled()
    odd = ["['x']", "5", "True", "{}", "float('nan')"]
    amounts = ["float('nan')", "float('inf')", "-1", "'1'", "None", "[]", "10**400", "1e300"]
    for attack in (
        *(f"answer(value={value})" for value in odd),
        *(f"answer(error={error})" for error in ("'x'", "['name', 'message', 'traceback']", "5", "{'name': 'x'}")),
        *(f"answer(error=dict(name={part}, message='', traceback=''))" for part in odd),
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'null')",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'[]')",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'{}')",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'{\"value\": \"')",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, bytes([255]) * 100)",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'[' * 60000)",
        "say({'id': asked(), 'cpu': 0, 'peak': 0, 'wall': 0}, b'9' * 60000)",
        "say({'id': asked()}, b'{\"value\": null, \"error\": null}')",
        *(f"answer({what}={much})" for what in ("cpu", "peak", "wall") for much in amounts),
        "say({'id': asked(), 'problem': 'none'})",
        "say({'id': asked(), 'problem': ['x'], 'errno': 'y'})",
    ):
        told = await box.python(f"{_SPEAK}\n{attack}", seconds=1)
        _check_truthful(told)
        assert told.state_lost, (attack, told)
        assert await box.alive()
    half = await box.python(f"{_SPEAK}\nanswer(value='a' + chr(0xd800) + 'b')")
    assert half.value == "a?b"
    await _check_recovers(box)
    much = await box.python(f"""{_SPEAK}
payload = json.dumps({{"value": "x" * 1000000, "error": None}}).encode()
control.send(json.dumps({{"id": asked(), "cpu": 0, "peak": 0, "wall": 0, "size": len(payload)}}).encode())
for at in range(0, len(payload), 60000):
    control.send(payload[at : at + 60000])
""")
    assert much.value == "x" * 1000000
    await _check_recovers(box)
    await before.check()


@SUITE.case("c10", limits=Limits(wall_seconds=1))
async def what_is_said_to_the_agent(stage: Stage, box: Box) -> None:
    """Descriptor 4 leads to process 1, which must not obey it, and brings forks."""
    for attack in (
        "kin.send(b'x' * 1000)",
        "kin.send(json.dumps({'op': 'run', 'id': 1, 'size': 0}).encode())",
        "socket.send_fds(kin, [b'x'], [0, 1, 2, 3])",
        "kin.setblocking(False)\ntry:\n    while True: kin.send(b'x' * 60000)\nexcept BlockingIOError: pass",
        "kin.shutdown(socket.SHUT_WR)",
        "kin.shutdown(socket.SHUT_RDWR)",
        "os.close(4); kin.close()",
        "os.dup2(3, 4)",
        "os.dup2(os.open('/dev/zero', os.O_RDWR), 4)",
        "left, right = pair(); os.dup2(left.fileno(), 4); right.send(b'{}')",
    ):
        await box.python(f"{_SPEAK}\nkin = socket.socket(fileno=os.dup(4))\n{attack}")
        assert (await box.sandbox.run(["echo", "hello"])).stdout == b"hello\n"
        try:
            async with asyncio.timeout(_SOON):
                (branch,) = await box.fork()
        except CannotFork:
            pass
        else:
            await branch.close()
        await _check_recovers(box)
        await box.sandbox.exec("import os; os._exit(0)")
        assert await box.alive()


# ---- The template process, and what comes from it


@SUITE.case("t1")
async def the_processes_that_make_sandboxes(stage: Stage, box: Box) -> None:
    """They cannot be seen, signalled or inspected."""
    helpers = _helpers(stage.server)
    assert len(helpers) >= 2, "a broker and a template"
    outcomes = await box.outcomes_beside_agent(f"""
helpers = {helpers}
for pid in helpers:
    attempt(f"signal {{pid}}", os.kill, pid, 0)
    attempt(f"kill {{pid}}", os.kill, pid, 9)
    attempt(f"hold {{pid}}", os.pidfd_open, pid)
    attempt(f"trace {{pid}}", call, "ptrace", 16, pid)
    attempt(f"read {{pid}}", call, "process_vm_readv", pid, bytes(16), 1, bytes(16), 1)
    attempt(f"see {{pid}}", os.listdir, f"/proc/{{pid}}")
    attempt(f"group {{pid}}", os.getpgid, pid)
    attempt(f"scheduling {{pid}}", os.sched_getaffinity, pid)
attempt("trace 1", call, "ptrace", 16, 1)
looks = {{os.readlink: ("root", "cwd", "ns/pid"), os.listdir: ("fd", "task/1/fd"), open: ("mem", "environ")}}
for look, files in looks.items():
    for file in files:
        attempt("1's " + file, look, f"/proc/1/{{file}}")
tell()
""")
    in_program = {what: how for what, how in outcomes.items() if "'s " in what}
    refused({what: how for what, how in outcomes.items() if what not in in_program}, "ESRCH", "EPERM", "ENOENT")
    refused(in_program, "EACCES", "EPERM")
    assert (await box.python("print(open('/proc/1/status').read())")).stdout.count("PPid:\t0\n") == 1
    assert _helpers(stage.server) == helpers


def _helpers(server: int) -> list[int]:
    """The broker and the templates of this server, by their pids on the host."""
    found, new = [], [server]
    for _ in range(2):
        new = [int(pid) for parent in new for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        found += new
    return found


@SUITE.case("t2")
async def descriptors_that_are_inherited(stage: Stage, box: Box) -> None:
    look = """
import os
found = []
for name in os.listdir("/proc/self/fd"):
    try:
        found.append((int(name), os.readlink(f"/proc/self/fd/{name}").partition(":")[0]))
    except OSError:
        pass
print(sorted((fd, name) for fd, name in found if name != f"/proc/{os.getpid()}/fd"))
"""
    standard = {(0, "pipe"), (1, "pipe"), (2, "pipe")}
    inside = ast.literal_eval((await box.python(look)).stdout)
    assert {(fd, name) for fd, name in inside if fd < 5} == standard | {(3, "socket"), (4, "socket")}
    assert [name for fd, name in inside if fd >= 5] == ["pipe"] * 3, (
        inside
    )  # the interpreter's copies of the first three
    assert set(ast.literal_eval((await box.run(["python3", "-c", look])).stdout.decode())) == standard
    await box.sandbox.write("look.py", look.encode())
    shell = ast.literal_eval((await box.shell("python3 look.py")).stdout.decode())
    assert {fd for fd, _ in shell} == {0, 1, 2}


@SUITE.case("t3")
async def what_the_stack_of_the_template_gives_away(stage: Stage, box: Box) -> None:
    """The interpreter is a copy of a copy of the template: it finds the frames of both, and nothing useful in them."""
    walk = await box.python("""
import gc, os, socket, sys
frame, names, sockets = sys._getframe(), [], []
while frame is not None:
    names.append(frame.f_code.co_qualname)
    values = [*frame.f_locals.values()]
    values += [value for owner in values if hasattr(owner, "__dict__") for value in vars(owner).values()]
    for value in values:
        if isinstance(value, socket.socket):
            try:
                sockets.append((value.fileno(), os.fstat(value.fileno()).st_ino))
            except OSError:
                sockets.append((value.fileno(), None))
    frame = frame.f_back
own = {os.fstat(fd).st_ino for fd in (3, 4)}
print(len(names), [fd for fd, inode in sockets if inode is not None and inode not in own])
""")
    assert walk.error is None, walk.error
    assert walk.stdout.endswith(" []\n"), walk.stdout


# ---- The workspace, while the server reads and writes in it


async def _swapping(box: Box, *pairs: tuple[str, str]) -> None:
    """From now on a program inside swaps these names as fast as it can."""
    code = f"""
import subprocess
swapping = subprocess.Popen(["python3", "-c", '''
import ctypes
exchange = ctypes.CDLL(None).renameat2
while True:
    for left, right in {pairs!r}:
        exchange(-100, left.encode(), -100, right.encode(), 2)
'''])
"""
    assert (await box.python(code)).error is None


async def _tried(work: Awaitable[Any]) -> Any:
    """The result, or None if it was refused."""
    async with asyncio.timeout(_SOON):
        try:
            return await work
        except WorkspaceError:
            return None


@SUITE.case("w1")
async def directories_that_become_links(stage: Stage, box: Box) -> None:
    targets = ["/etc", "..", "../tmp", "/", "/proc/self/root/etc", "/proc/1/root", str(stage.folder)]
    await box.python(f"""
import os
for number, target in enumerate({targets!r}):
    os.mkdir(f"d{{number}}")
    open(f"d{{number}}/passwd", "w").write("inside")
    open(f"d{{number}}/marker", "w").write("inside")
    os.symlink(target, f"l{{number}}")
""")
    await _swapping(box, *((f"d{number}", f"l{number}") for number in range(len(targets))))
    seen: set[Any] = set()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for number in range(len(targets)):
            seen.add(await _tried(box.sandbox.read(f"d{number}/passwd")))
            seen.add(await _tried(box.sandbox.read(f"d{number}/marker")))
            await _tried(box.sandbox.write(f"d{number}/{stage.tag}", b"outside?"))
            await _tried(box.sandbox.write(f"d{number}/{stage.tag}-dir/new", b"outside?"))
            listed = await _tried(box.sandbox.list(f"d{number}"))
            names = {entry.name for entry in listed or ()}
            assert names <= {"passwd", "marker", stage.tag, f"{stage.tag}-dir"}, names
    assert seen == {b"inside", None}, seen
    around = await box.python(f"""
swapping.kill(); swapping.wait()
places = ("/", "/etc", "/home", "/home/tmp", "/proc")
print([name for place in places for name in os.listdir(place) if {stage.tag!r} in name])
""")
    assert around.stdout == "[]\n"


@SUITE.case("w2")
async def files_that_become_something_else(stage: Stage, box: Box) -> None:
    await box.python("""
import os, socket
things = {"link": lambda p: os.symlink("/etc/passwd", p), "fifo": os.mkfifo, "dir": os.mkdir,
          "zero": lambda p: os.symlink("/dev/zero", p), "mem": lambda p: os.symlink("/proc/self/mem", p),
          "self": lambda p: os.symlink("/proc/self/fd/0", p), "gone": lambda p: os.symlink("nowhere", p),
          "loop": lambda p: os.symlink(p, p), "sock": lambda p: socket.socket(socket.AF_UNIX).bind(p)}
for name, make in things.items():
    make(name)
    open(f"file-{name}", "w").write("inside")
""")
    names = ["link", "fifo", "dir", "zero", "mem", "self", "gone", "loop", "sock"]
    for name in names:  # at rest
        assert await _tried(box.sandbox.read(name)) is None, name
        if name not in ("gone",):  # a write creates it, inside
            with pytest.raises(WorkspaceError):
                await box.sandbox.write(name, b"x")
        if name != "dir":
            with pytest.raises(WorkspaceError):
                await box.sandbox.list(name)
    kinds = {entry.name: entry.kind for entry in await box.sandbox.list()}
    assert (kinds["link"], kinds["fifo"], kinds["dir"], kinds["sock"]) == ("link", "other", "directory", "other")
    await _swapping(box, *((f"file-{name}", name) for name in names))
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for name in names:
            read = await _tried(box.sandbox.read(f"file-{name}"))
            assert read in (b"inside", b"written", b"", None), read
            await _tried(box.sandbox.write(f"file-{name}", b"written"))
            await _tried(box.sandbox.list("."))
    assert await box.alive()


@SUITE.case("w3")
async def paths_that_lead_out(stage: Stage, box: Box) -> None:
    await box.sandbox.write("dir/file", b"inside")
    for path in (
        "..",
        "../work/../../etc/passwd",
        "dir/../../tmp",
        "/etc/passwd",
        "/home/workspace",
        "/home/work/../tmp",
        "/home/work/../../etc/passwd",
        "dir/file/x",
        "dir/../dir/file2",
        "/proc/self/environ",
        "~/x",
        "dir\0x",
        "x" * 256,
        "x/" * 2047 + "y",
        "x/" * 5000,
        "\ud800",
        "/" * 4000,
        "",
        ".",
        "dir",
    ):
        assert await _tried(box.sandbox.read(path)) is None, path
    outside = ["../outside", "/home/tmp/outside", "dir/../../tmp/outside", "dir/file/x"]
    for path in [*outside, "", ".", "dir", "x" * 256, "a/\ud800"]:
        with pytest.raises(WorkspaceError):
            await box.sandbox.write(path, b"x")
    assert await _tried(box.sandbox.list("../tmp")) is None
    around = await box.python("import os; os.listdir('/home/tmp'), sorted(os.listdir('/home'))")
    assert around.value == "([], ['tmp', 'work'])"
    assert await box.sandbox.read("/home/work/dir/../dir/./file") == b"inside"


@SUITE.case("w4")
async def names_of_all_kinds(stage: Stage, box: Box) -> None:
    made = await box.python(r"""
import os
names = [b"new\nline", b"tab\t", b"\xff\xfe", b"\xed\xa0\x80", b"caf\xc3\xa9", b"-rf", b" ", b"\\", b"\"", b"'", b"*",
         b"\x01\x7f", b"x" * 255, b"\xe2\x80\xae", b"...", b"{\"a\":1}", b"\xff" * 255]
os.mkdir("odd")
for name in names:
    with open(b"odd/" + name, "wb") as file:
        file.write(name)
os.link("odd/-rf", "odd/hard")
os.mkdir("secret", 0)
open("odd/closed", "w").close()
os.chmod("odd/closed", 0)
""")
    assert made.error is None, made.error
    entries = await box.sandbox.list("odd")
    assert len(entries) == 19
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    for entry in entries:
        content = await box.sandbox.read(f"odd/{entry.name}")
        assert content == {"hard": b"-rf", "closed": b""}.get(entry.name, os.fsencode(entry.name))
    for entry in entries:
        await box.sandbox.write(f"odd/{entry.name}", b"again")
        assert await box.sandbox.read(f"odd/{entry.name}") == b"again"
    await box.sandbox.write("secret/inside", b"the agent may")
    assert list(await box.sandbox.list("secret")) == [Entry("inside", "file", 13)]


@SUITE.case("w5")
async def a_directory_of_8000_names_and_one_of_great_depth(stage: Stage, box: Box) -> None:
    fill = """
import os, shutil
shutil.rmtree("many", ignore_errors=True)
os.mkdir("many")
for number in range(8000):
    open(f"many/{{number:05}}" + {filling!r} * 250, "w").close()
"""
    for filling in ("x", "\n"):
        assert (await box.python(fill.format(filling=filling))).error is None
        assert len(await box.sandbox.list("many")) == 8000
    assert (await box.python(fill.format(filling="\x01"))).error is None
    with pytest.raises(WorkspaceError, match="8000 names"):  # each character takes six bytes
        await box.sandbox.list("many")
    dug = await box.python("""
shutil.rmtree("many")
os.mkdir("deep")
os.chdir("deep")
for _ in range(3500):
    os.mkdir("d")
    os.chdir("d")
os.chdir("/home/work")
""")
    assert dug.error is None, dug.error
    assert len(await box.sandbox.list("deep/" + "d/" * 1500)) == 1
    await box.sandbox.write("deep/" + "d/" * 1500 + "new", b"x")
    assert await box.sandbox.read("deep/" + "d/" * 1500 + "new") == b"x"
    try:
        (branch,) = await box.fork()
    except CannotFork:  # so deep a tree need not be copyable
        pass
    else:
        await branch.close()
    assert await box.alive()


@SUITE.case("w6")
async def files_that_change_while_they_are_read(stage: Stage, box: Box) -> None:
    """One grows without end, one is cut and filled again, one is leased, and names come and go."""
    programs = [
        """
import os
while True:
    with open("grows", "ab") as file:
        while file.tell() < 60 * 2**20:
            file.write(bytes(2**16))
    os.truncate("grows", 0)
""",
        """
import os
while True:
    os.truncate("cut", 0)
    os.truncate("cut", 2**20)
""",
        """
import os
while True:
    for number in range(50):
        open(f"moving/{number}", "w").close()
        if os.path.exists(f"moving/{number * 7 % 50}"):
            os.remove(f"moving/{number * 7 % 50}")
""",
        """
import fcntl, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open("leased", "r+") as file:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    open("ready", "w").close()
    time.sleep(1000)
""",
    ]
    started = await box.python(f"""
import os, subprocess, time
os.mkdir("moving")
for name in ("grows", "cut", "leased"):
    open(name, "w").close()
started = [subprocess.Popen(["python3", "-c", code]) for code in {programs!r}]
while not os.path.exists("ready"):
    time.sleep(0.01)
""")
    assert started.error is None
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        grown = await _tried(box.sandbox.read("grows"))
        assert grown is None or len(grown) <= box.sandbox.limits.file_bytes + 2**20
        cut = await _tried(box.sandbox.read("cut"))
        assert cut is None or len(cut) <= 2**21
        listed = await _tried(box.sandbox.list("moving"))
        assert listed is not None
        assert {entry.name for entry in listed} <= {str(number) for number in range(50)}
        await _tried(box.sandbox.read("leased"))
        await _tried(box.sandbox.write("leased", b"x"))
    assert await box.alive()


@SUITE.case("w7", limits=Limits(disk_bytes=2**20, disk_files=64, file_bytes=2**19, memory_bytes=96 * 2**20))
async def a_workspace_that_is_full(stage: Stage, box: Box) -> None:
    with pytest.raises(WorkspaceError, match="may have"):
        await box.sandbox.write("large", bytes(2**20))
    await box.python("open('full', 'wb').write(bytes(2**19)); open('too', 'wb').write(bytes(2**18))")
    with pytest.raises(WorkspaceError, match="space"):
        await box.sandbox.write("more", bytes(2**19))
    await box.python("import os; os.remove('full'); os.remove('more')")
    await box.sandbox.write("fits", bytes(2**18))
    assert await box.sandbox.read("fits") == bytes(2**18)
    await box.python("for number in range(100): open(f'n{number}', 'w').close()")
    with pytest.raises(WorkspaceError):
        await box.sandbox.write("one/too/many", b"")
    assert await box.alive()


# ---- Output


@SUITE.case("o1", alone=True)
async def output_as_fast_as_it_goes(stage: Stage, box: Box) -> None:
    await box.show("shell")
    before = await _Host.settled()
    writers = """
import os
for _ in range(8):
    if os.fork() == 0:
        break
data = bytes(2**20)
while True:
    os.write(1, data)
    os.write(2, data)
"""
    used = time.process_time()
    executed = await box.python(writers, seconds=3)
    assert executed.killed_by == "output", executed.killed_by
    assert len(executed.stdout) <= box.sandbox.limits.output_bytes
    ran = await box.run(["python3", "-c", writers], seconds=3)
    assert (ran.killed_by, ran.exit_code) == ("output", 137)
    assert len(ran.stdout) <= box.sandbox.limits.output_bytes
    await box.sandbox.write("writers.py", writers.encode())
    shell = await box.shell("python3 writers.py", seconds=3)
    assert shell.killed_by == "output"
    assert time.process_time() - used < 3, "it kept the server busy"
    assert await box.alive()
    await before.check()


@SUITE.case("o2", alone=True)
async def output_when_nobody_listens(stage: Stage, box: Box) -> None:
    """From a thread and from a job of the shell, after code and command have ended."""
    await box.python("""
import os, threading
def flood():
    while True:
        os.write(1, bytes(65536))
threading.Thread(target=flood).start()
""")
    await box.shell("cat /dev/zero & cat /dev/zero >&2 &")
    await asyncio.sleep(0.2)
    used = time.process_time()
    await asyncio.sleep(1)
    assert time.process_time() - used < 0.3, "it keeps the server busy"
    for _ in range(3):
        _check_truthful(await box.sandbox.exec("6 * 7", timeout=2))
    assert (await box.sandbox.exec("import os; os._exit(0)", timeout=2)).state_lost
    assert await box.alive()
    await box.sandbox.shell("kill -9 $$")
    assert (await box.sandbox.shell("echo hello")).stdout == b"hello\n"


@SUITE.case("o3")
async def output_that_is_no_text(stage: Stage, box: Box) -> None:
    raw = bytes(range(256)) * 4
    code = "import os; os.write(1, bytes(range(256)) * 4); os.write(2, bytes(range(256)) * 4)"
    executed = await box.python(code)
    assert executed.stdout == executed.stderr == raw.decode(errors="replace")
    ran = await box.run(["python3", "-c", code])
    assert (ran.stdout, ran.stderr) == (raw, raw)
    await box.sandbox.write("raw.py", code.encode())
    shell = await box.shell("python3 raw.py")
    assert (shell.stdout, shell.stderr) == (raw, raw)
    odd = await box.python("import sys; sys.stdout.write('\\ud800\\0\\x1b[2J'); 'x\\ud800'")
    assert odd.value == "'x\\ud800'"
    json.dumps([odd.stdout, odd.value]).encode()


@SUITE.case("o4")
async def a_shell_that_is_lied_to(stage: Stage, box: Box) -> None:
    """A command can find the mark that ends it, and write it itself."""
    lie = r"""
for fd in 1 2; do printf '=0\n+x\n' >&$fd; done
exec 62>&- 63>&-
trap 'echo trapped' EXIT DEBUG
echo() { builtin echo lied; }
printf() { builtin echo lied; }
eval() { builtin echo lied; }
PROMPT_COMMAND='echo x'
set -x
"""
    told = await box.shell(lie, seconds=2)
    assert told.exit_code in range(256) or told.state_lost
    again = await box.sandbox.shell("builtin printf hello", timeout=2)
    assert again.exit_code in range(256) or again.state_lost, again
    hangs = ["exec cat", "kill -STOP $$", "while :; do :; done", "exec sleep 100"]
    for command in [*hangs, "exec 0<&-", "exit 3", "read x; read y"]:
        ended = await box.shell(command, seconds=0.4)
        assert ended.state_lost or ended.exit_code in range(256), ended
        again = await box.sandbox.shell("builtin printf hello", timeout=2)
        if again.stdout != b"hello":
            again = await box.sandbox.shell("builtin printf hello", timeout=2)
        assert again.stdout == b"hello", (command, again)
    for command in ("\0", "\ud800", "x" * 5_000_000, "'", '"', "$(", "((", "if", "\\"):
        odd = await box.shell(command, seconds=2)
        assert odd.exit_code != 0, odd
    assert (await box.sandbox.shell("builtin printf hello", timeout=2)).stdout == b"hello"


@SUITE.case("o5")
async def input_that_nobody_reads(stage: Stage, box: Box) -> None:
    much = bytes(16 * 2**20)
    began = time.monotonic()
    assert (await box.run(["true"], stdin=much)).exit_code == 0
    assert (await box.bash("exec <&-; exit 4")).exit_code == 4
    slow = await box.run(["sleep", "1000"], stdin=much, seconds=0.3)
    assert slow.timed_out
    counted = await box.run(["wc", "-c"], stdin=much)
    assert counted.stdout.strip() == str(len(much)).encode()
    assert time.monotonic() - began < _SOON


@SUITE.case("e1")
async def an_answer_that_says_something_else_each_time(stage: Stage, box: Box) -> None:
    """Random bytes on the control socket, from a fixed seed; the server goes on in any case."""
    for seed in range(60):
        attack = f"""{_SPEAK}
import random
rng = random.Random({seed})
for _ in range(rng.randint(1, 5)):
    header = {{rng.choice(["id", "size", "cpu", "peak", "problem", "ended", "ready", "op", "x"]): rng.choice(
        [asked(), 0, 1, -1, 2**40, None, True, "x", [], {{}}, 1.5]) for _ in range(rng.randint(0, 6))}}
    packet = json.dumps(header).encode()
    if rng.random() < 0.3:
        packet = bytearray(packet)
        packet[rng.randrange(len(packet))] = rng.randrange(256)
    control.send(packet)
    if rng.random() < 0.5:
        control.send(rng.randbytes(rng.randint(1, 3000)))
"""
        _check_truthful(await box.python(attack, seconds=0.2))
        _check_truthful(await box.sandbox.exec("6 * 7", timeout=0.5))
    await _check_recovers(box)


@pytest.mark.parametrize("case", SUITE.cases)
def test_a_hostile_program_cannot_confuse_what_holds_it(case: str, played: Played) -> None:
    played.check(case)


def test_the_server_goes_on_to_the_end_and_leaves_nothing(played: Played) -> None:
    played.check_end()
