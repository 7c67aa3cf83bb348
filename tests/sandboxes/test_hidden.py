"""What an environment hides appears in no sandbox of any backend, and nothing else is missing there."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.sandboxes import backends
from tests.sandboxes.authored import SECRET, Venv, module, package
from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import Provider, open_sandbox
from toolyard.sandboxes.around import beside
from toolyard.sandboxes.base import Backend, Executed
from toolyard.sandboxes.bubblewrap import BubblewrapBackend
from toolyard.sandboxes.installation import Installation
from toolyard.sandboxes.landlock import LandlockBackend
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.rootfs import place
from toolyard.sandboxes.subprocess import SubprocessBackend
from toolyard.sandboxes.view import View

pytestmark = pytest.mark.anyio

WALLED = ("native", *backends.others("bubblewrap", "landlock"))
TRIES = """
import importlib, json, os, subprocess
found, words = [], {}
for name in ("acme_package.env", "acme_module", "friendly"):
    try:
        words[name] = getattr(importlib.import_module(name), "ANSWER", "nothing")
    except (ImportError, OSError) as error:
        words[name] = type(error).__name__
for root in ROOTS:
    for folder, _, files in os.walk(root):
        for file in files:
            try:
                with open(os.path.join(folder, file), "rb") as opened:
                    if SECRET in opened.read():
                        found.append(os.path.join(folder, file))
            except OSError:
                pass
found += subprocess.run(["grep", "-rl", SECRET.decode(), *ROOTS], capture_output=True, text=True).stdout.splitlines()
print(json.dumps([sorted(found), words]))
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """A Python that sandboxes see whole, with two installed environments, and something useful."""
    made = Venv.make(tmp_path_factory.mktemp("agents").resolve() / "venv")
    package(made.site, "acme_package")
    module(made.site, "acme_module")
    (made.site / "friendly.py").write_text("ANSWER = 'hello'\n")
    (made.site / "alias").symlink_to("acme_package")
    return made


@pytest.fixture(scope="module")
def hidden(venv: Venv) -> Sequence[Path]:
    names = ["acme_package", "acme_package-1.0.dist-info", "acme_module.py"]
    return [*(venv.site / name for name in names), *(venv.site / "__pycache__").glob("acme_module.*")]


@contextlib.asynccontextmanager
async def started(name: str, view: View) -> AsyncIterator[Backend]:
    backend: Backend
    match name:
        case "native":
            backend = NativeBackend(view=view, templates=1, ready=1)
        case "bubblewrap":
            backend = BubblewrapBackend(backends.bubblewrap()._program, view=view)
        case _:
            backend = LandlockBackend(view=view)
    try:
        await backend.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        yield backend
    finally:
        await backend.close()


async def tried(backend: Backend, venv: Venv) -> tuple[list[str], dict[str, str]]:
    """The files inside that contain the secret, and the results of imports."""
    prefix = str(venv.python.parents[1])
    roots = [place(prefix)] if backend.name == "native" else [prefix]
    async with await backend.open() as box:
        executed: Executed = await box.exec(f"SECRET, ROOTS = {SECRET.encode()!r}, {roots!r}\n{TRIES}")
    assert executed.error is None, executed
    found, words = json.loads(executed.stdout)
    return found, words


@pytest.mark.parametrize("name", WALLED)
async def test_what_is_hidden_can_neither_be_read_nor_imported_nor_found(name: str, venv: Venv, hidden: Sequence[Path]):
    async with started(name, View.of(str(venv.python), hidden)) as backend:
        found, words = await tried(backend, venv)
        assert "4 paths hidden" in backend.report().layers["files"]
    assert found == []
    assert words["friendly"] == "hello"
    for environment in ("acme_package.env", "acme_module"):
        assert words[environment] in ("ModuleNotFoundError", "PermissionError")


@pytest.mark.parametrize("name", WALLED)
async def test_it_is_hiding_that_keeps_it_from_being_read(name: str, venv: Venv):
    """Otherwise the test above would prove nothing."""
    async with started(name, View.of(str(venv.python))) as backend:
        found, words = await tried(backend, venv)
    assert len(found) >= 4
    assert words["friendly"] == "hello"


