"""Episodes as one HTML file, which needs no server and no script."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Sequence

from toolyard.core.output import JsonObject
from toolyard.core.pictures import PICTURES
from toolyard.episodes.groups import shown_task
from toolyard.episodes.store import Episode, Step, Store

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --mark: #8882; --bad: #c33; --good: #283; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .2rem .6rem; text-align: left; }
tr + tr, li + li { border-top: 1px solid var(--line); }
ol { list-style: none; padding: 0; } li { padding: .8rem 0; }
pre { background: var(--mark); padding: .5rem .7rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
img { max-width: 100%; } .about { color: GrayText; font-size: .85rem; }
.failed { color: var(--bad); } .reward { color: var(--good); font-weight: 600; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(store: Store, episodes: Sequence[Episode]) -> Iterator[str]:
    """The file, in pieces. The words of agents and tools are text in it, never markup."""
    yield "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
    yield f"<title>{_count(episodes)}</title><style>{_STYLE}</style><h1>{_count(episodes)}</h1><table>"
    yield "<tr><th>episode<th>environment<th>task<th>run<th>steps<th>return<th>ended"
    for one in episodes:
        cells = (one.environment, shown_task(one), one.run, str(one.steps), _number(one.total), one.outcome)
        yield f"<tr><td><a href=#{_text(one.id)}>{_text(one.id)}</a>" + "".join(f"<td>{_text(cell)}" for cell in cells)
    yield "</table>"
    for one in episodes:
        yield from _episode(one, store.prompt(one), store.each_step(one))


def _episode(one: Episode, prompt: Sequence[JsonObject] | None, steps: Iterable[Step]) -> Iterator[str]:
    yield f"<h2 id={_text(one.id)}>{_text(one.environment)}, {_text(shown_task(one))}</h2>"
    about = [one.id, one.wire, one.opened, one.outcome, f"return {_number(one.total)}"]
    if not one.complete:
        about.append("not complete")
    yield f"<p class=about>{_text(' · '.join(filter(None, about)))}</p>"
    yield from map(_block, prompt or ())
    yield "<ol>"
    for step in steps:
        yield from _step(step)
    yield "</ol>"


def _step(step: Step) -> Iterator[str]:
    kind = "" if step.outcome == "ok" else " class=failed"
    ran = "" if step.ran_seconds is None else f"{step.ran_seconds:.3f} s"
    yield f"<li><b>{step.number}. {_text(step.tool)}</b> <span{kind}>{_text(step.outcome)}</span> "
    if step.reward is not None:
        yield f"<span class=reward>reward {step.reward:g}</span> "
    yield f"<span class=about>{ran}{' · ends the episode' if step.finished else ''}</span>"
    if step.said:
        yield f"<pre>{_text(step.said)}</pre>"
    yield f"<pre>{_text(json.dumps(step.arguments, indent=2, ensure_ascii=False))}</pre>"
    yield from map(_block, step.blocks)
    yield "</li>"


def _block(block: JsonObject) -> str:
    if block["type"] == "image" and block["mimeType"] in PICTURES:
        return f'<img alt="an image" src="data:{block["mimeType"]};base64,{_text(block["data"])}">'
    return f"<pre>{_text(block.get('text') or '[an image]')}</pre>"


def _text(value: str) -> str:
    return html.escape(value.encode(errors="replace").decode())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _count(episodes: Sequence[Episode]) -> str:
    return f"{len(episodes)} episode{'s' * (len(episodes) != 1)}"
