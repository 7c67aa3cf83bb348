"""What one of many costs: actions, calls, sessions and nodes, for 16 to 10,000 at once. It should not grow.

`python -m benchmarks.growth` measures everything, which takes a while; `--rows bash,ipython --sizes 16,64` a part. With
`--write FILE.json` figures are kept, and those of several runs are put together in the table of `docs/growth.md` by
`--write-docs`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Place, aligned, check_platform, processor, progress
from benchmarks.sandbox_meter import Meter, metering
from benchmarks.servers import Started, running, serving
from toolyard.server import tune_process

SIZES = (16, 64, 256, 1024, 4096, 10_000)
CONNECTIONS = 1000
"""Of the client, at most. Sessions and nodes stay open whether or not a connection is theirs."""
ALLOWED = 1.5
"""So much dearer may one of many be than one of few."""
_BASE = 64
"""The size that others are compared with: with fewer, the processors wait."""
_TRIES = 3
"""For sizes up to a few hundred; the cheapest counts, since others use the machine, too."""
_SECONDS = 900.0
"""For one size of one row."""

PAGE = Place(Path(__file__).parents[1] / "docs" / "growth.md", "<!-- growth:begin -->", "<!-- growth:end -->")

_ENVIRONMENT = str(Path(__file__).with_name("environment.py"))
_SAID = "forty42"
"""What is to be in an answer. A bare number might be there by chance, in an id."""
_PYTHON = "<python>print('forty' + str(6 * 7))</python>"
_ECHO = "echo forty$((6 * 7))"
_TESTS = {"inputs": ["6"], "outputs": ["42"]}
_numbers = itertools.count()


@dataclass(frozen=True)
class Figure:
    """What came of one size of one row."""

    row: str
    size: int
    answered: int
    lost: int
    """Refused by the server, with a reason that blames nobody."""
    wrong: int
    """Answered with something else than what is right. There should be none."""
    wall: float
    cpu: float
    """Seconds for all, of the server and everything that it started."""
    said: str
    """What the first that was lost was told."""


class Connection:
    """As little of HTTP as will do, so that the server is the one that works."""

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

    def add(self, text: str, right: bool) -> None:
        """`text` is the whole answer: JSON, in which a reason stands if the server says that it is its own fault."""
        if right:
            self.answered += 1
        elif '"retryable":true' in text.replace(" ", "") or "Retry-After" in text or "retry-after" in text:
            self.lost += 1
            self.said = self.said or text[:300]
        else:
            self.wrong += 1
            self.said = self.said or text[:300]


Work = Callable[[int, int, Tally], Awaitable[Sequence[str]]]
"""Do so many at this port, and tell what stays open."""
End = Callable[[int, Sequence[str]], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    serve: Sequence[str]
    work: Work
    end: End | None = None


def verl(action: str, expected: str, *, last: bool, extra: object = None) -> Work:
    """One request with so many actions, each of a trajectory of its own."""

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
            written = one if isinstance(one, str) else json.dumps(one)
            tally.add(written, expected in (one if isinstance(one, str) else str(one.get("obs", ""))))
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
    _, head, text = await connection.post("/run_code", {"code": "print(6 * 7)", "language": "python"})
    tally.add(head + text, '"stdout":"42\\n"' in text)
    return ""


async def node(connection: Connection, tally: Tally) -> str:
    """A node that holds a sandbox: it has run a command."""
    _, head, _ = await connection.post("/get_cookie")
    cookie = re.search(r"set-cookie: (node_id=\w+)", head)
    if cookie is None:
        tally.add(head, right=False)
        return ""
    call = {"tool_name": "shell_command_executor", "arguments": {"command": _ECHO}}
    while True:
        status, head, text = await connection.post("/execute_tool", call, f"Cookie: {cookie[1]}\r\n")
        if status != 450:
            break
        again = json.loads(text)["detail"]
        call = {"tool_name": again["next_calling"], "arguments": again["arguments"]}
    tally.add(head + text, status == 200 and _SAID in text)
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
        tally.add(head + text, status == 200 and expected in text)
        return sid

    return one


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


def measured(row: Row, server: Started, meter: Meter, size: int) -> Figure:
    """The cheapest of a few tries."""
    tries = _TRIES if size <= 256 else 1
    return min((asyncio.run(_measure(row, server, meter, size)) for _ in range(tries)), key=lambda one: one.cpu)


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


def figures(rows: Sequence[Row], sizes: Sequence[int]) -> Iterator[Figure]:
    with metering() as meter:
        for row in rows:
            with running(serving(*row.serve)) as server:
                asyncio.run(_measure(row, server, meter, 16))  # what any number of them needs is there from now on
                for size in sizes:
                    figure = measured(row, server, meter, size)
                    progress(told(figure))
                    yield figure


def told(one: Figure) -> str:
    each_ = f"{one.wall / one.size * 1e3:.2f} ms, {one.cpu / one.size * 1e3:.2f} ms of processor time each"
    return f"{one.row} {one.size}: {each_}, {one.lost} lost, {one.wrong} wrong {one.said}"


def table(found: Sequence[Figure]) -> str:
    """A line for each row: processor time of one, by how many there are at once."""
    sizes = sorted({one.size for one in found})
    head = ["processor time of one, ms", *(f"{size:,}" for size in sizes), "growth", "lost or refused"]
    return aligned([head, *(_line(row, found, sizes) for row in ROWS if any(one.row == row.name for one in found))])


def _line(row: Row, found: Sequence[Figure], sizes: Sequence[int]) -> Sequence[str]:
    of_row = {one.size: one for one in found if one.row == row.name}
    costs = {size: one.cpu / one.answered for size, one in of_row.items() if one.answered}
    base = costs.get(_BASE) or next(iter(costs.values()), 0.0)
    growth = max((cost / base for size, cost in costs.items() if size >= _BASE), default=0.0)
    lost = [f"{one.lost + one.wrong:,} of {size:,}" for size, one in sorted(of_row.items()) if one.lost + one.wrong]
    cells = [f"{costs[size] * 1e3:.2f}" if size in costs else "–" for size in sizes]
    return [f"{row.name}: {row.what}", *cells, f"{growth:.2f}x", "; ".join(lost) or "0"]


def page(found: Sequence[Figure]) -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    where = f"{processor()}, `ulimit -n` {files:,}; growth is the dearest size against {_BASE}, {ALLOWED:g}x at most."
    why = {one.row: one.said for one in found if one.lost}
    notes = [f"- `{row}`, those beyond are told: {_reason(said)}" for row, said in why.items()]
    return "\n".join([table(found), "", f"`make bench-growth` on {where}", *([""] if notes else []), *notes])


def _reason(said: str) -> str:
    found = re.search(r"there is no room[^\"\\]*", said)
    return found[0] if found else said[:160]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    names = ",".join(row.name for row in ROWS)
    parser.add_argument("--rows", default=names, help=f"which, separated by commas ({names})")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="how many at once, separated by commas")
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
    tune_process()  # as the server does: it opens as many files as it may
    if unknown := {*args.rows.split(",")} - {row.name for row in ROWS} - {""}:
        raise SystemExit(f"there are no rows {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in ROWS)}")
    rows = [row for row in ROWS if row.name in args.rows.split(",")]
    found = kept(args.write)
    for one in figures(rows, [int(size) for size in args.sizes.split(",")]):
        found[f"{one.row} {one.size}"] = one
        if args.write is not None:
            args.write.write_text(json.dumps({key: asdict(each_) for key, each_ in found.items()}, indent=1))
    text = page(list(found.values()))
    print(text)
    if args.write_docs:
        PAGE.write(text)


if __name__ == "__main__":
    main()
