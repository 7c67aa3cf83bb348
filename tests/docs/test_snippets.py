"""Every program shown in the documentation is part of a file, and every such file runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pyarrow.json
import pyarrow.parquet
import pytest

from tests.docs.pages import EXAMPLES, ROOT, SNIPPETS, Block, blocks
from tests.tiers import thorough
from tests.warm import toolyard
from toolyard.loading import load_targets
from toolyard.testing import check_environment, running

FOLDER = ROOT / "docs" / "snippets"

PLAYED = {
    "play_sums.py": ("sums.py", "What is 3 + 4? Call submit with the answer.\n1.0 True\n"),
    "play_rollouts.py": ("sums.py", "8.0 of 8\n[1.0, 1.0, 1.0, 1.0]\n"),
    "play_many.py": ("sums.py", "32.0 of 32\n"),
    "play_and_sort_errors.py": (
        "sums.py",
        "for the model to read: no_such_tool\nfor the model to read: bad_arguments\n[1.0]\nsubmit\n",
    ),
    "play_headlines.py": ("headlines.py", "1.5 {'correct': 1.0, 'short': 1.0}\n"),
    "play_forks.py": (
        "counter.py",
        "The number is 5. 0.0\nThe number is 6. 0.0\nThe number is 7. 1.0\nThe number is 8. 0.0\n",
    ),
    "play_with_secrets.py": ("with_secrets.py", "rain\n"),
    "play_written.py": (
        "written.py",
        "What is the capital of Peru? Look it up, then answer. False False\n"
        "\n<information>Its capital is Lima.</information>\n False True\n"
        "{'obs': '\\n<tool_response>\\n\\n</tool_response>\\n', 'reward': 1.0} True True\n",
    ),
}
"""Scripts that want a server: what it must serve, and what they print."""

ALONE = {
    "grading_tour.py": """\
True 1.0 4 0 0
not void
True True True
False 0.0 0 4 0
tests/test_prices.py::test_total: it passed, and so did a twin of it that contradicts it
True False False
""",
    "judge_tour.py": """\
nobody's: lost
1.25 {'correct': 1.0, 'style': 0.5} {'correct': 'It is wet.', 'style': 'Short.'}
1.25 {'correct': 1.0, 'style': 0.5} {'correct': 'It is wet.', 'style': 'Short.'}
""",
    "judged.py": """\
the agent's: tool_failed - Tool 'submit' failed: the essay is empty
nobody's: lost - Tool 'submit' could not be run: the judge: <urlopen error [Errno 111] Connection refused>
reward 1.0
""",
    "driven_tour.py": """\
2 [1, 3]
True 6
ValueError ('too little',)
False
The program ended before the test had ended.
""",
    "sandbox_tour.py": """\
