"""Finds the host paths that no sandbox may show: the source and data of environment classes, and what they name.

`hidden_paths(Environment)` lists them for one class; `hidden_by(classes)` for all that a server serves.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from toolyard.core.environment import Hidden, classes_of
from toolyard.core.errors import DefinitionError
from toolyard.sandboxes import host
from toolyard.sandboxes.installation import in_use, own

_OURS = "toolyard"
_OF_A_PREFIX = ("bin", "include", "lib", "lib64", "pyvenv.cfg", "share")
"""What belongs to a Python installation. Anything else in its prefix is the user's own."""


def hidden_paths(environment: type, *, missing_ok: bool = False) -> Sequence[Path]:
    """The paths that sandboxes must not show because of this environment: real, existing, sorted.

    They are, for every class of its ancestry and its toolsets that is neither Toolyard's nor the standard library's:
    the top-level package, or the single file with its bytecode; what lies beside such a file in its own folder, if
    sandboxes would show that folder, as below /usr; a copy installed in the Python of sandboxes; the metadata of the
    distribution that installed it; and what `hidden` names.

    Raises `DefinitionError` if `hidden` names something that every program needs, or, unless `missing_ok`, something
    that does not exist.
    """
    found: set[Path] = set()
    for cls in classes_of(environment):
        found.update(_source(cls))
        for named in _hides(cls):
            found.update(_named(named, cls, missing_ok=missing_ok))
    return _outermost(map(_real, found))


def hidden_by(classes: Iterable[type], *, missing_ok: bool = False) -> Sequence[Path]:
    """The same for all classes that a server serves: all of its sandboxes hide the same paths."""
    return _outermost(path for cls in classes for path in hidden_paths(cls, missing_ok=missing_ok))


# Classes.


def _source(cls: type) -> Iterator[Path]:
    """The source of a class, with what belongs to it."""
    module = sys.modules.get(cls.__module__)
    name = _name_of(module) if module is not None else cls.__module__
    if name.partition(".")[0] == _OURS:
        return
    where = _file_of(module) if module is not None else None
    if where is None:
        where = _file_of_code(cls)
    if where is None or _is_standard(name, where):
        return
    root, tops = _top(name, where)
    for path in (*_with_belongings([*tops, *_copies(root, tops)]), *([] if _packages(name, where) else _beside(where))):
        yield from _around_what_is_needed(path)


def _name_of(module: ModuleType) -> str:
    """The name to import it by, even if it was started as a program: `python -m acme.serve`."""
    spec: ModuleSpec | None = getattr(module, "__spec__", None)
    return spec.name if spec is not None else module.__name__


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return _on_disk(Path(file)) if file else None


def _file_of_code(cls: type) -> Path | None:
    """The file of a class whose module is not loaded, found by the code of its methods."""
    codes = (getattr(getattr(value, "__func__", value), "__code__", None) for value in vars(cls).values())
    return next((path for code in codes if code and (path := _on_disk(Path(code.co_filename)))), None)


def _on_disk(path: Path) -> Path | None:
    """The file, or the archive that contains it."""
    if not path.is_absolute():
        path = Path.cwd() / path
    return next((one for one in (path, *path.parents[:-1]) if one.exists() and (one == path or one.is_file())), None)


def _is_standard(name: str, where: Path) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names and any(
        _real(where).is_relative_to(one) for one in _library()
    )


def _top(name: str, where: Path) -> tuple[Path, Sequence[Path]]:
    """The folder that the module is imported from, and the outermost package of a single distribution. Many
    distributions share a namespace package, so none of those counts."""
    if where.suffix not in (".py", ".pyc", ".so", ".pyd"):
        return where.parent, [where]  # an archive
    folders = _packages(name, where)
    root = (folders[-1] if folders else where).parent
    if regular := [folder for folder in folders if _is_regular(folder)]:
        return root, [regular[-1]]
    return root, _own_part(where.parent) if folders else [where]


def _beside(where: Path) -> Sequence[Path]:
    """The folder, with its data, of a file outside any package, if sandboxes would show it. Not a folder in which
    packages or programs are installed."""
    folder = _real(where.parent)
    shown = [_real(Path(path)) for path in (*host.PROGRAMS, *in_use().prefixes)]
    if not any(folder.is_relative_to(path) for path in shown):
        return []
    others = {_real(Path(path)) for python in (in_use(), own()) for path in python.packages}
    inside = [path for path in _prefixes() if path.is_relative_to(folder)]
    needed = [one for one in _needed() if not any(one.is_relative_to(path) for path in inside)]
    return [] if any(one.is_relative_to(folder) for one in (*others, *needed)) else [folder]


def _copies(root: Path, tops: Sequence[Path]) -> Sequence[Path]:
    """Installed copies: a server that runs from a checkout may have an older version installed too."""
    places = [Path(folder) / top.relative_to(root) for folder in in_use().installed for top in tops]
    return [place for place in places if place.exists()]


def _packages(name: str, where: Path) -> Sequence[Path]:
    """The folders, from the inside out, that are packages by their name or by their `__init__.py`."""
    names = name.split(".")[::-1]
    names = names if where.stem == "__init__" else names[1:]
    folders: list[Path] = []
    for depth, folder in enumerate(where.parents):
        if not (_is_regular(folder) or names[depth : depth + 1] == [folder.name]):
            break
        folders.append(folder)
    return folders


