"""The interpreter's process: does what the host asks, one piece of code after the other, and forks itself.

It shares its process with untrusted code, so nothing that it says is taken for more than that code's own word.
"""

from __future__ import annotations

import _random
import _socket
import _thread
import fcntl
import functools
import os
import posix
import random
import re
import resource
import select
import stat
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolyard.sandboxes.native import forking, rootfs, signals, syscalls, wire

_drawing: _random.Random = random.seed.__self__  # type: ignore[attr-defined]
"""What functions of `random` draw from. A method of its base class seeds it with fewer steps than its own."""
_chance = syscalls.Syscalls()
"""Draws what numpy goes on from. The template has drawn that for all of its copies."""
_NUMPY_STATE, _DRAWN_AT_ONCE = 624 * 4, 256  # more than so many bytes can be interrupted

_ENTERED = b"entered"
_BRANCH_FILES = 4
"""That come from the host for a branch."""

_LOOKS, _LOOK_SECONDS = 100, 0.0005
"""For threads that have ended, and are not gone."""

_surrender = syscalls.Syscalls()
"""Of the power that an interpreter has in the namespaces of its branch."""
syscalls.drop_capabilities(_surrender)
_surrender.add("prctl", syscalls.PR_SET_DUMPABLE, 1)


def live(control_fd: int, kin_fd: int, interpreter: Any) -> None:
    """Until the host hangs up. A child that the code forked, and that came back here, ends.

    One that is alone has no kin, and is not asked to fork."""
    control, kin = wire.at(control_fd), None if kin_fd < 0 else wire.at(kin_fd)
    _begin(interpreter)
    _serve(control, kin, interpreter)


def rehearse(interpreter: Any, times: int) -> None:
    """In the template: do so many times what is done above. Nobody listens to the answers."""
    for _ in range(times):
        _begin(interpreter)
        interpreter.detach()
        sys.path.remove("")
    ours, theirs = wire.pair()
    for _ in range(times):
        wire.send(ours, {"id": 0, "op": "rehearse"})
    ours.shutdown(_socket.SHUT_WR)
    _serve(theirs, None, interpreter)
    ours.close()
    theirs.close()


def prepare_chance() -> None:
    """In the template, with all libraries loaded."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # none of it is used up then, and nothing else is remembered
        state = _generator(numpy).ctypes.state_address
        for begin in range(0, _NUMPY_STATE, _DRAWN_AT_ONCE):
            size = min(_DRAWN_AT_ONCE, _NUMPY_STATE - begin)
            _chance.add("getrandom", state + begin, size, gives=size)


def _generator(numpy: Any) -> Any:
    """What functions of `numpy.random` draw from."""
    if hasattr(numpy.random, "get_bit_generator"):
        return numpy.random.get_bit_generator()
    return numpy.random.mtrand._rand._bit_generator  # before 1.24


def _begin(interpreter: Any) -> None:
    interpreter.attach()
    signals.handle(signals.PIPE, signals.IGNORED)  # as in any Python: a write that fails, and not the end
    _random.Random.seed(_drawing)
    _chance.make()
    if (threading := sys.modules.get("threading")) is not None:
        threading.main_thread()._set_native_id()  # its thread has the number of this process


def _serve(control: _socket.socket, kin: _socket.socket | None, interpreter: Any) -> None:
    own = os.getpid()
    while True:
        try:
            request, payload, fds = wire.receive(control)
        except wire.Closed:
            return
        except BaseException as error:  # a timer or signal handler that code has left behind
            if isinstance(error, OSError) and error.errno is not None:
                raise  # it was the socket
            continue
        if request["op"] == "exec":
            answer, data = _execute(interpreter.run, payload)
        elif request["op"] == "rehearse":  # what is done for the first time takes longest: it has memory copied
            answer, data = _execute(interpreter.rehearse, b"print(end='')")
        elif request["op"] == "check":
            answer, data = {"problem": _problem()}, b""
        else:
            assert kin is not None
            problem = _fork(control, kin, fds)
            if problem is None:  # we are the branch, and it is the host of that who will ask
                own = os.getpid()
                interpreter.leave_loop()  # Python may not have been told, and so the interpreter neither
                interpreter.attach()
                continue
            answer, data = {"problem": problem}, b""
        if os.getpid() != own:
            os._exit(0)
        wire.send(control, {"id": request["id"], **answer}, data)


def _execute(run: Callable[[str], object], code: bytes) -> tuple[dict[str, Any], bytes]:
    before, _ = _used()
    began = time.monotonic()
    result = run(code.decode("utf-8", "surrogatepass"))
    wall = time.monotonic() - began
    after, peak = _used()
    return {"cpu": after - before, "peak": peak, "wall": wall}, wire.encoded(result).encode()


def _used() -> tuple[float, int]:
    """Seconds of processor time, with those of children, and the most memory that was held at once."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, own.ru_maxrss * 1024


