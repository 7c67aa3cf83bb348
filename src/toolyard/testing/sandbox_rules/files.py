"""The workspace, from outside."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import WORKSPACE, Entry, Limits, Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, rule_of, sh

RULES: list[Rule] = []


def _names(folder: str | Path, *, deep: bool = False) -> list[str]:
    """What is in a folder of the host."""
    found = Path(folder).rglob("*") if deep else Path(folder).iterdir()
    return sorted(str(path.relative_to(folder)) for path in found)


def _lay(folder: str | Path, files: Mapping[str, bytes]) -> Path:
    """Make a folder of the host, with files."""
    for path, data in files.items():
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, path).write_bytes(data)
    return Path(folder)


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _mode(path: Path) -> int:
    return path.stat().st_mode


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


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """Folders come in and go out, with permissions, empty folders and links that stay inside."""
    with tempfile.TemporaryDirectory() as here:
        hello, large = b"#!/bin/sh\necho hello\n", os.urandom(2_000_000)
        source = _lay(Path(here, "source"), {"a/hello": hello, "ä": large})
        os.mkdir(source / "a/empty")
        os.chmod(source / "a/hello", 0o755)
        os.symlink("a/hello", source / "link")
        os.symlink("/etc/passwd", source / "out")
        case.same("what put() left out", list(await box.put(source, "in")), ["out"])
        await box.put(source / "a/hello", "single")
        await box.put({"x/y": "text", "z": source / "a"}, "named")
        done = await box.run(sh("in/link; cat named/x/y; ls named/z; ./single"))
        case.same("what is there", done.stdout.split(), [b"hello", b"textempty", b"hello", b"hello"])
        case.same("what get() left out", list(await box.get("in", Path(here, "target"))), [])
        target = Path(here, "target")
        case.same("what came back", _names(target, deep=True), ["a", "a/empty", "a/hello", "link", "ä"])
        case.same("the mode", _mode(target / "a/hello") & 0o777, 0o755)
        if _content(target / "ä") != large or _content(target / "link") != hello:
            case.problem("it came back changed")
        await box.get("in/a/hello", Path(here, "one"))
        case.same("one file", _content(Path(here, "one")), hello)
        for taken in target, Path(here, "one"):
            try:
                await box.get("in", taken)
                case.problem(f"{taken.name} was written over")
            except FileExistsError:
                pass


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """Archives are packed and unpacked, and refused if they lead out or hold devices."""
    await box.write("d/e/f", b"x\n", mode=0o750)
    await box.run(sh("ln -s e/f d/g; ln d/e/f d/h; echo one > file"))
    packed = await box.pack("d")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        kinds = {member.name: member.type for member in tar}
        case.same("the archive", sorted(kinds), ["e", "e/f", "g", "h"])
    with tarfile.open(fileobj=io.BytesIO(await box.pack("file"))) as tar:
        case.same("the archive of a file", tar.getnames(), ["./file"])
    await box.unpack(packed, "copy/of")
    done = await box.run(sh("cat copy/of/g copy/of/h; stat -c %a copy/of/e/f"))
    case.same("the copy", done.stdout.split(), [b"x", b"x", b"750"])
    for kind, name, link in (
        (tarfile.REGTYPE, "../evil", ""),
        (tarfile.REGTYPE, "/home/work/evil", ""),
        (tarfile.LNKTYPE, "evil", "/etc/passwd"),
        (tarfile.LNKTYPE, "evil", "../../etc/passwd"),
        (tarfile.CHRTYPE, "evil", ""),
        (tarfile.FIFOTYPE, "evil", ""),
    ):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        bad = io.BytesIO()
        with tarfile.open(fileobj=bad, mode="w") as tar:
            tar.addfile(member)
        await case.refused(box.unpack(bad.getvalue(), "bad"), "bad")
    await case.refused(box.unpack(b"no archive" * 1000, "bad"), "bad")
    case.same("what is left of those", list(await box.list("bad")), [])
    for path in ("absent", "../d", "/etc", "null\0character"):
        await case.refused(box.pack(path), path)
        if path != "absent":
            await case.refused(box.unpack(packed, path), path)


@rule_of(RULES, "files")
async def _(box: Sandbox, case: Case) -> None:
    """Nothing that comes out of the workspace leads out of its target folder."""
    with tempfile.TemporaryDirectory() as here:
        os.mkdir(outside := Path(here, "outside"))
        await box.run(
            sh(
                f"mkdir -p d/e; cd d; ln -s {outside} out; ln -s ../../x up; ln -s e/../../x round; mkfifo pipe; "
                f"ln -s . dot; ln -s dot/../.. far; ln -s e in; echo x > file; chmod 7777 file; ln -s / ../root"
            )
        )
        left_out = await box.get("d", Path(here, "target"))
        case.same("what is left out", sorted(left_out), ["far", "out", "round", "up"])
        case.same("what came out", _names(Path(here, "target")), ["dot", "e", "file", "in"])
        case.same("the mode", _mode(Path(here, "target/file")) & 0o7022, 0)
        await case.refused(box.get("root", Path(here, "root")), "root")
        await case.refused(box.get("d/pipe", Path(here, "pipe")), "d/pipe")
        case.same("what is beside it", _names(here), ["outside", "target"])
        case.same("what is outside", _names(outside), [])


@rule_of(RULES, "files", limits=Limits(disk_bytes=4 * 2**20, disk_files=100))
async def _(box: Sandbox, case: Case) -> None:
    """What is too much is not copied, in or out."""
    with tempfile.TemporaryDirectory() as here:
        await box.run(sh("mkdir holes; for i in 1 2 3; do truncate -s 3000000 holes/$i; done"))
        await case.refused(box.get("holes", Path(here, "target")), "holes")
        await case.refused(box.pack("holes"), "holes")
        for source in (
            _lay(Path(here, "large"), {"file": bytes(5 * 2**20)}),
            {f"many/{number}": b"" for number in range(200)},
        ):
            try:
                await box.put(source, "in")
                case.problem("too much could be put")
            except WorkspaceError:
                pass
        case.same("what is on the host", _names(here), ["large"])
