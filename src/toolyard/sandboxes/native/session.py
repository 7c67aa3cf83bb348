"""The interpreter's process: it runs the host's requests, one after the other, and forks itself.

It shares its process with untrusted code, so the host trusts its messages no more than that code's.
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
"""The generator behind functions of `random`. A method of its base class seeds it with fewer steps."""
_chance = syscalls.Syscalls()
"""Draws numpy's next random state. The template has drawn one for all of its copies."""
_NUMPY_STATE, _DRAWN_AT_ONCE = 624 * 4, 256  # longer reads can be interrupted

_ENTERED = b"entered"
_BRANCH_FILES = 4
"""Files that the host sends for a branch."""

_LOOKS, _LOOK_SECONDS = 100, 0.0005
"""For threads that have ended but are not gone yet."""

_surrender = syscalls.Syscalls()
"""Gives up an interpreter's capabilities in the namespaces of its branch."""
syscalls.drop_capabilities(_surrender)
_surrender.add("prctl", syscalls.PR_SET_DUMPABLE, 1)


def live(control_fd: int, kin_fd: int, interpreter: Any) -> None:
    """Serve until the host disconnects. A child that the code forked, and that returns here, exits.

    A lone interpreter has no kin and gets no requests to fork."""
    control, kin = wire.at(control_fd), None if kin_fd < 0 else wire.at(kin_fd)
    _begin(interpreter)
    _serve(control, kin, interpreter)


def rehearse(interpreter: Any, times: int) -> None:
    """In the template: do the above as often. Nothing reads the answers."""
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
    """Call this in the template, with all libraries loaded."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # resets its position and clears cached values
        state = _generator(numpy).ctypes.state_address
        for begin in range(0, _NUMPY_STATE, _DRAWN_AT_ONCE):
            size = min(_DRAWN_AT_ONCE, _NUMPY_STATE - begin)
            _chance.add("getrandom", state + begin, size, gives=size)


def _generator(numpy: Any) -> Any:
    """The generator behind functions of `numpy.random`."""
    if hasattr(numpy.random, "get_bit_generator"):
        return numpy.random.get_bit_generator()
    return numpy.random.mtrand._rand._bit_generator  # before 1.24


def _begin(interpreter: Any) -> None:
    interpreter.attach()
    signals.handle(signals.PIPE, signals.IGNORED)  # as in any Python: the write fails, and the process goes on
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
        except BaseException as error:  # from a timer or signal handler that code left behind
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the socket
            continue
        if request["op"] == "exec":
            answer, data = _execute(interpreter.run, payload)
        elif request["op"] == "rehearse":  # the first run is the slowest: it copies memory
            answer, data = _execute(interpreter.rehearse, b"print(end='')")
        elif request["op"] == "check":
            answer, data = {"problem": _problem()}, b""
        else:
            assert kin is not None
            problem = _fork(control, kin, fds)
            if problem is None:  # we are the branch, and serve its own host end
                own = os.getpid()
                interpreter.leave_loop()  # Python's fork hooks may not have run
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
    """Seconds of processor time, including children's, and the peak memory."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, own.ru_maxrss * 1024


# Branching.


def _fork(control: _socket.socket, kin: _socket.socket, fds: Sequence[int]) -> str | None:
    """Returns None in the branch. In the original: what prevented the fork, or an empty text.

    `fds` are the branch's standard files and its socket to the host; its namespaces come from the agent.
    """
    header, _, invited = wire.receive(kin)
    waiting = select.poll()
    waiting.register(kin, select.POLLIN)
    while waiting.poll(0):  # that invitation was for an abandoned fork
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
    """The same. The branch moves each of these files to its place."""
    told, tells = os.pipe()
    branched = False
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        branched = _copied_into(namespaces, places, tells)
    except BaseException as error:  # a stream of the code failed, or there is no room for a process
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
    """Whether we are the copy, moved in. Fork hooks run before the move and after it.

    The template's libraries have hooks for threads, of which there are none. So unless the code has hooks of its own,
    Python's hooks do not run: they would write to many pages of memory, and so copy them.
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
    """In a child that the code forks: reseed, as any Python does. A branch keeps its state."""
    if not _now.branching:
        random.seed()


_now = types.SimpleNamespace(branching=False, hooked=False)
os.register_at_fork(after_in_child=_draw_anew)  # instead of the hook of `random`: see `helper_argv`


def watch_for_hooks() -> None:
    """Call this in the template, with all libraries loaded: record from now on whether code registers fork hooks."""
    register = os.register_at_fork
    # From Python 3.12 on asyncio registers one for its loops, which are the code's. Older IPythons load it.
    _now.hooked = hasattr(sys.modules.get("asyncio.events"), "on_fork")

    @functools.wraps(register)
    def registered(**hooks: Callable[[], object]) -> None:
        register(**hooks)
        _now.hooked = True

    for module in (os, posix):
        setattr(module, register.__name__, registered)


def _move_in(here: str, files: Sequence[tuple[int, str, int, int]], places: Mapping[int, int], tells: int) -> None:
    """In the branch: give up the capabilities over its namespaces, reopen files in its own workspace, and put the new
    files in their places. Reports a failure through `tells`."""
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
    except BaseException as error:  # only one of the two processes may go on
        os.write(tells, _words(error))
        os._exit(1)


def _problem() -> str:
    """What prevents a fork; empty if nothing does."""
    try:
        return _unforkable()
    except BaseException as error:  # too many open files, or raised by a signal handler
        return _words(error).decode(errors="replace")


def _unforkable() -> str:
    """What in this process cannot be copied; empty if everything can."""
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
    """The system's count. For Python, and for a thread's joiner, a thread ends a moment before it is gone."""
    for _ in range(_LOOKS):
        others = len(os.listdir("/proc/self/task")) - 1
        if not others or _thread._count():
            break
        time.sleep(_LOOK_SECONDS)
    return others


def _is_zombie(pid: bytes) -> bool:
    return _text_of(f"/proc/{pid.decode()}/stat").rpartition(b")")[2].split()[0] == b"Z"


def _seems_to_share_memory() -> bool:
    """Whether it seems to have writable memory shared with others. A file name may look like it."""
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
    """Read by hand, piece by piece: `open` does much work, and long lists take much memory.

    The branches copy every page that this process writes to."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 2048):
            yield part
    finally:
        os.close(fd)


def _private_files() -> Iterator[tuple[int, str, int, int]]:
    """Open files of the workspace, which a branch must reopen in its own: number, path, flags, position."""
    for fd, path, about in _open_files():
        if path.startswith(rootfs.HOME + "/") and (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            yield fd, path, flags, 0 if flags & os.O_PATH else os.lseek(fd, 0, os.SEEK_CUR)


def _open_files() -> Iterator[tuple[int, str, os.stat_result]]:
    """Number, path and status of each open file."""
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            found = fd, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        except OSError:  # the descriptor that listed them
            continue
        yield found
