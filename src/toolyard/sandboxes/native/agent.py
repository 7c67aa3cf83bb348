"""Process 1 of a sandbox: for the host, it starts and ends programs and reads and writes files.

It runs no untrusted code and holds no secret. An attacker who takes it over is still inside its namespaces.
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
from typing import Any, NoReturn, Protocol

from toolyard.sandboxes.native import forking, rootfs, session, signals, syscalls, wire
from toolyard.sandboxes.native.branch import Branching, size_of_files
from toolyard.sandboxes.native.confine import (
    Rules,
    birth,
    confinement,
    environment,
    free_numbers,
    mount_processes,
    move_files,
)
from toolyard.sandboxes.native.files import Files
from toolyard.sandboxes.native.processes import children, end_all, is_below, parents_of_all, start_of, used_by
from toolyard.sandboxes.native.syscalls import Syscalls

_CONTROL = 3
_KIN = 4
"""File descriptors of the interpreter: to the host, and to its agent."""
_BIRTHS_MOST = 16
_REHEARSALS = 12
"""Enough for Python to specialise hot code."""
_INTERPRETER_FILES = 5
_LONE_FILES = 4
_PROGRAM_FILES = 3

(_READY,), (_READY_ALONE,) = (wire.packets({"ready": True, "interpreter": there}) for there in (True, False))
"""Encoded in advance: in a new process, JSON takes longer than a system call."""

_CLOCK_SECONDS = 0.02
"""The most by which the kernel's start time of a process can be wrong."""


@dataclass(slots=True)
class AgentProgram:
    """A child of the agent: the interpreter, the init of a program's own pid namespace, or a branch's agent."""

    id: int
    started: float
    report: int = -1
    """The pipe on which a program's init reports how the program ended; -1 for other children."""
    apart: bool = True
    """Whether it lives in its own pid namespace."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the template prepares for the agent."""

    limits: Mapping[str, Any]
    rules: Rules
    path: str
    interpreter: Any
    """The interpreter of the template, warm and unused."""
    lasting: Mapping[str, Any]
    """Limits of the interpreter, and of programs that were requested without limits."""
    interpreting: Syscalls
    alone: Syscalls
    running: Syscalls
    """Confinement of an interpreter with an agent, of a lone interpreter, and of a program."""
    births: dict[tuple[int, ...], Syscalls] = field(default_factory=dict)
    moves: dict[tuple[int, ...], Syscalls] = field(default_factory=dict)
    branchings: dict[tuple[int, ...], Branching] = field(default_factory=dict)
    """These three are keyed by the numbers of the files that they act on, which rarely vary."""

    @classmethod
    def prepare(cls, limits: Mapping[str, Any], rules: Rules, path: str, interpreter: Any) -> Setup:
        lasting = {**limits, "cpu_seconds": None}  # that limit is for each piece of code; the host watches it
        interpreting = confinement(rules, lasting, files=_INTERPRETER_FILES)
        alone = confinement(rules, lasting, files=_LONE_FILES, alone=True)
        running = confinement(rules, lasting, files=_PROGRAM_FILES)
        return cls(limits, rules, path, interpreter, lasting, interpreting, alone, running)

    def birth(self, host: int, files: Sequence[int], waits: int, doors: Sequence[int]) -> Syscalls:
        """The calls that set up an agent, or a lone interpreter (then `host` is -1), with these files."""
        numbers = (host, *files, waits, *doors)
        if numbers not in self.births:
            if len(self.births) == _BIRTHS_MOST:
                self.births.clear()
                self.moves.clear()
            kept = {0, 1, 2, host, *files, self.rules.landlock} - {-1}
            self.births[numbers] = birth(self.limits, waits, doors, kept)
            *_, kin = islice(free_numbers(kept), 4)  # opened after a pipe and the other end of its pair
            moved = tuple(files) if host < 0 else (*files, kin)
            self.moves[moved] = move_files(moved, self.rules)
            gc.freeze()  # they live as long as this process
        return self.births[numbers]

    def branching(self, host: int, kin: int, old_kin: int, new_kin: int) -> Branching:
        numbers = (host, kin, old_kin, new_kin)
        if numbers not in self.branchings:
            if len(self.branchings) == _BIRTHS_MOST:
                self.branchings.clear()
            others = [fd for fd in (host, kin, self.rules.landlock) if fd >= 0]
            self.branchings[numbers] = Branching(self.limits, old_kin, new_kin, others)
        return self.branchings[numbers]

    def interpret(self) -> None:
        """Become the session's interpreter, in its process."""
        session.live(_CONTROL, _KIN, self.interpreter)

    def confinement_with(self, limits: Mapping[str, Any]) -> Syscalls:
        return self.running if limits == self.lasting else confinement(self.rules, limits, files=_PROGRAM_FILES)

    def move_files(self, fds: Sequence[int]) -> Syscalls:
        return self.moves.get(tuple(fds)) or move_files(fds, self.rules)


