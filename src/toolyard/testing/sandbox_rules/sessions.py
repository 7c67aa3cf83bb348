"""The interpreter and the shell of a session."""

from __future__ import annotations

from toolyard.sandboxes.base import Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, a_number, rule_of

RULES: list[Rule] = []


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """Code returns its output and the value of its last line, and the next code sees its variables."""
    executed = await box.exec("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    got = executed.stdout, executed.stderr, executed.value, executed.error, executed.state_lost
    case.same("the result", got, ("out\n", "err\n", "21", None, False))
    for code, wanted in ("x * 2", "40"), ("x = 'ä'", None), ("x", "'ä'"), ("None", None), ("", None):
        case.same(f"of {code!r}", (await box.exec(code)).value, wanted)
    case.same("of text without an end", (await box.exec("print('no newline', end='')")).stdout, "no newline")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """The result has the exception, and the session goes on."""
    executed = await box.exec("kept = 1\ndef fail(key):\n    return {}[key]\nfail('absent')")
    error = executed.error
    case.same("the exception", error and (error.name, error.message), ("KeyError", "'absent'"))
    if error and not all(part in error.traceback for part in ("return {}[key]", "in fail", "KeyError: 'absent'")):
        case.problem(f"the traceback is {error.traceback!r}")
    for code, name in (
        ("1 +", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class Bad(BaseException):\n    def __str__(self): 1 / 0\nraise Bad", "Bad"),
        ("'\ud800'", "UnicodeEncodeError"),
    ):
        executed = await box.exec(code)
        case.same(f"of {code!r}", executed.error and executed.error.name, name)
        if executed.state_lost or executed.killed_by:
            case.problem(f"{code!r} cost the session")
    if (await box.exec("x = 1\0")).error is None:
        case.problem("a null character is no error")
    case.same("afterwards", (await box.exec("kept")).value, "1")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """Code that takes too long is interrupted, and the variables are still there."""
    await box.exec("kept = 1")
    for code in ("while True: pass", "import time; time.sleep(60)", "import os; os.system('sleep 60')"):
        executed = await box.exec(f"print('begun')\n{code}", timeout=0.5)
        got = executed.killed_by, executed.timed_out, executed.stdout
        case.same(f"of {code!r}", got, ("wall", True, "begun\n"))
        if executed.state_lost:
            case.problem(f"{code!r} cost the session")
    case.same("afterwards", (await box.exec("kept")).value, "1")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """A lost interpreter is an error, and the next code gets a fresh one."""
    stubborn = "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"
    for code, limit in (
        (stubborn, "wall"),
        ("import os; os._exit(3)", None),
        ("import os; os.kill(os.getpid(), 9)", None),
    ):
        await box.exec("kept = 1; open('file', 'w').write('kept')")
        executed = await box.exec(code, timeout=2 if limit is None else 0.5)
        case.same(f"of {code!r}", (executed.killed_by, executed.state_lost), (limit, True))
        if limit is None and executed.error is None:
            case.problem(f"{code!r} is no error")
        executed = await box.exec("kept")
        case.same("afterwards", executed.error and executed.error.name, "NameError")
        case.same("the file", await box.read("file"), b"kept")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """A timer that fires while no code runs does no harm."""
    for raised in ("ValueError('late')", "TimeoutError('late')", "KeyboardInterrupt"):
        await box.exec(
            f"import signal\nkept = 1\ndef late(*_): raise {raised}\n"
            "signal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)"
        )
        await box.run(["sleep", "0.3"])
        executed = await box.exec("kept")
        case.same(f"after {raised}", (executed.value, executed.state_lost), ("1", False))


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """Values and messages are cut to a size that can be sent."""
    for code in "'x' * 10**6", "raise ValueError('x' * 10**6)":
        executed = await box.exec(code)
        sizes = len(executed.value or ""), len(executed.error.message) if executed.error else 0
        if not 1000 < max(sizes) < 200_000:
            case.problem(f"{code!r} gave {max(sizes)} characters")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """Ordinary Python works: subprocesses, pickles, threads, top-level await."""
    for code, wanted in (
        ("import subprocess; subprocess.run(['echo', 'child'], stdout=-1).stdout", "b'child\\n'"),
        ("import pickle\nclass Kept: pass\ntype(pickle.loads(pickle.dumps(Kept()))) is Kept", "True"),
        (
            "import threading\nt = threading.Thread(target=print, args=['t']); t.start(); t.join(); t.is_alive()",
            "False",
        ),
        ("import asyncio\nawait asyncio.sleep(0, 'awaited')", "'awaited'"),
        ("import tempfile\nwith tempfile.NamedTemporaryFile() as f: n = f.write(b'abc')\nn", "3"),
    ):
        executed = await box.exec(code)
        case.same(f"of {code!r}", (executed.value, executed.error), (wanted, None))


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """A pool of processes works, unless the report says that no memory can be shared."""
    executed = await box.exec(
        "import multiprocessing as m\ndef f(x): return x * x\n"
        "with m.get_context('fork').Pool(2) as p: r = p.map(f, [3])\nr"
    )
    if not any(one.feature == "shared memory" for one in box.report().missing):
        case.same("what it gives", (executed.value, executed.error), ("[9]", None))
    elif executed.error is None:
        case.problem("memory can be shared, although the report says that it cannot")


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """The output includes what Python's children write."""
    executed = await box.exec("import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d')")
    case.same("the output", (executed.stdout, executed.stderr), ("a\nb\nd\n", "c\n"))


@rule_of(RULES, "python")
async def _(box: Sandbox, case: Case) -> None:
    """Modules in the workspace can be imported, and hide none that is installed."""
    await box.write("of_our_own.py", b"answer = 42\n")
    await box.write("statistics.py", b"answer = 'of nobody'\n")
    executed = await box.exec("import of_our_own, statistics\nof_our_own.answer, hasattr(statistics, 'answer')")
    case.same("what was imported", executed.value, "(42, False)")


@rule_of(RULES, "shell")
async def _(box: Sandbox, case: Case) -> None:
    """The shell keeps its directory, variables and functions; each command has its own code and output."""
    for command, wanted in (
        ("mkdir -p sub && cd sub && v='a b' && f() { echo \"f $v\"; }", (0, b"", b"")),
        ("basename \"$PWD\"; f; printf unfinished", (0, b"sub\nf a b\nunfinished", b"")),
        ("echo out; echo err >&2; (exit 7)", (7, b"out\n", b"err\n")),
        ("cat", (0, b"", b"")),
        ("printf 'a\\nb\\n' | while read line; do echo \"<$line>\"; done", (0, b"<a>\n<b>\n", b"")),
        ("cat <<'END'\n$v 'quoted' \"twice\"\nEND", (0, b"$v 'quoted' \"twice\"\n", b"")),
    ):  # fmt: skip
        done = await box.shell(command)
        case.same(f"of {command!r}", (done.exit_code, done.stdout, done.stderr), wanted)
        if done.state_lost:
            case.problem(f"{command!r} cost the session")


@rule_of(RULES, "shell")
async def _(box: Sandbox, case: Case) -> None:
    """Broken syntax is an error of that command alone."""
    await box.shell("kept=1")
    for command in (
        "echo 'open",
        'echo "open',
        "if true",
        "cat <<END",
        ")",
        "echo $(",
        "for",
        "\0",
        "\ud800",
        "no-such-program",
    ):
        done = await box.shell(command)
        if command != "cat <<END" and done.exit_code == 0:
            case.problem(f"{command!r} ended well")
        case.same(f"after {command!r}", (await box.shell("echo $kept")).stdout, b"1\n")


@rule_of(RULES, "shell")
async def _(box: Sandbox, case: Case) -> None:
    """A lost shell is an error, and the next command gets a fresh one."""
    for command, code in ("exit 5", 5), ("exec true", 0):
        await box.shell("kept=1; cd /")
        done = await box.shell(f"echo last; {command}")
        case.same(f"of {command!r}", (done.exit_code, done.stdout, done.state_lost), (code, b"last\n", True))
        done = await box.shell('echo "[$kept]"; ls -d .')
        case.same("afterwards", (done.exit_code, done.stdout, done.state_lost), (0, b"[]\n.\n", False))


@rule_of(RULES, "shell")
async def _(box: Sandbox, case: Case) -> None:
    """A command that takes too long ends with all its processes, and the next one works."""
    for waits in "sleep 60", "while :; do :; done", "cat /dev/zero > /dev/null":
        command = f"echo begun; {waits}; echo > rest; echo rest"
        done = await box.shell(command, timeout=0.5)
        got = done.killed_by, done.stdout, done.exit_code
        case.same(f"of {command!r}", got, ("wall", b"begun\n", 124))
        case.same("afterwards", (await box.shell("cd; ls; echo fine")).stdout, b"fine\n")


@rule_of(RULES, "shell")
async def _(box: Sandbox, case: Case) -> None:
    """A background job of a command goes on until the sandbox is closed."""
    number = a_number()
    await box.shell(f"sleep {number} &\nsleep 0.2 && echo later > later &\njob=$!")
    done = await box.shell("wait $job; cat later; kill -0 %1 && echo alive")
    case.same("later", done.stdout, b"later\nalive\n")
    await box.close()
    await case.nothing_left(number)