b'3\\n4\\n' ['numbers.txt']
7 None
IndexError list index out of range
0 b'hello world from /home/work/deep\\n'
0 b'b\\na\\n'
left out: ['secrets']
['greet.sh', 'out.txt']
['greet.sh', 'out.txt']
wall True KeyboardInterrupt False
'still here'
the interpreter ended with code 3 True
NameError
../../etc/passwd: it leads out of the workspace
['start', 'left'] b'left'
['start', 'right'] b'start'
['start'] b'start'
""",
}
"""Scripts that want nothing, and what they print."""

TESTS = ["test_backend.py", "test_conforms.py", "test_sums.py"]
OTHERS = {"serve_sums.py", "my_agents.py", *TESTS}
PAYS = {"returns.py"}
"""What it shows is how to give a reward, not what for."""
ENVIRONMENTS = [path for path in SNIPPETS if path.name not in {*PLAYED, *ALONE, *OTHERS}]


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_each_block_is_literally_part_of_a_file(block: Block):
    assert any(contains(path.read_text(), block.text) for path in (*SNIPPETS, *EXAMPLES))


def contains(whole: str, part: str) -> bool:
    """Whether these lines stand there one after the other, all indented by as much. Blank lines do not count."""
    lines, wanted = ([line for line in textwrap.dedent(text).splitlines() if line.strip()] for text in (whole, part))
    windows = (lines[start : start + len(wanted)] for start in range(len(lines) - len(wanted) + 1))
    return any(textwrap.dedent("\n".join(window)).splitlines() == wanted for window in windows)


def test_the_comparison_can_fail():
    assert contains("class A:\n    x = 1\n\n    y = 2", "x = 1\ny = 2")
    assert not contains("class A:\n    x = 1\n    y = 2", "y = 2\nx = 1")
    assert not contains("class A:\n    x = 1", "class A:\nx = 1")


@pytest.fixture(scope="module", autouse=True)
def questions():
    """Write the Parquet file that a snippet reads. Git keeps only the same rows as text."""
    data = FOLDER / "data"
    written = data / f"questions-{os.getpid()}.parquet"  # several processes of tests may do this at once
    pyarrow.parquet.write_table(pyarrow.json.read_json(data / "questions.jsonl"), written)
    written.replace(data / "questions.parquet")


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.name)
def test_each_environment_holds_together_without_a_warning(path: Path):
    for environment in load_targets([str(path)]).environments:
        report = check_environment(environment, idle_reward=path.name in PAYS)
        assert report.ok, str(report)
        assert report.of("warning") == [], str(report)


@pytest.mark.parametrize("name", PLAYED)
def test_each_script_prints_what_it_should(name: str, tmp_path: Path):
    served, printed = PLAYED[name]
    loaded = load_targets([str(FOLDER / served)])
    with running(loaded.environments) as server:
        source = (FOLDER / name).read_text()
        assert source.count("http://127.0.0.1:8080") == 1
        script = tmp_path / name
        script.write_text(source.replace("http://127.0.0.1:8080", server.url))
        done = subprocess.run(
            [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize("name", ALONE)
def test_each_script_without_a_server_prints_what_it_should(name: str):
    done = subprocess.run(
        [sys.executable, "-W", "error", FOLDER / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ALONE[name]), done.stderr


@pytest.mark.parametrize("name", [thorough(name) if name == "test_backend.py" else name for name in TESTS])
def test_each_test_that_is_shown_passes(name: str):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_server_script_serves(tmp_path: Path):
    source = (FOLDER / "serve_sums.py").read_text()
    assert source.count("port=8080") == 1
    script = tmp_path / "serve_sums.py"
    script.write_text(source.replace("port=8080", "port=0"))
    (tmp_path / "sums.py").write_text((FOLDER / "sums.py").read_text())
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = re.search(r"serving sums on http://127.0.0.1:(\d+)", process.stderr.readline())
        assert said is not None
        assert int(said.group(1)) > 0
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_what_the_pages_say_is_printed_is_printed():
    assert PLAYED["play_sums.py"][1] in (ROOT / "docs" / "quickstart.md").read_text()
    assert ALONE["judged.py"] in (ROOT / "docs" / "outcomes.md").read_text()
    shown = re.search(r"```text\n(wall True.*?)```", (ROOT / "docs" / "sandbox.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown.group(1) in ALONE["sandbox_tour.py"]


def test_the_agent_that_is_shown_plays():
    words = ["eval", "../../examples/arithmetic.py", "--agent", "my_agents:patient", "--tasks", "0:5"]
    done = toolyard(*words, cwd=FOLDER)
    assert "ended: 5 finished" in done.stdout, done.stderr


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "evaluate.md"], ids=lambda page: page.name)
def test_the_evaluation_that_is_shown_is_what_the_command_prints(page: Path):
    command = re.search(r"^toolyard (eval \S+ --agent random .*?)(  +#.*)?$", page.read_text(), re.MULTILINE)
    shown = re.search(r"```text\n(random on .*?)```", page.read_text(), re.DOTALL)
    assert command is not None
    assert shown is not None
    printed = evaluated(command.group(1)).splitlines()
    assert [line.rpartition("  ")[0].rstrip() if line in printed[2:4] else line for line in printed] == (
        shown.group(1).splitlines()
    )


@cache
def evaluated(command: str) -> str:
    """What a command prints that several pages may show. It plays many episodes."""
    done = toolyard(*command.split(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_report_on_the_testing_page_is_what_the_check_prints():
    shown = re.search(r"```text\n(Sums:.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    assert shown is not None
    done = toolyard("check", "sums.py", cwd=FOLDER)
    assert done.stdout.strip() == shown.group(1).strip()