def rehearse(interpreter: Any) -> None:
    """In the template: do what every copy will do first. Repeated work takes fewer steps, and those steps touch most of
    the memory that a copy must copy."""
    dry, end = Syscalls(), Syscalls()
    dry.add("getpid", gives=None)
    end.add("exit_group", 0)
    setup = Setup({}, Rules(-1, b""), "", interpreter, {}, end, dry, dry, {}, {(): dry})
    for _ in range(_REHEARSALS):
        host, other = wire.pair()
        agent = Agent(host.fileno(), setup, first=1, files=[os.dup(other.fileno()) for _ in range(_LONE_FILES)])
        agent.rehearse(dry)
        agent.let_go()
    session.rehearse(interpreter, _REHEARSALS)


class Newborn(Protocol):
    """Process 1 of a sandbox. The process that is about to fork makes it, so that the copy need not."""

    def live(self, prepare: Callable[[], None]) -> NoReturn:
        """Run in the copy. `prepare` finishes setting up the sandbox."""

    def let_go(self) -> None:
        """Run in the original: release it."""


class Lone:
    """An interpreter alone in its sandbox, without an agent."""

    def __init__(self, setup: Setup, files: Sequence[int]) -> None:
        self._setup = setup
        self._files = files

    def live(self, prepare: Callable[[], None]) -> NoReturn:
        control = self._files[_CONTROL]
        try:
            try:
                prepare()
                signal.set_wakeup_fd(-1)
                signals.reset()
                self._setup.move_files(self._files).make()
                control = _CONTROL
                self._setup.alone.make()
            except Exception as error:  # any error: never run a sandbox without all of its walls
                wire.send(wire.at(control), {"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)
            os.write(control, _READY)
            session.live(control, -1, self._setup.interpreter)
        except BaseException as error:  # only the code's standard error can take the report
            os.write(2, f"toolyard: {type(error).__name__}: {error}\n".encode())
            os._exit(126)
        finally:
            os._exit(0)

    def let_go(self) -> None:
        return


class Agent:
    """`host` is the number of its socket to the host; the caller owns it."""

    def __init__(
        self,
        host: int,
        setup: Setup,
        *,
        first: int = 0,
        files: Sequence[int] = (),
        kin: _socket.socket | None = None,
        branching: Branching | None = None,
    ) -> None:
        """`first` numbers an interpreter to start at once, with these `files`. The agent of a branch has `kin`, a
        socket to an interpreter that will come, and the `branching` that makes the branch."""
        self._host = wire.at(host)
        self._setup = setup
        self._first = AgentProgram(first, time.monotonic(), apart=False) if first else None
        self._files_of_first = files
        self._kin = kin
        """A socket to the interpreter, used only for forks."""
        self._branching = branching
        self._programs: dict[int, AgentProgram] = {}  # by pid
        self._orphans_cpu = 0.0
        """Processor time of orphans that the interpreter left and that this agent has reaped."""
        self._woken = self._wakes = -1
        self._waiting = select.poll()

    def live(self, prepare: Callable[[], None]) -> NoReturn:
        """Be the agent until the host disconnects."""
        try:
            try:
                prepare()
                self._listen()
            except Exception as error:  # any error, as above
                wire.send(self._host, {"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)
            self._host.send(_READY if self._begin() else _READY_ALONE)
            self._serve()
        finally:
            os._exit(0)

    def let_go(self) -> None:
        self._host.detach()

    def rehearse(self, dry: Syscalls) -> None:
        """Do the same without serving: no message comes, and children that end are not reported."""
        self._listen()
        self._begin()
        for pid in self._programs:
            os.waitpid(pid, 0)
        self._quit((), dry)
        os.close(self._woken)
        os.close(self._wakes)

    def _listen(self) -> None:
        """Listen to the signal of a child's end, and to the host. The template has set the signal's handler."""
        self._woken, self._wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._waiting.register(self._woken, select.POLLIN)
        self._waiting.register(self._host, select.POLLIN)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def _serve(self) -> None:
        while True:
            for fd, _ in self._waiting.poll():
                if fd == self._woken:
                    os.read(fd, 4096)
                    self._reap()
                else:
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
                self._interpret(AgentProgram(request["id"], time.monotonic(), apart=False), fds)
            case "run":
                self._run({**request, **json.loads(payload)}, fds)
            case "branch":
                size, room = size_of_files(), request["room"]
                if room is None or size <= room:
                    self._branch(request["id"], fds)
                return {"bytes": size}, b""
            case "invite":
                assert self._branching is not None
                self._branching.invite()
            case "adopt":
                self._adopt(request["id"])
            case "measure":
                return self._measure(request["program"]), b""
            case "end_since":
                self._end_since(request["program"], request["moment"], request.get("first", 0))
            case "signal":
                self._signal(request["program"], request["sent"])
            case "read":
                return {}, self._files.read(request["path"], request["offset"], request["most"])
            case "write":
                self._files.write(request["path"], payload, more=request["more"], mode=request.get("mode"))
            case "list":
                return {}, self._files.list(request["path"])
        return {}, b""

    @functools.cached_property
    def _files(self) -> Files:
        return Files(rootfs.WORK)

    # Programs.

    def _begin(self) -> bool:
        """Start the interpreter before it is requested. False if none was ordered, or if there is no room for one."""
        if self._first is None:
            return False
        try:
            self._interpret(self._first, self._files_of_first)
        except OSError:
            return False
        finally:
            for fd in self._files_of_first:
                os.close(fd)
        return True

    def _interpret(self, program: AgentProgram, fds: Sequence[int]) -> None:
        """Start the session's interpreter: a copy of the template's, in this namespace."""
        ours, theirs = wire.pair()
        pid = forking.fork()
        if pid == 0:
            self._become(self._setup.interpret, [*fds, theirs.fileno()], self._setup.interpreting)
        theirs.close()
        self._kin = ours
        self._programs[pid] = program

    def _run(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Start a program in its own pid namespace: when its init ends, the kernel ends everything that it started."""
        told, tells = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = forking.clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
        except OSError:
            os.close(told)
            raise
        else:
            if pid == 0:
                self._be_init(request, fds, tells)
        finally:
            os.close(tells)
        os.close(pidfd)
        self._programs[pid] = AgentProgram(request["id"], time.monotonic(), told)

    def _be_init(self, request: Mapping[str, Any], fds: Sequence[int], tells: int) -> NoReturn:
        try:
            syscalls.die_with_parent()
            calls = syscalls.Syscalls()
            mount_processes(calls)
            calls.make()
            pid = forking.fork()
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
        except BaseException as error:  # it never began, so do not report a success
            number = error.errno or 0 if isinstance(error, OSError) else 0
            os.write(tells, json.dumps({"code": 126, "cpu": 0.0, "peak": 0, "unstarted": number}).encode())
            os.write(fds[2], f"toolyard: the program could not be started: {error}\n".encode())
        finally:
            os._exit(126)

    def _become(self, work: Callable[[], None], fds: Sequence[int], confinement: Syscalls) -> NoReturn:
        """In a child: run untrusted code instead of the agent. It has only these files, numbered from 0."""
        try:
            self._quit(fds, confinement)
            work()
        except BaseException as error:  # only the program's standard error can take the report
            os.write(2, f"toolyard: {type(error).__name__}: {error}\n".encode())
            os._exit(126)
        finally:
            os._exit(0)

    def _quit(self, fds: Sequence[int], confinement: Syscalls) -> None:
        """Stop being the agent, for good."""
        signal.set_wakeup_fd(-1)
        signals.reset()
        self._setup.move_files(fds).make()
        confinement.make()

    def _execute(self, request: Mapping[str, Any]) -> None:
        env = environment(self._setup.path) | request["env"]
        argv = request["argv"]
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"toolyard: {argv[0]}: {error.strerror}\n".encode())
            os._exit(126 if isinstance(error, PermissionError) else 127)

    def _branch(self, id: int, fds: Sequence[int]) -> None:
        """Make a place for a fork of the interpreter: nested namespaces with their own agent and a copy of the
        workspace."""
        if self._kin is None:
            raise OSError(0, "there is no interpreter to fork")
        kin, new_kin = wire.pair()
        branching = self._setup.branching(fds[0], kin.fileno(), self._kin.fileno(), new_kin.fileno())
        agent = Agent(fds[0], self._setup, kin=kin, branching=branching)
        try:
            pid = branching.clone()
            if pid == 0:
                agent.live(branching.make)
        finally:
            agent.let_go()
            kin.close()
            new_kin.close()
        self._programs[pid] = AgentProgram(id, time.monotonic())

    def _signal(self, id: int, number: int) -> None:
        for pid, program in list(self._programs.items()):
            if program.id == id:
                os.kill(pid, number)
                if not program.apart and number == signal.SIGKILL:
                    self._end_strays()

    def _adopt(self, id: int) -> None:
        """Register the interpreter that was just forked into this branch: our only child that we did not make."""
        unknown = children() - self._programs.keys()
        if len(unknown) != 1:
            raise OSError(0, "the forked interpreter is not there")
        self._programs[unknown.pop()] = AgentProgram(id, time.monotonic(), apart=False)

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

    def _end_since(self, id: int, moment: float, first: int) -> None:
        """End what a program has started since then, but not the program: the command that hangs a shell, or the
        processes of a piece of code. If they fork faster than we kill, the program ends too. A program apart first gets
        the signal `first`, unless that is 0."""
        root, apart = next(((pid, known.apart) for pid, known in self._programs.items() if known.id == id), (0, True))
        spared = {root}
        if apart:  # spare the init's first child, too; its other children are orphans
            children = [pid for pid, parent in parents_of_all().items() if parent == root]
            spared.add(itself := min(children, key=lambda pid: (start_of(pid), pid), default=root))
            if first and itself != root:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(itself, first)

        def late() -> Iterable[int]:
            parents = parents_of_all()
            started = [pid for pid in parents if is_below(pid, {root}, parents)] if apart else self._strays(parents)
            return [pid for pid in started if pid not in spared and start_of(pid) >= moment - _CLOCK_SECONDS]

        if not end_all(late):
            self._signal(id, signal.SIGKILL)

    def _strays(self, parents: Mapping[int, int]) -> Sequence[int]:
        """The interpreter and what it started: every process in our own namespace."""
        apart = {pid for pid, program in self._programs.items() if program.apart}
        return [pid for pid in parents if not is_below(pid, apart, parents)]

    def _end_strays(self) -> None:
        """End what the interpreter started, wherever it went. If it forks faster than we kill, end everything."""
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
