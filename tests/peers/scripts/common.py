"""What every client script needs: its arguments, one JSON document as its result, and errors as data."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any


def main(script: Callable[..., object]) -> None:
    """Run a script with its JSON arguments; the last line that it prints is the result."""
    answer = script(**json.loads(sys.argv[1]))
    print(json.dumps(answer, default=dataclasses.asdict))


def described(error: BaseException) -> dict[str, Any]:
    return {"type": type(error).__name__, "text": str(error), "reason": getattr(error, "reason", None)}


def names(tools: list[Any]) -> list[str]:
    return [tool.name for tool in tools]
