"""The workspace, from outside."""

from __future__ import annotations

import asyncio
import os
import tempfile

from toolyard.sandboxes.base import WORKSPACE, Entry, Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, rule_of, sh

RULES: list[Rule] = []


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """A written file reads back whole, and writing makes its directories."""
    large = os.urandom(2_000_000)
    for path, data in ("a/b/c", b"\0\xff"), ("a/b/c", b""), ("large", large), (f"{WORKSPACE}/d/e", b"absolute"):
        await box.write(path, data)
        if await box.read(path) != data:
            case.problem(f"{path} came back changed")
    done = await box.run(sh("cat d/e; wc -c < large; rm large d/e"))
    case.same("in the sandbox", done.stdout.split(), [b"absolute2000000"])
    await box.write("ä ö/ü", b"x")
    case.same("the names", [entry.name for entry in await box.list("ä ö")], ["ü"])


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """A file gets the permissions asked for, and keeps them when it is written again."""
    await box.write("bin/hello", b"#!/bin/sh\necho hello\n", mode=0o755)
    case.same("what it says", (await box.run(["bin/hello"])).stdout, b"hello\n")
    await box.write("bin/hello", b"#!/bin/sh\necho again\n")
    case.same("what it says then", (await box.run(["bin/hello"])).stdout, b"again\n")
    await box.write("kept", os.urandom(600_000), mode=0o400)
    await box.write("usual", b"")
    modes = await box.run(["stat", "-c", "%a", "bin/hello", "kept", "usual"])
    case.same("the modes", modes.stdout.split(), [b"755", b"400", b"644"])
    for mode in (0o4755, 0o1777, -1):
        await case.refused(box.write("special", b"", mode=mode), "special")
    case.same(
        "what a mode that is refused leaves", [entry.name for entry in await box.list()], ["bin", "kept", "usual"]
    )


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """When several write one file at once, it holds the whole of one; so does each read meanwhile."""
    wanted = [bytes([number]) * 1_000_000 for number in range(4)]
    await box.write("shared", wanted[0])
    writing = [asyncio.ensure_future(box.write("shared", data)) for data in wanted]
    reading = asyncio.ensure_future(box.read("shared"))
    await asyncio.gather(*writing, reading)
    for content in (reading.result(), await box.read("shared")):
        if content not in wanted:
            case.problem(f"{len(content)} bytes are in the file, and no writer wrote them")


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """A directory lists in order, with the kind of each entry."""
    await box.write("b", b"12345")
    await box.run(sh("mkdir c; ln -s b a; mkfifo d"))
    found = [(entry.name, entry.kind) for entry in await box.list()]
    case.same("the list", found, [("a", "link"), ("b", "file"), ("c", "directory"), ("d", "other")])
    case.same("the file", (await box.list(WORKSPACE))[1], Entry("b", "file", 5))
    case.same("an empty directory", list(await box.list("c")), [])


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """A path of the wrong kind is a WorkspaceError that names it."""
    await box.write("file", b"")
    await box.run(sh("mkdir directory; mkfifo pipe"))
    no_path = "../outside", "directory/../../outside", "/etc/passwd", "/home/workplace", "null\0character", "x" * 300
    for path in ("absent", "directory", "pipe", "file/below", *no_path):
        await case.refused(box.read(path), path)
    for path in ("absent", "file", "pipe", "file/below", *no_path):
        await case.refused(box.list(path), path)
    for path in ("directory", "pipe", "file/below", ".", "", *no_path):
        await case.refused(box.write(path, b""), path)


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """Links are followed inside the workspace, and never out of it."""
    with tempfile.NamedTemporaryFile() as outside:
        outside.write(b"of the host")
        outside.flush()
        os.chmod(outside.name, 0o666)
        await box.write("directory/file", b"inside")
        ups = "../" * 20
        links = {"good": "directory/file", "folder": "directory", "out": outside.name, "far": ups + outside.name[1:],
                 "etc": "/etc", "round": "round", "proc": "/proc/self/root"}  # fmt: skip
        await box.run(sh("; ".join(f"ln -s '{target}' {name}" for name, target in links.items())))
        for path in "good", "folder/file":
            case.same(path, await box.read(path), b"inside")
        await box.write("good", b"changed")
        case.same("through a link", await box.read("directory/file"), b"changed")
        for path in "out", "far", "round", "etc/passwd", "proc/etc/passwd":
            await case.refused(box.read(path), path)
            await case.refused(box.write(path, b"from the sandbox"), path)
        for path in "etc", "proc", "proc/etc":
            await case.refused(box.list(path), path)
        outside.seek(0)
        case.same("the file of the host's", outside.read(), b"of the host")
