"""Write a small working environment, with a test, to start from."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import tempfile
from importlib import resources
from pathlib import Path

from toolyard.core.errors import DefinitionError, ToolyardError
from toolyard.loading import load_targets
from toolyard.server import Server

HELP = "write a small working environment, with a test, to start from"


class NewError(ToolyardError):
    """The files cannot be written under this name, or not here."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what to call it, for instance word_game")
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="where to write it [.]")


def run(args: argparse.Namespace) -> int:
    folder: Path = args.into
    module = module_name(args.name)
    files = {folder / f"{module}.py": "environment.txt", folder / f"test_{module}.py": "test.txt"}
    for path in files:
        if path.exists():
            raise NewError(f"{path} is there already and stays unchanged; choose another name, or move it away")
    if importlib.util.find_spec(module) is not None:
        raise NewError(f"there is a Python module {module!r} already, which this one would hide; choose another name")
    texts = {path: filled_in(template, module) for path, template in files.items()}
    prove(next(iter(texts.values())), module)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    environment, test = files
    print(f"Wrote {environment} and {test}. Next:\n")
    for command, what in {
        f"toolyard check {environment}": "does it hold together?",
        f"python -m pytest {test}": "play it on a real server",
        f"toolyard serve {environment}": "serve it on http://127.0.0.1:8080",
    }.items():
        print(f"  {command:{len(str(test)) + 17}}  # {what}")
    if importlib.util.find_spec("pytest") is None:
        print("\nThe test needs pytest, which is not installed: pip install pytest")
    return 0


def module_name(name: str) -> str:
    """`WordGame`, `word-game` or `word_game`: all are word_game."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]+", "_", name.strip()).lower()
    if not words.isascii() or not words.isidentifier() or words.startswith("_"):
        raise NewError(f"{name!r} cannot be the name of a Python module; use letters, digits and _, a letter first")
    if keyword.iskeyword(words) or keyword.iskeyword(class_name(words)):
        raise NewError(f"{name!r} means something in Python itself; choose another name")
    return words


def class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def filled_in(template: str, module: str) -> str:
    text = (resources.files("toolyard.cli") / "_template" / template).read_text(encoding="utf-8")
    for placeholder, name in (
        ("my_environment_name", class_name(module).lower()),
        ("my_environment", module),
        ("MyEnvironment", class_name(module)),
    ):
        text = text.replace(placeholder, name)
    return text


def prove(environment: str, module: str) -> None:
    """Try the environment in a server before writing anything: protocols reserve some names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{module}.py")
        path.write_text(environment, encoding="utf-8")
        try:
            Server(load_targets([str(path)]).environments)
        except DefinitionError as error:
            raise NewError(f"{error}. Choose another name") from None
