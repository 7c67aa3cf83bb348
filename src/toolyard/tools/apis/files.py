"""The files that describe APIs, and the file with keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from toolyard.core.errors import DefinitionError
from toolyard.tools.apis.document import mapping
from toolyard.tools.apis.security import Keys

try:
    import yaml  # type: ignore[import-untyped]
except ImportError:
    yaml = None  # `document_in` then refuses YAML files

LISTS = (".jsonl", ".ndjson")
YAML = (".yaml", ".yml")
_NOT_JSON = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
SUFFIXES = (*LISTS, *YAML, ".json")


def files_in(paths: Sequence[Path]) -> Iterator[Path]:
    """These files, and those in these folders."""
    for path in paths:
        if path.is_dir():
            found = sorted(one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file())
            if not found:
                raise DefinitionError(f"{path}: there is no file {' or '.join(SUFFIXES)} in this folder")
            yield from found
        else:
            yield path


def content_of(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DefinitionError(f"{path}: it cannot be read: {error.strerror or error}") from None


def document_in(path: Path) -> Any:  # any JSON value
    content = content_of(path)
    if path.suffix.lower() in YAML:
        return _yaml(content, path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DefinitionError(f"{path}: it is not JSON: {error}") from None


def _yaml(content: bytes, path: Path) -> Any:
    if yaml is None:
        raise DefinitionError(f"{path}: to read YAML, pip install pyyaml; or convert the file to JSON")
    try:
        return yaml.load(content, _loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DefinitionError(f"{path}: it is not YAML: {' '.join(str(error).split())[:300]}") from None


def _loader() -> Any:  # a class of yaml's
    """yaml's safe loader, in C if possible, without types that JSON lacks: dates, and a lone `=`."""
    safe = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    kept = {
        first: [one for one in resolvers if one[0] not in _NOT_JSON]
        for first, resolvers in safe.yaml_implicit_resolvers.items()
    }
    return type("Loader", (safe,), {"yaml_implicit_resolvers": kept})


def read_keys(path: Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, Keys]:
    """`{"<collection>": "key"}`, or `{"<collection>": {"<scheme>": "key"}}`. `"$NAME"` is an environment variable."""
    keys: dict[str, Keys] = {}
    for name, said in mapping(document_in(path), str(path)).items():
        where = f"{path}: {name[:100]!r}"
        if not name:
            raise DefinitionError(f"{path}: a key is for a collection, which has a name")
        several = (
            {scheme: _key(one, where, environ) for scheme, one in said.items()} if isinstance(said, dict) else None
        )
        keys[name] = checked_keys(_key(said, where, environ) if several is None else several, where)
    return keys


def _key(said: object, where: str, environ: Mapping[str, str]) -> str:
    """Errors do not show the value: it is a secret, even in the wrong form."""
    if not isinstance(said, str):
        raise DefinitionError(f"{where}: a key is expected here, as text")
    if not (said.startswith("$") and said[1:].isidentifier()):
        return said
    if not (key := environ.get(said[1:], "")):
        raise DefinitionError(f"{where}: the environment variable {said[1:]} is not set")
    return key


def checked_keys(keys: Keys, where: str) -> Keys:
    for key in [keys] if isinstance(keys, str) else keys.values():
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise DefinitionError(f"{where}: this key has characters in it that cannot be sent")
    return keys
