"""Programs that stay open while the caller writes and reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from toolyard.core.errors import ProcessError, SandboxLost
from toolyard.sandboxes.base import Limits, Process, Sandbox
from toolyard.testing.sandbox_rules.rule import SECRET, Case, Rule, a_number, rule_of, sh

RULES: list[Rule] = []

_SECONDS = 10.0
_SMALL = replace(Limits(), output_bytes=10_000)


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """A program that stays open takes input and gives output, to the byte, until it ends by itself."""
    process = await box.start(sh('while read line; do printf "<$line>\\377"; echo $line >&2; done; exit 3'))
    for word in (b"one", b"two"):
        await process.write(word + b"\n")
        case.same("the output", await _read(process, 2 * len(word) + 4), (b"<" + word + b">\xff", word + b"\n"))
        case.same("the exit code while it runs", process.exit_code, None)
    case.same("what comes when nothing does", await process.read(0.05), (b"", b""))
    case.same("wait() while it runs", await process.wait(0.05), False)
    await process.close_input()
    case.same("wait()", await process.wait(_SECONDS), True)
    case.same("its end", (process.exit_code, process.killed_by, await process.read(0)), (3, None, (b"", b"")))
    await _refuses(process, case)
    await process.kill()
    case.same("the exit code after kill()", process.exit_code, 3)


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """Its end reads as that of run(), also for a program that cannot start."""
    wanted = {"kill -9 $$": 137, "kill -15 $$": 143, "exit 137": 137, "printf last; exit 4": 4, "no-such-program": 127}
    for text, code in wanted.items():
        process = await box.start(sh(text))
        await process.wait(_SECONDS)
        case.same(f"that of {text!r}", process.exit_code, code)
        case.same("its last words", (await process.read(0))[0], b"last" if "last" in text else b"")
    for argv in ["no-such-program"], [], ["echo", "a\0b"], ["echo", "\ud800"]:
        process = await box.start(argv)
        await process.wait(_SECONDS)
        if not process.exit_code or not (await process.read(0))[1]:
            case.problem(f"what cannot be asked for, {argv!r}, ended with {process.exit_code} and told nothing")
        await _refuses(process, case)


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """It works in the workspace, with a small environment: what was added, and nothing of the server's."""
    await box.write("file", b"shared")
    process = await box.start(sh("cat file; echo; env; echo back > back"), env={"ADDED": "yes and no"})
    await process.wait(_SECONDS)
    told = (await process.read(0))[0].decode()
    if not told.startswith("shared\n") or "ADDED=yes and no" not in told or "PATH=" not in told:
        case.problem(f"it found {told!r:.300}")
    if SECRET in told:
        case.problem("a variable of the server's is there")
    case.same("what it wrote", await box.read("back"), b"back\n")


@rule_of(RULES, "process", limits=_SMALL)
async def _(box: Sandbox, case: Case) -> None:
    """A program that writes more than is kept has to wait, and no output is lost."""
    process = await box.start(sh("seq 200000; echo done >&2"))
    case.same("wait() before it is read", await process.wait(1), False)
    whole, errors = bytearray(), bytearray()
    while any(came := await process.read(_SECONDS)):
        stdout, stderr = came
        if process.exit_code is None and max(len(stdout), len(stderr)) > _SMALL.output_bytes:
            case.problem(f"{len(stdout)} bytes were kept")
        whole += stdout
        errors += stderr
    if whole != b"".join(b"%d\n" % number for number in range(1, 200_001)) or errors != b"done\n":
        case.problem(f"{len(whole)} bytes came, and they are not those that were written")
    endless = await box.start(["yes"])
    case.same("wait() for one that never ends", await endless.wait(0.5), False)
    await asyncio.wait_for(endless.kill(), _SECONDS)
    case.same("its end", (endless.exit_code, endless.killed_by), (137, None))


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """It reads a large input whole; a caller that writes to one that does not read hears of its end."""
    data = bytes(range(256)) * 4096
    process = await box.start(["cksum"])
    await process.write(data)
    await process.close_input()
    case.same("its sum", (await _read(process, 19))[0], (await box.run(["cksum"], stdin=data)).stdout)
    busy = await box.start(["sleep", "60"])
    writing = asyncio.ensure_future(busy.write(data))
    await asyncio.sleep(0.2)
    case.same("whether it waits", writing.done(), False)
    await busy.kill()
    if not isinstance((await asyncio.gather(writing, return_exceptions=True))[0], ProcessError):
        case.problem("the caller that wrote to a killed program did not hear of it")


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """All programs can be stopped at once: files stay, and everything can be used again."""
    number = a_number()
    await box.write("file", b"kept")
    process = await box.start(sh(f"sleep {number} & cat"))
    await box.exec(f"kept = 1; import subprocess; child = subprocess.Popen(['sleep', '{number}'])")
    await box.shell(f"kept=1; sleep {number} &")
    running = asyncio.ensure_future(box.run(["sleep", f"{number}"], timeout=100))
    code = asyncio.ensure_future(box.exec("import time; time.sleep(1000)", timeout=100))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(box.stop_programs(), _SECONDS)
    await asyncio.wait((running, code), timeout=_SECONDS)
    case.same("what ended", (process.exit_code, running.done(), code.done()), (137, True, True))
    listed = await box.run(["sh", "-c", f"grep -l '^sleep.{number}' /proc/*/cmdline 2>/dev/null | wc -l"])
    case.same("how many are left", listed.stdout.strip(), b"0")
    case.same("the file", await box.read("file"), b"kept")
    case.same("the interpreter", (await box.exec("'kept' in globals()")).value, "False")
    case.same("the shell", (await box.shell("echo ${kept-none}")).stdout, b"none\n")
    again = await box.start(["cat"])
    await again.write(b"on\n")
    case.same("the next program", await _read(again, 3), (b"on\n", b""))


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """It runs beside everything else, and nothing that takes too long there reaches it."""
    process = await box.start(["cat"])
    await box.exec("kept = 1")
    await box.shell("kept=1")
    await asyncio.gather(
        box.run(["sleep", "60"], timeout=0.5),
        box.shell("sleep 60", timeout=0.5),
        box.exec("import os; os.system('sleep 60')", timeout=0.5),
    )
    stubborn = "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"
    case.same("what costs an interpreter", (await box.exec(stubborn, timeout=0.5)).state_lost, True)
    case.same("what costs a shell", (await box.shell("exit")).state_lost, True)
    await process.write(b"still there\n")
    case.same("what it says then", await _read(process, 12), (b"still there\n", b""))
    case.same("its exit code", process.exit_code, None)


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """Its children end with it: when it ends by itself, when it is killed, and when the sandbox is closed."""
    started = "sleep {0} & setsid sleep {0} & (setsid sleep {0} >/dev/null 2>&1 </dev/null &) ; echo on"
    numbers = [a_number() for _ in range(3)]
    ended, killed, closed = [await box.start(sh(f"{started.format(number)}; read x")) for number in numbers]
    for process in (ended, killed, closed):
        case.same("its output", (await _read(process, 3))[0], b"on\n")
    await ended.write(b"\n")
    case.same("wait()", await ended.wait(_SECONDS), True)
    await case.nothing_left(numbers[0])
    await asyncio.wait_for(killed.kill(), _SECONDS)
    case.same("the exit code of the one that was killed", (killed.exit_code, killed.killed_by), (137, None))
    await case.nothing_left(numbers[1])
    waiting = asyncio.ensure_future(closed.read(_SECONDS))
    await asyncio.sleep(0)
    await box.close()
    case.same("what waited for the one that was closed", await asyncio.wait_for(waiting, 1), (b"", b""))
    case.same("its exit code", closed.exit_code, 137)
    await case.nothing_left(numbers[2])
    try:
        await box.start(["true"])
        case.problem("start() of a closed sandbox did not raise SandboxLost")
    except SandboxLost:
        await _refuses(closed, case)


