"""A template process: a warm Python in the template's file system. Every sandbox is a copy of one.

It starts with nothing of the server's environment, holds no secret, and never runs untrusted code.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import gc
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.sandboxes.native import agent, forking, heap, rootfs, seccomp, session, signals, syscalls, wire
from toolyard.sandboxes.native.cgroups import Caps, Group, Groups
from toolyard.sandboxes.native.confine import NAMESPACES, UID, Rules
from toolyard.sandboxes.native.spares import Spares

FIRST_UID = 0x7000_0000
"""The first user of root's sandboxes, in a range that no system assigns."""

_SETUPS_MOST = 64
"""Setups kept for later sandboxes. There are seldom more than a few kinds of limits."""
_ENDINGS_MOST = 1024
"""Endings kept for callers. Few callers ask: most interpreters have answered, and are killed."""
_LONE_FILES = 4
"""Files that come with an interpreter. One more comes for an agent."""
_FILES_KEPT = 256
"""Descriptors kept free for making sandboxes."""


@dataclass(slots=True)
class Born:
    """A living sandbox."""

    number: int
    owner: _socket.socket
    """The socket that requested it."""
    group: Group
    caps: Caps
    alone: bool
    """Whether it has no agent to report how the interpreter ended."""
    unthrottled: bool = False


