"""SandboxFusion's endpoint, according to its documents and its client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.wires.wire import Wire, until
from tests.worlds import MathEnv
from toolyard.protocols import fusion
from toolyard.sandboxes import languages
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def yard() -> Iterator[Running]:
    """A server that otherwise runs no code."""
    with running([MathEnv], protocol=("ors", "fusion")) as server:
        yield server


class Client(Wire):
    async def run(self, code: str, language: str = "python", **more: Any) -> dict[str, Any]:
        response = await self.post("/run_code", json={"code": code, "language": language, **more})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture
async def client(yard: Running) -> AsyncIterator[Client]:
    async with Client(yard.url) as client:
        yield client


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_program_that_ends_well_is_a_success(client):
    answer = await client.run("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    ran = answer["run_result"]
    assert ran.pop("execution_time") > 0
    assert ran.pop("cpu_time") >= 0
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "out\n", "stderr": "err\n"},
        "executor_pod_name": None,
        "files": {},
    }


async def test_a_program_that_raises_has_failed_with_its_traceback(client):
    answer = await client.run("1/0")
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "Finished")
    assert answer["run_result"]["return_code"] == 1
    assert answer["run_result"]["stderr"].endswith("ZeroDivisionError: division by zero\n")


async def test_a_program_that_takes_too_long_is_stopped_and_what_it_wrote_is_kept(client):
    answer = await client.run("print('so far', flush=True)\nwhile True: pass", run_timeout=0.5)
    ran = answer["run_result"]
    assert (answer["status"], ran["status"], ran["return_code"]) == ("Failed", "TimeLimitExceeded", None)
    assert ran["stdout"] == "so far\n"
    assert 0.4 < ran["execution_time"] < 5


async def test_stdin_is_read_and_null_is_empty(client):
    assert (await client.run("print(input()[::-1])", stdin="abc\n"))["run_result"]["stdout"] == "cba\n"
    assert (await client.run("import sys; print([sys.stdin.read()])", stdin=None))["run_result"]["stdout"] == "['']\n"


async def test_files_go_in_and_come_out_as_base64(client):
    code = "import main\nopen('out/new.bin', 'wb').write(main.data * 2)"
    files = {"main.py": b64(b"data = b'\\x00\\xff'"), "out/there": b64(b""), "none": None, "IGNORE_THIS_FILE": "!"}
    answer = await client.run(code, files=files, fetch_files=["out/new.bin", "missing", "/etc/passwd", "out"])
    assert answer["status"] == "Success", answer
    assert answer["files"] == {"out/new.bin": b64(b"\x00\xff" * 2)}


async def test_files_that_are_too_large_together_are_left_out_and_that_is_said(client):
    code = "for name in 'ab': open(name, 'wb').write(bytes(9 * 2**20))"
    answer = await client.run(code, fetch_files=["a", "b"])
    assert [*answer["files"]] == ["a"]
    assert answer["message"].startswith("b is left out")


async def test_a_compiled_language_is_compiled_and_run(client):
    code = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; return 3; }"
    answer = await client.run(code, "cpp", stdin="21")
    assert answer["compile_result"]["status"] == "Finished"
    assert answer["compile_result"]["return_code"] == 0
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 3)
    assert answer["run_result"]["stdout"] == "42"


async def test_what_does_not_compile_is_not_run(client):
    answer = await client.run("int main() { return x; }", "cpp")
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert answer["compile_result"]["return_code"] == 1
    assert "'x' was not declared" in answer["compile_result"]["stderr"].replace("\u2018", "'").replace("\u2019", "'")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "for i in 1 2; do echo $i; done"),
        ("nodejs", "for (const i of [1, 2]) console.log(i)"),
        ("perl", 'print "$_\\n" for 1, 2;'),
        ("pytest", "def test_two():\n    print('1\\n2')"),
        (
            "java",
            "import java.util.*; public class Main { public static void main(String[] a) {"
            " for (int i : List.of(1, 2)) System.out.println(i); } }",
        ),
        ("go", 'package main\nimport "fmt"\nfunc main() { for i := 1; i < 3; i++ { fmt.Println(i) } }'),
        ("ruby", "[1, 2].each { |i| puts i }"),
        ("php", 'foreach ([1, 2] as $i) echo "$i\n";'),
        ("lua", "for i = 1, 2 do print(i) end"),
        ("R", 'cat(1, 2, sep = "\n")'),
        ("rust", 'fn main() { for i in 1..3 { println!("{}", i); } }'),
    ],
)
async def test_other_languages_run_if_their_program_is_in_the_sandbox(client, language, code):
    answer = await client.run(code, language)
    if answer["status"] == "SandboxError":  # this host lacks the program, and the answer says so
        program = languages.TOOLCHAINS[language].needs
        assert answer["message"] == f"{language} is not available here: there is no {program} in the sandbox"
        return
    assert answer["status"] == "Success", answer
    assert "1\n2" in answer["run_result"]["stdout"] or "1 passed" in answer["run_result"]["stdout"]


async def test_a_language_whose_compiler_is_not_there_is_an_error_of_the_sandbox(client, yard, monkeypatch):
    missing = languages.Toolchain(".x", ["./{out}"], ["no-such-compiler", "{file}"])
    monkeypatch.setitem(languages.TOOLCHAINS, "swift", missing)
    for _ in range(2):
        answer = await client.run("print(1)", "swift")
        assert answer["status"] == "SandboxError"
        assert answer["message"] == "swift is not available here: there is no no-such-compiler in the sandbox"
        assert (answer["compile_result"], answer["run_result"], answer["files"]) == (None, None, {})


BROKEN = languages.Toolchain(".x", ["sh", "{file}"], ["sh", "-c", "echo no >&2; echo config >&2; exit 3"])


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (BROKEN, "exit code 3, no config"),
        (replace(BROKEN, compile=(), hello="echo bye"), "exit code 0, bye"),
        (replace(BROKEN, compile=(), hello="yes hello"), "it wrote more output than it may"),
    ],
)
async def test_a_language_that_fails_a_hello_world_is_an_error_of_the_sandbox(monkeypatch, broken, problem):
    monkeypatch.setitem(languages.TOOLCHAINS, "swift", broken)
    with running([MathEnv], protocol=("fusion",)) as server:
        async with Client(server.url) as client:
            answers = await asyncio.gather(*(client.run("echo right", "swift") for _ in range(3)))
            for answer in answers:
                assert answer["status"] == "SandboxError"
                known, _, why = answer["message"].partition(" in the sandbox: ")
                assert known == "swift is not available here: sh fails even a hello-world"
                assert problem in why
                assert (answer["compile_result"], answer["run_result"]) == (None, None)
            offered = (await client.run("SELECT 1", "sql"))["message"].partition("there are ")[2]
            assert "swift" not in offered.split(", ")


async def test_a_language_that_failed_is_tried_anew_after_a_while(monkeypatch):
    monkeypatch.setattr(languages, "TRY_AGAIN_SECONDS", 0)
    monkeypatch.setitem(languages.TOOLCHAINS, "swift", BROKEN)
    with running([MathEnv], protocol=("fusion",)) as server:
        async with Client(server.url) as client:
            assert (await client.run("echo right", "swift"))["status"] == "SandboxError"
            monkeypatch.setitem(languages.TOOLCHAINS, "swift", replace(BROKEN, compile=(), hello="echo hello"))
            assert (await client.run("echo right", "swift"))["run_result"]["stdout"] == "right\n"


async def test_a_language_that_works_is_tried_once_however_many_ask_at_once(client, monkeypatch):
    tries: list[languages.Toolchain] = []

    async def counted(toolchain: languages.Toolchain) -> str:
        tries.append(toolchain)
        return await problem_of(toolchain)

    problem_of = languages.problem_of
    monkeypatch.setattr(languages, "problem_of", counted)
    monkeypatch.setitem(languages.TOOLCHAINS, "julia", replace(BROKEN, compile=(), hello="echo hello"))
    answers = await asyncio.gather(*(client.run("echo right", "julia") for _ in range(4)))
    assert [answer["run_result"]["stdout"] for answer in answers] == ["right\n"] * 4
    assert len(tries) == 1


async def test_java_keeps_its_heap_within_the_memory_of_the_sandbox(client):
    code = (
        "class Main { public static void main(String[] a) {"
        " System.out.println(Runtime.getRuntime().maxMemory() >> 20); } }"
    )
    answer = await client.run(code, "java", memory_limit_MB=200)
    if answer["status"] == "SandboxError":
        assert answer["message"] == "java is not available here: there is no javac in the sandbox"
    else:
        assert 100 <= int(answer["run_result"]["stdout"]) <= 150


async def test_a_look_that_came_to_nothing_does_not_mean_that_a_language_is_missing(monkeypatch):
    """Programs may run as long as a request says; the programs of tools in this server get no time at all."""
    with running([MathEnv], protocol=("fusion",), sandbox_seconds=1e-6) as server:
        async with Client(server.url) as client:
            assert (await client.run("print(1)"))["status"] == "Success"
    monkeypatch.setattr(languages, "LOOK_SECONDS", 1e-6)
    with running([MathEnv], protocol=("fusion",)) as server:
        async with Client(server.url) as client:
            told = await client.run("print(1)")
            assert told["status"] == "SandboxError"
            assert told["message"].endswith("it took longer than it may, looking for python3")
            monkeypatch.undo()
            assert (await client.run("print(1)"))["status"] == "Success"


async def test_a_language_that_is_not_offered_is_an_error_of_the_sandbox(client):
    answer = await client.run("SELECT 1", "sql")
    assert answer["status"] == "SandboxError"
    assert answer["message"].startswith("sql is not offered here; there are python, pytest, bash")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"language": "python"}, ["body", "code"]),
        ({"code": "1", "language": "klingon"}, ["body", "language"]),
        ({"code": "1", "language": "python", "run_timeout": "long"}, ["body", "run_timeout"]),
        ({"code": "1", "language": "python", "files": ["a"]}, ["body", "files"]),
        ({"code": "1", "language": "python", "fetch_files": ["a"] * 1001}, ["body", "fetch_files"]),
        (["no object"], ["body"]),
    ],
)
async def test_a_request_that_cannot_be_understood_is_a_422_that_says_where(client, body, where):
    response = await client.post("/run_code", json=body)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == where


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../b"])
async def test_files_cannot_be_put_outside_of_the_workspace(client, path):
    answer = await client.run("print(1)", files={path: b64(b"x")})
    assert answer["status"] == "SandboxError"
    assert path in answer["message"]


async def test_what_is_no_base64_is_an_error_of_the_sandbox(client):
    answer = await client.run("print(1)", files={"a": "abc"})
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert "base64" in answer["message"]


async def test_the_memory_that_is_asked_for_is_all_there_is(client):
    code = "x = bytearray(200 * 2**20); print('enough')"
    assert (await client.run(code))["run_result"]["stdout"] == "enough\n"
    short = await client.run(code, memory_limit_MB=100)
    assert short["status"] == "Failed"
    assert "enough" not in short["run_result"]["stdout"]
    least = await client.run(code, memory_limit_MB=1)
    assert (least["status"], least["run_result"]["stdout"]) == ("Failed", "")
    more = await client.run("x = bytearray(2**30); print('enough')", memory_limit_MB=4096)
    assert more["status"] == "Failed", "the operator's limit counts"


async def test_a_program_that_writes_without_end_is_stopped_and_that_is_said(client):
    answer = await client.run("while True: print('x' * 1000)", run_timeout=20)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "Finished")
    assert len(answer["run_result"]["stdout"]) == 2**20
    assert "it wrote more output than it may" in answer["message"]


async def test_programs_run_at_the_same_time_each_in_a_sandbox_of_its_own(client):
    code = "import os\nassert not os.path.exists('mine')\nopen('mine', 'w')\nprint(input())"
    answers = await asyncio.gather(*(client.run(code, stdin=f"{i}") for i in range(12)))
    assert [answer["run_result"]["stdout"] for answer in answers] == [f"{i}\n" for i in range(12)]


async def test_only_post_is_an_answer(client):
    response = await client.get("/run_code")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_a_server_that_has_enough_to_do_says_so():
    with running([MathEnv], protocol=("ors", "fusion"), max_concurrent_calls=1, max_queued_calls=0) as server:
        async with Client(server.url) as client:
            first = asyncio.ensure_future(client.run("import time; time.sleep(3); print('done')"))
            route = next(route for route in server.server.app._app._routes if isinstance(route, fusion.Fusion))
            await until(lambda: route._requests)
            second = await client.post("/run_code", json={"code": "1", "language": "python"})
            assert (second.status_code, second.headers["retry-after"]) == (503, "1")
            assert (await first)["run_result"]["stdout"] == "done\n"


async def test_a_server_without_a_sandbox_serves_all_the_same_and_says_why_it_cannot_run_code():
    with running([MathEnv], protocol=("ors", "fusion"), sandbox="subprocess") as server:
        async with Client(server.url) as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.run("print(1)")
            assert answer["status"] == "SandboxError"
            assert "there is no sandbox on this host" in answer["message"]


async def test_the_key_of_the_server_is_asked_for():
    with running([MathEnv], protocol=("ors", "fusion"), api_key="k") as server:
        async with Client(server.url) as client:
            response = await client.post("/run_code", json={"code": "1", "language": "python"})
            assert response.status_code == 401


async def test_a_server_of_another_protocol_alone_runs_no_code():
    with running([MathEnv], protocol=("ors",)) as server:
        async with Client(server.url) as client:
            response = await client.post("/run_code", json={"code": "1", "language": "python"})
            assert response.status_code == 404


async def test_a_server_of_this_protocol_alone_answers_as_the_original_when_asked_whether_it_is_there():
    with running([MathEnv], protocol=("fusion",)) as server:
        async with Client(server.url) as client:
            assert (await client.get("/v1/ping")).json() == "pong"
            assert (await client.get("/health")).json() == {"status": "healthy"}
            assert (await client.run("print(1)"))["run_result"]["stdout"] == "1\n"
