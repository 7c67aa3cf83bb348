"""From environment classes to the host paths that no sandbox may show."""

from __future__ import annotations

import importlib
import runpy
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests import adapters
from tests.sandboxes.authored import Venv, module, package, record
from toolyard import Environment, Toolset, tool
from toolyard.core.errors import DefinitionError
from toolyard.loading import load_targets
from toolyard.sandboxes import hidden
from toolyard.sandboxes.hidden import hidden_by, hidden_paths
from toolyard.sandboxes.installation import Installation, own, using
from toolyard.server import Server

BODY = "from toolyard import Environment, Toolset\n"
Load = Callable[[str], ModuleType]


class Served(Environment):
    """It hides nothing explicitly."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder.resolve()


@pytest.fixture
def load(site: Path) -> Iterator[Load]:
    """Import a module, and forget it and its parents afterwards."""
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield importlib.import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def named(paths: object, site: Path) -> list[str]:
    return [str(path.relative_to(site)) for path in paths]


def test_a_package_is_hidden_whole_with_the_metadata_that_lists_its_files(site: Path, load: Load):
    package(site, "acme_whole")
    record(site, "other", ["acme_whole_not/x.py"])
    found = hidden_paths(load("acme_whole.env").Served)
    assert named(found, site) == ["acme_whole", "acme_whole-1.0.dist-info"]


def test_a_single_file_is_hidden_with_its_bytecode_and_nothing_beside_it(site: Path, load: Load):
    module(site, "acme_single")
    module(site, "acme_single_other")
    (site / "acme_single.pyi").touch()
    found = named(hidden_paths(load("acme_single").Served), site)
    (compiled,) = (site / "__pycache__").glob("acme_single.*")
    assert found == [f"__pycache__/{compiled.name}", "acme_single-1.0.dist-info", "acme_single.py", "acme_single.pyi"]


def test_of_a_namespace_package_only_the_environments_own_part_is_hidden(site: Path, load: Load):
    package(site / "acme_shared", "mine", installed=False)
    package(site / "acme_shared", "theirs", installed=False)
    record(site, "mine", ["acme_shared/mine/env.py"])
    (site / "acme_shared" / "loose.py").write_text(f"{BODY}class Loose(Environment): pass\n")
    assert named(hidden_paths(load("acme_shared.mine.env").Served), site) == ["acme_shared/mine", "mine-1.0.dist-info"]
    found = named(hidden_paths(load("acme_shared.loose").Loose), site)
    assert [path for path in found if "__pycache__" not in path] == ["acme_shared/loose.py"]


def test_parents_and_toolsets_are_hidden_too_but_not_toolyard_nor_the_standard_library(site: Path, load: Load):
    (site / "acme_base.py").write_text(f"{BODY}class Base(Environment): pass\n")
    (site / "acme_tools.py").write_text(f"{BODY}class Tools(Toolset): pass\n")
    (site / "acme_child.py").write_text(
        "from acme_base import Base\nfrom acme_tools import Tools\nfrom abc import ABC\n"
        "from toolyard.tools.calculator import Calculator\n"
        "class Child(Base, ABC):\n    toolsets = [Tools, Calculator]\n"
    )
    found = {path.name for path in hidden_paths(load("acme_child").Child) if path.suffix == ".py"}
    assert found == {"acme_base.py", "acme_tools.py", "acme_child.py"}


def test_an_archive_is_hidden_as_the_file_that_it_is(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch):
    archive = tmp_path / "acme.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("acme_zipped/__init__.py", f"{BODY}class Zipped(Environment): pass\n")
    monkeypatch.syspath_prepend(str(archive))
    assert hidden_paths(load("acme_zipped").Zipped) == [archive.resolve()]


def test_a_class_of_another_framework_is_hidden_where_its_author_wrote_it(tmp_path: Path):
    file = tmp_path.resolve() / "written_for_verl_tool.py"
    file.write_text((Path(adapters.__file__).parent / file.name).read_text())
    served = load_targets([str(file)]).environments
    assert str(file) in Server(served).sandboxes.view.hidden


def test_a_file_that_is_started_as_a_program_is_hidden(site: Path):
    (site / "acme_main.py").write_text(f"{BODY}class Main(Environment):\n    def teardown(self): pass\n")
    started = runpy.run_path(str(site / "acme_main.py"), run_name="acme_is_not_loaded")["Main"]
    assert named(hidden_paths(started), site) == ["acme_main.py"]


def test_who_serves_a_checkout_hides_the_copy_that_is_installed(site: Path, tmp_path: Path, load: Load):
    installed = tmp_path.resolve() / "installed"
    installed.mkdir()
    package(site, "acme_twice", installed=False)
    package(installed, "acme_twice")
    served = load("acme_twice.env").Served
    with using(replace(own(), installed=[str(installed)])):
        found = hidden_paths(served)
    assert found == [installed / "acme_twice", installed / "acme_twice-1.0.dist-info", site / "acme_twice"]


def test_a_package_around_its_own_virtual_environment_is_hidden_but_for_that(site: Path, load: Load):
    folder = package(site, "acme_around", installed=False)
    (folder / "venv").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(folder / "venv"))
        (folder / "venv" / "bin").mkdir()
        found = named(hidden_paths(load("acme_around.env").Served), site)
    assert "acme_around/env.py" in found
    assert "acme_around/tests" in found
    assert not [path for path in found if "venv" in path or path == "acme_around"]


def test_a_virtual_environment_in_the_package_keeps_what_is_installed_there(
    site: Path, load: Load, monkeypatch: pytest.MonkeyPatch
):
    folder = package(site, "acme_venv", installed=False)
    venv = Venv.make(folder / ".venv")
    (venv.site / "friendly.py").touch()
    (folder / ".venv" / "answers.json").touch()
    (venv.site / "toolyard" / "sandboxes").mkdir(parents=True)
    monkeypatch.setattr(hidden, "__file__", str(venv.site / "toolyard" / "sandboxes" / "hidden.py"))
    with using(Installation.at(str(venv.python))):
        found = named(hidden_paths(load("acme_venv.env").Served), site)
    assert [path for path in found if ".venv" in path] == ["acme_venv/.venv/answers.json"]
    assert "acme_venv/tests" in found


def test_data_beside_a_file_is_hidden_where_sandboxes_would_show_it(tmp_path: Path):
    """As in /usr/src/app, which most containers have."""
    prefix = tmp_path.resolve() / "usr"
    for path in ("src/app/answers/1.json", "src/app/.venv/bin/python", "bin/python"):
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).touch()
    files = prefix / "src/app/env.py", prefix / "bin/tool.py"
    for file in files:
        file.write_text(f"{BODY}class Loose(Environment):\n    def teardown(self): pass\n")
    served, installed = (runpy.run_path(str(file), run_name="acme_is_not_loaded")["Loose"] for file in files)
    other = replace(own(), base_prefix=str(prefix), prefix=str(prefix), installed=[str(prefix / "bin")])
    assert named(hidden_paths(served), prefix) == ["src/app/env.py"]  # sandboxes do not show it
    with using(other):
        assert named(hidden_paths(served), prefix) == ["src/app"]
        assert named(hidden_paths(installed), prefix) == ["bin/tool.py"]
    with using(replace(other, prefix=str(prefix / "src/app/.venv"))):
        assert named(hidden_paths(served), prefix) == ["src/app/answers", "src/app/env.py"]


# What an author hides.


def test_an_author_hides_paths_and_modules_beside_the_package(site: Path, tmp_path: Path, load: Load):
    data, elsewhere = site / "data", tmp_path.resolve() / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    package(site, "acme_more", hidden=f"hidden = ['../data', {str(elsewhere)!r}, 'acme_checks', 'acme_judge']")
    package(site, "acme_checks", installed=False)
    (site / "acme_judge.py").touch()
    found = hidden_paths(load("acme_more.env").Served)
    assert {data, elsewhere, site / "acme_checks", site / "acme_judge.py", site / "acme_more"} <= {*found}


def test_a_module_may_be_named_by_itself_and_a_child_adds_to_its_parent(site: Path, load: Load):
    for name in ("acme_one", "acme_two"):
        (site / f"{name}.py").touch()
    one = load("acme_one")

    class Parent(Environment):
        hidden = (one,)

    class Child(Parent):
        hidden = ["acme_two"]

    assert {site / "acme_one.py", site / "acme_two.py"} <= {*hidden_paths(Child)}


@pytest.mark.parametrize("hidden", ["tests", [3], [""], {"tests": 1}])
def test_what_is_no_list_of_modules_and_paths_is_refused_when_the_class_is_defined(hidden: object):
    with pytest.raises(DefinitionError, match=r"Wrong\.hidden"):
        type("Wrong", (Environment,), {"hidden": hidden})
    with pytest.raises(DefinitionError, match=r"Wrong\.hidden"):
        type("Wrong", (Toolset,), {"hidden": hidden})


def test_a_tool_may_be_called_hidden():
    class World(Environment):
        @tool
        def hidden(self) -> str:
            """Look behind the curtain."""
            return "nothing"

    assert [spec.name for spec in World.list_tools().tools] == ["hidden"]
    assert hidden_paths(World) == hidden_paths(Served)


@pytest.mark.parametrize("named", ["no/such/path.json", "no_such_module", "no.such.module"])
def test_a_server_does_not_start_if_what_is_to_be_hidden_is_not_there(named: str):
    class Forgetful(Environment):
        hidden = [named]

    with pytest.raises(DefinitionError, match=r"Forgetful\.hidden names '.*', and there is neither such a module nor"):
        Server([Forgetful])
    assert hidden_by([Forgetful], missing_ok=True) == hidden_by([Served])  # for example, on another machine


@pytest.mark.parametrize("path", [sys.base_prefix, "/", "/usr/lib", Path(importlib.__file__).parents[1]])
def test_what_sandboxes_cannot_do_without_is_not_hidden(path: Path | str):
    class Greedy(Environment):
        hidden = [path]

    with pytest.raises(DefinitionError, match=r"Greedy\.hidden names .* lies in it, without which nothing runs"):
        hidden_paths(Greedy)
