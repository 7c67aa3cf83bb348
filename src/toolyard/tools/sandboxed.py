"""What toolsets that keep state in a sandbox share: one sandbox for each session, opened when first needed."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from toolyard.core.environment import Environment, Toolset
from toolyard.sandboxes.base import Profile, Sandbox
from toolyard.sandboxes.provider import open_sandbox


class SessionSandbox:
    """The sandbox of one session, in which all its toolsets work: what one writes, another can read."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._opening: asyncio.Future[Sandbox] | None = None

    @classmethod
    def of(cls, env: Environment) -> SessionSandbox:
        found = vars(env).get("_session_sandbox")
        if found is None:
            wanted: list[Profile] = [cls.profile for cls in type(env).toolsets if issubclass(cls, SandboxedToolset)]
            profile: Profile = next((profile for profile in wanted if profile != "plain"), "plain")
            found = vars(env)["_session_sandbox"] = cls(profile)
        assert isinstance(found, cls)
        return found

    async def get(self) -> Sandbox:
        """The sandbox. If it could not be opened, whoever asks next tries again."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(open_sandbox(profile=self._profile))
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if (opening := self._opening) is None:
            return
        self._opening = None
        await asyncio.wait((opening,))
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


class SandboxedToolset(Toolset):
    """A toolset whose tools say `await self.sandbox()`."""

    uses_sandbox = True
    profile: ClassVar[Profile] = "plain"

    async def sandbox(self) -> Sandbox:
        return await SessionSandbox.of(self.env).get()

    async def teardown(self) -> None:
        await SessionSandbox.of(self.env).close()
