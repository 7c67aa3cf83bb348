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
"""More than it takes Python to see what is done often."""
_INTERPRETER_FILES = 5
_LONE_FILES = 4
_PROGRAM_FILES = 3

(_READY,), (_READY_ALONE,) = (wire.packets({"ready": True, "interpreter": there}) for there in (True, False))
"""Put into words here, for JSON takes a new process longer than a system call."""

_CLOCK_SECONDS = 0.02
"""How wrong the kernel's notes of when a process was started can be."""


@dataclass(slots=True)
class AgentProgram:
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
    interpreting: Syscalls
    alone: Syscalls
    running: Syscalls
    """What confines them to those."""
    births: dict[tuple[int, ...], Syscalls] = field(default_factory=dict)
    moves: dict[tuple[int, ...], Syscalls] = field(default_factory=dict)
    branchings: dict[tuple[int, ...], Branching] = field(default_factory=dict)
    """By the numbers of the files that they are about. These are nearly always the same."""

    @classmethod
    def prepare(cls, limits: Mapping[str, Any], rules: Rules, path: str, interpreter: Any) -> Setup:
        lasting = {**limits, "cpu_seconds": None}  # which is for each piece of code, and the host's to watch
        interpreting = confinement(rules, lasting, files=_INTERPRETER_FILES)
        alone = confinement(rules, lasting, files=_LONE_FILES, alone=True)
        running = confinement(rules, lasting, files=_PROGRAM_FILES)
        return cls(limits, rules, path, interpreter, lasting, interpreting, alone, running)

    def birth(self, host: int, files: Sequence[int], waits: int, doors: Sequence[int]) -> Syscalls:
        """For an agent that has these, or for a lone interpreter: `host` is -1 then."""
        numbers = (host, *files, waits, *doors)
        if numbers not in self.births:
            if len(self.births) == _BIRTHS_MOST:
                self.births.clear()
                self.moves.clear()
            kept = {0, 1, 2, host, *files, self.rules.landlock} - {-1}
            self.births[numbers] = birth(self.limits, waits, doors, kept)
            *_, kin = islice(free_numbers(kept), 4)  # it comes after a pipe, and the other end of its pair
            moved = tuple(files) if host < 0 else (*files, kin)
            self.moves[moved] = move_files(moved, self.rules)
            gc.freeze()  # they are here to stay
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
        """In the process of a session's interpreter: be that."""
        session.live(_CONTROL, _KIN, self.interpreter)

    def confinement_with(self, limits: Mapping[str, Any]) -> Syscalls:
        return self.running if limits == self.lasting else confinement(self.rules, limits, files=_PROGRAM_FILES)

    def move_files(self, fds: Sequence[int]) -> Syscalls:
        return self.moves.get(tuple(fds)) or move_files(fds, self.rules)


def rehearse(interpreter: Any) -> None:
    """In the template: do what every copy of it will begin with. What has been done before is done with fewer steps,
    and most of the memory that a copy has to itself is what these steps have touched."""
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
    """Process 1 of a sandbox. Made by who is about to be copied, so that the copy need not do it."""

    def live(self, prepare: Callable[[], None]) -> NoReturn:
        """As the copy. `prepare` finishes what makes this process a sandbox."""

    def let_go(self) -> None:
        """As who was copied."""


class Lone:
    """An interpreter that has a sandbox to itself, with nothing of ours beside it."""

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
            except Exception as error:  # whatever it is: no sandbox without all of its walls
                wire.send(wire.at(control), {"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)
            os.write(control, _READY)
            session.live(control, -1, self._setup.interpreter)
        except BaseException as error:  # nobody is left to be told but the code's own standard error
            os.write(2, f"toolyard: {type(error).__name__}: {error}\n".encode())
            os._exit(126)
        finally:
            os._exit(0)

    def let_go(self) -> None:
        return


class Agent:
    """`host` is the number of the socket that it has to the host, and belongs to whoever makes it."""

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
        """`first` is the number of an interpreter that is to be there from the beginning, with these files. The agent
        of a branch has `kin` to one that will come, and what it is made with."""
        self._host = wire.at(host)
        self._setup = setup
        self._first = AgentProgram(first, time.monotonic(), apart=False) if first else None
        self._files_of_first = files
        self._kin = kin
        """To the interpreter: only for what it needs to branch."""
        self._branching = branching
        self._programs: dict[int, AgentProgram] = {}  # by pid
        self._orphans_cpu = 0.0
        """Of what the interpreter started, and nobody else has waited for."""
        self._woken = self._wakes = -1
        self._waiting = select.poll()

    def live(self, prepare: Callable[[], None]) -> NoReturn:
        """Be the agent until the host hangs up."""
        try:
            try:
                prepare()
                self._listen()
            except Exception as error:  # as above
                wire.send(self._host, {"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)
            self._host.send(_READY if self._begin() else _READY_ALONE)
            self._serve()
        finally:
            os._exit(0)

    def let_go(self) -> None:
        self._host.detach()

    def rehearse(self, dry: Syscalls) -> None:
        """All of that but being it: no message comes, and children that have ended are no concern."""
        self._listen()
        self._begin()
        for pid in self._programs:
            os.waitpid(pid, 0)
        self._quit((), dry)
        os.close(self._woken)
        os.close(self._wakes)

    def _listen(self) -> None:
        """To children that end, and then to the host. The handler of that signal comes from the template."""
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
            case "size":
                return {"bytes": size_of_files()}, b""
            case "branch":
                self._branch(request["id"], fds)
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
        """Start the interpreter before it is asked for. False if it is not to be, or there is no room for one."""
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
        """Start the session's interpreter: a copy of the template's, among our own processes."""
        ours, theirs = wire.pair()
        pid = forking.fork()
        if pid == 0:
            self._become(self._setup.interpret, [*fds, theirs.fileno()], self._setup.interpreting)
        theirs.close()
        self._kin = ours
        self._programs[pid] = program

    def _run(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Start a program in a pid namespace of its own: when its init goes, everything that it started goes."""
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
        except BaseException as error:  # it was not even begun, and must not pass for a program that did well
            number = error.errno or 0 if isinstance(error, OSError) else 0
            os.write(tells, json.dumps({"code": 126, "cpu": 0.0, "peak": 0, "unstarted": number}).encode())
            os.write(fds[2], f"toolyard: the program could not be started: {error}\n".encode())
        finally:
            os._exit(126)

    def _become(self, work: Callable[[], None], fds: Sequence[int], confinement: Syscalls) -> NoReturn:
        """In a child: do untrusted work instead of the agent's. It has just these files, from 0 on."""
        try:
            self._quit(fds, confinement)
            work()
        except BaseException as error:  # nobody is left to be told but the program's own standard error
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
        """Make a place that the interpreter can fork itself into: namespaces within ours, with an agent of their own
        and a copy of the workspace."""
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
        """Know the interpreter that has just been forked into this branch: our only child that we did not make."""
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
        """End what a program has started since then, but not itself: the command that a shell hangs in, or the
        processes of a piece of code. Should they be quicker than we are, it goes with them. `first` is a signal that
        a program apart gets before, or 0."""
        root, apart = next(((pid, known.apart) for pid, known in self._programs.items() if known.id == id), (0, True))
        spared = {root}
        if apart:  # and its init's first child; the other children of that have lost the parent that they had
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
        """The interpreter, and what it started: all that is in our own namespace."""
        apart = {pid for pid, program in self._programs.items() if program.apart}
        return [pid for pid in parents if not is_below(pid, apart, parents)]

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
