"""Process 1 of a sandbox: starts programs in it, reads and writes its files, and ends things, as the host asks.

It runs no untrusted code and holds nothing worth stealing. Should it be taken over all the same, the one who did it is
still inside the namespaces that it lives in.
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import gc
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NoReturn

from toolyard.sandboxes.native import session, signals, syscalls, template, wire
from toolyard.sandboxes.native.branch import clone_branch, furnish_branch, furnishing
from toolyard.sandboxes.native.confine import (
    Birth,
    Confinement,
    Rules,
    close_all_but,
    environment,
    free_numbers,
    mount_processes,
    move_files,
)
from toolyard.sandboxes.native.files import Files
from toolyard.sandboxes.native.processes import end_all, is_below, is_deeper, parents_of_all, start_of, used_by

_CONTROL = 3
_KIN = 4
"""File descriptors of the interpreter: to the host, and to its agent."""
_BIRTHS_MOST = 16
_INTERPRETER_FILES = 5
_LONE_FILES = 4
_PROGRAM_FILES = 3

(_READY,) = wire.packets({"ready": True, "interpreter": True})
"""Put into words here, for JSON takes a new process longer than a system call."""

_CLOCK_SECONDS = 0.02
"""How wrong the kernel's notes of when a process was started can be."""


@dataclass(slots=True)
class Program:
    """A child of the agent: the interpreter, the init of a program's own pid namespace, or a branch's agent."""

    id: int
    started: float
    report: int = -1
    """Where the init of a program writes how that ended; -1 for others."""
    apart: bool = True
    """Lives in a pid namespace of its own."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the agent is born with."""

    limits: Mapping[str, Any]
    rules: Rules
    path: str
    interpreter: Any
    """The interpreter of the template, warm and unused."""
    lasting: Mapping[str, Any]
    """Limits of the interpreter, and of programs for which no others were asked."""
    interpreting: Confinement
    alone: Confinement
    running: Confinement
    """With those."""
    branching: syscalls.Calls
    births: dict[tuple[int, ...], Birth] = field(default_factory=dict)
    moves: dict[tuple[int, ...], syscalls.Calls] = field(default_factory=dict)
    """By the numbers of the files that they are about. These are nearly always the same."""

    @classmethod
    def prepare(cls, limits: Mapping[str, Any], rules: Rules, path: str, interpreter: Any) -> Setup:
        lasting = {**limits, "cpu_seconds": None}  # which is for each piece of code, and the host's to watch
        interpreting = Confinement(rules, lasting, files=_INTERPRETER_FILES)
        alone = Confinement(rules, lasting, files=_LONE_FILES, alone=True)
        running = Confinement(rules, lasting, files=_PROGRAM_FILES)
        return cls(limits, rules, path, interpreter, lasting, interpreting, alone, running, furnishing(limits))

    def birth(self, host: int, files: Sequence[int], waits: int, doors: Sequence[int]) -> Birth:
        """For an agent that has these, or for a lone interpreter: `host` is -1 then."""
        numbers = (host, *files, waits, *doors)
        if numbers not in self.births:
            if len(self.births) == _BIRTHS_MOST:
                self.births.clear()
                self.moves.clear()
            kept = {0, 1, 2, host, *files, self.rules.landlock} - {-1}
            self.births[numbers] = Birth(self.limits, waits, doors, kept)
            *_, kin = islice(free_numbers(kept), 4)  # it comes after a pipe, and the other end of its pair
            moved = tuple(files) if host < 0 else (*files, kin)
            self.moves[moved] = move_files(moved, self.rules)
            gc.freeze()  # they are here to stay
        return self.births[numbers]

    def confinement_with(self, limits: Mapping[str, Any]) -> Confinement:
        return self.running if limits == self.lasting else Confinement(self.rules, limits, files=_PROGRAM_FILES)

    def move_files(self, fds: Sequence[int]) -> syscalls.Calls:
        return self.moves.get(tuple(fds)) or move_files(fds, self.rules)


