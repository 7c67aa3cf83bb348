"""`sandbox_fusion`, against the real thing: the same endpoint, served by us, and servers with bad answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.tools.acting import Trainer
from tests.tools.loopback import serving
from tests.worlds import MathEnv
from toolyard.testing import Running, running
from toolyard.tools import http, sandbox_fusion
from toolyard.tools.environment import toolbox
from toolyard.tools.sandbox_fusion import LANGUAGES, LanguageForm, observed

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def fusion() -> Iterator[Running]:
    with running([MathEnv], protocol=("fusion",)) as server:
        yield server


@pytest.fixture(scope="module")
def yard() -> Iterator[Running]:
    with running([], tools="sandbox_fusion") as server:
        yield server


@pytest.fixture
async def trainer(yard: Running, fusion: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trainer]:
    monkeypatch.setenv("SANDBOX_FUSION_URL", fusion.url + "/")
    async with Trainer(yard.url) as client:
        yield client


async def test_code_is_run_by_the_server_and_its_output_told(trainer):
    seen = await trainer.act("<think>hmm</think> <python>print('hi')</python>")
    assert re.fullmatch(
        r"Execution results:\n\nExecution: Finished \(took \d+\.\d{4}s\)\n\nOutput:\nhi\n", seen.observation
    )
    assert (seen.done, seen.valid) == (False, True)


async def test_a_program_that_fails_is_a_valid_action(trainer):
    seen = await trainer.act("```python\nprint(1)\n1/0\n```")
    assert "\nOutput:\n1\n\nErrors:\nTraceback" in seen.text
    assert seen.text.endswith("ZeroDivisionError: division by zero\n\nStatus: Failed")
    assert (seen.done, seen.valid) == (False, True)


@pytest.mark.thorough  # it takes the server's ten seconds for a program
async def test_a_program_without_end_is_the_agents_fault_and_not_the_servers(trainer):
    seen = await trainer.act("<python>print(1, flush=True)\nimport time\ntime.sleep(100)</python>")
    assert seen.text.startswith("Execution results:\n\nExecution: TimeLimitExceeded (took 10.")
    assert "\nOutput:\n1\n" in seen.text
    assert (seen.done, seen.valid) == (False, True)


async def test_a_program_that_does_not_compile_is_told_with_the_compilers_words(trainer):
    seen = await trainer.act("<cpp>int main() { return x; }</cpp>")
    assert seen.text.startswith("Execution results:\n\nCompilation: Finished\nCompilation errors:\n")
    assert "was not declared" in seen.text
    assert seen.text.endswith("\nStatus: Failed")


async def test_what_the_server_cannot_do_is_told_with_its_reason(trainer):
    seen = await trainer.act("<lean>theorem x : 1 = 1 := rfl</lean>")
    assert "\nStatus: SandboxError - lean is not offered here" in seen.text
    assert (seen.done, seen.valid) == (False, True)


@pytest.mark.parametrize("text", ["print(1)", "<think>x</think>", "```text\nno code\n```", "<python> </python>", ""])
async def test_text_without_code_is_no_action(trainer, text):
    assert await trainer.act(text) == ("", False, False)


async def test_it_is_a_tool_over_ors(trainer):
    (tool,) = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert tool["input_schema"]["properties"]["language"]["enum"] == [*LANGUAGES]
    assert tool["input_schema"]["required"] == ["code"]
    async with trainer.session() as sid:
        answer = await trainer.call(sid, "sandbox_fusion", {"code": "print(6 * 7)"}, env="toolbox")
        assert answer.text.endswith("\nOutput:\n42\n")
        answer = await trainer.call(sid, "sandbox_fusion", {"code": "echo $((6 * 7))", "language": "sh"}, env="toolbox")
        assert answer.text.endswith("\nOutput:\n42\n")
        answer = await trainer.call(sid, "sandbox_fusion", {"code": "1", "language": "klingon"}, env="toolbox")
        assert "there is no language 'klingon'; there are python, cpp" in answer.failure["error"]


async def test_calls_of_many_trajectories_run_at_the_same_time(trainer):
    seen = await asyncio.gather(*(trainer.act(f"<bash>echo {i}</bash>") for i in range(10)))
    assert [one.text.rpartition("Output:\n")[2] for one in seen] == [f"{i}\n" for i in range(10)]


async def test_a_server_that_is_not_there_costs_the_agent_no_reward(trainer, monkeypatch):
    monkeypatch.setenv("SANDBOX_FUSION_URL", "http://127.0.0.1:9")
    problem = (await trainer.act("<python>1</python>")).why_lost()
    assert "SandboxFusion at http://127.0.0.1:9 failed: it cannot be reached" in problem


async def test_a_server_that_answers_badly_costs_the_agent_no_reward(trainer, monkeypatch):
    async def answer(request: object) -> Response:
        return replies[0]

    async def endless(request: object) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)  # otherwise it would miss the request to end

        return StreamingResponse(pieces())

    async def never(request: object) -> Response:
        await asyncio.sleep(60)
        return PlainTextResponse("late")

    replies: list[Response] = []
    with serving(
        Starlette(
            routes=[Route(f"/{one.__name__}/run_code", one, methods=["POST"]) for one in (answer, endless, never)]
        )
    ) as url:
        monkeypatch.setenv("SANDBOX_FUSION_URL", f"{url}/answer")
        for reply, problem in [
            *((PlainTextResponse("no", status), f"it answered {status}: no") for status in (401, 403, 404, 429, 500)),
            (PlainTextResponse("no JSON"), "its answer is not JSON: 'no JSON'"),
            (JSONResponse([1]), "its answer is not an object: [1]"),
            (JSONResponse({"detail": "?"}), "its answer has the status 'None', not Success or Failed"),
        ]:
            replies[:] = [reply]
            assert (
                f"SandboxFusion at {url}/answer failed: {problem}"
                in (await trainer.act("<python>1</python>")).why_lost()
            )
        monkeypatch.setenv("SANDBOX_FUSION_URL", f"{url}/endless")
        problem = (await trainer.act("<python>1</python>")).why_lost()
        assert problem.endswith(f"its answer is longer than {http.BYTES_MOST:,} bytes")
        monkeypatch.setenv("SANDBOX_FUSION_URL", f"{url}/never")
        monkeypatch.setattr(sandbox_fusion, "SECONDS", 0.5)
        assert "there was no answer within 0.5 seconds" in (await trainer.act("<python>1</python>")).why_lost()


async def test_what_the_server_refuses_to_run_is_the_agents_to_read(trainer, monkeypatch):
    async def refuse(request: object) -> Response:
        return JSONResponse({"detail": "no such language"}, 422)

    with serving(Starlette(routes=[Route("/run_code", refuse, methods=["POST"])])) as url:
        monkeypatch.setenv("SANDBOX_FUSION_URL", url)
        said = 'SandboxFusion API returned status code 422: {"detail":"no such language"}'
        seen = await trainer.act("<racket>1</racket>")
        assert seen == (f"Error executing code in SandboxFusion: {said}", True, False)


async def test_words_are_blocked_only_where_that_was_asked_for(trainer, fusion):
    code = "<python>import subprocess; print('ran')</python>"
    assert "ran" in (await trainer.act(code)).text
    with running([toolbox([sandbox_fusion.SandboxFusion], block_lists=True)]) as server:
        async with Trainer(server.url) as strict:
            assert await strict.act(code) == (sandbox_fusion.BLOCKED, True, False)
            assert "\n3\n" in (await strict.act("<python>print(3)</python>")).text


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("<python>a</python>", "python", "a"),
        ("<think>x</think><js>a</js><python>b</python>", "nodejs", "a"),
        ("<PY>a</PY>", "python", "a"),
        ("```python\na\n```", "python", "a"),
        ("```ts\na\n```", "typescript", "a"),
        ("```c++\na\n```", "cpp", "a"),
        ("```r\na\n```", "R", "a"),
        ("```\nfirst\n```\n```ruby\nb\n```", "ruby", "b"),
        ("```\na\n```", "python", "a"),
        ("```text\nno\n```\nand\n```\na\n```", "python", "a"),
        ("<result>x</result>```rb\na\n```", "ruby", "a"),
        ("<python></python><bash>a</bash>", "bash", "a"),
    ],
)
def test_code_is_found_by_its_language(text, language, code):
    assert LanguageForm().read(text) == {"code": code, "language": language}


def test_a_compilation_that_did_not_end_is_all_that_is_told():
    compiled = {"status": "TimeLimitExceeded", "stderr": "slow"}
    text = observed({"status": "Failed", "compile_result": compiled, "run_result": None})
    assert text == "Execution results:\n\nCompilation: TimeLimitExceeded\nCompilation errors:\nslow\n\n"
