"""`--sandbox-python`: code in sandboxes has another Python than the server, with other packages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import TOOLYARD
from tests.sandboxes import backends
from tests.sandboxes.authored import SECRET, Venv, package
from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import Provider, execute, open_sandbox, profiles
from toolyard.sandboxes.choice import make
from toolyard.sandboxes.containers import ContainerBackend
from toolyard.sandboxes.installation import OLDEST, Installation, own
from toolyard.sandboxes.view import View
from toolyard.server import Server
from toolyard.settings import Settings

pytestmark = pytest.mark.anyio

LOOK = """
import importlib.util, json, os, shutil, sys
print(json.dumps({
    "found": [name for name in ("friendly", "starlette", "pydantic", "numpy") if importlib.util.find_spec(name)],
    "version": list(sys.version_info[:3]),
    "python3": os.path.realpath(shutil.which("python3")),
    "server": os.path.exists(SITE) and os.listdir(SITE),
}))
try:
    from toolyard import Environment
except ImportError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    made = Venv.make(tmp_path_factory.mktemp("agents").resolve() / "venv")
    (made.site / "friendly.py").write_text("WORD = 'hello'\n")
    return made


async def test_code_runs_with_that_python_and_finds_its_packages_and_none_of_the_servers(venv: Venv):
    site = f"SITE = {own().installed[0]!r}\n"
    async with Provider(python=str(venv.python), ready=0), await open_sandbox() as box:
        executed = await box.exec(site + LOOK)
        ran = await box.run(["python3", "-c", site + LOOK])
        imported = await box.run(["python3", "-c", "import friendly; print(friendly.WORD)"])
        which = await box.shell("which python3")
    assert executed.error is None, executed
    for told in (executed.stdout, ran.stdout.decode()):
        seen, refused = json.loads(told.splitlines()[0]), told.splitlines()[1:]
        assert seen["found"] == ["friendly"]
        assert seen["version"] == [*sys.version_info[:3]]
        assert not seen["server"]
        assert refused[0] in ("ModuleNotFoundError", "ImportError")
    assert imported.stdout == b"hello\n"
    assert which.stdout.decode().strip().endswith(f"{venv.python.parent}/python3")


async def test_profiles_go_by_what_that_python_has(venv: Venv):
    async with Provider(python=str(venv.python), ready=0):
        assert profiles.smallest("import numpy") == "plain"
        executed = await execute("import numpy")
        with pytest.raises(SandboxUnavailable, match=rf"'ipython' needs IPython: {venv.python} -m pip install IPython"):
            await open_sandbox(profile="ipython")
    assert executed.error is not None
    assert executed.error.name == "ModuleNotFoundError"
    assert profiles.smallest("import numpy") == "numeric"


def test_the_servers_packages_are_not_there_where_both_share_a_prefix(venv: Venv):
    """Sandboxes show the prefix that the server's packages are installed in, but not these packages."""
    view = View.of(str(venv.python))
    assert [Path(path) for path in view.closed] == [Path(path).resolve() for path in own().installed]
    assert View.of("").closed == ()


@pytest.mark.parametrize("name", ["native", *backends.others("bubblewrap", "landlock")])
async def test_an_environment_among_the_servers_packages_is_hidden_with_all_of_them(name: str, tmp_path: Path):
    """If the sandboxes' Python shows the server's: as if the server's were installed inside it."""
    made = Venv.make(tmp_path / "venv")
    (made.site / "friendly.py").write_text("# friendly words")
    server, inner = made.site / "server", package(made.site / "server", "acme_inside")
    view = replace(View.of(str(made.python), [inner, inner / "tests"]), closed=[str(server)])
    assert view.hidden == [str(inner)]
    backend = make(name, view=view)
    try:
        await backend.start()
        async with await backend.open() as box:
            shown = await box.shell(f"find {made.site} /opt{made.site} -type f -exec cat {{}} +")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    finally:
        await backend.close()
    assert b"friendly words" in shown.stdout
    assert SECRET.encode() not in shown.stdout


