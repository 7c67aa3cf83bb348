"""What the pages say is so: commands, links, endpoints, messages, settings."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

from benchmarks import ors as benchmark
from benchmarks import retrieval as retrieval_benchmark
from benchmarks import verl as verl_benchmark
from benchmarks.report import command_of
from tests import __main__ as test_runner
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands, prose
from toolyard import verl
from toolyard.cli import build_parser, command_names, main
from toolyard.loading import load_targets
from toolyard.testing import Running, running

DOCS = ROOT / "docs"
HOSTILE = [f"tests.sandboxes.{path.stem}" for path in (ROOT / "tests" / "sandboxes").glob("test_hostile_*.py")]


def matching(pattern: str) -> list[Block]:
    return [command for command in commands() if re.match(pattern, command.text)]


# Commands.


@pytest.fixture(scope="module")
def examples() -> Iterator[Running]:
    with running(load_targets([]).environments) as server:
        yield server


def test_every_command_is_of_a_kind_that_is_checked():
    known = re.compile(
        r"(toolyard|make|curl|python -m toolyard\.verl|python examples/training/\w+\.py|(uv )?pip install|pipx install"
        r"|uv tool install) "
    )
    assert [str(command) for command in commands() if not known.match(command.text)] == []


@pytest.mark.parametrize("command", matching("toolyard "), ids=str)
def test_each_toolyard_command_is_understood(command: Block):
    words = shlex.split(command.text)[1:]
    assert build_parser(command_names()).parse_args(words).command == words[0]


@pytest.mark.parametrize("command", matching("python -m toolyard.verl "), ids=str)
def test_each_command_in_the_place_of_verl_tools_is_understood(command: Block):
    flags, unused = verl.read_flags(shlex.split(command.text)[3:])
    assert flags.tool_type
    assert not unused


@pytest.mark.parametrize("command", matching("python examples/"), ids=str)
def test_each_recipe_is_there_and_has_the_flags_it_is_given(command: Block):
    _, program, *words = shlex.split(command.text)
    path = ROOT / program
    assert path.is_file()
    # whole_run.py takes the flags about the size of a policy from python_grpo.py.
    sources = [path, *([path.with_name("python_grpo.py")] if path.name == "whole_run.py" else [])]
    assert {word for word in words if word.startswith("--")} <= flags_in(sources)


def flags_in(sources: Iterable[Path]) -> set[str]:
    """The flags that programs have which cannot be imported here, for want of PyTorch."""
    return {flag for path in sources for flag in re.findall(r'add_argument\("(--[a-z-]+)"', path.read_text())}


def test_each_way_to_install_names_extras_that_there_are():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    named = [
        found[1] for command in matching(r"(uv )?(pip|pipx|tool)") for found in re.finditer(r"\[(.+?)\]", command.text)
    ]
    assert named
    assert {extra for names in named for extra in names.split(",")} <= extras


def test_the_page_about_installing_has_every_extra_but_that_of_developers():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    page = (DOCS / "installing.md").read_text()
    assert {*re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE)} == extras - {"dev"}


def test_the_configurations_of_hosts_start_a_command_that_is_understood():
    blocks_of_hosts = [json.loads(block.text) for block in blocks("json") if block.page.name == "mcp.md"]
    entries = [*blocks_of_hosts, json.loads((ROOT / "examples" / "agent" / "mcp.json").read_text())]
    assert {key for entry in entries for key in entry} == {"mcpServers", "servers", "context_servers"}
    for entry in entries:
        (named,) = entry.values()
        host = named["maze"]
        if "url" in host:
            assert "/mcp/maze?split=train&index=3" in host["url"]
            continue
        assert host["command"].endswith("toolyard")
        args = build_parser(command_names()).parse_args(host["args"])
        assert (args.command, args.split, args.index) == ("mcp", "train", 3)
        assert (ROOT / args.target.removeprefix("/home/me/yard/")).exists()


def test_the_calls_of_the_quickstart_work(examples: Running, capsys: pytest.CaptureFixture[str]):
    calls = matching("toolyard call ")
    assert calls
    for command in calls:
        words = shlex.split(command.text.replace("http://127.0.0.1:8080", examples.url))
        assert main(words[1:]) == 0
    assert "o - @" in capsys.readouterr().out


def test_each_make_target_is_there():
    makefile = (ROOT / "Makefile").read_text()
    for command in matching("make "):
        target = command.text.split()[1]
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), command


def test_the_requests_of_the_quickstart_work_in_their_order(examples: Running):
    answers = []
    for command in matching("curl "):
        words = iter(shlex.split(command.text)[1:])
        method, headers, data, url = "", {}, None, ""
        for word in words:
            match word:
                case "-H":
                    name, _, value = next(words).partition(": ")
                    headers[name] = value
                case "-d":
                    data = next(words)
                case "-X":
                    method = next(words)
                case _:
                    url = word.replace("http://127.0.0.1:8080", examples.url)
        method = method or ("GET" if data is None else "POST")
        answers.append(httpx2.request(method, url, headers=headers, content=data, timeout=10))
    assert [answer.status_code for answer in answers] == [200] * 9
    assert answers[0].json() == ["arithmetic", "chart", "exam", "maze"]
    assert '"reward":1.0,"finished":true' in answers[7].text


# Links.


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path):
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_index():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index


# Facts.


@pytest.fixture
def of_docs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a program of docs/ by its name."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module


def test_the_reference_is_up_to_date(of_docs: Callable[[str], ModuleType]):
    generate = of_docs("generate")
    assert generate.PAGE.read_text() == generate.reference(), "run `make docs`"


def test_the_page_on_the_python_api_is_up_to_date(of_docs: Callable[[str], ModuleType]):
    api = of_docs("python_api")
    assert api.PAGE.read_text() == api.python_api(), "run `make docs`"


def test_the_page_on_training_has_the_measurements_there_are(of_docs: Callable[[str], ModuleType]):
    training = of_docs("training_run")
    assert training.PAGE.read_text() == training.page(), "run `make docs`"
    assert ("No run on a GPU was made" in training.PAGE.read_text()) != training.TOLD.exists()


def test_the_page_on_training_would_show_the_measurements_of_a_run(of_docs: Callable[[str], ModuleType]):
    played = {
        "trajectories": 2048,
        "seconds": 4.0,
        "tokens written per second": 1500,
        "part of time waiting for tools": 0.1,
    }
    learns = {**played, "parameters": 85_082_112, "rewards": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}
    told = {
        "machine": {"in words": "a GPU, 4 cores", "commit": "abc", "python": "3.12", "torch": "2.11", "toolyard": "1"},
        "scale": {"tasks": 64, "group": 16},
        "gateways": 4,
        "seconds": 500.0,
        "rises": True,
        "tables": {"learns": {"1": learns, "2": learns}, "frozen": {"1": {"rewards": [0.14, 0.16]}}},
        "waiting": [
            {**played, "gateways": 1, "overlap": False, "steps": 8, "executions per second": 250.0},
            {**played, "gateways": 4, "overlap": True, "steps": 10, "executions per second": 1692.4},
        ],
        "executions": [
            {"cores": 2, "gateways": 1, "executions per second": 400.0, "lost": 0},
            {"cores": 1, "gateways": 1, "executions per second": 222.0, "lost": 0},
            {"cores": 2, "gateways": 2, "executions per second": 432.0, "lost": 1},
        ],
    }
    section = of_docs("training_run").section(told)
    assert "No run on a GPU was made" not in section
    assert "commit abc" in section
    for row in (
        "| 1 | 0.20 | 0.75 | 0.15 | 8 | 2,048 | 4 s | 1,500 | 10.0% |",
        "| 2 | 0.20 | 0.75 |  | 8 | 2,048 | 4 s | 1,500 | 10.0% |",
        "| 1 | waits | 0.50 s | 250 | 10.0% |",
        "| 4 | learns from the batch before | 0.40 s | 1,692 | 10.0% |",
        "| 1 | 1 | 222 | 0 |\n| 2 | 2 | 432 | 1 |",
    ):
        assert row in section


def test_every_method_on_the_page_on_the_python_api_is_described():
    rows = re.findall(r"^\| `((?:await )?\w+\(.*)` \| (.*) \|$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert len(rows) > 50
    assert [row for row, described in rows if not described] == []


def test_the_drawings_are_what_their_program_draws(of_docs: Callable[[str], ModuleType]):
    drawings = of_docs("drawings")
    for draw in drawings.DRAWINGS:
        assert (drawings.IMAGES / f"{draw.__name__}.svg").read_text() == draw().svg(), "run `make docs`"


WRITTEN_BY_US = [page for page in PAGES if page.name not in ("reference.md", "api.md")]


@pytest.mark.parametrize("page", WRITTEN_BY_US, ids=lambda page: page.name)
def test_every_flag_that_is_mentioned_exists(page: Path):
    reference = (DOCS / "reference.md").read_text()
    others = {"--help", "--no-", "--lifespan", *benchmark.arguments()._option_string_actions}
    others |= set(verl_benchmark.arguments()._option_string_actions)
    others |= set(retrieval_benchmark.arguments()._option_string_actions)
    others |= set(test_runner.options()._option_string_actions)
    others |= flags_in((ROOT / "examples" / "training").glob("*.py"))
    others |= {"--flag", "--noflag", *(f"--{name}" for name in (*verl.HELP, *verl.UNUSED))}
    others |= {flag.replace("--", "--no-", 1) for flag in others}
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?!\w)", prose(page))) - others:
        assert f"`{re.sub('^--no-', '--', flag)}" in reference, flag


def test_the_reference_has_the_flags_of_every_command():
    reference = (DOCS / "reference.md").read_text()
    sections = dict(re.findall(r"^## `toolyard (\w+)`\n(.*?)(?=^## )", reference, re.MULTILINE | re.DOTALL))
    assert "`--api-key KEY`" in sections["call"]
    assert "--api-key" not in sections["serve"]  # there it is a setting


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("", "make bench"),
        ("--write-page --json /some/where.json", "make bench"),
        ("--quick", "python -m benchmarks.ors --quick"),
        ("--rounds 3 --seconds 0.5 --json x", "python -m benchmarks.ors --rounds 3 --seconds 0.5"),
    ],
)
def test_the_benchmark_says_how_to_repeat_it(words: str, command: str):
    parser = benchmark.arguments()
    assert command_of(parser, parser.parse_args(words.split()), usual="make bench") == command


def test_every_endpoint_of_the_table_answers(examples: Running):
    rows = re.findall(r"^\| (GET|POST) `([^`]+)`(?: or `([^`]+)`)?", (DOCS / "ors.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    for method, path, alias in rows:
        for place in filter(None, (path, alias)):
            url = place.replace("{env}", "arithmetic")
            if place is alias and path.startswith("/{env}"):
                url = f"/arithmetic{alias}"
            answer = httpx2.request(method, examples.url + url, json={} if method == "POST" else None, timeout=10)
            assert answer.status_code in (200, 400, 422), (method, url, answer.status_code)


def source() -> str:
    """All our code, with strings that go on in the next line put together."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_every_message_of_the_troubleshooting_page_is_one_of_ours():
    code = source()
    headings = re.findall(r"^### (`.*)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(headings) > 20
    for heading in headings:
        for message in re.findall(r"`([^`]+)`", heading):
            for fragment in message.split("…"):
                assert fragment.strip(" :()") in code, (message, fragment)


def test_the_layers_that_contributors_read_are_those_that_are_enforced():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert "\n".join(["```text", *layers, "```"]) in (ROOT / "CONTRIBUTING.md").read_text()


def test_every_folder_on_the_map_is_there():
    for path in re.findall(r"^\| `([\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE):
        assert (ROOT / path).exists(), path


def test_the_page_on_ors_has_a_place_for_the_benchmark():
    page = (DOCS / "ors.md").read_text()
    assert page.index("<!-- benchmark:begin -->") < page.index("<!-- benchmark:end -->")


def test_the_page_on_what_a_sandbox_costs_has_a_place_for_the_benchmark():
    page = (DOCS / "sandbox-cost.md").read_text()
    assert page.index("<!-- sandbox benchmark -->") < page.index("<!-- end -->")


def test_the_table_of_attacks_names_every_hostile_program_and_no_other():
    section = (DOCS / "threat-model.md").read_text().partition("\n## Attacks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| ([^|]+) \|$", section, re.MULTILINE)[2:]
    named = {number for row in rows for number in row.split(", ")}
    played = {name.partition("-")[0] for module in HOSTILE for name in importlib.import_module(module).SUITE.cases}
    assert named == played
