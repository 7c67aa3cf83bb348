"""Finds out which protocols a server speaks, and tries their cases one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from toolyard.testing.conformance.case import Case, Kit, Result, Untried
from toolyard.testing.conformance.http import Http, Unmet, shortened
from toolyard.testing.conformance.target import Target

_ANSWERS = 6
"""A case may take as long as this many of the slowest answers."""
_NO_ANSWER = (Unmet, aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError, AttributeError)
"""What reading an answer of an unexpected shape can raise."""


async def reach(target: Target) -> int:
    """The status of some answer. Raises `aiohttp.ClientError` or `TimeoutError` if no server answers."""
    async with _http(target) as http:
        return (await http.ask("GET", "", url=target.url, head_only=True)).status


async def detect(target: Target, kits: Sequence[Kit[Any]]) -> list[Kit[Any]]:
    """The kits of the protocols that the server speaks."""
    found = []
    async with _http(target) as http:
        for kit in kits:
            probe = kit.probe(http, target)
            with suppress(*_NO_ANSWER):  # or the server speaks something else
                if await kit.speaks(probe):
                    found.append(kit)
            await _close(kit, probe)
    return found


async def conform(
    target: Target,
    kits: Sequence[Kit[Any]],
    *,
    only: Collection[str] = (),
    tell: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Try the cases of these protocols, or only those whose number is in `only`. Passes each result to `tell` at
    once."""
    results = []
    async with _http(target) as http:
        for kit in kits:
            probe = kit.probe(http, target)
            try:
                for case in kit.cases:
                    if not only or case.number in only:
                        results.append(await _try(case, probe, http.seconds))
                        tell(results[-1])
            finally:
                await _close(kit, probe)
    return results


def _http(target: Target) -> Http:
    return Http(target.url, api_key=target.api_key, seconds=target.seconds)


async def _try(case: Case[Any], probe: Any, seconds: float) -> Result:
    try:
        async with asyncio.timeout(seconds * _ANSWERS):
            await case.trial(probe)
    except Untried as error:
        return Result(case, "skip", str(error))
    except Unmet as error:
        return Result(case, "fail", str(error))
    except TimeoutError:
        return Result(case, "fail", f"no answer within {seconds:g} s")
    except aiohttp.ClientError as error:
        return Result(case, "fail", f"the connection broke: {type(error).__name__} {shortened(str(error))}")
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # an answer of an unexpected shape
        return Result(case, "fail", f"an answer of another shape: {type(error).__name__} {shortened(str(error))}")
    return Result(case, "pass")


async def _close(kit: Kit[Any], probe: Any) -> None:
    with suppress(*_NO_ANSWER):  # a case has reported it, if it matters
        await kit.close(probe)