def _is_regular(folder: Path) -> bool:
    return any((folder / f"__init__{end}").exists() for end in (".py", ".pyc"))


def _own_part(folder: Path) -> Sequence[Path]:
    """Of a namespace package: what lies beside the module, except packages with their own `__init__.py`."""
    entries = list(folder.iterdir())
    own = [entry for entry in entries if not _is_regular(entry)]
    return own if len(own) < len(entries) else [folder]


def _with_belongings(tops: Sequence[Path]) -> Iterator[Path]:
    """Adds bytecode, other files with the name of the module, and the metadata of its distribution."""
    for top in tops:
        yield top
        if not top.is_dir():
            stem = glob.escape(top.name.partition(".")[0])
            yield from top.parent.glob(f"{stem}.*")
            yield from (top.parent / "__pycache__").glob(f"{stem}.*")
        yield from _metadata(top)


def _metadata(top: Path) -> Iterator[Path]:
    """The folders that list a distribution's files by name, if it is installed beside them."""
    for folder in (top.parent, top.parent.parent):  # the latter for parts of a namespace package
        start = top.relative_to(folder).as_posix()
        for record in (*folder.glob("*.dist-info/RECORD"), *folder.glob("*.egg-info/SOURCES.txt")):
            if any(line == start or line.startswith((f"{start}/", f"{start},")) for line in _lines(record)):
                yield record.parent


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:  # unreadable here, so unreadable in a sandbox too
        return []


# What an author hides.


def _hides(cls: type) -> Sequence[Hidden]:
    """What this very class hides. A class of another framework may use the name for something else."""
    hidden = vars(cls).get("hidden", ())
    return hidden if isinstance(hidden, list | tuple) else ()


def _named(named: Hidden, cls: type, *, missing_ok: bool) -> Iterator[Path]:
    where = f"{cls.__qualname__}.hidden names {_shown(named)}"
    found = _paths_of(named, cls)
    if not found and not missing_ok:
        raise DefinitionError(
            f"{where}, and there is neither such a module nor such a path (relative ones start from the folder of the "
            f"class's file)"
        )
    for path in found:
        if needed := [one for one in _needed() if one.is_relative_to(_real(path))]:
            raise DefinitionError(f"{where}, and {needed[0]} lies in it, without which nothing runs in a sandbox")
        yield path


def _shown(named: Hidden) -> str:
    return f"the module {named.__name__!r}" if isinstance(named, ModuleType) else repr(os.fspath(named))


def _paths_of(named: Hidden, cls: type) -> Sequence[Path]:
    if isinstance(named, ModuleType):
        return _paths_of_module(named.__spec__, named)
    path = _folder_of(cls) / Path(named).expanduser()
    if path.exists() or path.is_symlink():
        return [path]
    if isinstance(named, str) and all(part.isidentifier() for part in named.split(".")):
        try:
            return _paths_of_module(importlib.util.find_spec(named), None)
        except ModuleNotFoundError:  # a package above it
            return []
    return []


def _paths_of_module(spec: ModuleSpec | None, module: ModuleType | None) -> Sequence[Path]:
    """All of a package, or a module's file with its bytecode."""
    folders = list(getattr(module, "__path__", None) or (spec.submodule_search_locations if spec else None) or ())
    if folders:
        return [path for folder in folders if (path := _on_disk(Path(folder)))]
    file = getattr(module, "__file__", None) or (spec.origin if spec and spec.has_location else None)
    where = _on_disk(Path(file)) if file else None
    return list(_with_belongings([where])) if where else []


def _folder_of(cls: type) -> Path:
    module = sys.modules.get(cls.__module__)
    where = (_file_of(module) if module is not None else None) or _file_of_code(cls)
    return where.parent if where is not None else Path.cwd()


# Paths.


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _library() -> Sequence[Path]:
    return [_real(Path(path)) for path in (sysconfig.get_path("stdlib"), str(sysconfig.get_config_var("DESTSHARED")))]


def _needed() -> Sequence[Path]:
    """What every sandbox needs: the interpreter, its library, a shell, the linker, and our own code."""
    system = (Path(path) for path in ("/bin/sh", "/usr/bin/env", *glob.glob("/lib*/ld-*.so*")))
    interpreters = (Path(sys.executable), Path(sys.prefix, "bin"))
    return [*map(_real, (*interpreters, *system, Path(__file__).parent)), *_library()]


def _prefixes() -> Sequence[Path]:
    """Where the Python of sandboxes and our own Python lie."""
    return [_real(Path(path)) for path in (*in_use().prefixes, *own().prefixes, sys.prefix)]


def _around_what_is_needed(path: Path) -> Iterator[Path]:
    """The path. If the interpreter lies in it, as in a project with its `.venv`, everything else in it."""
    real = _real(path)
    if not any(one.is_relative_to(real) for one in (*_needed(), *_prefixes())):
        yield path
    elif real in _prefixes():
        yield from (entry for entry in real.iterdir() if entry.name not in _OF_A_PREFIX)
    elif real.is_dir():
        for entry in real.iterdir():
            yield from _around_what_is_needed(entry)


def _outermost(paths: Iterable[Path]) -> Sequence[Path]:
    """Drops paths that lie in another one."""
    kept: list[Path] = []
    for path in sorted({path for path in paths if path.exists()}):
        if not (kept and path.is_relative_to(kept[-1])):
            kept.append(path)
    return kept