def live(
    host: _socket.socket,
    setup: Setup,
    prepare: Callable[[], None],
    *,
    kin: _socket.socket | None = None,
    first: First | None = None,
) -> NoReturn:
    """Be the agent until the host hangs up. `prepare` finishes what makes this process a sandbox."""
    try:
        try:
            prepare()
            agent = Agent(host, setup, kin)
        except Exception as error:  # whatever it is: no sandbox without all of its walls
            wire.send(host, {"failed": f"{type(error).__name__}: {error}"})
            os._exit(1)
        if first is not None and agent.begin(first):
            host.send(_READY)
        else:
            wire.send(host, {"ready": True})
        agent.serve()
    finally:
        os._exit(0)


def live_alone(setup: Setup, prepare: Callable[[], None], files: Sequence[int]) -> NoReturn:
    """Be an interpreter that has a sandbox to itself: process 1, with nothing of ours beside it."""
    control = files[_CONTROL]
    try:
        try:
            prepare()
            signals.reset()
            setup.move_files(files).make()
            control = _CONTROL
            setup.alone.make()
        except Exception as error:  # as above
            wire.send(wire.at(control), {"failed": f"{type(error).__name__}: {error}"})
            os._exit(1)
        os.write(control, _READY)
        session.live(control, -1, setup.interpreter)
    except BaseException as error:  # nobody is left to be told but the code's own standard error
        os.write(2, f"toolyard: {type(error).__name__}: {error}\n".encode())
        os._exit(126)
    finally:
        os._exit(0)


@dataclass(frozen=True, slots=True)
class First:
    """The interpreter that a sandbox is born with: its number, and its files."""

    id: int
    fds: Sequence[int]


