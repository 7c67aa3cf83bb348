"""Turns the targets of `toolyard serve` into classes to serve, or into a clear message."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from toolyard.adapters import is_environment, is_toolset, verl_tool
from toolyard.core.environment import needs_sandbox
from toolyard.core.errors import DefinitionError, ToolyardError, describe
from toolyard.core.nearness import did_you_mean

HERE = Path(__file__).parent
WORKSPACE = "toolyard.tools.workspace:Workspace"
"""The target with files, notebook and shells."""


class LoadError(ToolyardError):
    """A target cannot be served; the message says what is wrong, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    environments: Sequence[type]
    toolsets: Sequence[type]


def load_targets(targets: Sequence[str]) -> Loaded:
    """`file.py`, `file.py:Class`, `package.module` or `package.module:Class`; without any, the built-in examples.

    Without targets, it leaves out examples that need a sandbox, so that every host can serve.
    """
    classes: dict[type, None] = {}
    for target in targets or [str(path) for path in builtin_examples()]:
        module, wanted = _load(target)
        classes |= dict.fromkeys(_chosen(module, wanted, target))
    environments = [cls for cls in classes if is_environment(cls) and (targets or not needs_sandbox(cls))]
    if not environments:
        raise LoadError(f"{' '.join(targets)}: only toolsets there, and no environment to use them in")
    return Loaded(environments, [cls for cls in classes if is_toolset(cls)])


def folders_of(targets: Sequence[str]) -> Sequence[Path]:
    """The folders of the targets' files; runs none of them."""
    folders: dict[Path, None] = {}
    for target in targets or [str(path) for path in builtin_examples()]:
        where = target.partition(":")[0]
        path = Path(where) if where.endswith(".py") else Path(where.replace(".", "/") + ".py")
        if not path.is_file():
            raise LoadError(f"there is no file {path} to watch; --reload needs targets below the current folder")
        folders[path.resolve().parent] = None
    return list(folders)


def builtin_examples() -> Sequence[Path]:
    """Inside the package when installed, beside the sources in a checkout."""
    folder = HERE / "examples" if (HERE / "examples").is_dir() else HERE.parents[1] / "examples"
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def _load(target: str) -> tuple[ModuleType, str]:
    where, _, wanted = target.partition(":")
    verl_tool.offer_base()
    if (problem := _no_module(where)) is not None:
        raise LoadError(problem)
    try:
        return (_load_file(Path(where)) if where.endswith(".py") else _load_module(where)), wanted
    except (LoadError, KeyboardInterrupt):
        raise
    except DefinitionError as error:
        raise LoadError(f"{where} cannot be served: {error}") from error
    except BaseException as error:  # the author's module may raise anything when it is loaded
        raise LoadError(f"{where} could not be loaded: {_innermost(error, where)}{describe(error)}") from error


def _no_module(where: str) -> str | None:
    """What is wrong with a target that names a folder, which is no environment by itself; None if it names none."""
    folder = Path(where)
    is_package = (folder / "__init__.py").is_file() and len(folder.parts) == 1 and not where.endswith("/")
    if not where or not folder.is_dir() or is_package:
        return None
    files = sorted(str(file) for file in folder.glob("*.py") if not file.name.startswith("_"))
    if not files:
        return f"{where} is a folder, and there is no Python file in it. Name a file, such as my_environment.py"
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"{where} is a folder. Name the files to serve; in it are {', '.join(files[:5])}{more}"


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = did_you_mean(path.name, (one.name for one in path.parent.glob("*.py")))
        raise LoadError(f"there is no file {path} here ({Path.cwd()}){near}")
    # A file called random.py must not replace the standard library's `random`.
    name = f"{path.stem}_target" if path.stem in sys.stdlib_module_names else path.stem
    if package := verl_tool.home_of(path.read_text(errors="replace")):
        name = f"{package}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic and pickle look modules up by name
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            example = next((f" The example is {path}." for path in builtin_examples() if path.stem == name), "")
            raise LoadError(
                f"there is no module {name!r}.{example} For a file, write its path with .py; for a module, "
                f"run where it can be imported"
            ) from None
        raise


def _chosen(module: ModuleType, wanted: str, target: str) -> Iterator[type]:
    if wanted:
        cls = getattr(module, wanted, None)
        if cls is None:
            names = ", ".join(found.__name__ for found in _served_classes(module)) or "none"
            raise LoadError(f"{target}: there is no {wanted!r} in it; what could be served there: {names}")
        if not (is_environment(cls) or is_toolset(cls)):
            raise LoadError(f"{target}: {wanted} is neither an Environment nor a Toolset, but {cls!r}")
        yield cls
        return
    found = list(_served_classes(module))
    if not found:
        raise LoadError(
            f"{target}: there is no environment in it. Write a class that extends toolyard.Environment; "
            f"`toolyard new NAME` makes one to start from"
        )
    yield from found


def _served_classes(module: ModuleType) -> Iterator[type]:
    """Environments and toolsets that the module itself defines, without those whose names begin with _."""
    for name, value in vars(module).items():
        own = isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
        if own and (is_environment(value) or is_toolset(value)):
            yield value


def _innermost(error: BaseException, where: str) -> str:
    """`line 12: `, the innermost line of the author's own file in the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(where)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    return f"line {lines[-1]}: " if lines else ""
