"""SandboxFusion's own client, with every request that it can make."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import sandbox_fusion
from common import described, main
from sandbox_fusion import RunCodeRequest, SummaryMapping, run_code, run_code_async, run_concurrent

CPP = "#include <iostream>\nint main() { std::cout << 6 * 7; }"


def tour(mode: str, url: str) -> dict[str, Any]:
    sandbox_fusion.set_sandbox_endpoint(url + "/")

    def ask(**more: Any) -> Any:
        request = RunCodeRequest(**more)
        if mode == "sync":
            return run_code(request, max_attempts=1, client_timeout=60)
        return asyncio.run(run_code_async(request, max_attempts=1, client_timeout=60))

    data = base64.b64encode(b"\x00data").decode()
    reading = "import sys\nopen('out', 'wb').write(open('dir/in', 'rb').read()[::-1])\nprint(input(), file=sys.stderr)"
    asked = {
        "well": {"code": "print(6 * 7)"},
        "badly": {"code": "raise SystemExit(3)"},
        "late": {"code": "while True: pass", "run_timeout": 0.5},
        "compiled": {"code": CPP, "language": "cpp"},
        "uncompiled": {"code": "int main() { return x; }", "language": "cpp"},
        "shell": {"code": "echo $0 | grep -c sh", "language": "bash"},
        "files": {"code": reading, "stdin": "typed", "files": {"dir/in": data}, "fetch_files": ["out", "none"]},
    }
    answers = {name: ask(**{"language": "python", **one}) for name, one in asked.items()}
    mapping = SummaryMapping(CompileFailed="CE", RunFailed="RE", RunTimeout="TLE")
    return {
        "answers": {name: json.loads(answer.json()) for name, answer in answers.items()},
        "summaries": {name: sandbox_fusion.summary_run_code_result(one, mapping) for name, one in answers.items()},
        "unavailable": raised(lambda: ask(code="1", language="lean")),
    }


def at_once(url: str, count: int) -> list[str]:
    requests = [[RunCodeRequest(code=f"print({i} * 2)", language="python")] for i in range(count)]
    answers = run_concurrent(run_code, args=requests, kwargs=[{"endpoint": url}] * count, concurrency=8)
    return [answer.run_result.stdout for answer in answers]


def raised(work: Callable[[], object]) -> dict[str, Any] | None:
    try:
        work()
    except Exception as error:
        return described(error)
    return None


def fusion(what: str, **arguments: Any) -> object:
    return {"tour": tour, "at_once": at_once}[what](**arguments)


main(fusion)
