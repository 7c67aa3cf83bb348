"""What holds for every example."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from toolyard import Client
from toolyard.loading import builtin_examples, load_targets
from toolyard.testing import check_environment

FILES = builtin_examples()


def test_without_a_target_all_of_them_are_served_and_arithmetic_is_the_default(client: Client):
    assert client.environments.list() == ["arithmetic", "chart", "exam", "maze"]


@pytest.mark.parametrize("environment", load_targets([]).environments, ids=lambda cls: cls.__name__)
def test_each_passes_the_check_without_a_warning(environment: type):
    report = check_environment(environment)
    assert report.ok, str(report)
    assert report.of("warning") == [], str(report)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_says_what_it_shows_and_how_to_run_it(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "Shows: " in docstring
    assert f"toolyard serve examples/{path.name}" in docstring


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_needs_nothing_but_python_toolyard_and_pydantic(path):
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported - set(sys.stdlib_module_names) <= {"toolyard", "pydantic"}


def test_loading_them_all_is_quick():
    code = (
        "import time, toolyard.loading as loading; start = time.process_time(); loading.load_targets([]); "
        "print(time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"0\.[0-2]\d*", done.stdout.strip()), done.stdout
