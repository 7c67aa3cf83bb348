"""Describes the result of a program in words for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toolyard.core.output import TextBlock, ToolOutput
from toolyard.sandboxes.base import Executed, Finished, Limit, Report

_WHY: Mapping[Limit, str] = {
    "wall": "it took longer than it may",
    "cpu": "it took more processor time than it may",
    "memory": "it needed more memory than it may",
    "output": "it wrote more output than it may, and the rest is not shown",
    "file_size": "it wrote a larger file than it may",
}


def tool_output(result: Executed | Finished) -> ToolOutput:
    """The output of a tool that runs code: what the code wrote, then how it ended if it failed.

    The metadata say how well the code was isolated and, for programs, the exit code and the limit exceeded.
    """
    metadata: dict[str, object] = {"isolation": result.isolation}
    if isinstance(result, Finished):
        metadata["exit_code"] = result.exit_code
    if result.killed_by is not None:
        metadata["killed_by"] = result.killed_by
    if result.state_lost:
        metadata["state_lost"] = True
    return ToolOutput(blocks=[TextBlock(text="\n".join(_parts(result)) or "[no output]")], metadata=metadata)


def isolation(report: Report) -> dict[str, object]:
    """What every client of the server may know. The reasons for missing layers would describe the host as well."""
    return {
        "backend": report.backend,
        "level": report.level,
        "layers": dict(report.layers),
        "missing": [one.feature for one in report.missing],
    }


def ended_by(limit: Limit, seconds: float) -> str:
    """`stopped after 10.0 s: it took longer than it may`."""
    return f"stopped after {seconds:.1f} s: {_WHY[limit]}"


def _parts(result: Executed | Finished) -> Iterator[str]:
    written = (result.stdout, result.stderr)
    for stream in written:
        if text := (stream if isinstance(stream, str) else stream.decode(errors="replace")).rstrip("\n"):
            yield text
    if isinstance(result, Executed):
        if result.value is not None:
            yield result.value
        if result.error is not None:
            yield result.error.traceback.rstrip("\n") or f"[{result.error.message}]"
    if result.killed_by is not None:
        yield f"[{ended_by(result.killed_by, result.usage.wall_seconds)}]"
    elif isinstance(result, Finished) and result.exit_code:
        yield f"[exit code {result.exit_code}]"
    if result.state_lost:
        what = "interpreter" if isinstance(result, Executed) else "shell"
        yield f"[the {what} starts afresh: variables are gone, files are kept]"
