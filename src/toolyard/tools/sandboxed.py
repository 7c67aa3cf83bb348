"""The shared base of toolsets with state in a sandbox: one sandbox for each session, opened when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import SandboxLost
from toolyard.core.workspace import Files
from toolyard.sandboxes.base import Entry, Profile, Sandbox
from toolyard.sandboxes.carrier import pack, unpack
from toolyard.sandboxes.provider import open_sandbox


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

    async def pack(self, path: str = ".") -> bytes:
        return await (await self.get()).pack(path)

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        await (await self.get()).unpack(archive, path)

    async def save(self) -> bytes:
        """The whole workspace as a tar archive; empty if the session never needed a sandbox.

        Programs that still run can change files meanwhile: each file is saved as it is when its turn comes.
        """
        if self._opening is None and not self._is_over:
            return b""
        return await pack(await self.get())

    async def restore(self, saved: bytes) -> None:
        """Unpack a saved workspace inside the sandbox, so that the archive can touch nothing else."""
        if saved:
            await unpack(await self.get(), saved, ".", "restore")


class SandboxedToolset(Toolset):
    """A toolset whose tools say `await self.sandbox()`."""

    uses_sandbox = True
    has_workspace = True
    profile: ClassVar[Profile] = "plain"

    @classmethod
    def workspace_of(cls, env: Environment) -> SessionSandbox:
        return SessionSandbox.of(env)

    async def sandbox(self) -> Sandbox:
        return await SessionSandbox.of(self.env).get()

    async def teardown(self) -> None:
        await SessionSandbox.of(self.env).close()
