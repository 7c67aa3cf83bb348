"""Whether what a backend reports is true."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile

from toolyard.sandboxes.base import LEVELS, Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, a_number, rule_of, sh

RULES: list[Rule] = []


@rule_of(RULES, "report")
async def _(box: Sandbox, case: Case) -> None:
    """There is one report, which names level and layers, and every result has the level."""
    report = case.backend.report()
    case.same("that of the sandbox", box.report(), report)
    case.same("the backend's name", report.backend, case.backend.name)
    if report.level not in LEVELS or not report.layers:
        case.problem(f"{report.level!r} with {len(report.layers)} layers")
    for missing in report.missing:
        if not (missing.feature and missing.reason and missing.fix):
            case.problem(f"{missing!r} does not say what to do")
    levels = [(await box.run(["true"])).isolation, (await box.exec("1")).isolation, (await box.shell(":")).isolation]
    case.same("the levels of results", levels, [report.level] * 3)


@rule_of(RULES, "report", layer="files")
async def _(box: Sandbox, case: Case) -> None:
    """Files of the host are out of reach, as reported."""
    with tempfile.NamedTemporaryFile() as file:
        os.chmod(file.name, 0o666)
        if (await box.run(["cat", file.name])).exit_code == 0:
            case.problem(f"{file.name} could be read")
    for path in "/usr/bin/toolyard-check", "/toolyard-check", "/etc/toolyard-check":
        if (await box.run(["touch", path])).exit_code == 0:
            case.problem(f"{path} could be written")


@rule_of(RULES, "report", layer="network")
async def _(box: Sandbox, case: Case) -> None:
    """The host's network is out of reach, as reported."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        executed = await box.exec(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        if executed.error is None:
            case.problem("a server of the host's could be reached")


@rule_of(RULES, "report", layer="processes")
async def _(box: Sandbox, case: Case) -> None:
    """Processes of the host are out of reach, as reported."""
    number = a_number()
    bait = await asyncio.create_subprocess_exec("sleep", number)
    try:
        seen = await box.run(sh("cat /proc/[0-9]*/cmdline"))
        if number.encode() in seen.stdout:
            case.problem("a process of the host's could be seen")
        await box.run(["kill", "-9", str(bait.pid)])
        case.same("what became of a process of the host's", bait.returncode, None)
    finally:
        bait.kill()
        await bait.wait()
