"""The modules that a template's Python has loaded, and the profile that a piece of code needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolyard.sandboxes import cell_runner, inside, program
from toolyard.sandboxes.base import Profile
from toolyard.sandboxes.installation import Installation, in_use, own

_EVERYDAY = (
    *(
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "datetime",
        "enum",
        "functools",
        "heapq",
        "inspect",
    ),
    *("io", "itertools", "json", "math", "operator", "random", "re", "string", "textwrap", "time", "typing"),
)
"""threading, and modules that need it, such as logging and subprocess, are left out. Their work in every child makes a
fork half as dear again, and most code does without them."""
NEEDS: Mapping[Profile, Sequence[str]] = {
    "plain": [],
    "numeric": ["numpy"],
    "symbolic": ["sympy"],
    "analytic": ["numpy"],
    "scientific": ["numpy"],
    "ipython": ["IPython"],
    "notebook": ["IPython"],
}
"""Packages that a profile requires."""
_LIBRARIES: Mapping[Profile, frozenset[str]] = {
    "plain": frozenset(),
    "numeric": frozenset({"numpy"}),
    "symbolic": frozenset({"numpy", "sympy"}),
    "analytic": frozenset({"numpy", "pandas", "sympy"}),
    "scientific": frozenset({"numpy", "pandas", "scipy", "sympy"}),
}
"""The packages, where installed, that profiles for plain Python load, from the smallest to the largest. Take the first
that suffices: a sandbox of the last takes several times as long to make."""
_SCIENTIFIC = _LIBRARIES["scientific"]
_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:import[ \t]+((?:[^#;\n\\]|\\\r?\n)+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE
)
"""Matches an import statement: the names in it, or the module that they come from."""
_SCIENTIFIC_WARM = {
    "numpy": "import numpy as np; np.linalg.inv(np.eye(3)); np.random.default_rng(0).normal(size=3)",
    "pandas": "import pandas as pd; str(pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']}).groupby('b').sum())",
    "scipy": "import scipy.optimize, scipy.stats; scipy.stats.norm.cdf(0.0)",
    "sympy": "import sympy; x = sympy.symbols('x'); str(sympy.integrate(sympy.sin(x) * x, x)); sympy.solve(x**2 - 1)",
}
"""Code that loads what a library loads only on first use, so that not every sandbox loads it again."""
_IPYTHON_WARM = """
import json, sys
from IPython import get_ipython
shell = get_ipython()
try:
    json.loads("no JSON")
except ValueError:
    shell.InteractiveTB.stb2text(shell.InteractiveTB.structured_traceback(*sys.exc_info()))
shell.display_formatter.format([1])
"""
"""Makes IPython show an error and a value."""
_FIGURE_WARM = """
import importlib.util, os, shutil, tempfile, threading
here = importlib.util.find_spec("matplotlib").origin
if place(here) == here:
    own, kept = tempfile.mkdtemp(), os.environ["MPLCONFIGDIR"]
    os.environ["MPLCONFIGDIR"] = own
    try:
        import matplotlib.pyplot as plt
        from matplotlib import font_manager
        from IPython import get_ipython
        figure, axes = plt.subplots()
        axes.plot([1, 2, 3], label="a")
        axes.set(title="$x^2$", xlabel="x", ylabel="y")
        axes.legend()
        get_ipython().display_formatter.format(figure)
        plt.close("all")
    finally:
        os.environ["MPLCONFIGDIR"] = kept
        shutil.rmtree(own, ignore_errors=True)
    font_manager._get_font.cache_clear()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5)
"""
"""Loads Matplotlib with its list of fonts and draws a figure. Matplotlib remembers the paths of its files, so the
template skips this if they lie elsewhere in a sandbox; and fonts opened here would not be open there."""


def preload(profile: Profile) -> Sequence[str]:
    return [*_EVERYDAY, *sorted(_LIBRARIES.get(profile, [])), *(["numpy"] if profile == "notebook" else [])]


def is_large(profile: Profile) -> bool:
    """Whether it loads several libraries."""
    return len(_LIBRARIES.get(profile, [])) > 1


def is_ipython(profile: Profile) -> bool:
    """Whether its interpreter is an IPython."""
    return profile in ("ipython", "notebook")


def warm_up(profile: Profile, python: Installation) -> Sequence[str]:
    """Code to run once in the template. Its function `place` returns where a sandbox finds a path."""
    if profile == "ipython":
        return [_IPYTHON_WARM]
    if profile == "notebook":
        figures = {"numpy": _SCIENTIFIC_WARM["numpy"], "matplotlib": _FIGURE_WARM}
        installed = [code for name, code in figures.items() if name in python.libraries]
        return [_IPYTHON_WARM, cell_runner.installation(), *installed, cell_runner.REHEARSAL]
    loaded = [name for name in sorted(_LIBRARIES[profile]) if name in python.libraries]
    return [program.INSTALL, inside.installation(), inside.REHEARSAL, *map(_SCIENTIFIC_WARM.__getitem__, loaded)]


def missing(profile: Profile, python: Installation | None = None) -> Sequence[str]:
    """Packages that the profile needs and a Python lacks; default: the Python of the sandboxes here."""
    libraries = (python or in_use()).libraries
    return [name for name in NEEDS[profile] if name not in libraries]


def not_installed(packages: Sequence[str], extra: str) -> str:
    """What is missing, and the extra that brings it; for another Python of the sandboxes, which has no extras of ours,
    its own command. Empty if nothing is missing."""
    if not packages:
        return ""
    names = [name.lower() for name in packages]
    python = in_use()
    how = f"pip install 'toolyard[{extra}]'"
    if python.executable != own().executable:
        how = f"{python.executable} -m pip install {' '.join(names)}"
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not installed: {how}"


def smallest(code: str) -> Profile:
    """The smallest profile that has loaded what this code imports, as far as it is installed here."""
    if not any(name in code for name in _SCIENTIFIC):  # the usual case, and fast
        return "plain"
    wanted = imports(code) & _SCIENTIFIC & in_use().libraries.keys()
    return next(profile for profile, loaded in _LIBRARIES.items() if wanted <= loaded)


def imports(code: str) -> set[str]:
    """The packages that the code seems to import. It scans lines, in time linear in the code's length.

    Parsing what a model wrote would block the event loop for seconds. A line of a string that looks like an import
    counts as one: then the profile is larger than necessary, and nothing else differs.
    """
    found: set[str] = set()
    for names, module in _IMPORT.findall(code):
        found.update(name.replace("\\", " ").split(".")[0].strip().partition(" ")[0] for name in names.split(","))
        found.add(module.partition(".")[0])
    return found