# Branching.


def _fork(control: _socket.socket, kin: _socket.socket, fds: Sequence[int]) -> str | None:
    """None in the branch. In the process that is forked: what prevented it, or an empty text.

    `fds` are the branch's standard files and its way to the host; its namespaces come from the agent.
    """
    header, _, invited = wire.receive(kin)
    waiting = select.poll()
    waiting.register(kin, select.POLLIN)
    while waiting.poll(0):  # that was for a fork that was given up
        for fd in invited:
            os.close(fd)
        header, _, invited = wire.receive(kin)
    kinds = header["namespaces"]
    try:
        if len(invited) != len(kinds) + 1 or len(fds) != _BRANCH_FILES:
            return "it may have no more files open"
        places = dict(zip((0, 1, 2, control.fileno(), kin.fileno()), (*fds, invited[-1]), strict=True))
        return _branch(dict(zip(invited, kinds, strict=False)), places)
    except OSError as error:  # no room for a pipe
        return _words(error).decode(errors="replace")
    finally:
        for fd in (*invited, *fds):
            os.close(fd)


def _branch(namespaces: Mapping[int, int], places: Mapping[int, int]) -> str | None:
    """The same. The branch has these files, of which each comes to another place."""
    told, tells = os.pipe()
    branched = False
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        branched = _copied_into(namespaces, places, tells)
    except BaseException as error:  # a stream of the code's own, or there can be no more processes
        os.write(tells, _words(error))
    if branched:
        os.write(tells, _ENTERED)
    os.close(tells)
    said = b"" if branched else os.read(told, 4096) or b"the branch ended at once"
    os.close(told)
    if branched:
        return None
    return "" if said == _ENTERED else said.decode(errors="replace")


def _words(error: BaseException) -> bytes:
    if isinstance(error, BlockingIOError):
        return b"it can have no more processes"
    return f"{type(error).__name__}: {error}".encode(errors="replace")[:1000]


def _copied_into(namespaces: Mapping[int, int], places: Mapping[int, int], tells: int) -> bool:
    """Whether we are the copy, which has moved in. Hooks for forks find all as the code left it, or as it will be.

    Libraries of the template have hooks because of threads, of which there are none. So if the code has no hooks of its
    own, Python is not told: that would write to many pages of memory, and so copy them.
    """
    copied, _now.branching = False, True
    hooked = _now.hooked
    if hooked:
        forking.before_fork()
    try:
        here, files = os.getcwd(), list(_private_files())
        copied = forking.fork_into(namespaces) == 0
        if copied:
            _move_in(here, files, places, tells)
    finally:
        if hooked and copied:
            forking.after_in_child()
        elif hooked:
            forking.after_in_parent()
        _now.branching = False
    return copied


def _draw_anew() -> None:
    """In a child of the code's own, as any Python does. A branch goes on from the same place."""
    if not _now.branching:
        random.seed()


_now = types.SimpleNamespace(branching=False, hooked=False)
os.register_at_fork(after_in_child=_draw_anew)  # that of `random` itself is not there: see `boot`