@rule_of(RULES, "process")
async def _(box: Sandbox, case: Case) -> None:
    """A branch does not get it, and it goes on where it was."""
    await box.exec("kept = 1")
    process = await box.start(sh("while read line; do echo $line >> lines; echo $line; done"))
    await process.write(b"one\n")
    await _read(process, 4)
    (branch,) = await box.fork()
    await process.write(b"two\n")
    case.same("what it says then", (await _read(process, 4))[0], b"two\n")
    case.same("the variable in the branch", (await branch.exec("kept")).value, "1")
    case.same("the file in the branch", await branch.read("lines"), b"one\n")
    own = await branch.start(["cat"])
    await box.close()
    case.same("its exit code when its sandbox is closed", process.exit_code, 137)
    await own.write(b"own\n")
    case.same("one of the branch's own", (await _read(own, 4))[0], b"own\n")
    await branch.close()
    case.same("its exit code", own.exit_code, 137)


@rule_of(RULES, "process", limits=replace(Limits(), cpu_seconds=1.0, file_bytes=10_000))
async def _(box: Sandbox, case: Case) -> None:
    """It has the limits of any program, except for time."""
    long = await box.start(["sleep", "60"], limits=replace(box.limits, wall_seconds=0.2))
    for argv, limit in (
        (sh("while :; do :; done"), "cpu"),
        (sh("exec head -c 100000 /dev/zero > file"), "file_size"),
    ):
        process = await box.start(argv)
        case.same(f"whether {argv[-1]!r} ended", await process.wait(_SECONDS), True)
        case.same("the limit", process.killed_by, limit)
    case.same("the exit code of one that takes long", long.exit_code, None)


@rule_of(RULES, "process", limits=replace(Limits(), memory_bytes=128 * 2**20), layer="memory")
async def _(box: Sandbox, case: Case) -> None:
    """It cannot use more memory than the limit, and other programs go on."""
    other = await box.start(["cat"])
    greedy = await box.start(["python3", "-c", "x = b'x' * 10**9; print('had it')"])
    case.same("whether it ended", await greedy.wait(_SECONDS), True)
    case.same("its output", (await greedy.read(0))[0], b"")
    await other.write(b"still there\n")
    case.same("what the other says", (await _read(other, 12))[0], b"still there\n")


async def _read(process: Process, size: int) -> tuple[bytes, bytes]:
    """Read this many bytes of both streams together, or what comes in ten seconds."""
    stdout, stderr = bytearray(), bytearray()
    while len(stdout) + len(stderr) < size:
        out, err = await process.read(_SECONDS)
        if not out and not err:
            break
        stdout += out
        stderr += err
    return bytes(stdout), bytes(stderr)


async def _refuses(process: Process, case: Case) -> None:
    try:
        await process.write(b"x")
        case.problem("what could not be written was no ProcessError")
    except ProcessError:
        return
