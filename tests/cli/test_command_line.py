"""What is wrong with a command line is said in one sentence, with what may be meant; and a reader may go away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.command import TOOLYARD, Command
from tests.worlds import OneTask
from toolyard import Server
from toolyard.cli import main
from toolyard.core.errors import DefinitionError
from toolyard.settings import OTHER_VARIABLES, Settings, SettingsError, unknown_variables

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"

ENVIRONMENT = """
from toolyard import Environment, Server, tool

class Tiny(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return "Go."
    @tool
    def look(self) -> str: return "seen"

if __name__ == "__main__":
    Server([Tiny]).run(port=0)
    print("and on", flush=True)
"""


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code, and what is said, in one line."""
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    return code, " ".join(capsys.readouterr().err.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tiny.py").write_text(ENVIRONMENT)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "toolyard: name a command: call, check, "),
        (["serv"], "toolyard: there is no command 'serv'; did you mean 'serve'? See toolyard --help"),
        (["fly"], "toolyard: there is no command 'fly'; there are call, check, "),
        (
            ["serve", "--prot", "9"],
            "toolyard serve: there is no option --prot; did you mean --protocol or --port? See toolyard serve --help",
        ),
        (
            ["serve", "words.py", "--placment=local"],
            "toolyard serve: there is no option --placment; did you mean --placement? See toolyard serve --help",
        ),
        (
            ["check", "--secnds", "3"],
            "toolyard check: there is no option --secnds; did you mean --seconds? See toolyard check --help",
        ),
        (
            ["sandbox", "report", "--jsn"],
            "toolyard sandbox report: there is no option --jsn; did you mean --json? See toolyard sandbox report --he",
        ),
        (["sandbox"], "toolyard sandbox: name one of run, shell, report. See toolyard sandbox --help"),
        (["sandbox", "fly"], "toolyard sandbox: there is no 'fly'; there are run, shell, report. See toolyard sandbox"),
        (
            ["serve", "--placement", "loca"],
            "toolyard serve: --placement is 'loca'; it must be one of local, process, pool, ray; did you mean 'local'? "
            "See toolyard serve --help",
        ),
        (
            ["serve", "--port", "x"],
            "toolyard serve: argument --port: it is 'x'; it must be a whole number. See toolyard serve --help",
        ),
        (
            ["serve", "--body-bytes", "2Q"],
            "toolyard serve: argument --body-bytes: it is '2Q'; it must be a number of bytes, or a size such as "
            "512M or 2G. See toolyard serve --help",
        ),
        (
            ["status"],
            "toolyard status: URL is missing: where the server is, such as "
            "http://127.0.0.1:8080. See toolyard status --help",
        ),
        (
            ["replay", "x"],
            "toolyard replay: --store FILE is missing: a file that a server has recorded "
            "into. See toolyard replay --help",
        ),
        (
            ["replay", "1a1f47", "--store", "e.db"],
            "toolyard replay: '1a1f47' looks like the id of an episode. Name the file of its environment first: "
            "toolyard replay FILE.py 1a1f47 --store e.db",
        ),
        (
            ["rescore", "1a1f47", "--store", "e.db"],
            "toolyard rescore: '1a1f47' looks like the id of an episode.",
        ),
        (["check", "maze"], "toolyard check: there is no module 'maze'. The example is "),
        (
            ["call", "words.py"],
            "toolyard call: words.py is a file, and `call` asks a server that runs. Start one with toolyard serve "
            "words.py, or play the file by hand with toolyard play words.py",
        ),
        (
            ["call", "http://127.0.0.1:9", "--splt", "x"],
            "toolyard call: there is no option --splt; did you mean --split?",
        ),
    ],
)
def test_a_wrong_line_is_answered_in_one_line_with_what_may_be_meant(capsys, monkeypatch, words, said):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if Path(folder).name != "examples"])
    monkeypatch.delitem(sys.modules, "maze", raising=False)  # another test may have loaded it
    code, told = typed(capsys, *words)
    assert (code, told[: len(said)]) == (2, said)
    assert len(told) < 300
    assert "usage:" not in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one"], "toolyard serve: one is a folder. Name the files to serve; in it are one/tiny.py"),
        (
            ["empty/"],
            "toolyard serve: empty/ is a folder, and there is no Python file in it. Name a file, such as "
            "my_environment.py",
        ),
        (["wrods.py"], "toolyard serve: there is no file wrods.py here ({folder}); did you mean 'words.py'?"),
        (
            ["one/tiny.py", "two/tiny.py", "--port", "0"],
            "toolyard serve: two environments are called 'tiny': Tiny in {folder}/one/tiny.py and Tiny in "
            "{folder}/two/tiny.py. Rename one of them, or give it a classmethod name(cls)",
        ),
    ],
)
def test_a_wrong_target_is_answered_with_what_to_name(capsys, folder, words, said):
    assert typed(capsys, "serve", *words) == (2, said.format(folder=folder))


