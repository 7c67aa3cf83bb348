"""The shared base of toolsets with state in a sandbox: one sandbox for each session, opened when first needed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from importlib import resources
from typing import ClassVar

from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import SandboxLost, WorkspaceError
from toolyard.core.workspace import Files
from toolyard.sandboxes.base import Entry, Finished, Profile, Sandbox
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.provider import open_sandbox

PACKING_SECONDS = 60.0
_PACKING = resources.files("toolyard.tools").joinpath("packing.py").read_text(encoding="utf-8")
_HEADER_MOST = 8 * 1024
"""Bytes in an archive for one file beside its content: a path can take 4 KiB, and a link's target as much."""


class SessionSandbox:
    """The sandbox of one session. All its toolsets work there: one can read what another writes."""

    def __init__(self, profile: Profile, files: Files | None = None) -> None:
        self._profile = profile
        self._files = files
        self._opening: asyncio.Future[Sandbox] | None = None
        self._is_over = False
        """The session is closed. A late call gets no sandbox, since nothing would close it."""

    @classmethod
    def of(cls, env: Environment) -> SessionSandbox:
        found = vars(env).get("_session_sandbox")
        if found is None:
            wanted: list[Profile] = [cls.profile for cls in type(env).toolsets if issubclass(cls, SandboxedToolset)]
            profile: Profile = next((profile for profile in wanted if profile != "plain"), "plain")
            found = vars(env)["_session_sandbox"] = cls(profile, env.workspace_files)
        assert isinstance(found, cls)
        return found

    @property
    def is_open(self) -> bool:
        """Whether the sandbox is open, because something in the session needed it."""
        return self._opening is not None

    async def get(self) -> Sandbox:
        """The sandbox. If it could not be opened, the next call tries again."""
        if self._is_over:
            raise SandboxLost("its session is over")
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(open_sandbox(profile=self._profile, files=self._files))
        return await asyncio.shield(self._opening)

    async def fork_for(self, env: Environment) -> None:
        """Give another environment a sandbox that continues from this one."""
        made = vars(env)["_session_sandbox"] = SessionSandbox(self._profile, self._files)
        if self._opening is not None:
            (branch,) = await (await self.get()).fork(1)
            made._opening = asyncio.get_running_loop().create_future()
            made._opening.set_result(branch)

    async def close(self) -> None:
        self._is_over = True
        if (opening := self._opening) is None:
            return
        self._opening = None
        await asyncio.wait((opening,))
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()

    # As a `core.workspace.Workspace`.

    async def read(self, path: str) -> bytes:
        return await (await self.get()).read(path)

    async def write(self, path: str, data: bytes) -> None:
        await (await self.get()).write(path, data)

    async def list(self, path: str = ".") -> Sequence[Entry]:
        return await (await self.get()).list(path)

    async def stop_programs(self) -> None:
        if self._opening is not None:
            await (await self.get()).stop_programs()

    async def save(self) -> bytes:
        """The whole workspace as a tar archive; empty if the session never needed a sandbox.

        Programs that still run can change files meanwhile: each file is saved as it is when its turn comes.
        """
        if self._opening is None and not self._is_over:
            return b""
        return (await self._pack("pack")).stdout

    async def restore(self, saved: bytes) -> None:
        """Unpack a saved workspace inside the sandbox, so that the archive can touch nothing else."""
        if saved:
            await self._pack("unpack", saved)

    async def _pack(self, what: str, stdin: bytes = b"") -> Finished:
        sandbox = await self.get()
        most = sandbox.limits.disk_bytes + sandbox.limits.disk_files * _HEADER_MOST
        limits = dataclasses.replace(sandbox.limits, wall_seconds=PACKING_SECONDS, cpu_seconds=None, output_bytes=most)
        finished = await sandbox.run(["python3", "-I", "-S", "-c", _PACKING, what], stdin=stdin, limits=limits)
        if finished.exit_code != 0 or finished.killed_by is not None:
            raise WorkspaceError(f"the workspace cannot be {what}ed: {_reason(finished, most)}")
        return finished


def _reason(finished: Finished, most: int) -> str:
    if finished.killed_by == "output":
        return f"it is larger than {most} bytes"
    if finished.killed_by is not None:
        return f"this {ended_by(finished.killed_by, finished.usage.wall_seconds)}"
    said = finished.stderr.decode(errors="replace").strip()
    return said[-1000:] or f"exit code {finished.exit_code}"


class SandboxedToolset(Toolset):
    """A toolset whose tools say `await self.sandbox()`."""

    uses_sandbox = True
    has_workspace = True
    profile: ClassVar[Profile] = "plain"

    async def sandbox(self) -> Sandbox:
        return await SessionSandbox.of(self.env).get()

    async def teardown(self) -> None:
        await SessionSandbox.of(self.env).close()
