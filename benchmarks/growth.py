"""The cost of one among many: actions, calls, sessions and nodes, 16 to 10,000 at once. It should not grow.

`python -m benchmarks.growth` measures everything within a quarter of an hour; `--rows bash,ipython --sizes 16,64` a
part. `--write FILE.json` keeps the figures, and `--write-docs` merges those of several runs into the table of
`docs/growth.md`. What did not fit into the time appears as not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.report import Place, aligned, check_platform, processor, progress
from benchmarks.sandbox_meter import Meter, metering
from benchmarks.servers import Started, running, serving
from toolyard.serving import tune_process

SIZES = (16, 64, 256, 1024, 4096, 10_000)
CONNECTIONS = 1000
"""Connections of the client, at most. Sessions and nodes stay open with or without their own connection."""
ALLOWED = 1.5
"""The most that one of many may cost, as a multiple of one of few."""
_BASE = 64
"""The size to compare with: with fewer, processors idle."""
_TRIES = {256: 5, 1024: 3}
"""Tries for sizes up to these; larger ones have a single try, which is a mean of thousands already. The median counts,
never the cheapest: the cheapest of five would be cheaper than a single one."""
_MINUTES = 14.0
"""For everything. Earlier tries predict the time of the next: one that would end too late does not begin, and its size
is not measured."""
_ROW_SECONDS = 260.0
"""For one row, so that it leaves time for the others."""
_SECONDS = 300.0
"""For one try; exceeding it is an error."""
NOT_MEASURED = "not measured"

PAGE = Place(Path(__file__).parents[1] / "docs" / "growth.md", "<!-- growth:begin -->", "<!-- growth:end -->")

_ENVIRONMENT = str(Path(__file__).with_name("environment.py"))
_SAID = "forty42"
"""A word that the answer must contain. A bare number might occur in an id by chance."""
_PYTHON = "<python>print('forty' + str(6 * 7))</python>"
_ECHO = "echo forty$((6 * 7))"
_TESTS = {"inputs": ["6"], "outputs": ["42"]}
_numbers = itertools.count()
"""For ids of trajectories and sessions, in words that no answer contains."""


@dataclass(frozen=True)
class Figure:
    """The result of one size of one row."""

    row: str
    size: int
    answered: int
    lost: int
    """Refused by the server, which blames no one and suggests a retry."""
    wrong: int
    """Wrong answers. There should be none."""
    wall: float
    cpu: float
    """Seconds for all, refused ones included, of the server and everything that it started."""
    said: str
    """The answer to the first that was lost."""


class Connection:
    """A minimum of HTTP, so that the server does the work."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def post(self, path: str, body: object = None, header: str = "") -> tuple[int, str, str]:
        """The status, the head and the body of the answer."""
        sent = b"" if body is None else json.dumps(body).encode()
        lines = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{lines}Content-Length: {len(sent)}\r\n{header}\r\n".encode() + sent)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        content = (
            await self._reader.readexactly(int(length[1])) if length else b"".join([c async for c in self._chunks()])
        )
        return int(head.split()[1]), head, content.decode()

    async def _chunks(self) -> Any:  # an async iterator of bytes
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()

    def close(self) -> None:
        self._writer.close()


@dataclass
class Tally:
    answered: int = 0
    lost: int = 0
    wrong: int = 0
    said: str = ""

    def add(self, right: bool, refused: bool, text: str) -> None:
        if right:
            self.answered += 1
            return
        self.lost += refused
        self.wrong += not refused
        self.said = self.said or text[:300]


def is_refusal(head: str, text: str) -> bool:
    """Whether the server takes the blame: by a header, or in the answer itself."""
    return bool(re.search(r"(?im)^retry-after:", head) or re.search(r'"retryable": ?true', text.replace("\\", "")))


