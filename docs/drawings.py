"""Draw the pictures of the pages: docs/images/*.svg. Each has its own ground, light or dark as the system is.

python docs/drawings.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal

IMAGES = Path(__file__).parent / "images"

Kind = Literal["plain", "ours", "author", "danger", "ghost"]

STYLE = """
  .ground { fill: #fbfcfc; stroke: #d5dcdb }
  text { font: 14px system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; fill: #17302d }
  .small { font-size: 12px; fill: #52635f }
  .bold { font-weight: 600 }
  .box { stroke-width: 1.25; rx: 7 }
  .plain { fill: #ffffff; stroke: #9fb0ac }
  .ours { fill: #dff3ef; stroke: #1f8a7a }
  .author { fill: #fdf0d5; stroke: #b9842a }
  .danger { fill: #fbe3e0; stroke: #bb4a3c }
  .ghost { fill: none; stroke: #9fb0ac; stroke-dasharray: 5 4 }
  .line { stroke: #52635f; stroke-width: 1.5; fill: none }
  .head { fill: #52635f }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14201e; stroke: #2c3d3a }
    text { fill: #e3eeec }
    .small { fill: #a7b9b5 }
    .plain { fill: #1c2b28; stroke: #5c716c }
    .ours { fill: #123f38; stroke: #43b3a1 }
    .author { fill: #43341a; stroke: #d3a14b }
    .danger { fill: #47211d; stroke: #e07a6c }
    .ghost { stroke: #5c716c }
    .line { stroke: #a7b9b5 }
    .head { fill: #a7b9b5 }
  }
"""


@dataclass
class Drawing:
    """A picture of a width and a height, to which parts are added one after the other."""

    title: str
    described: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, kind: Kind, *lines: str, top: bool = False) -> None:
        """A rectangle with lines of text. The first is bold. They stand in its middle, or at its `top`."""
        self.parts.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>')
        first = y + 22 if top else y + height // 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width // 2, first + 18 * number, line, "bold" if number == 0 else "small")

    def text(self, x: int, y: int, line: str, kind: str = "", anchor: str = "middle") -> None:
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(line)}</text>')

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        path = " L".join(f"{x} {y}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self.parts.append(f'<path class="line" d="M{path}" marker-end="url(#head)"{start}/>')

    def line(self, *points: tuple[int, int]) -> None:
        self.parts.append(f'<path class="line" d="M{" L".join(f"{x} {y}" for x, y in points)}"/>')

    def svg(self) -> str:
        marker = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
                'aria-labelledby="title described">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="described">{escape(self.described)}</desc>',
                f"<style>{STYLE}</style>",
                f"<defs>{marker}</defs>",
                f'<rect class="ground" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="10"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def architecture() -> Drawing:
    drawing = Drawing(
        "The architecture of Toolyard",
        "Trainers and agents speak five protocols to one server. Each protocol hands its calls to the runtime, "
        "which has the sessions. A session's environment lives in a place. Its tools run untrusted programs in "
        "sandboxes. A journal tells the recorder and Studio what happens.",
        860,
        464,
    )
    clients = (
        ("openreward", "ors-sdk, TRL"),
        ("verl-tool",),
        ("XAgent",),
        ("agents", "editors"),
        ("OpenEnv", "verifiers"),
    )
    protocols = ("ORS", "verl", "ToolServer", "MCP", "OpenEnv")
    for number, (client, protocol) in enumerate(zip(clients, protocols, strict=True)):
        x = 24 + number * 164
        drawing.box(x, 24, 156, 50, "plain", *client)
        drawing.arrow((x + 78, 76), (x + 78, 104), both=True)
        drawing.box(x, 106, 156, 38, "ours", protocol)
        drawing.arrow((x + 78, 144), (x + 78, 172))
    drawing.box(
        24, 174, 812, 66, "ours", "runtime", "sessions and their calls: turns, limits, leases, outcomes. Knows no HTTP"
    )
    drawing.arrow((266, 240), (266, 276))
    drawing.box(
        24, 278, 484, 62, "ours", "placement", "this process, processes that can be killed and forked, or a Ray cluster"
    )
    drawing.arrow((266, 340), (266, 376))
    drawing.box(
        24,
        378,
        484,
        62,
        "author",
        "your environment",
        "one class: tasks, prompt, tools, rewards. One instance is one session",
    )
    drawing.arrow((508, 409), (590, 409))
    drawing.box(592, 378, 244, 62, "danger", "sandboxes", "programs that nobody trusts")
    for x in (650, 778):
        drawing.arrow((x, 240), (x, 276))
    drawing.text(714, 263, "journal", "small")
    drawing.box(592, 278, 116, 62, "plain", "episodes", "one SQLite file")
    drawing.box(720, 278, 116, 62, "plain", "Studio", "pages for people")
    return drawing


def life() -> Drawing:
    drawing = Drawing(
        "The life of a session",
        "A session is opened, builds its environment, runs setup, answers calls until a tool says that the episode has "
        "finished, and is closed by its client, or because nobody uses it, or with the server. Teardown runs once.",
        860,
        300,
    )
    drawing.box(24, 60, 130, 66, "ours", "starting", "constructor, setup()")
    drawing.box(232, 60, 130, 66, "ours", "ready", "takes calls")
    drawing.box(466, 60, 130, 66, "ours", "finished", "refuses calls")
    drawing.box(700, 60, 136, 66, "ours", "closed", "after teardown()")
    drawing.box(232, 206, 130, 62, "danger", "failed", "says why")
    drawing.arrow((154, 93), (230, 93))
    drawing.arrow((362, 93), (464, 93))
    drawing.arrow((596, 93), (698, 93))
    drawing.text(413, 84, "finished=True", "small")
    drawing.text(647, 84, "close", "small")
    drawing.arrow((270, 60), (270, 36), (324, 36), (324, 58))
    drawing.text(297, 28, "call", "small")
    drawing.arrow((89, 126), (89, 237), (230, 237))
    drawing.text(100, 186, "setup() raises or takes too long", "small", "start")
    drawing.arrow((297, 126), (297, 160), (768, 160), (768, 128))
    drawing.text(530, 152, "close, nobody uses it, its process dies, the server ends", "small")
    drawing.arrow((362, 237), (790, 237), (790, 128))
    drawing.text(570, 229, "teardown() is called here too", "small")
    return drawing


def placements() -> Drawing:
    drawing = Drawing(
        "Where sessions live",
        "With the placement local, sessions live in the process of the gateway. With process, each lives in a process "
        "of its own, forked from a warm one. With ray, actors of a cluster hold them.",
        860,
        330,
    )
    columns = (
        (24, "local", "one process"),
        (304, "process", "killed and forked one by one"),
        (584, "ray", "a cluster"),
    )
    for x, name, said in columns:
        drawing.text(x + 126, 34, f"--placement {name}", "bold")
        drawing.text(x + 126, 54, said, "small")
    drawing.box(24, 70, 252, 236, "ours", "server", "wires, runtime", top=True)
    for number in range(3):
        drawing.box(44, 128 + 58 * number, 212, 46, "author", f"session {number + 1}", "plain functions in threads")
    drawing.box(304, 70, 252, 66, "ours", "server", "wires, runtime")
    drawing.box(304, 168, 252, 50, "plain", "fork server", "has loaded your module")
    drawing.arrow((430, 136), (430, 166))
    for number in range(3):
        x = 304 + 88 * number
        drawing.arrow((x + 38, 218), (x + 38, 250))
        drawing.box(x, 252, 76, 54, "author", f"session {number + 1}")
    drawing.box(584, 70, 252, 66, "ours", "server", "wires, runtime")
    for number in range(2):
        x = 584 + 130 * number
        drawing.arrow((x + 61, 136), (x + 61, 168))
        drawing.box(x, 170, 122, 136, "plain", "actor", "on a machine", top=True)
        drawing.box(x + 12, 222, 98, 30, "author", "session")
        drawing.box(x + 12, 262, 98, 30, "author", "session")
    return drawing


LAYERS: Sequence[tuple[str, str]] = (
    ("user namespace", "rights over anything of the host"),
    ("mounts, read-only root, Landlock", "the host's files"),
    ("pid namespace", "other processes"),
    ("network namespace", "networks, the host's loopback"),
    ("control groups, limits", "more memory, processes, processors than it may have"),
    ("no capabilities, no new privileges", "becoming root"),
    ("filter for system calls", "most of the kernel"),
)


def isolation() -> Drawing:
    drawing = Drawing(
        "What isolates a program in the native sandbox",
        "Seven layers stand between a program and the host. From outside: "
        + "; ".join(": ".join(layer) for layer in LAYERS),
        860,
        470,
    )
    drawing.text(24, 32, "what stands in the way", "bold", "start")
    drawing.text(836, 32, "what it keeps out of reach", "bold", "end")
    for number, (layer, kept) in enumerate(LAYERS):
        x, y = 24 + 20 * number, 46 + 42 * number
        drawing.box(x, y, 860 - 2 * x, 454 - y - 10 * number, "ours")
        drawing.text(x + 14, y + 26, layer, "bold", "start")
        drawing.text(846 - x, y + 26, kept, "small", "end")
    drawing.box(164, 342, 532, 42, "danger", "the program")
    return drawing


DRAWINGS: Sequence[Callable[[], Drawing]] = (architecture, life, placements, isolation)


def main() -> None:
    for draw in DRAWINGS:
        (IMAGES / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
