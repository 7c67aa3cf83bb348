"""`piston`, against a small server that speaks Piston's API and really runs the programs."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.tools.acting import Trainer
from tests.tools.loopback import serving
from toolyard.core.errors import DefinitionError
from toolyard.testing import Running, running
from toolyard.tools import piston
from toolyard.tools.piston import PistonForm, observed

pytestmark = pytest.mark.anyio

asked: list[dict[str, Any]] = []


async def runtimes(request: Request) -> Response:
    return JSONResponse([{"language": "python", "version": "3.11.0", "aliases": ["py"]}])


async def execute(request: Request) -> Response:
    """Runs Python; names of other languages choose the kind of answer."""
    body = await request.json()
    asked.append(body)
    match body["language"]:
        case "python":
            return JSONResponse({"language": "python", "version": "3.11.0", "run": await run(body)})
        case "cpp":
            compiled = {"stdout": "", "stderr": "no main", "output": "no main", "code": 1, "signal": None}
            return JSONResponse({"language": "cpp", "version": "10.2.0", "compile": compiled})
        case "busy":
            return PlainTextResponse("slow down", 429, headers={"Retry-After": "7"})
        case "forbidden" | "broken":
            return PlainTextResponse("no", 403 if body["language"] == "forbidden" else 500)
        case "odd":
            return JSONResponse({"language": "odd"})
        case "list":
            return JSONResponse([])
        case "never":
            await asyncio.sleep(60)
    return JSONResponse({"message": f"{body['language']}-{body['version']} runtime is unknown"}, 400)


async def run(body: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for file in body["files"]:
            (Path(folder) / file["name"]).write_text(file["content"])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, body["files"][0]["name"], *body["args"]),
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(body["stdin"].encode()), 10)
        ended = {"code": process.returncode, "signal": None, "cpu_time": 8, "memory": 1_500_000}
        return {"stdout": out.decode(), "stderr": err.decode(), "output": (out + err).decode(), **ended}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    routes = [Route("/api/v2/runtimes", runtimes), Route("/api/v2/execute", execute, methods=["POST"])]
    with serving(Starlette(routes=routes)) as address:
        yield address


@pytest.fixture(scope="module")
def yard(url: str) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PISTON_URL", url)
        with running([], tools="piston") as server:
            yield server


@pytest.fixture
async def trainer(yard: Running) -> AsyncIterator[Trainer]:
    asked.clear()
    async with Trainer(yard.url) as client:
        yield client


async def test_a_program_written_as_xml_is_run(trainer):
    seen = await trainer.act(
        """
        <piston>
          <language>python</language>
          <version>3.11</version>
          <args>a  b</args>
          <stdin>typed</stdin>
          <file name="main.py">
