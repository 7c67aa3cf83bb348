"""Plays from a step: makes the recorded calls of an episode again in a new session, and leaves it to a person."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from toolyard.asgi import Headers, HttpError
from toolyard.core.encoding import encode
from toolyard.core.errors import ToolyardError
from toolyard.core.output import JsonObject
from toolyard.episodes.replay import Cannot, Replay
from toolyard.episodes.store import Store
from toolyard.placement.base import Origin
from toolyard.studio.episodes import asked, store_of
from toolyard.studio.parts import Parts, quoted
from toolyard.studio.sessions import WIRE
from toolyard.studio.visit import Page, Visit

_TELL_EVERY = 0.2
"""Seconds between two lines that say how many calls are made."""
_HEADERS: Headers = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),
]


def pages(parts: Parts) -> Sequence[Page]:
    return [Page("POST", "api/v1/episodes/*/play", play)]


async def play(visit: Visit) -> None:
    """Answers with lines of JSON: how many calls are made, and at last the session, or why there is none."""
    step = (await visit.body()).get("step")
    if not isinstance(step, int) or step < 0:
        raise HttpError(400, f"step is {str(step)[:100]!r}; it must be the number of a step")
    path = store_of(visit)
    await asked(visit, lambda file: None)  # says in words what is wrong with the store
    with await asyncio.to_thread(Store, [path]) as store:
        episode = await asyncio.to_thread(store.find, visit.named[0])
        await visit.request.start(_HEADERS)
        gone = asyncio.ensure_future(visit.request.until_gone())
        going = asyncio.ensure_future(_replayed(visit, store, episode.id, min(step, episode.steps)))
        try:
            await asyncio.wait((gone, going), return_when=asyncio.FIRST_COMPLETED)
            if going.done():
                await visit.request.write(encode(going.result()) + b"\n", last=True)
        finally:
            gone.cancel()
            going.cancel()
            await asyncio.wait((gone, going))


async def _replayed(visit: Visit, store: Store, wanted: str, last: int) -> JsonObject:
    runtime = visit.parts.runtime
    episode = store.find(wanted)
    told = 0.0

    async def on_step(number: int) -> None:
        nonlocal told
        if (now := time.monotonic()) - told > _TELL_EVERY:
            told = now
            await visit.request.write(encode({"done": number}) + b"\n")

    session_id = runtime.owners.draw(lambda: f"studio-{uuid.uuid4()}")
    origin = Origin(WIRE, labels={"from": episode.id, "step": str(last)})
    try:
        session, differs = await Replay(runtime, store).until(
            episode,
            last,
            session_id=session_id,
            origin=origin,
            on_open=lambda session: visit.parts.feed.follow(session, pinned=True),
            on_step=on_step,
        )
    except Cannot as error:
        where = f"Step {error.step} stands in the way" if error.step else "This episode cannot be played from here"
        return {"said": f"{where}: {error}."}
    except ToolyardError as error:
        return {"said": f"This episode cannot be played from here: {error}."}
    name = session.spec.environment.name().lower()
    found = {"session": session.id, "href": f"/studio/play/{quoted(name)}?session={quoted(session.id)}"}
    if differs is None:
        return found
    return {**found, "differs": {"step": differs[0], "difference": differs[1]}}