class Agent:
    def __init__(self, host: _socket.socket, setup: Setup, kin: _socket.socket | None) -> None:
        self._host = host
        self._setup = setup
        self._kin = kin
        """To the interpreter: only for what it needs to branch."""
        self._programs: dict[int, Program] = {}  # by pid
        self._orphans_cpu = 0.0
        """Of what the interpreter started, and nobody else has waited for."""
        self._woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signals.handle(signals.CHILD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._host.fileno(), select.POLLIN)
        waiting.register(self._woken, select.POLLIN)
        while True:
            ready = [fd for fd, _ in waiting.poll()]
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._host.fileno() in ready:
                try:
                    request, payload, fds = wire.receive(self._host)
                except (wire.Closed, ConnectionError):
                    return
                self._handle(request, payload, fds)

    def _handle(self, request: Mapping[str, Any], payload: bytes, fds: Sequence[int]) -> None:
        try:
            answer, data = self._do(request, payload, fds)
        except OSError as error:
            answer, data = {"errno": error.errno, "problem": error.strerror}, b""
        finally:
            for fd in fds:
                os.close(fd)
        wire.send(self._host, {"id": request["id"], **answer}, data)

    def _do(self, request: Mapping[str, Any], payload: bytes, fds: Sequence[int]) -> tuple[dict[str, Any], bytes]:
        match request["op"]:
            case "interpret":
                self._interpret(request["id"], fds)
            case "run":
                self._run({**request, **json.loads(payload)}, fds)
            case "branch":
                self._branch(request["id"], fds)
            case "adopt":
                self._adopt(request["id"])
            case "measure":
                return self._measure(request["program"]), b""
            case "end_since":
                self._end_since(request["program"], request["moment"])
            case "signal":
                self._signal(request["program"], request["sent"])
            case "read":
                return {}, self._files.read(request["path"], request["offset"], request["most"])
            case "write":
                self._files.write(request["path"], payload, more=request["more"])
            case "list":
                return {}, self._files.list(request["path"])
        return {}, b""

    @functools.cached_property
    def _files(self) -> Files:
        return Files(template.WORK)

    # Programs.

    def begin(self, first: First) -> bool:
        """Start the interpreter before it is asked for. False if there is no room for one."""
        try:
            self._interpret(first.id, first.fds)
        except OSError:
            return False
        finally:
            for fd in first.fds:
                os.close(fd)
        return True

    def _interpret(self, id: int, fds: Sequence[int]) -> None:
        """Start the session's interpreter: a copy of the template's, among our own processes."""
        ours, theirs = wire.pair()
        pid = os.fork()
        if pid == 0:
            stdin, stdout, stderr, control = fds
            self._become(
                lambda: session.live(_CONTROL, _KIN, self._setup.interpreter),
                [stdin, stdout, stderr, control, theirs.fileno()],
                self._setup.interpreting,
            )
        theirs.close()
        if self._kin is not None:
            self._kin.close()
        self._kin = ours
        self._programs[pid] = Program(id, time.monotonic(), apart=False)

    def _run(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Start a program in a pid namespace of its own: when its init goes, everything that it started goes."""
        told, tells = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = syscalls.clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
        except OSError:
            os.close(told)
            raise
        else:
            if pid == 0:
                self._be_init(request, fds, tells)
        finally:
            os.close(tells)
        os.close(pidfd)
        self._programs[pid] = Program(request["id"], time.monotonic(), told)

    def _be_init(self, request: Mapping[str, Any], fds: Sequence[int], tells: int) -> NoReturn:
        try:
            syscalls.die_with_parent()
            calls = syscalls.Calls()
            mount_processes(calls)
            calls.make()
            pid = os.fork()
            if pid == 0:
                self._become(lambda: self._execute(request), fds, self._setup.confinement_with(request["limits"]))
            os.dup2(tells, 3)
            os.closerange(4, 4096)
            for fd in range(3):
                os.close(fd)
            while True:
                ended, status, usage = os.wait3(0)
                if ended == pid:
                    os.write(3, json.dumps(ending_of(status, usage)).encode())
                    os._exit(0)
        except BaseException as error:  # it was not even begun, and must not pass for a program that did well
            os.write(fds[2], f"toolyard: the program could not be started: {error}\n".encode())
        finally:
            os._exit(126)

    def _become(self, work: Callable[[], None], fds: Sequence[int], confinement: Confinement) -> NoReturn:
        """In a child: stop being the agent, and do untrusted work. It has just these files, from 0 on."""
        try:
            signal.set_wakeup_fd(-1)
            signals.reset()
            self._setup.move_files(fds).make()
            confinement.make()
            work()
        except BaseException as error:  # nobody is left to be told but the program's own standard error
            os.write(2, f"toolyard: {type(error).__name__}: {error}\n".encode())
            os._exit(126)
        finally:
            os._exit(0)

    def _execute(self, request: Mapping[str, Any]) -> None:
        env = environment(self._setup.path) | request["env"]
        argv = request["argv"]
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"toolyard: {argv[0]}: {error.strerror}\n".encode())
            os._exit(126 if isinstance(error, PermissionError) else 127)

    def _branch(self, id: int, fds: Sequence[int]) -> None:
        """Make a place that the interpreter can fork itself into: namespaces within ours, with an agent of their own
        and a copy of the workspace."""
        if self._kin is None:
            raise OSError(0, "there is no interpreter to fork")
        ours, theirs = wire.pair()
        try:
            pid = clone_branch(self._setup.limits)
            if pid == 0:
                self._be_branch(fds[0], ours, theirs)
        finally:
            ours.close()
            theirs.close()
        self._programs[pid] = Program(id, time.monotonic())

    def _be_branch(self, host: int, kin: _socket.socket, new_kin: _socket.socket) -> NoReturn:
        """As process 1 of a branch: an agent like this one, that knows only the branch."""
        signal.set_wakeup_fd(-1)
        self._host.detach()
        assert self._kin is not None
        old_kin = self._kin
        close_all_but(host, kin.fileno(), new_kin.fileno(), old_kin.fileno(), self._setup.rules.landlock)
        setup = self._setup
        live(wire.at(host), setup, lambda: furnish_branch(setup.limits, setup.branching, old_kin, new_kin), kin=kin)

    def _signal(self, id: int, number: int) -> None:
        for pid, program in list(self._programs.items()):
            if program.id == id:
                os.kill(pid, number)
                if not program.apart and number == signal.SIGKILL:
                    self._end_strays()

    def _adopt(self, id: int) -> None:
        """Know the interpreter that has just been forked into this branch: our only child that we did not make, or that
        of a process which came from outside and is about to end, which makes it ours."""
        parents = parents_of_all()  # by their numbers: who came first is looked at first
        own = {os.getpid(), *(pid for pid, parent in parents.items() if parent == 0)}
        mine = [pid for pid, parent in parents.items() if parent in own and pid not in self._programs]
        if len(mine) != 1:
            raise OSError(0, "the forked interpreter is not there")
        self._programs[mine[0]] = Program(id, time.monotonic(), apart=False)

    def _measure(self, id: int) -> dict[str, float]:
        """Processor time and memory of a program with everything that it started."""
        root, program = next(((pid, known) for pid, known in self._programs.items() if known.id == id), (0, None))
        if program is None:
            return {"cpu": 0.0, "memory": 0}
        parents = parents_of_all()
        below = [pid for pid in parents if is_below(pid, {root}, parents)]
        used = [used_by(pid) for pid in (below if program.apart else self._strays(parents))]
        ended = 0.0 if program.apart else self._orphans_cpu
        return {"cpu": ended + sum(cpu for cpu, _ in used), "memory": sum(memory for _, memory in used)}

    def _end_since(self, id: int, moment: float) -> None:
        """End what a program has started since then, but not itself: the command that a shell hangs in, or the
        processes of a piece of code. Should they be quicker than we are, it goes with them."""
        root, apart = next(((pid, known.apart) for pid, known in self._programs.items() if known.id == id), (0, True))
        spared = {root}
        if apart:  # and its init's first child; the other children of that have lost the parent that they had
            children = [pid for pid, parent in parents_of_all().items() if parent == root]
            spared.add(min(children, key=lambda pid: (start_of(pid), pid), default=root))

        def late() -> Iterable[int]:
            parents = parents_of_all()
            started = [pid for pid in parents if is_below(pid, {root}, parents)] if apart else self._strays(parents)
            return [pid for pid in started if pid not in spared and start_of(pid) >= moment - _CLOCK_SECONDS]

        if not end_all(late):
            self._signal(id, signal.SIGKILL)

    def _strays(self, parents: Mapping[int, int]) -> Sequence[int]:
        """The interpreter, and what it started: all that is in our own namespace. One who has just been forked into
        that of a branch is not below the branch's agent until those who forked him are gone."""
        apart = {pid for pid, program in self._programs.items() if program.apart}
        return [pid for pid in parents if not is_below(pid, apart, parents) and not is_deeper(pid)]

    def _end_strays(self) -> None:
        """End what the interpreter started, wherever it went. Should it be quicker than we are, everything goes."""
        if not end_all(lambda: self._strays(parents_of_all())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait3(os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            program = self._programs.pop(pid, None)
            if program is None:
                self._orphans_cpu += usage.ru_utime + usage.ru_stime
                continue
            ending = ending_of(status, usage)
            if program.report >= 0:
                told = os.read(program.report, 4096)
                os.close(program.report)
                ending = json.loads(told) if told else ending
            if not program.apart:
                self._end_strays()
            wire.send(self._host, {"ended": program.id, "wall": time.monotonic() - program.started, **ending})


def ending_of(status: int, usage: resource.struct_rusage) -> dict[str, Any]:
    return {
        "code": os.waitstatus_to_exitcode(status),
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024,
    }