def watch_for_hooks() -> None:
    """In the template, with all libraries loaded: note from now on whether somebody has hooks for forks."""
    register = os.register_at_fork
    # From Python 3.12 on asyncio has one because of its loops, and those are the code's. Older IPythons load it.
    _now.hooked = hasattr(sys.modules.get("asyncio.events"), "on_fork")

    @functools.wraps(register)
    def registered(**hooks: Callable[[], object]) -> None:
        register(**hooks)
        _now.hooked = True

    for module in (os, posix):
        setattr(module, register.__name__, registered)


def _move_in(here: str, files: Sequence[tuple[int, str, int, int]], places: Mapping[int, int], tells: int) -> None:
    """As the branch: give up the power over its namespaces, and have files in its own workspace, and those that are new
    in their places. What goes wrong is told."""
    try:
        _surrender.make()
        os.chdir(here)
        for fd, path, flags, offset in files:
            opened = os.open(path, flags)
            if offset:
                os.lseek(opened, offset, os.SEEK_SET)
            os.dup2(opened, fd, os.get_inheritable(fd))
            os.close(opened)
        for place, fd in places.items():
            os.dup2(fd, place)
    except BaseException as error:  # there are two of us: only one may go on
        os.write(tells, _words(error))
        os._exit(1)


def _problem() -> str:
    """What prevents a fork."""
    try:
        return _unforkable()
    except BaseException as error:  # it may have no more files open, or a signal's handler has raised it
        return _words(error).decode(errors="replace")


def _unforkable() -> str:
    """What in this process cannot be copied."""
    if threads := _other_threads():
        return f"{threads} threads are running in the interpreter"
    children = [pid for pid in _text_of(f"/proc/self/task/{os.getpid()}/children").split() if not _is_zombie(pid)]
    if children:
        return f"the interpreter has child processes: {', '.join(map(bytes.decode, children))}"
    if _seems_to_share_memory():
        shared = sorted(set(re.findall(rb"^\S+ .w.s \S+ \S+ \S+ *(.*)$", _text_of("/proc/self/maps"), re.MULTILINE)))
        if shared:
            return f"memory is shared with others, as that of {os.fsdecode(b', '.join(shared))}"
    files = [path for _, path, about in _open_files() if stat.S_ISREG(about.st_mode) and path.startswith("/")]
    nameless = [path for path in files if not os.path.exists(path)]
    return f"open files have no name: {', '.join(nameless)}" if nameless else ""


def _other_threads() -> int:
    """As the system counts them. For Python, and for who joins it, a thread has ended a moment before it is gone."""
    for _ in range(_LOOKS):
        others = len(os.listdir("/proc/self/task")) - 1
        if not others or _thread._count():
            break
        time.sleep(_LOOK_SECONDS)
    return others


def _is_zombie(pid: bytes) -> bool:
    return _text_of(f"/proc/{pid.decode()}/stat").rpartition(b")")[2].split()[0] == b"Z"


def _seems_to_share_memory() -> bool:
    """Whether others can see what is written to some of its memory, or there is a file whose name looks like that."""
    before = b""
    for part in _parts_of("/proc/self/maps"):
        seen = before + part
        if b"w-s " in seen or b"wxs " in seen:
            return True
        before = seen[-len(b"w-s ") :]
    return False


def _text_of(path: str) -> bytes:
    return b"".join(_parts_of(path))


def _parts_of(path: str) -> Iterator[bytes]:
    """By hand, and piece by piece: `open` does much for a file, and a thousand lines at once take much memory.

    Whatever this process writes to, its branches have to have copies of."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 2048):
            yield part
    finally:
        os.close(fd)


def _private_files() -> Iterator[tuple[int, str, int, int]]:
    """Open files of the workspace, which the branch has to open again in its own: number, path, flags, position."""
    for fd, path, about in _open_files():
        if path.startswith(rootfs.HOME + "/") and (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            yield fd, path, flags, 0 if flags & os.O_PATH else os.lseek(fd, 0, os.SEEK_CUR)


def _open_files() -> Iterator[tuple[int, str, os.stat_result]]:
    """Number, path, and what it is."""
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            found = fd, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        except OSError:  # the one that listed them
            continue
        yield found