@pytest.mark.parametrize(
    ("text", "number"),
    [("2G", 2 * 2**30), ("512M", 512 * 2**20), ("64 KiB", 65536), ("1.5g", 3 * 2**29), ("1000", 1000), ("1000B", 1000)],
)
def test_sizes_may_be_written_as_people_say_them(text, number):
    assert Settings.read({}, {"TOOLYARD_BODY_BYTES": text}).body_bytes == number


def test_a_size_that_is_none_is_explained():
    with pytest.raises(SettingsError) as caught:
        Settings.read({}, {"TOOLYARD_BODY_BYTES": "lots"})
    said = "TOOLYARD_BODY_BYTES is 'lots'; it must be a number of bytes, or a size such as 512M or 2G"
    assert str(caught.value) == said


def test_a_variable_that_is_no_setting_is_named_with_the_one_that_may_be_meant():
    told = list(
        unknown_variables({"TOOLYARD_PROT": "9", "TOOLYARD_PORT": "9", "TOOLYARD_SEARCH_CORPUS": "x", "X": "y"})
    )
    assert told == [
        "the variable TOOLYARD_PROT is no setting of Toolyard, so it has no effect; did you mean 'TOOLYARD_PORT'?"
    ]


def test_every_variable_that_the_code_reads_is_known():
    named = {name for file in SOURCES.rglob("*.py") for name in re.findall(r'"(TOOLYARD_[A-Z_]+)"', file.read_text())}
    assert named >= {*OTHER_VARIABLES}
    of_a_test = {"TOOLYARD_CHECK_SECRET"}
    assert list(unknown_variables(dict.fromkeys(named - of_a_test, ""))) == []


def test_a_variable_like_none_of_ours_is_compared_without_the_beginning_that_all_share():
    assert list(unknown_variables({"TOOLYARD_FOO": "1"})) == [
        "the variable TOOLYARD_FOO is no setting of Toolyard, so it has no effect"
    ]


def test_a_class_where_a_list_belongs_is_answered_with_what_to_write():
    with pytest.raises(DefinitionError, match=r"^Server takes a list of classes; write Server\(\[OneTask\]\)$"):
        Server(OneTask)  # type: ignore[arg-type]  # the mistake


def test_a_long_list_of_options_is_one_word_in_the_usage(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    assert capsys.readouterr().out.startswith("usage: toolyard eval [options] TARGET\n")


def test_make_serve_takes_a_port_and_ends_with_ctrl_c_without_an_error(tmp_path):
    folder = Path(sys.executable).parent
    words = ["make", "-f", ROOT / "Makefile", "--old-file", ".venv/serves", "serve", f"BIN={folder}", "TOOLYARD_PORT=0"]
    running = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert running.stdout is not None
    said = ""
    while "Stop with Ctrl-C" not in said:
        line = running.stdout.readline()
        assert line, said
        said += line
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    rest, _ = running.communicate(timeout=60)
    assert "on http://127.0.0.1:" in said
    assert "8080" not in said
    assert "stopping: 0 calls running, 0 sessions open" in rest
    assert "make:" not in rest.lower()


def test_a_reader_that_has_enough_ends_a_command_without_a_word():
    first, second = os.pipe()
    done = subprocess.Popen([TOOLYARD, "doctor"], stdout=second, stderr=subprocess.PIPE, text=True)
    os.close(second)
    os.close(first)
    _, told = done.communicate(timeout=60)
    assert (done.returncode, told) == (141, "")


def test_ctrl_c_ends_a_server_of_a_script_and_the_script_goes_on(folder):
    running = Command([sys.executable, "words.py"], cwd=folder, env={"TOOLYARD_PROT": "9"})
    running.until("the variable TOOLYARD_PROT is no setting of Toolyard, so it has no effect; did you mean 'TOOLYARD_P")
    running.until("serving tiny on http")
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 0
    assert running.output.splitlines()[-2].endswith("stopped")
    assert running.output.splitlines()[-1] == "and on"
    assert "Traceback" not in running.output


@pytest.mark.thorough
def test_a_server_whose_reader_has_gone_goes_on(folder):
    """As `toolyard serve | head -1` has it."""
    script = f"exec {TOOLYARD} serve words.py --port 0 | head -1"
    running = Command(["bash", "-c", textwrap.dedent(script)], cwd=folder, env={})
    running.until("is serving 1 environment on http")
    os.killpg(running.process.pid, signal.SIGINT)
    running.wait()
    assert "stopping: 0 calls running" in running.output
    assert "Traceback" not in running.output