Work = Callable[[int, int, Tally], Awaitable[Sequence[str]]]
"""Perform so many at this port, and return what stays open."""
End = Callable[[int, Sequence[str]], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    serve: Sequence[str]
    work: Work
    end: End | None = None


def said(text: str, expected: str) -> bool:
    """Whether the answer contains the word, as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(expected)}(?![\w-])", text) is not None


def verl(action: str, expected: str, *, last: bool, extra: object = None) -> Work:
    """One request with so many actions, each of its own trajectory."""

    async def work(port: int, count: int, tally: Tally) -> Sequence[str]:
        ids = [f"t{next(_numbers)}" for _ in range(count)]
        body = {"trajectory_ids": ids, "actions": [action] * count, "is_last_step": [last] * count}
        connection = await Connection.to(port)
        status, _, text = await connection.post(
            "/get_observation", body | {"extra_fields": [extra or {} for _ in range(count)]}
        )
        connection.close()
        if status != 200:
            raise SystemExit(f"{count} actions were answered {status}: {text[:500]}")
        for one in json.loads(text)["observations"]:
            seen = {"obs": one} if isinstance(one, str) else one
            tally.add(said(seen["obs"], expected), seen.get("retryable") is True, json.dumps(one))
        return [] if last else ids

    return work


async def finish(port: int, ids: Sequence[str]) -> None:
    connection = await Connection.to(port)
    many = len(ids)
    body = {"trajectory_ids": ids, "actions": [""] * many, "finish": [True] * many, "is_last_step": [True] * many}
    await connection.post("/get_observation", body)
    connection.close()


def each(one: Callable[[Connection, Tally], Awaitable[str]]) -> Work:
    """Requests of so many clients, over at most `CONNECTIONS` connections."""

    async def work(port: int, count: int, tally: Tally) -> Sequence[str]:
        left = iter(range(count))
        opened: list[str] = []

        async def client() -> None:
            connection = await Connection.to(port)
            for _ in left:
                opened.append(await one(connection, tally))
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(count, CONNECTIONS)):
                group.create_task(client())
        return opened

    return work


def ended(path: str, header: str) -> End:
    async def end(port: int, opened: Sequence[str]) -> None:
        left = iter(opened)

        async def client() -> None:
            connection = await Connection.to(port)
            for one in left:
                await connection.post(path, header=header.format(one))
            connection.close()

        await asyncio.gather(*(client() for _ in range(min(len(opened), CONNECTIONS // 4))))

    return end


async def run_code(connection: Connection, tally: Tally) -> str:
    asked = {"code": "print('forty' + str(6 * 7))", "language": "python"}
    status, head, text = await connection.post("/run_code", asked)
    ran = (json.loads(text).get("run_result") or {}) if status == 200 else {}
    tally.add(ran.get("stdout") == f"{_SAID}\n", (status == 200 and not ran) or is_refusal(head, text), text)
    return ""


async def node(connection: Connection, tally: Tally) -> str:
    """A node that holds a sandbox: it has run a command."""
    _, head, text = await connection.post("/get_cookie")
    cookie = re.search(r"set-cookie: (node_id=\w+)", head)
    if cookie is None:
        tally.add(False, is_refusal(head, text), head + text)
        return ""
    call = {"tool_name": "shell_command_executor", "arguments": {"command": _ECHO}}
    while True:
        status, head, text = await connection.post("/execute_tool", call, f"Cookie: {cookie[1]}\r\n")
        if status != 450:
            break
        again = json.loads(text)["detail"]
        call = {"tool_name": again["next_calling"], "arguments": again["arguments"]}
    tally.add(status == 200 and said(text.replace("\\n", " "), _SAID), is_refusal(head, text), text)
    return cookie[1]


def session(environment: str, tool: str, given: dict[str, Any], expected: str) -> Callable[..., Awaitable[str]]:
    async def one(connection: Connection, tally: Tally) -> str:
        sid = f"s-{next(_numbers)}-{time.monotonic_ns()}"
        header = f"X-Session-ID: {sid}\r\n"
        status, head, text = await connection.post(
            "/create", {"env_name": environment, "task_spec": {"question": ""}}, header
        )
        if status == 200:
            _, head, text = await connection.post(f"/{environment}/call", {"name": tool, "input": given}, header)
        right = status == 200 and said(text.replace("\\n", " "), expected)
        tally.add(right, is_refusal(head, text) or ORS_LOST in text, text)
        return sid

    return one


ORS_LOST = "there is no room for another sandbox now"
"""How a call over ORS reports it: in an event of the stream, without a header."""
_ORS_END = ended("/delete", "X-Session-ID: {}\r\n")
ROWS = (
    Row("base", "verl action, nothing to do", ["--tools", "base"], verl("x", "turn 0", last=True)),
    Row("python_code", "verl action", ["--tools", "python_code"], verl(_PYTHON, _SAID, last=True)),
    Row(
        "python_oj",
        "verl action, one test",
        ["--tools", "python_oj"],
        verl("<python>print(int(input()) * 7)</python>", "passed", last=True, extra={"public_tests": _TESTS}),
    ),
    Row("run_code", "`/run_code`", ["--tools", "python_code"], each(run_code)),
    Row(
        "bash",
        "verl trajectory that stays",
        ["--tools", "bash_terminal"],
        verl(f"<bash>{_ECHO}</bash>", _SAID, last=False),
        finish,
    ),
    Row("ipython", "verl trajectory that stays", ["--tools", "ipython_code"], verl(_PYTHON, _SAID, last=False), finish),
    Row(
        "workspace",
        "ToolServer node that stays",
        ["toolyard.tools.workspace"],
        each(node),
        ended("/release_session", "Cookie: {}\r\n"),
    ),
    Row(
        "ors",
        "ORS session without a sandbox",
        [_ENVIRONMENT],
        each(session("echo", "echo", {"text": _SAID}, _SAID)),
        _ORS_END,
    ),
    Row(
        "ors_sandbox",
        "ORS session with a sandbox",
        ["--tools", "bash_terminal"],
        each(session("toolbox", "bash_terminal", {"command": _ECHO}, _SAID)),
        _ORS_END,
    ),
)


def tries_of(size: int) -> int:
    return next((tries for most, tries in _TRIES.items() if size <= most), 1)


def median(tries: Sequence[Figure]) -> Figure:
    """By processor time. What was lost or wrong in any of them counts."""
    middle = sorted(tries, key=lambda one: one.cpu)[len(tries) // 2]
    worst = max(tries, key=lambda one: (one.wrong, one.lost))
    return replace(middle, answered=worst.answered, lost=worst.lost, wrong=worst.wrong, said=worst.said)


async def _measure(row: Row, server: Started, meter: Meter, size: int) -> Figure:
    tally = Tally()
    wall, cpu = time.monotonic(), _servers_cpu(meter)
    async with asyncio.timeout(_SECONDS):
        opened = await row.work(server.port, size, tally)
    wall, cpu = time.monotonic() - wall, _servers_cpu(meter) - cpu
    if row.end is not None:
        async with asyncio.timeout(_SECONDS):
            await row.end(server.port, [one for one in opened if one])
    return Figure(row.name, size, tally.answered, tally.lost, tally.wrong, wall, cpu, tally.said)


def _servers_cpu(meter: Meter) -> float:
    return meter.cpu().processes - time.process_time()


def figures(rows: Sequence[Row], sizes: Sequence[int], minutes: float) -> Iterator[Figure]:
    end = time.monotonic() + 60 * minutes
    with metering() as meter:
        for row in rows:
            with running(serving(*row.serve)) as server:
                asyncio.run(_measure(row, server, meter, _BASE))  # from now on everything that any number needs exists
                yield from _of_row(row, server, meter, sizes, min(end, time.monotonic() + _ROW_SECONDS))


def _of_row(row: Row, server: Started, meter: Meter, sizes: Sequence[int], deadline: float) -> Iterator[Figure]:
    """All tries of one size, then those of the next larger one."""
    each_ = 0.0
    for size in sorted(sizes):
        needed = tries_of(size) * size * each_
        if time.monotonic() + needed > deadline:
            progress(f"{row.name} {size}: {NOT_MEASURED}, it would take about {needed:.0f} s")
            continue
        began = time.monotonic()
        tries = [asyncio.run(_measure(row, server, meter, size)) for _ in range(tries_of(size))]
        each_ = (time.monotonic() - began) / len(tries) / size
        progress(told(median(tries)))
        yield median(tries)


def told(one: Figure) -> str:
    each_ = f"{one.wall / one.size * 1e3:.2f} ms, {one.cpu / one.size * 1e3:.2f} ms of processor time each"
    return f"{one.row} {one.size}: {each_}, {one.lost} refused, {one.wrong} wrong {one.said}"


def table(found: Sequence[Figure]) -> str:
    """A line for each row: processor time of one request, by how many run at once."""
    sizes = sorted({one.size for one in found} | {*SIZES})
    head = ["processor time of one, ms", *(f"{size:,}" for size in sizes), "growth", "refused", "wrong"]
    return aligned([head, *(_line(row, found, sizes) for row in ROWS if any(one.row == row.name for one in found))])


def _line(row: Row, found: Sequence[Figure], sizes: Sequence[int]) -> Sequence[str]:
    of_row = {one.size: one for one in found if one.row == row.name}
    cells = [_cell(of_row[size]) if size in of_row else NOT_MEASURED for size in sizes]
    refused = [f"{one.lost:,} of {size:,}" for size, one in sorted(of_row.items()) if one.lost]
    wrong = [f"{one.wrong:,} of {size:,}" for size, one in sorted(of_row.items()) if one.wrong]
    return [f"{row.name}: {row.what}", *cells, growth(of_row), "; ".join(refused) or "0", "; ".join(wrong) or "0"]


def _cell(one: Figure) -> str:
    """Per request; also per answered request, where some were refused."""
    asked = f"{one.cpu / one.size * 1e3:.2f}"
    if one.answered in (0, one.size):
        return asked
    return f"{asked} ({one.cpu / one.answered * 1e3:.2f} per answer)"


def growth(of_row: Mapping[int, Figure]) -> str:
    """The most expensive size against the base, of those without refusals: a refusal costs less than an answer, so a
    mean of both says nothing of either."""
    costs = {size: one.cpu / size for size, one in of_row.items() if one.answered == size and size >= _BASE}
    if _BASE not in costs or len(costs) == 1:
        return NOT_MEASURED
    return f"{max(costs.values()) / costs[_BASE]:.2f}x"


def page(found: Sequence[Figure]) -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    how = (
        f"Growth is the dearest size against {_BASE}, {ALLOWED:g}x at most, of sizes where nothing was refused. Where "
        f"something was, the time per answer contains that of the refusals."
    )
    where = f"{processor()}, `ulimit -n` {files:,}. {how}"
    why = {one.row: one.said for one in found if one.lost}
    notes = [f"- `{row}`, the answer to requests beyond: {_reason(said)}" for row, said in why.items()]
    return "\n".join([table(found), "", f"`make bench-growth` on {where}", *([""] if notes else []), *notes])


def _reason(said: str) -> str:
    found = re.search(r"there is no room[^\"\\]*", said)
    return found[0] if found else said[:160]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    names = ",".join(row.name for row in ROWS)
    parser.add_argument("--rows", default=names, help=f"which, separated by commas ({names})")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="how many at once, separated by commas")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for everything; what is too late is left out")
    parser.add_argument("--write", type=Path, metavar="FILE", help="add the figures to those in this JSON file")
    parser.add_argument("--write-docs", action="store_true", help="replace the table in docs/growth.md")
    return parser


def kept(path: Path | None) -> dict[str, Figure]:
    if path is None or not path.exists():
        return {}
    return {key: Figure(**one) for key, one in json.loads(path.read_text()).items()}


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the server, as an interrupt does
    tune_process()  # like the server, open as many files as allowed
    if unknown := {*args.rows.split(",")} - {row.name for row in ROWS} - {""}:
        raise SystemExit(f"there are no rows {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in ROWS)}")
    rows = [row for row in ROWS if row.name in args.rows.split(",")]
    found = kept(args.write)
    for one in figures(rows, [int(size) for size in args.sizes.split(",")], args.minutes):
        found[f"{one.row} {one.size}"] = one
        if args.write is not None:
            args.write.write_text(json.dumps({key: asdict(each_) for key, each_ in found.items()}, indent=1))
    text = page(list(found.values()))
    print(text)
    if args.write_docs:
        PAGE.write(text)


if __name__ == "__main__":
    main()
