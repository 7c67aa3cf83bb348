"""Chooses the backend that makes the sandboxes of this host: a named one, or the first that isolates well enough."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence

from toolyard.core.errors import SandboxError, SandboxUnavailable
from toolyard.sandboxes import capacity, processors
from toolyard.sandboxes.base import Backend, Level, Limits, Report, at_least
from toolyard.sandboxes.view import View

BACKENDS: Mapping[str, str] = {
    "native": "toolyard.sandboxes.native.backend:NativeBackend",
    "bubblewrap": "toolyard.sandboxes.bubblewrap:BubblewrapBackend",
    "docker": "toolyard.sandboxes.containers:ContainerBackend",
    "podman": "toolyard.sandboxes.containers:ContainerBackend",
    "landlock": "toolyard.sandboxes.landlock:LandlockBackend",
    "subprocess": "toolyard.sandboxes.subprocess:SubprocessBackend",
}
"""To add a backend, write `sandboxes/<name>.py` with a class that `toolyard.testing.check_sandbox` passes, and add its
line here. A backend is imported when it is tried."""

AUTO = "auto"
_TRIED: Sequence[str] = ("native", "bubblewrap", "docker", "podman", "landlock")
"""The order in which `auto` tries backends. Never `subprocess`, which isolates nothing: name it to use it."""


def check_name(name: str) -> None:
    if name != AUTO and name not in BACKENDS:
        raise SandboxUnavailable(f"there is no sandbox {name!r}; there are {', '.join((AUTO, *BACKENDS))}")


def make(
    name: str,
    *,
    limits: Limits | None = None,
    ready: int = 0,
    image: str = "",
    view: View | None = None,
    share: int = 1,
) -> Backend:
    """Make a backend without starting it, and pass it what its kind accepts: sandboxes to make in advance, the
    container image, what programs see of this host, and how many such backends share it."""
    check_name(name)
    module, _, made = BACKENDS[name].partition(":")
    kind: Callable[..., Backend] = getattr(importlib.import_module(module), made)
    match name:
        case "native":
            most = processors.templates(share)
            return kind(limits=limits, ready=ready, templates=most, check_room=capacity.check, view=view)
        case "docker" | "podman":
            return kind(name, image=image, view=view) if image else kind(name, view=view)
        case _:
            return kind(view=view)


async def start(
    name: str,
    minimum: Level,
    *,
    limits: Limits | None = None,
    ready: int = 0,
    image: str = "",
    view: View | None = None,
    share: int = 1,
) -> Backend:
    """Start the first backend that reaches the minimum. Raises `SandboxUnavailable`, which says what each one lacks."""
    check_name(name)
    problems: dict[str, str] = {}
    for each in _TRIED if name == AUTO else (name,):
        backend = make(each, limits=limits, ready=ready, image=image, view=view, share=share)
        try:
            report = await backend.start()
        except (SandboxError, OSError) as error:
            problems[each] = str(error) or type(error).__name__
            continue
        isolates = at_least(report.level, minimum)
        problem = _visible(report, view) if isolates else shortfall(report)
        if not problem:
            return backend
        await backend.close()
        if isolates and name != AUTO:
            raise SandboxUnavailable(problem)
        problems[each] = problem
    raise SandboxUnavailable(_paragraph(problems, minimum))


def shortfall(report: Report) -> str:
    missing = "; ".join(f"{one.feature} is missing ({one.reason}): {one.fix}" for one in report.missing)
    return f"it reaches {report.level} here" + f". {missing}" * bool(missing)


def _visible(report: Report, view: View | None) -> str:
    """Why a sandbox shows what it should hide; empty if it hides it, or if the operator allows it."""
    if view is None or not view.hidden or view.told or report.level != "L0":
        return ""
    few = view.hidden[0] + f" and {len(view.hidden) - 1} more" * (len(view.hidden) > 1)
    return (
        f"the sandbox {report.backend!r} has no walls, so it cannot hide {few} from the programs that it runs: an "
        f"agent could read the source of its environment, and hidden tests. If it may, as in development, say "
        f"--allow-visible-source (TOOLYARD_ALLOW_VISIBLE_SOURCE=1)"
    )


def _paragraph(problems: Mapping[str, str], minimum: Level) -> str:
    tried = " ".join(f"{name}: {problem}" + "." * (problem[-1] not in ".?!") for name, problem in problems.items())
    return (
        f"there is no sandbox on this host that isolates as well as is asked for, {minimum}. {tried} If less will do "
        f"for the code that you run, say so with --min-isolation; none at all, for development, is the sandbox "
        f"'subprocess' with --min-isolation L0. `toolyard sandbox report` shows what this host offers"
    )
