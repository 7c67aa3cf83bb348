"""`piston`: run programs of several files in many languages on a Piston server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import httpx2
from pydantic import BaseModel, Field

from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.tools import http
from toolyard.tools.remote import REFUSED, RemoteToolset, blaming, object_of

SECONDS = 20
"""The time limit of the whole request; the two steps on the server have limits of their own."""
START_SECONDS = 5
LONGEST = 100_000
"""The most characters of the result to show."""
WORDS_MOST = 2000
"""The most characters to show of an answer of unknown form."""

_LIMITS = {"compile_timeout": 10_000, "run_timeout": 3_000, "compile_memory_limit": -1, "run_memory_limit": -1}
"""Milliseconds and bytes; -1 allows as much memory as the server does."""

_EXTENSIONS: Mapping[str, str] = {
    **{"python": ".py", "javascript": ".js", "typescript": ".ts", "csharp": ".cs", "rust": ".rs", "ruby": ".rb"},
    **{"kotlin": ".kt"},
}
"""File endings of languages that differ from the language's name."""


class File(BaseModel):
    content: str = Field(description="What is in the file.")
    name: str = Field(default="", description="Its name. The first file is the program.")


@dataclass(frozen=True, slots=True)
class PistonForm:
    """Reads a text that is one `<piston>` element, or the JSON object of a request."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        text = text.strip()
        if text.startswith("<piston>") and text.endswith("</piston>"):
            request = _xml(text)
        elif text.startswith("{") and text.endswith("}"):
            request = _json(text)
        else:
            return None
        return request if request.get("language") and request.get("files") else None

    def answer(self, text: str, result: str) -> str:
        return result


class Piston(RemoteToolset):
    """A client of the server at $PISTON_URL."""

    @classmethod
    def missing(cls) -> str:
        url = endpoint("runtimes")
        try:
            with httpx2.Client(verify=http.tls(httpx2.URL(url).scheme), timeout=START_SECONDS) as client:
                status = client.get(url).status_code
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"no Piston server answers at {url} ({error}); set PISTON_URL to one"
        return "" if status == 200 else f"{url} answers {status} and not 200; set PISTON_URL to a Piston server"

    @tool(form=PistonForm(), concurrent=True)
    async def piston(
        self, language: str, files: list[File], version: str = "*", args: list[str] = [], stdin: str = ""
    ) -> ToolOutput:
        """Run a program and return what it prints. The episode is over with it.

        Args:
            language: What it is written in.
            files: Its files, the one to start first.
            version: Which version of the language; * for any.
            args: Words on its command line.
            stdin: What it reads from standard input.
        """
        named = [{"name": file.name or _name(i, language), "content": file.content} for i, file in enumerate(files)]
        request = {"language": language, "version": version, "files": named, "args": args, "stdin": stdin}
        url = endpoint("execute")
        with blaming(f"Piston at {url}"):
            answer = await self.post(url, {**request, **_LIMITS}, seconds=SECONDS)
            if answer.status in REFUSED:
                return _output(f"Error: HTTP {answer.status}: {answer.text[:WORDS_MOST]}", valid=False)
            return _output(observed(object_of(answer), language, version)[:LONGEST])


def endpoint(name: str) -> str:
    url = os.environ.get("PISTON_URL", "http://localhost:2000").rstrip("/")
    return f"{url}/{name}" if "/api/v2" in url else f"{url}/api/v2/{name}"


def observed(result: JsonObject, language: str, version: str) -> str:
    """Piston's report of the run, or of the compilation if that failed.

    Raises `ServiceUnavailable` if it has neither.
    """
    match result:
        case {"run": {"stdout": _} as run}:
            return _ran(run, language, result.get("version", version))
        case {"compile": {"stdout": _} as compiled}:
            return (
                f"Compilation error:\n\n--- Compile output ---\n{compiled['stdout']}\n\n--- Compile error ---\n"
                f"{compiled.get('stderr', '')}\n\nCompilation exit code: {compiled.get('code')}\n"
                f"Status: {compiled.get('status') or 'Unknown'}\n"
            )
        case _:
            raise ServiceUnavailable(f"its answer tells of no run: {str(result)[:200]}")


def _ran(run: Mapping[str, Any], language: str, version: str) -> str:
    status = f" ({run['status']})" if run.get("status") else ""
    return (
        f"Execution result:\n\nLanguage: {language}\nVersion: {version}\n\n--- STDOUT ---\n{run['stdout']}\n\n"
        f"--- STDERR ---\n{run.get('stderr', '')}\n\nExit code: {run.get('code')}{status}\n"
        f"Signal: {run.get('signal') or 'None'}\nCPU time: {run.get('cpu_time') or 0}ms\n"
        f"Memory usage: {(run.get('memory') or 0) / 1_000_000:.2f}MB\n"
    )


def _output(text: str, *, valid: bool = True) -> ToolOutput:
    metadata = None if valid else {"valid": False}
    return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata, finished=True)


def _name(i: int, language: str) -> str:
    return f"file{i}{_EXTENSIONS.get(language.lower(), f'.{language.lower()}')}"


def _json(text: str) -> JsonObject:
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: request[name] for name in _FIELDS if name in request}


def _xml(text: str) -> JsonObject:
    """Read the text as XML, or else leniently: programs are full of unescaped `<`."""
    try:
        if "<!" in text.replace("<![CDATA[", ""):  # declarations could expand without bound
            raise ElementTree.ParseError
        children = [(child.tag, child.get("name", ""), child.text or "") for child in ElementTree.fromstring(text)]
    except ElementTree.ParseError:
        children = [*_children(text)]
    request: dict[str, Any] = {tag: content.strip() for tag, _, content in children if tag in _FIELDS}
    files = [(name, content) for tag, name, content in children if tag == "file"]
    request["files"] = [{"name": name or f"file{i}", "content": content} for i, (name, content) in enumerate(files)]
    if "args" in request:
        request["args"] = request["args"].split()
    return request


def _children(text: str) -> Iterator[tuple[str, str, str]]:
    """The tag, name and content of each element. It searches only once for a missing closing tag."""
    at = 0
    unclosed: set[str] = set()
    while (opened := _OPENING.search(text, at)) is not None:
        tag, at = opened[1], opened.end()
        end = -1 if tag in unclosed else text.find(f"</{tag}>", at)
        if end < 0:
            unclosed.add(tag)
            continue
        yield tag, opened[2] or "", text[at:end]
        at = end


_FIELDS = ("language", "version", "args", "stdin", "files")
_OPENING = re.compile(r"<(language|version|args|stdin|file)(?:\s+name=[\"']([^\"']*)[\"'])?\s*>")
