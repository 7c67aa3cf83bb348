"""The pages' modules: their types, as their comments tell them, hold together."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.peers.npm import NpmPeer, installed
from tests.peers.venvs import PeerError
from toolyard.studio.visit import STATIC

pytestmark = pytest.mark.thorough
TYPESCRIPT = NpmPeer("typescript", {"typescript": "5.6.3"})
FLAGS = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2022", "--module", "es2022"]


def test_the_types_of_all_modules_fit():
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed, which runs the type checker")
    try:
        checker = installed(TYPESCRIPT) / "node_modules" / "typescript" / "bin" / "tsc"
    except (PeerError, OSError) as error:
        pytest.skip(f"the type checker cannot be had here: {error}")
    modules = sorted(map(str, STATIC.glob("*.js")))
    libraries = ["--lib", "es2022,dom,dom.iterable"]
    ran = subprocess.run([node, checker, *FLAGS, *libraries, *modules], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("", 0)
    assert modules
