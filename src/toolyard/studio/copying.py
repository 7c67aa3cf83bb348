"""Writes the calls of a session as a program, to make them again elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from toolyard.core.encoding import encode
from toolyard.studio.feed import Log, Step


def as_python(log: Log, url: str, *, asks_key: bool) -> str:
    """A program for our client."""
    key = ', api_key=os.environ["TOOLYARD_API_KEY"]' * asks_key
    task = log.spec.task
    lines = [
        *(["import os", ""] if asks_key else []),
        "from toolyard import Client",
        "",
        *_missing(log),
        f"client = Client({url!r}{key})",
        f"environment = client.environments.get({log.spec.environment.name().lower()!r})",
    ]
    if task.split is not None:
        lines.append(f"with environment.session(split={task.split!r}, index={task.index}) as session:")
    else:
        lines.append(f"with environment.session(task={_plain(task.spec)!r}) as session:")
    lines.append("    print(session.get_prompt())")
    for step in _asked(log):
        arguments = json.loads(step.arguments)
        lines.append(f"    print(session.call_tool({step.tool!r}, {arguments!r}))")
    return "\n".join(lines) + "\n"


def as_curl(log: Log, url: str, *, asks_key: bool) -> str:
    """Commands for a shell, in the Open Reward Standard."""
    name, task = log.spec.environment.name().lower(), log.spec.task
    opened = {"env_name": name, "task_spec": _plain(task.spec)}
    if task.split is not None:
        opened = {"env_name": name, "split": task.split, "index": task.index}
    lines = [
        *_missing(log),
        f"URL={shlex.quote(url)}",
        'SESSION="by-hand-$RANDOM$RANDOM$RANDOM"',
        'ask() { curl -sS -H "X-Session-ID: $SESSION" '
        + '-H "X-API-Key: $TOOLYARD_API_KEY" ' * asks_key
        + "-H 'Content-Type: application/json' \"$@\"; echo; }",
        f'ask "$URL/create" -d {_quoted(opened)}',
        f'ask "$URL"/{shlex.quote(name)}/prompt',
    ]
    for step in _asked(log):
        written = f'{{"name":{json.dumps(step.tool)},"input":{step.arguments.decode()}}}'
        lines.append(f'ask "$URL"/{shlex.quote(name)}/call -d {shlex.quote(written)}')
    lines.append('ask -X POST "$URL/delete"')
    return "\n".join(lines) + "\n"


def _asked(log: Log) -> Iterator[Step]:
    return (step for step in log.steps if step.outcome not in ("no_such_tool", "episode_finished"))


def _missing(log: Log) -> list[str]:
    missing = log.earlier + log.dropped
    return [f"# The first {missing} calls of this session are not kept, and so not here."] if missing else []


def _plain(value: object) -> object:
    return json.loads(encode(value))


def _quoted(value: object) -> str:
    return shlex.quote(encode(value).decode())
