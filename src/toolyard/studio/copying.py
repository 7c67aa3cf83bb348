"""Writes the calls of a session, or of a recorded episode, as a program, to make them again elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from toolyard.asgi import HttpError
from toolyard.core.encoding import encode
from toolyard.core.output import JsonObject
from toolyard.studio.feed import Log

_NO_CALL = ("no_such_tool", "episode_finished")
"""Outcomes of what called nothing."""


@dataclass(frozen=True, slots=True)
class Story:
    """What is written as a program: a task, and the calls that were made in it."""

    environment: str
    split: str | None
    index: int | None
    task: JsonObject
    calls: Sequence[tuple[str, str]]
    """Each tool, with its arguments as JSON."""
    missing: str
    """What is not there, for people; empty if nothing is."""

    @classmethod
    def of(cls, log: Log) -> Self:
        missing, task = log.earlier + log.dropped, log.spec.task
        return cls(
            environment=log.spec.environment.name().lower(),
            split=task.split,
            index=task.index,
            task=task.spec,
            calls=[(step.tool, step.arguments.decode()) for step in log.steps if is_call(step.outcome)],
            missing=f"The first {missing} calls of this session are not kept, and so not here." if missing else "",
        )


def is_call(outcome: str) -> bool:
    return outcome not in _NO_CALL


def as_python(story: Story, url: str, *, asks_key: bool) -> str:
    """A program for our client."""
    key = ', api_key=os.environ["TOOLYARD_API_KEY"]' * asks_key
    lines = [
        *(["import os", ""] if asks_key else []),
        "from toolyard import Client",
        "",
        *_missing(story),
        f"client = Client({url!r}{key})",
        f"environment = client.environments.get({story.environment!r})",
    ]
    if story.split is not None:
        lines.append(f"with environment.session(split={story.split!r}, index={story.index}) as session:")
    else:
        lines.append(f"with environment.session(task={_plain(story.task)!r}) as session:")
    lines.append("    print(session.get_prompt())")
    for tool, arguments in story.calls:
        lines.append(f"    print(session.call_tool({tool!r}, {json.loads(arguments)!r}))")
    return "\n".join(lines) + "\n"


def as_curl(story: Story, url: str, *, asks_key: bool) -> str:
    """Commands for a shell, in the Open Reward Standard."""
    name = story.environment
    opened = {"env_name": name, "task_spec": _plain(story.task)}
    if story.split is not None:
        opened = {"env_name": name, "split": story.split, "index": story.index}
    lines = [
        *_missing(story),
        f"URL={shlex.quote(url)}",
        'SESSION="by-hand-$RANDOM$RANDOM$RANDOM"',
        'ask() { curl -sS -H "X-Session-ID: $SESSION" '
        + '-H "X-API-Key: $TOOLYARD_API_KEY" ' * asks_key
        + "-H 'Content-Type: application/json' \"$@\"; echo; }",
        f'ask "$URL/create" -d {_quoted(opened)}',
        f'ask "$URL"/{shlex.quote(name)}/prompt',
    ]
    for tool, arguments in story.calls:
        written = f'{{"name":{json.dumps(tool)},"input":{arguments}}}'
        lines.append(f'ask "$URL"/{shlex.quote(name)}/call -d {shlex.quote(written)}')
    lines.append('ask -X POST "$URL/delete"')
    return "\n".join(lines) + "\n"


def written(story: Story, how: str, *, host: str, secure: bool, asks_key: bool) -> str:
    """The story in one of these languages. Raises `HttpError` for another."""
    writers = {"python": as_python, "curl": as_curl}
    if how not in writers:
        raise HttpError(404, f"an episode can be copied as {' or '.join(writers)}, not as {how[:100]!r}")
    return writers[how](story, f"http{'s' * secure}://{host or '127.0.0.1:8080'}", asks_key=asks_key)


def _missing(story: Story) -> list[str]:
    return [f"# {story.missing}"] if story.missing else []


def _plain(value: object) -> object:
    return json.loads(encode(value))


def _quoted(value: object) -> str:
    return shlex.quote(encode(value).decode())
