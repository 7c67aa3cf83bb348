"""What a template's Python has loaded, and which one a piece of code needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolyard.sandboxes import cell_runner, program
from toolyard.sandboxes.base import Profile
from toolyard.sandboxes.installation import Installation, in_use

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
"""Not among them: threading, and what needs it, such as logging and subprocess. What they do in every child makes a
fork half as dear again, and most code does without."""
NEEDS: Mapping[Profile, Sequence[str]] = {
    "plain": [],
    "numeric": ["numpy"],
    "symbolic": ["sympy"],
    "analytic": ["numpy"],
    "scientific": ["numpy"],
    "ipython": ["IPython"],
    "notebook": ["IPython"],
}
"""Packages without which there is no such profile."""
_LIBRARIES: Mapping[Profile, frozenset[str]] = {
    "plain": frozenset(),
    "numeric": frozenset({"numpy"}),
    "symbolic": frozenset({"numpy", "sympy"}),
    "analytic": frozenset({"numpy", "pandas", "sympy"}),
    "scientific": frozenset({"numpy", "pandas", "scipy", "sympy"}),
}
"""What profiles for plain Python have loaded besides, as far as it is installed: from the smallest to the largest. The
first of them that will do is the one to take, since a sandbox of the last takes several times as long to make."""
_SCIENTIFIC = _LIBRARIES["scientific"]
_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:import[ \t]+((?:[^#;\n\\]|\\\r?\n)+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE
)
"""An import statement: the names in it, or the module that they come from."""
_SCIENTIFIC_WARM = {
    "numpy": "import numpy as np; np.linalg.inv(np.eye(3)); np.random.default_rng(0).normal(size=3)",
    "pandas": "import pandas as pd; str(pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']}).groupby('b').sum())",
    "scipy": "import scipy.optimize, scipy.stats; scipy.stats.norm.cdf(0.0)",
    "sympy": "import sympy; x = sympy.symbols('x'); str(sympy.integrate(sympy.sin(x) * x, x)); sympy.solve(x**2 - 1)",
}
"""What is loaded only on first use, and would otherwise be loaded again in every sandbox."""
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
"""How IPython shows an error and a value."""
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
"""Matplotlib, with its list of fonts, after it has drawn a figure. It goes by where its files are, so it is left to the
sandbox if they are in another place there; and fonts that it has open would not be open there."""


def preload(profile: Profile) -> Sequence[str]:
    return [*_EVERYDAY, *sorted(_LIBRARIES.get(profile, [])), *(["numpy"] if profile == "notebook" else [])]


def is_large(profile: Profile) -> bool:
    """Whether it has libraries of which there is much."""
    return len(_LIBRARIES.get(profile, [])) > 1


def is_ipython(profile: Profile) -> bool:
    """Whether its interpreter is an IPython."""
    return profile in ("ipython", "notebook")


def warm_up(profile: Profile, python: Installation) -> Sequence[str]:
    """Pieces of code to be run once in the template. `place` tells them where a sandbox will find a path."""
    if profile == "ipython":
        return [_IPYTHON_WARM]
    if profile == "notebook":
        figures = {"numpy": _SCIENTIFIC_WARM["numpy"], "matplotlib": _FIGURE_WARM}
        installed = [code for name, code in figures.items() if name in python.libraries]
        return [_IPYTHON_WARM, cell_runner.installation(), *installed, cell_runner.REHEARSAL]
    loaded = [name for name in sorted(_LIBRARIES[profile]) if name in python.libraries]
    return [program.INSTALL, *map(_SCIENTIFIC_WARM.__getitem__, loaded)]


def missing(profile: Profile, python: Installation | None = None) -> Sequence[str]:
    """Packages that the profile needs and that a Python, if not said otherwise that of the sandboxes here, lacks."""
    libraries = (python or in_use()).libraries
    return [name for name in NEEDS[profile] if name not in libraries]


def smallest(code: str) -> Profile:
    """The profile that has loaded what this code imports, as far as the sandboxes here have one."""
    if not any(name in code for name in _SCIENTIFIC):  # which is the usual case, and faster
        return "plain"
    wanted = imports(code) & _SCIENTIFIC & in_use().libraries.keys()
    return next(profile for profile, loaded in _LIBRARIES.items() if wanted <= loaded)


def imports(code: str) -> set[str]:
    """The packages that the code seems to import: read line by line, in time that grows with its length and no faster.

    To parse what a model wrote would hold up the event loop for seconds. A line of a text that looks like an import
    counts as one: the profile is then larger than need be, and nothing else is different.
    """
    found: set[str] = set()
    for names, module in _IMPORT.findall(code):
        found.update(name.replace("\\", " ").split(".")[0].strip().partition(" ")[0] for name in names.split(","))
        found.add(module.partition(".")[0])
    return found
