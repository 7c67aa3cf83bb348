"""What this host can do for a server, what it cannot, and how to change that."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import re
import resource
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from toolyard.browser.chromium import find_chromium
from toolyard.browser.chromium import missing as browser_missing
from toolyard.cli.sandbox import Tried, is_offered, try_each, unheard
from toolyard.connections import most_connections, open_files
from toolyard.core.errors import SandboxError
from toolyard.sandboxes import BACKENDS, capacity
from toolyard.sandboxes.installation import Installation
from toolyard.sandboxes.languages import NO_PROGRAM, TOOLCHAINS, Toolchain, problem_of
from toolyard.server import sandboxes_of
from toolyard.serving import listen
from toolyard.settings import Settings, SettingsError, unknown_variables
from toolyard.version import __version__

HELP = "say what this host supports, and how to get what it does not"

Grade: TypeAlias = Literal["ok", "no", "low", "FAIL"]
"""Good; something optional is missing; something is scarce; `toolyard serve` would not start."""

_OLDEST = (3, 11)
_FEW_MIB = 512
_SPARE_FILES = 100
"""The files that a server has open beside its connections."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*;.*extra == ['\"]([a-z0-9-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    topic: str
    grade: Grade
    text: str
    hint: str = ""
    """What to do about it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for other programs: one object at the end")
    parser.epilog = "The exit code is 0 if `toolyard serve` would start here, else 1."


def run(args: argparse.Namespace) -> int:
    settings = Settings.read(vars(args))
    findings: list[Diagnosis] = []
    if args.json:
        findings += examine(settings)
        about = {"version": __version__, "system": platform.system(), "release": platform.release()}
        told = [dataclasses.asdict(finding) for finding in findings]
        verdicts = {"ok": starts(findings), "verdict": verdict(findings)}
        print(json.dumps({**verdicts, **about, "machine": platform.machine(), "findings": told}, indent=2))
        return int(not starts(findings))
    print(f"Toolyard {__version__} on {platform.system()} {platform.release()}, {platform.machine()}\n")
    topic = ""
    for finding in examine(settings):
        findings.append(finding)
        for line in lines(finding, again=finding.topic == topic):
            print(line, flush=True)
        topic = finding.topic
    print(f"\n{verdict(findings)}")
    return int(not starts(findings))


def starts(findings: Sequence[Diagnosis]) -> bool:
    """Whether `toolyard serve` would start here."""
    return all(finding.grade != "FAIL" for finding in findings)


def lines(finding: Diagnosis, *, again: bool) -> Iterator[str]:
    """One finding; its topic is left out if it is that of the line before."""
    head = f"  {finding.grade:6}{'' if again else finding.topic:13}"
    indent = " " * len(head)
    yield from textwrap.wrap(finding.text, 100, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
    if finding.hint:
        arrow = f"{indent}-> "
        yield from textwrap.wrap(
            finding.hint, 100, initial_indent=arrow, subsequent_indent=indent + "   ", break_on_hyphens=False
        )


def verdict(findings: Sequence[Diagnosis]) -> str:
    if failed := [finding.topic for finding in findings if finding.grade == "FAIL"]:
        return f"`toolyard serve` would not start here: see {', '.join(dict.fromkeys(failed))}."
    if low := [finding.topic for finding in findings if finding.grade == "low"]:
        return f"`toolyard serve` will work here. Before many sessions, look at {', '.join(dict.fromkeys(low))}."
    return "`toolyard serve` will work here."


def examine(settings: Settings) -> Iterator[Diagnosis]:
    yield from python()
    yield address(settings)
    yield from variables()
    yield from sandboxes(settings)
    yield from placements(settings)
    yield browser()
    yield from extras()
    yield files(settings)
    yield processes(settings)
    yield memory()


# What a server cannot do without.


def python() -> Iterator[Diagnosis]:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _OLDEST:
        yield Diagnosis("Python", "FAIL", found, f"install Python {'.'.join(map(str, _OLDEST))} or newer")
    else:
        yield Diagnosis("Python", "ok", found)
    versions = {package: installed(package) for package in ("uvicorn", "uvloop", "httptools")}
    for package in (package for package, version in versions.items() if version is None):
        yield Diagnosis("HTTP", "FAIL", f"{package} is not installed", f"pip install {package}")
    if None not in versions.values():
        yield Diagnosis("HTTP", "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))


def address(settings: Settings) -> Diagnosis:
    where = f"{settings.host} port {settings.port}"
    try:
        settings.check_exposure()
        settings.check_sandbox_network()
        listen(settings.host, settings.port).close()
    except SettingsError as error:
        return Diagnosis("address", "FAIL", sentence(str(error)))
    return Diagnosis("address", "ok", f"{where} is free")


def variables() -> Iterator[Diagnosis]:
    for problem in unknown_variables(os.environ):
        yield Diagnosis("variables", "low", sentence(problem), "unset it, or set the one that is meant")


# Isolation and placements.


def sandboxes(settings: Settings) -> Iterator[Diagnosis]:
    """The backend that a server would use, and what it lacks; then why it would not use the others."""
    if settings.sandbox_python:
        try:
            yield Diagnosis("sandboxes", "ok", f"Python in them: {Installation.at(settings.sandbox_python)}")
        except SandboxError as error:
            yield Diagnosis("sandboxes", "FAIL", sentence(str(error)), "name another with --sandbox-python")
            return
    names = list(BACKENDS) if settings.sandbox == "auto" else [settings.sandbox]
    with unheard(logging.getLogger("toolyard.sandbox")):
        tried = asyncio.run(try_each(names, settings))
    fit = [one for one in tried if one.reaches(settings.min_isolation) and is_offered(one, settings)]
    if not fit:
        yield Diagnosis(
            "sandboxes",
            "no",
            f"none that isolates as asked for, {settings.min_isolation}: tools that run code are not served",
            "`toolyard sandbox report` says more",
        )
    else:
        yield from chosen(fit)
    for one in tried:
        if one not in fit and is_offered(one, settings):
            yield lacking(one)
    if fit:
        yield from programming(settings)


def chosen(fit: Sequence[Tried]) -> Iterator[Diagnosis]:
    best, *others = fit
    assert best.report is not None
    also = f" (also here: {', '.join(one.backend for one in others)})" * bool(others)
    yield Diagnosis("sandboxes", "ok", f"{best.backend}, isolation {best.report.level}{also}")
    for missing in best.report.missing:
        yield Diagnosis("sandboxes", "no", f"without {missing.feature}: {missing.reason}", missing.fix)


def lacking(one: Tried) -> Diagnosis:
    if one.report is None:
        return Diagnosis("sandboxes", "no", f"{one.backend}: {one.problem.removeprefix(f'{one.backend} ')}")
    missing = "; ".join(f"{each.feature}: {each.fix}" for each in one.report.missing)
    return Diagnosis("sandboxes", "no", f"{one.backend} reaches {one.report.level}", missing)


def programming(settings: Settings) -> Iterator[Diagnosis]:
    """The languages of /run_code, each tried by a hello-world."""
    with unheard(logging.getLogger("toolyard.sandbox")):
        problems = asyncio.run(try_languages(settings))
    if works := [language for language, problem in problems.items() if not problem]:
        yield Diagnosis("languages", "ok", f"for /run_code: {', '.join(works)}")
    if absent := [language for language, problem in problems.items() if problem.startswith(NO_PROGRAM)]:
        programs = ", ".join(f"{language} ({TOOLCHAINS[language].needs})" for language in absent)
        yield Diagnosis("languages", "no", f"not installed: {programs}")
    for language, problem in problems.items():
        if problem and language not in absent:
            yield Diagnosis("languages", "no", f"{language}: {problem}")


async def try_languages(settings: Settings) -> dict[str, str]:
    """What is wrong with each language; empty for those that work."""
    turn = asyncio.Semaphore(os.cpu_count() or 1)

    async def problem(toolchain: Toolchain) -> str:
        async with turn:
            try:
                return await problem_of(toolchain)
            except SandboxError as error:
                return f"it could not be tried: {error}"

    async with sandboxes_of(settings):
        return dict(zip(TOOLCHAINS, await asyncio.gather(*map(problem, TOOLCHAINS.values())), strict=True))


def placements(settings: Settings) -> Iterator[Diagnosis]:
    """The placements; a server does not start without the one in the settings."""
    yield Diagnosis("placements", "ok", "local")
    if sys.platform == "linux":
        yield Diagnosis("placements", "ok", "process, pool")
    else:
        grade: Grade = "FAIL" if settings.placement in ("process", "pool") else "no"
        yield Diagnosis("placements", grade, f"process, pool: they need Linux, and this is {platform.system()}")
    if (version := installed("ray")) is not None:
        yield Diagnosis("placements", "ok", f"ray, with Ray {version}")
    else:
        ray: Grade = "FAIL" if settings.placement == "ray" else "no"
        yield Diagnosis("placements", ray, "ray: Ray is not installed", "pip install 'toolyard[ray]'")


# What some tools need.


def browser() -> Diagnosis:
    if problem := browser_missing():
        return Diagnosis("browser", "no", problem)
    return Diagnosis("browser", "ok", f"{find_chromium()}, with playwright {installed('playwright')}")


def extras() -> Iterator[Diagnosis]:
    """The optional packages, by the name of the extra that brings them."""
    wanted: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("toolyard") or ():
        if (found := _REQUIREMENT.match(requirement)) and found[2] != "dev":
            wanted.setdefault(found[2], []).append(found[1])
    absent = {extra: [name for name in names if installed(name) is None] for extra, names in wanted.items()}
    if there := [extra for extra, names in absent.items() if not names]:
        yield Diagnosis("extras", "ok", ", ".join(there))
    for extra, names in absent.items():
        if names:
            yield Diagnosis("extras", "no", f"{extra}: without {', '.join(names)}", f"pip install 'toolyard[{extra}]'")


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# Resources.


def files(settings: Settings) -> Diagnosis:
    """Each connection is one; a session in a process of its own is two more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = most_connections(settings.part().max_connections)
    room = max(open_files() - _SPARE_FILES, 0)
    if room >= max(settings.max_sessions, connections):
        return Diagnosis("open files", "ok", f"{soft:,} at once" if soft != resource.RLIM_INFINITY else "any number")
    connections = min(connections, room)
    return Diagnosis(
        "open files",
        "low",
        f"{soft:,} at once: enough for {connections:,} connections, or {min(connections, room // 3):,} sessions with a "
        f"process and a connection each; --max-sessions is {settings.max_sessions:,}"
        + f", --max-connections {settings.max_connections:,}"
        * (settings.max_connections > 0),
        f"ulimit -n {max(65_536, 4 * settings.max_sessions)}, or LimitNOFILE= of the service"
        + f" (up to {hard:,} without being root)" * (hard != resource.RLIM_INFINITY),
    )


def processes(settings: Settings) -> Diagnosis:
    name, most = min(process_limits(), key=lambda limit: limit[1])
    grade: Grade = "ok" if most >= settings.max_sessions else "low"
    text = f"{most:,} at once, by {name}"
    hint = f"raise it for --placement process with more than {most // 2:,} sessions" if grade == "low" else ""
    return Diagnosis("processes", grade, text, hint)


def process_limits() -> Iterator[tuple[str, int]]:
    """All limits on processes. Threads count, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield "ulimit -u", soft
    for bound in capacity.read().processes:
        yield bound.limit, bound.most
    yield "nothing that is known of", sys.maxsize


def memory() -> Diagnosis:
    """Free memory, on the host or within its control groups."""
    bounds = capacity.read().memory
    if not bounds:
        return Diagnosis("memory", "no", "how much is free is not known here")
    total, free = min(bound.most for bound in bounds), min(bound.most - bound.used for bound in bounds)
    grade: Grade = "low" if free < _FEW_MIB * 2**20 else "ok"
    return Diagnosis("memory", grade, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free; {cores()}")


def cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{usable} processor{'s' * (usable != 1)}"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