import sys, helper
print(sys.argv[1:], input(), helper.two)
sys.exit(3)
          </file>
          <file name="helper.py">two = 2</file>
        </piston>
        """
    )
    assert seen.text == (
        "Execution result:\n\nLanguage: python\nVersion: 3.11.0\n\n--- STDOUT ---\n['a', 'b'] typed 2\n\n\n"
        "--- STDERR ---\n\n\nExit code: 3\nSignal: None\nCPU time: 8ms\nMemory usage: 1.50MB\n"
    )
    assert (seen.done, seen.valid) == (True, True)
    assert asked[0]["version"] == "3.11"
    limits = ("compile_timeout", "run_timeout", "compile_memory_limit", "run_memory_limit")
    assert [asked[0][limit] for limit in limits] == [10_000, 3_000, -1, -1]


async def test_a_program_full_of_angle_brackets_is_read_as_it_was_meant(trainer):
    seen = await trainer.act("<piston><language>python</language><file>print(1 < 2 & 3, '<b>')</file></piston>")
    assert "--- STDOUT ---\nTrue <b>\n" in seen.text
    assert asked[0]["files"] == [{"name": "file0", "content": "print(1 < 2 & 3, '<b>')"}]


async def test_xml_that_is_written_properly_is_read_properly(trainer):
    text = '<piston><language>python</language><file name="a.py"><![CDATA[print(1 < 2)]]></file></piston>'
    assert "--- STDOUT ---\nTrue\n" in (await trainer.act(text)).text


async def test_a_program_written_as_json_is_run_and_its_files_get_names(trainer):
    seen = await trainer.act('{"language": "python", "files": [{"content": "print(6 * 7)"}, {"content": ""}]}')
    assert "--- STDOUT ---\n42\n" in seen.text
    assert [file["name"] for file in asked[0]["files"]] == ["file0.py", "file1.py"]
    assert (asked[0]["version"], asked[0]["args"], asked[0]["stdin"]) == ("*", [], "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)",
        "say <piston><language>python</language><file>1</file></piston>",
        "<piston><language>python</language></piston>",
        "<piston><file>print(1)</file></piston>",
        '{"language": "python"}',
        '{"language": "python", "files": []}',
        '{"files": [{"content": "1"}]}',
        '{"language": }',
    ],
)
async def test_what_is_no_whole_program_is_no_action(trainer, text):
    assert await trainer.act(text) == ("", False, False)
    assert not asked


def test_entities_that_grow_are_not_expanded():
    declared = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    bomb = f"<piston>{declared}<language>python</language><file>&b;</file></piston>"
    assert PistonForm().read(bomb) == {"language": "python", "files": [{"name": "file0", "content": "&b;"}]}


def program(language: str) -> str:
    return f"<piston><language>{language}</language><file>x</file></piston>"


async def test_what_piston_refuses_ends_the_trajectory_as_invalid(trainer):
    seen = await trainer.act(program("cobol"))
    assert seen == ('Error: HTTP 400: {"message":"cobol-* runtime is unknown"}', True, False)


@pytest.mark.parametrize(
    ("language", "problem"),
    [
        ("busy", "it answered 429: slow down"),
        ("forbidden", "it answered 403: "),
        ("broken", "it answered 500: "),
        ("odd", "its answer tells of no run: {'language': 'odd'}"),
        ("list", "its answer is not an object: []"),
    ],
)
async def test_a_server_that_fails_costs_the_agent_no_reward(trainer, url, language, problem):
    said = (await trainer.act(program(language))).why_lost()
    assert f"Piston at {url}/api/v2/execute failed: {problem}" in said


async def test_a_server_that_does_not_answer_in_time_costs_the_agent_no_reward(trainer, monkeypatch):
    monkeypatch.setattr(piston, "SECONDS", 0.5)
    assert "there was no answer within 0.5 seconds" in (await trainer.act(program("never"))).why_lost()


async def test_a_server_that_has_gone_away_costs_the_agent_no_reward(trainer, monkeypatch):
    monkeypatch.setenv("PISTON_URL", "http://127.0.0.1:9")
    said = (await trainer.act(program("python"))).why_lost()
    assert "http://127.0.0.1:9/api/v2/execute failed: it cannot be reached" in said


async def test_a_program_that_does_not_compile_is_a_valid_action(trainer):
    seen = await trainer.act(program("cpp"))
    assert seen.text == (
        "Compilation error:\n\n--- Compile output ---\n\n\n--- Compile error ---\nno main\n\n"
        "Compilation exit code: 1\nStatus: Unknown\n"
    )
    assert (seen.done, seen.valid) == (True, True)


def test_a_program_that_was_killed_is_told_with_its_signal_and_status():
    run = {"stdout": "", "stderr": "", "code": None, "signal": "SIGKILL", "status": "TO", "memory": None}
    text = observed({"run": run}, "python", "*")
    assert "Exit code: None (TO)\nSignal: SIGKILL\nCPU time: 0ms\nMemory usage: 0.00MB\n" in text


async def test_it_is_a_tool_over_ors(trainer):
    (tool,) = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert tool["input_schema"]["required"] == ["language", "files"]
    async with trainer.session() as sid:
        program = {"language": "python", "files": [{"content": "print(input())"}], "stdin": "over ORS"}
        answer = await trainer.call(sid, "piston", program, env="toolbox")
        assert "--- STDOUT ---\nover ORS\n" in answer.text
        assert answer.output["finished"] is True


@pytest.mark.parametrize("tail", ["", "/", "/api/v2", "/api/v2/"])
def test_the_address_may_name_the_version_or_not(url, monkeypatch, tail):
    monkeypatch.setenv("PISTON_URL", url + tail)
    assert piston.Piston.missing() == ""


def test_a_server_that_is_not_there_keeps_the_tool_from_being_served(monkeypatch):
    monkeypatch.setenv("PISTON_URL", "http://127.0.0.1:9")
    refused = "the tool 'piston' cannot be used here: no Piston server answers at http://127.0.0.1:9/api/v2/runtimes"
    with pytest.raises(DefinitionError, match=refused), running([], tools="piston"):
        pass


def test_a_server_that_is_no_piston_keeps_the_tool_from_being_served(url, monkeypatch):
    monkeypatch.setenv("PISTON_URL", f"{url}/elsewhere")
    assert "answers 404 and not 200" in piston.Piston.missing()