def others() -> Sequence[str]:
    """Pythons of other versions, if this machine has any."""
    here = Path(sys.base_prefix).parent
    system = (path for folder in ("/usr/bin", "/usr/local/bin") for path in Path(folder).glob("python3.*[0-9]"))
    return sorted(map(str, [*here.glob("*/bin/python3"), *system]))


def version(python: str) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


async def test_another_version_of_python_makes_the_templates():
    wanted = [python for python in others() if version(python) >= OLDEST and version(python) != sys.version_info[:2]]
    if not wanted:
        pytest.skip("there is no other Python here that is new enough")
    async with Provider("native", python=wanted[-1], ready=0), await open_sandbox() as box:
        executed = await box.exec("import sys\nx = 41\nsys.version_info[:2]")
        (branch,) = await box.fork()
        async with branch:
            forked = await branch.exec("x + 1")
        ran = await box.run(["python3", "--version"])
    assert executed.value == repr(version(wanted[-1]))
    assert forked.value == "42"
    assert ran.stdout.decode().split()[1].startswith(".".join(map(str, version(wanted[-1]))))


# Unusable ones.


def unusable(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in ("missing", "folder", "text", "dangling", "broken", "other")}
    paths["folder"].mkdir()
    paths["text"].write_text("print(1)")
    paths["dangling"].symlink_to(tmp_path / "gone" / "python")
    for name, text in {"broken": "echo no library >&2\nexit 3", "other": "echo hello"}.items():
        paths[name].write_text(f"#!/bin/sh\n{text}\n")
        paths[name].chmod(0o755)
    return paths


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "there is no such file"),
        ("folder", "that is a directory"),
        ("text", "cannot be executed"),
        ("dangling", "a link to .*gone/python, which is not there"),
        ("broken", "no Python that works: exit code 3, no library"),
        ("other", "no Python that works"),
    ],
)
def test_a_server_does_not_start_with_what_is_no_python_and_says_why(name: str, words: str, tmp_path: Path):
    settings = Settings(sandbox_python=str(unusable(tmp_path)[name]), tools="calculator")
    with pytest.raises(SandboxUnavailable, match=f"sandbox_python is '.*{name}'.* {words}"):
        Server([], settings=settings)


def test_who_names_a_program_and_not_a_path_is_told_where_it_is():
    with pytest.raises(SandboxUnavailable, match=f"no such file: try '{shutil.which('python3')}'"):
        Installation.at("python3")


def test_a_python_that_is_too_old_is_refused_by_its_version(tmp_path: Path):
    old = tmp_path / "python"
    old.write_text("""#!/bin/sh\necho '{"version": [3, 9, 1]}'\n""")
    old.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"which is Python 3\.9\.1; it must be 3\.11 or newer"):
        Installation.at(str(old))


async def test_containers_have_the_python_of_their_image(venv: Venv):
    backend = ContainerBackend("docker", program="no-such-engine", view=View.of(str(venv.python)))
    with pytest.raises(SandboxUnavailable, match="uses the Python of its image, see --sandbox-image"):
        await backend.start()


# Commands.


def test_the_report_names_it_and_so_does_a_program_that_runs_in_it(venv: Venv, tmp_path: Path):
    flags = ["--backend", "native", "--python", str(venv.python)]
    told = subprocess.run(
        [TOOLYARD, "sandbox", "report", "--json", *flags], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(told)["python"] == {"executable": str(venv.python), "version": own().version}
    assert json.loads(told)["profiles"]["numeric"] == {"available": False, "missing": "numpy"}
    (tmp_path / "program.py").write_text("import friendly; print(friendly.WORD)")
    argv = [TOOLYARD, "sandbox", "run", *flags, str(tmp_path / "program.py")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "hello\n"
