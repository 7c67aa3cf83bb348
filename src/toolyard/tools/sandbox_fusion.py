"""`sandbox_fusion`: run code in many languages on a SandboxFusion server, which may be a Toolyard."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.tools.remote import REFUSED, RemoteToolset, blaming, object_of

SECONDS = 25
"""The time limit of one call. The server gives a program 10 to compile and 10 to run, and the agent reads its report of
a longer one; trainers wait 30."""
LONGEST = 100_000
"""The most characters of the result to show."""
WORDS_MOST = 2000
"""The most characters to show of an answer of unknown form."""
BLOCKED = "Execution blocked: Code contains potentially dangerous operations that are not allowed."

LANGUAGES: Sequence[str] = (
    *("python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust"),
    *("cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest"),
    *("verilog", "python_gpu", "lean", "swift", "racket"),
)
"""SandboxFusion's names of languages."""
_STATUSES = ("Success", "Failed", "SandboxError")

_ALIASES: Mapping[str, str] = {
    **{name.lower(): name for name in LANGUAGES},
    **{"py": "python", "python3": "python", "js": "nodejs", "javascript": "nodejs", "node": "nodejs"},
    **{"ts": "typescript", "rb": "ruby", "sh": "bash", "shell": "bash", "c++": "cpp", "cs": "csharp", "rs": "rust"},
}
_WORDS = "|".join(map(re.escape, sorted(_ALIASES, key=len, reverse=True)))
_OPENING = re.compile(rf"<({_WORDS})>", re.IGNORECASE)
_CLOSINGS = {word: re.compile(re.escape(f"</{word}>"), re.IGNORECASE) for word in _ALIASES}
_FENCE = re.compile(r"```([\w+#]*+)(.*?)```", re.DOTALL)
"""Possessive, so that a long word without a closing fence is read once, not again from each of its letters."""

_BLOCKED_WORDS: Mapping[str, re.Pattern[str]] = {
    "python": re.compile(
        r"(?:import|from) (?:subprocess|multiprocessing|threading|socket)"
        r"|os\.(?:system|popen|spawn|fork|exec|_exit|kill)|sys\.exit"
    ),
    "nodejs": re.compile(r"process\.exit|child_process|fs\.(?:write|unlink|rmdir)"),
    "cpp": re.compile(r"(?:system|exec|fork|popen)\("),
}


@dataclass(frozen=True, slots=True)
class LanguageForm:
    """Reads `<language>code</language>`, or else a fence with a language, or else a plain fence, which is Python.

    Only names of languages count: `<think>…</think>` is no code.
    """

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        for language, code in (*_tagged(text), *_fences(text)):
            if code.strip():
                return {"code": code.strip(), "language": _ALIASES[language.lower()]}
        return None

    def answer(self, text: str, result: str) -> str:
        return result


def _tagged(text: str) -> Iterator[tuple[str, str]]:
    """The content between each opening and closing tag. It searches only once for a missing closing tag."""
    end = 0
    unclosed: set[str] = set()
    while (opened := _OPENING.search(text, end)) is not None:
        end = opened.end()
        word = opened[1].lower()
        closed = None if word in unclosed else _CLOSINGS[word].search(text, end)
        if closed is None:
            unclosed.add(word)
            continue
        yield word, text[opened.end() : closed.start()]
        end = closed.end()


def _fences(text: str) -> Sequence[tuple[str, str]]:
    """Fences with a language first, then those without."""
    found: list[tuple[str, str]] = _FENCE.findall(text)
    named = [(language, code) for language, code in found if language.lower() in _ALIASES]
    return [*named, *(("python", code) for language, code in found if not language)]


def _language(written: object) -> object:
    name = _ALIASES.get(str(written).lower())
    if name is None:
        raise ValueError(f"there is no language {written!r}; there are {', '.join(LANGUAGES)}")
    return name


Language = Annotated[str, BeforeValidator(_language), Field(json_schema_extra={"enum": [*LANGUAGES]})]


class SandboxFusion(RemoteToolset):
    """A client of the server at $SANDBOX_FUSION_URL."""

    @tool(form=LanguageForm(), concurrent=True)
    async def sandbox_fusion(self, code: str, language: Language = "python") -> ToolOutput:
        """Run a program and return what it prints. Nothing is kept from one call to the next.

        Args:
            code: The whole program.
            language: What it is written in.
        """
        if getattr(self.env, "block_lists", False) and is_blocked(code, language):
            return _given_up(BLOCKED)
        url = os.environ.get("SANDBOX_FUSION_URL", "http://localhost:8080").rstrip("/")
        with blaming(f"SandboxFusion at {url}"):
            answer = await self.post(f"{url}/run_code", {"code": code, "language": language}, seconds=SECONDS)
            if answer.status in REFUSED:
                said = f"SandboxFusion API returned status code {answer.status}: {answer.text[:WORDS_MOST]}"
                return _given_up(f"Error executing code in SandboxFusion: {said}")
            return ToolOutput(blocks=[TextBlock(text=observed(object_of(answer))[:LONGEST])])


def _given_up(problem: str) -> ToolOutput:
    """End the trajectory, as the original does."""
    return ToolOutput(blocks=[TextBlock(text=problem)], metadata={"valid": False}, finished=True)


def is_blocked(code: str, language: str) -> bool:
    """Whether the code contains one of verl-tool's forbidden words. This stops no attack; the sandbox does."""
    words = _BLOCKED_WORDS.get(language)
    return words is not None and words.search(code) is not None


def observed(result: JsonObject) -> str:
    """The report of the program's steps. Raises `ServiceUnavailable` if the answer has none."""
    if (status := result.get("status")) not in _STATUSES:
        raise ServiceUnavailable(f"its answer has the status {str(status)[:200]!r}, not {' or '.join(_STATUSES)}")
    text = "Execution results:\n\n"
    if compiled := _step(result, "compile_result"):
        text += f"Compilation: {compiled.get('status')}\n"
        finished = compiled.get("status") == "Finished"
        if not finished or compiled.get("return_code"):
            text += f"Compilation errors:\n{compiled['stderr']}\n\n" if compiled.get("stderr") else ""
        if not finished:
            return text
    if ran := _step(result, "run_result"):
        took = ran.get("execution_time")
        text += f"Execution: {ran.get('status')} (took {took if isinstance(took, int | float) else 0:.4f}s)\n"
        text += f"\nOutput:\n{ran['stdout']}" if ran.get("stdout") else ""
        text += f"\nErrors:\n{ran['stderr']}" if ran.get("stderr") else ""
    if status != "Success":
        text += f"\nStatus: {status}" + (f" - {result['message']}" if result.get("message") else "")
    return text


def _step(result: JsonObject, name: str) -> Mapping[str, Any]:
    step = result.get(name)
    return step if isinstance(step, dict) else {}