async def test_a_library_that_would_load_something_hidden_into_a_template_does_without(tmp_path: Path):
    """A stand-in for sympy looks for something that an environment hides."""
    other = Venv.make(tmp_path / "venv")
    package(other.site, "acme_loaded")
    (other.site / "sympy.py").write_text(
        "import os, acme_loaded\n"
        "SEEN = os.listdir(acme_loaded.__path__[0])\n"
        "symbols = sin = integrate = solve = lambda *_: 1\n"
    )
    view = View.of(str(other.python), [other.site / "acme_loaded"])
    async with started("native", view) as backend, await backend.open(profile="symbolic") as box:
        executed = await box.exec("import sys\nsys.modules['sympy'].SEEN")
    assert executed.value == "[]"


@pytest.mark.parametrize("name", WALLED)
async def test_what_replaces_something_hidden_is_hidden_from_later_sandboxes_too(name: str, tmp_path: Path):
    """As an upgrade or an editor does."""
    other = Venv.make(tmp_path / "venv")
    folder, file = package(other.site, "acme_package"), module(other.site, "acme_module")
    (other.site / "friendly.py").write_text("ANSWER = 'hello'\n")
    async with started(name, View.of(str(other.python), [folder, file, other.site / "__pycache__"])) as backend:
        assert (await tried(backend, other))[0] == []
        shutil.copy(file, other.site / "new")
        (other.site / "new").replace(file)
        for path in (folder, other.site / "__pycache__"):
            shutil.copytree(path, other.site / "new")
            shutil.rmtree(path)
            (other.site / "new").rename(path)
        for _ in range(3):  # including spare ones
            found, words = await tried(backend, other)
            assert found == []
            assert words["friendly"] == "hello"


async def test_a_profile_whose_library_is_hidden_is_refused_in_words(caplog: pytest.LogCaptureFixture):
    numpy = Installation.at("").libraries["numpy"]
    view = View.of(hidden=[Path(numpy).parent])
    assert "numpy: hidden from sandboxes" in caplog.text
    with pytest.raises(SandboxUnavailable, match="'numeric' needs numpy, and numpy is hidden from sandboxes"):
        view.check("numeric")


# Backends without walls, and engines.


async def test_without_walls_it_is_refused_unless_the_operator_insists(hidden: Sequence[Path]):
    with pytest.raises(SandboxUnavailable, match=r"cannot hide .* and 3 more .* --allow-visible-source"):
        async with Provider("subprocess", "L0", hidden=hidden):
            await open_sandbox()
    async with Provider("subprocess", "L0", hidden=hidden, allow_visible_source=True):
        await (await open_sandbox()).close()
    backend = SubprocessBackend()
    await backend.start()  # nothing is hidden
    await backend.close()


async def test_an_image_that_has_the_environment_installed_is_covered(tmp_path: Path, hidden: Sequence[Path]):
    stand_in = backends.StandIn(tmp_path)
    backend = stand_in.backend()
    backend._view = View.of(hidden=[*hidden, tmp_path / "not in the image"])
    await backend.start()
    await backend.close()
    first, last = stand_in.commands("run")[0], stand_in.commands("run")[-1]
    covers = [part for part in last if part not in first and "acme" in part]
    assert sorted(part.split(":")[0] for part in covers if not part.startswith("/dev/null")) == sorted(
        str(path) for path in hidden if path.is_dir()
    )
    assert {part for part in covers if part.startswith("/dev/null")} == {
        f"/dev/null:{path}:ro" for path in hidden if path.is_file()
    }


# Landlock can only allow.


def test_around_what_is_hidden_everything_else_is_allowed_and_links_to_it_are_not(tmp_path: Path):
    root = tmp_path.resolve()
    for path in ("a/b/hidden", "a/b/shown", "a/other", "c"):
        (root / path).mkdir(parents=True)
    (root / "a" / "link").symlink_to("b/hidden")
    allowed, listed = beside(str(root), [str(root / "a/b/hidden")])
    assert sorted(allowed) == [str(root / path) for path in ("a/b/shown", "a/other", "c")]
    assert sorted(listed) == [str(root), str(root / "a"), str(root / "a/b")]
    assert beside(str(root / "a" / "link"), [str(root / "a/b/hidden")]) == ([], [])
    assert beside(str(root / "c"), [str(root / "a/b/hidden")]) == ([str(root / "c")], [])