class Zygote:
    def __init__(
        self, control: _socket.socket, config: Mapping[str, Any], interpreter: Any, *, own_users: bool
    ) -> None:
        self._control = control
        self._others: dict[int, _socket.socket] = {}
        """Sockets to other processes that may request sandboxes as the server does, by descriptor."""
        self._waiting = select.poll()
        self._spares = Spares(Groups.at(config["groups"]))
        self._born: dict[int, Born] = {}
        """By the pid of process 1."""
        self._endings: dict[int, Mapping[str, Any]] = {}
        """How the latest lone interpreters ended, by the number of their sandbox."""
        self._asked: dict[int, tuple[_socket.socket, int]] = {}
        """Who waits for an ending, and the number of the request."""
        self._path = config["path"]
        self._interpreter = interpreter
        session.prepare_chance()
        session.watch_for_hooks()
        forking.entrance()
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            # a lock that a thread holds would stay locked in every copy
            raise OSError(0, f"a preloaded library has started {threads - 1} threads")
        self._processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own_users = own_users
        rootfs.cover(config["closed"])  # only now: our own modules may lie there
        rootfs.enter(config["prefixes"])
        self._covers = rootfs.Covers(config["covers"])
        _find_modules_again(config["packages"])
        self._rules = {tcp: Rules.make(tcp=tcp) for tcp in (True, False)}
        self._setups: dict[tuple[tuple[str, Any], ...], agent.Setup] = {}
        _restrain()
        # The rest prepares the memory of copies.
        heap.release()
        _forget_types()
        syscalls.trim_heap()
        heap.fill_holes()
        agent.rehearse(self._interpreter)
        syscalls.use_large_pages()
        gc.freeze()

    def serve(self) -> None:
        woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signals.await_children()
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._waiting.register(self._control, select.POLLIN)
        self._waiting.register(woken, select.POLLIN)
        while True:
            ready = [fd for fd, _ in self._waiting.poll(None if self._spares.wanted is None else 0)]
            if not ready:
                self._spares.make_ahead()
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            for other in [self._others[fd] for fd in ready if fd in self._others]:
                try:
                    self._answer(other)
                except (wire.Closed, OSError):  # gone, or not reading: it must not block the others
                    self._drop(other)
            if self._control.fileno() in ready:
                try:
                    self._answer(self._control)
                except (wire.Closed, ConnectionError):
                    return

    def _answer(self, control: _socket.socket) -> None:
        request, _, fds = wire.receive(control)
        try:
            match request["op"]:
                case "make":
                    self._make(control, request, fds)
                case "ending":
                    self._asked[request["sandbox"]] = control, request["id"]
                    self._tell_ending(request["sandbox"])
                case "join":
                    wire.send(control, {"id": request["id"], **self._join(fds)})
                case _:
                    self._unthrottle(request["sandbox"])
        finally:
            for fd in fds:
                os.close(fd)

    def _join(self, fds: Sequence[int]) -> Mapping[str, str]:
        """Let another process of the server request sandboxes through this socket."""
        if not fds or len(self._others) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FILES_KEPT:
            return {"failed": f"{len(self._others)} processes use this template, and it may have no more files open"}
        other = wire.at(os.dup(fds[0]))
        other.setblocking(False)
        self._others[other.fileno()] = other
        self._waiting.register(other, select.POLLIN)
        return {}

    def _drop(self, other: _socket.socket) -> None:
        """Drop it with its lone interpreters: a busy one does not notice that its socket is closed."""
        for pid, born in self._born.items():
            if born.alone and born.owner is other:
                os.kill(pid, signal.SIGKILL)
        self._waiting.unregister(other)
        del self._others[other.fileno()]
        other.close()

    def _make(self, control: _socket.socket, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Make a sandbox and send its pidfd to the requester. The agent reports when the sandbox is set up."""
        try:
            pidfd, group = self._clone(control, request, fds)
        except OSError as error:
            wire.send(control, {"id": request["id"], "failed": str(error), "errno": error.errno})
            return
        try:
            wire.send(control, {"id": request["id"], "group": group.name}, fds=[pidfd])
        finally:
            os.close(pidfd)

    def _clone(self, owner: _socket.socket, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, Group]:
        number, limits = request["sandbox"], request["limits"]
        if len(fds) < (_LONE_FILES if request["alone"] else _LONE_FILES + 1):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # we had no room for all of them
        host, files = (-1, fds) if request["alone"] else (fds[0], fds[1:])
        self._covers.renew()
        caps = Caps(limits["memory_bytes"], limits["processes"], limits["cpus"])
        born = Born(number, owner, self._spares.take(str(number), caps), caps, request["alone"])
        group = born.group
        opened: list[int] = []
        try:
            waits, go = os.pipe2(os.O_CLOEXEC)
            opened += (waits, go)
            opened += (doors := group.doors(v2=False))
            if (directory := group.directory()) is not None:
                opened.append(directory)
            setup = self._setup(limits)
            birth = setup.birth(host, files, waits, doors)
            network = 0 if limits["network"] == "host" else syscalls.CLONE_NEWNET
            newborn = _newborn(request, setup, host, files)
            try:
                pid, pidfd = forking.clone(NAMESPACES | network, into_cgroup=directory)
                if pid == 0:
                    os.close(go)  # otherwise it would wait for ever if we were killed
                    newborn.live(birth.make)
            finally:
                newborn.let_go()
            self._born[pid] = born
            try:
                self._map_user(pid, number)
                os.write(go, b"!")
            except OSError:
                os.close(pidfd)
                raise
        except OSError:
            if born not in self._born.values():
                group.remove()
            raise
        finally:  # without a go, the child exits
            for fd in opened:
                os.close(fd)
        return pidfd, group

    def _setup(self, limits: Mapping[str, Any]) -> agent.Setup:
        """What the template prepares for a sandbox with these limits, once."""
        kind = tuple(limits.items())
        if kind not in self._setups:
            if len(self._setups) == _SETUPS_MOST:
                self._setups.clear()
            rules = self._rules[limits["network"] != "none"]
            self._setups[kind] = agent.Setup.prepare(limits, rules, self._path, self._interpreter)
            gc.freeze()  # it lives as long as this process
        return self._setups[kind]

    def _map_user(self, pid: int, number: int) -> None:
        outside = FIRST_UID + number if self._own_users else 0
        maps = [("uid_map", outside), ("gid_map", outside)]
        for file, user in maps:
            fd = os.open(f"{pid}/{file}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._processes)
            try:
                os.write(fd, b"%d %d 1" % (UID, user))
            finally:
                os.close(fd)

    def _unthrottle(self, number: int) -> None:
        """Let a killed sandbox die that has used up its processor time. Its group is not reused. On a busy machine it
        may still have to wait; that does no harm."""
        for born in [born for born in self._born.values() if born.number == number]:
            with contextlib.suppress(OSError):  # the broker may be gone, and the group with it
                if born.group.throttled():
                    born.unthrottled = True
                    born.group.unthrottle()

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait3(os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if born := self._born.pop(pid, None):
                strain = self._spares.leave(born.group, born.caps, again=not born.unthrottled)
                short = {"oom_kills": strain.oom_kills, "memory_full": strain.memory_full}
                self._note_ending(born.number, {**agent.ending_of(status, usage), **short})

    def _note_ending(self, number: int, ending: Mapping[str, Any]) -> None:
        self._endings[number] = ending
        if len(self._endings) > _ENDINGS_MOST:
            del self._endings[next(iter(self._endings))]
        self._tell_ending(number)

    def _tell_ending(self, number: int) -> None:
        """Send the ending to the process that asked, if the sandbox has ended."""
        if number in self._asked and number in self._endings:
            control, question = self._asked.pop(number)
            with contextlib.suppress(OSError):  # gone by now
                wire.send(control, {"id": question, **self._endings.pop(number)})


def _newborn(request: Mapping[str, Any], setup: agent.Setup, host: int, files: Sequence[int]) -> agent.Newborn:
    if request["alone"]:
        return agent.Lone(setup, files)
    return agent.Agent(host, setup, first=request["interpreter"], files=files)


def _forget_types() -> None:
    """Clear Python's cache of attribute lookups, which mostly holds those of libraries. A copy that looks up another
    would first have to release their names, each on another page."""
    forget = getattr(sys, "_clear_type_cache", None)
    if forget is not None:
        forget()


def _restrain() -> None:
    """Apply what holds in every process of every sandbox and does not hurt us: they inherit it."""
    syscalls.forbid_new_privileges()
    calls = syscalls.Syscalls()
    syscalls.load_filter(calls, seccomp.agent_filter())
    calls.make()


def _find_modules_again(packages: Sequence[str]) -> None:
    """Update Python's paths to where files are now."""
    sys.path[:] = map(rootfs.place, packages)
    for name in ("executable", "_base_executable", "prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        setattr(sys, name, rootfs.place(getattr(sys, name)))
    for module in list(sys.modules.values()):
        if isinstance(where := getattr(module, "__path__", None), list):
            where[:] = map(rootfs.place, where)
    sys.path_importer_cache.clear()
