"""Records the code of a Python session, to run it again where memory cannot be copied."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolyard.core.errors import CannotFork
from toolyard.sandboxes.base import Executed, Sandbox

_CHARACTERS_MOST = 4 * 1024 * 1024


@dataclass(slots=True)
class Recording:
    """The code that ran to its end. Code that failed is left out, with everything that it did before it failed.

    Running code again gives the same variables only if it does the same things again. Randomness, time and whatever is
    outside of the sandbox may make a difference, which this class cannot detect.
    """

    pieces: list[str] = field(default_factory=list)

    def note(self, code: str, executed: Executed) -> None:
        if executed.state_lost:
            self.pieces.clear()
        elif executed.error is None and executed.killed_by is None:
            self.pieces.append(code)

    async def play(self, sandbox: Sandbox) -> None:
        """Run all of it in a fresh sandbox."""
        if sum(map(len, self.pieces)) > _CHARACTERS_MOST:
            raise CannotFork(f"the session has run more than {_CHARACTERS_MOST} characters of code, which is too much")
        for number, code in enumerate(self.pieces, 1):
            executed = await sandbox.exec(code)
            if executed.error is not None or executed.killed_by is not None:
                raise CannotFork(f"code {number} of {len(self.pieces)} failed when it was run again: {_why(executed)}")


def _why(executed: Executed) -> str:
    if executed.error is None or executed.killed_by is not None:
        return f"it exceeded the limit {executed.killed_by}"
    return f"{executed.error.name}: {executed.error.message}"
