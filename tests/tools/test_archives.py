"""Saving, restoring and packing workspaces, including malicious ones."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import stat
import tarfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from tests.sandboxes import backends
from toolyard.archives.tar_reader import members
from toolyard.core.encoding import encode
from toolyard.core.errors import SandboxLost, WorkspaceError
from toolyard.core.workspace import Workspace
from toolyard.sandboxes.base import Entry, Limits
from toolyard.sandboxes.provider import Provider
from toolyard.tools import archives
from toolyard.tools.archives import structure_of, write_zip, zip_name
from toolyard.tools.sandboxed import SessionSandbox

pytestmark = pytest.mark.anyio

LOOK = """
import hashlib, os, stat
found = {}
for folder, folders, files in os.walk(b'.'):
    for name in folders + files:
        path = os.path.join(folder, name)
        about = os.lstat(path)
        kind = stat.filemode(about.st_mode)
        content = os.readlink(path) if kind[0] == 'l' else open(path, 'rb').read() if kind[0] == '-' else b''
        written = int(about.st_mtime) if kind[0] == '-' else 0
        found[os.fsdecode(path)] = (kind, hashlib.sha256(content).hexdigest(), written)
print(sorted(found.items()))
"""


@pytest.fixture(scope="module", params=["native", *backends.others("bubblewrap", "subprocess")])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    if request.param == "bubblewrap":
        backends.bubblewrap()  # installs it if necessary
    async with Provider(request.param, "L0") as provider:
        yield provider


async def opened(provider: Provider) -> SessionSandbox:
    token = provider.enter()
    try:
        sandbox = SessionSandbox("plain")
        await sandbox.get()
        return sandbox
    finally:
        token.var.reset(token)


@pytest.fixture
async def workspace(provider: Provider) -> AsyncIterator[SessionSandbox]:
    sandbox = await opened(provider)
    yield sandbox
    await sandbox.close()


@pytest.fixture
async def another(provider: Provider) -> AsyncIterator[SessionSandbox]:
    sandbox = await opened(provider)
    yield sandbox
    await sandbox.close()


async def run(workspace: SessionSandbox, code: str) -> str:
    sandbox = await workspace.get()
    limits = dataclasses.replace(sandbox.limits, output_bytes=2**22, wall_seconds=30)
    finished = await sandbox.run(["python3", "-c", "import os\n" + code], limits=limits)
    assert finished.exit_code == 0, finished
    return finished.stdout.decode()


# Saving and restoring.


async def test_a_workspace_comes_back_as_it_was(workspace: SessionSandbox, another: SessionSandbox) -> None:
    protocol: Workspace = workspace
    await protocol.write("a/b/file.txt", b"text")
    await run(
        workspace,
        r"""
os.makedirs('empty'); os.makedirs('a/shut'); open('a/shut/in', 'w').write('x')
open('program', 'w').write('#!/bin/sh'); os.chmod('program', 0o751)
open('secret', 'w').write('mine'); os.chmod('secret', 0)
os.symlink('/etc/passwd', 'out'); os.symlink('a/b/file.txt', 'in'); os.symlink('nowhere', 'nothing')
open(b'not \xff text', 'w').close(); open('new\nline "quoted"', 'w').close(); open('-rf', 'w').close()
open('large', 'wb').write(os.urandom(3_000_000)); open('zeros', 'wb').truncate(30_000_000)
os.makedirs('d/' * 200); open('d/' * 200 + 'bottom', 'w').write('deep')
os.link('large', 'same'); os.utime('large', (1e9, 1e9))
os.chmod('a/shut', 0o500)
os.makedirs('closed/in'); open('closed/in/file', 'w').write('closed'); os.chmod('closed', 0)
""",
    )
    saved = await protocol.save()
    look = LOOK.replace("open(path, 'rb').read()", "path if path == b'./secret' else open(path, 'rb').read()")
    before = await run(workspace, look)
    await another.restore(saved)
    assert await run(another, look) == before
    assert await run(another, "os.chmod('secret', 0o600); print(open('secret').read())") == "mine\n"
    opened = "print(oct(os.stat('closed').st_mode)); os.chmod('closed', 0o700); print(open('closed/in/file').read())"
    assert await run(another, opened) == await run(workspace, opened) == "0o40000\nclosed\n"
    assert await run(another, "print(os.stat('large').st_nlink, os.stat('same').st_size)") == "2 3000000\n"
    assert await another.read("in") == b"text"
    assert [entry.name for entry in await another.list("a")] == ["b", "shut"]


async def test_nothing_is_saved_of_a_workspace_that_nobody_needed(provider: Provider, another: SessionSandbox) -> None:
    untouched = SessionSandbox("plain")
    assert await untouched.save() == b""
    await another.restore(b"")
    assert await another.list() == []
    assert zip_names(zip_of(b"")) == []
    assert list(members(await another.save())) == []


async def test_pipes_and_sockets_are_left_out_and_nobody_waits_for_them(workspace: SessionSandbox) -> None:
    await run(workspace, "import socket; os.mkfifo('pipe'); socket.socket(1).bind('socket'); open('file', 'w').close()")
    with anyio.fail_after(10):
        saved = await workspace.save()
    assert zip_names(zip_of(saved)) == ["file"]
    assert await structure_of(workspace.list) == folder("workspace", file("file"))


async def test_modules_that_lie_in_the_workspace_are_not_run(workspace: SessionSandbox) -> None:
    for name in ("tarfile", "os", "stat", "contextlib", "sitecustomize", "usercustomize", "typing"):
        await workspace.write(f"{name}.py", b"open('/home/work/was here', 'w'); raise SystemExit('no')")
    names = zip_names(zip_of(await workspace.save()))
    assert len(names) == 7
    assert "was here" not in [entry.name for entry in await workspace.list()]


async def test_files_that_change_while_they_are_saved_do_no_harm(
    workspace: SessionSandbox, another: SessionSandbox
) -> None:
    change = """
import random, shutil
while not os.path.exists('stop'):
    for number in range(20):
        name = f'it{number}'
        if os.path.isdir(name): shutil.rmtree(name)
        elif os.path.lexists(name): os.unlink(name)
        what = random.randrange(5)
        if what == 0: os.mkfifo(name)
        elif what == 1: os.symlink('/etc/passwd', name)
        elif what == 2: os.mkdir(name); open(name + '/x', 'w').close()
        else: open(name, 'wb').write(b'x' * random.randrange(100_000))
"""
    saved: list[bytes] = []
    async with anyio.create_task_group() as group:
        group.start_soon(run, workspace, change)
        with anyio.fail_after(25):
            while len({len(one) for one in saved}) < 5:
                saved.append(await workspace.save())
        await workspace.write("stop", b"")
    for one in saved:
        assert b"root:" not in zip_of(one)
        with tarfile.open(fileobj=io.BytesIO(one)) as tar:
            assert {member.type for member in tar} <= {tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE}
    await another.restore(saved[-1])


async def test_a_hole_of_a_gigabyte_is_not_saved_and_says_so() -> None:
    limits = Limits(file_bytes=2**31, disk_bytes=2**26, disk_files=100)
    async with Provider("native", limits=limits) as provider:
        workspace = await opened(provider)
        await run(workspace, "open('hole', 'wb').truncate(2**30)")
        with (
            anyio.fail_after(30),
            pytest.raises(WorkspaceError, match=r"cannot be packed: it is larger than \d+ bytes"),
        ):
            await workspace.save()
        await run(workspace, "os.unlink('hole')")
        assert zip_names(zip_of(await workspace.save())) == []


async def test_what_does_not_fit_is_not_restored_and_says_so(workspace: SessionSandbox) -> None:
    async with Provider("native", limits=Limits(disk_bytes=2**20)) as small:
        await workspace.write("large", bytes(2**22))
        saved = await workspace.save()
        other = await opened(small)
        with pytest.raises(WorkspaceError, match=r"cannot be restored: its files have more than 1048576 bytes"):
            await other.restore(saved)
        with pytest.raises(WorkspaceError, match="cannot be restored"):
            await other.restore(b"this is no archive" * 1000)


async def test_a_lost_sandbox_says_that_it_is_lost(workspace: SessionSandbox) -> None:
    await (await workspace.get()).close()
    with pytest.raises(SandboxLost):
        await workspace.save()
    with pytest.raises(SandboxLost):
        await workspace.restore(b"x")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("C:evil", "C%3Aevil"),
        ("a/C:/Windows/x", "a/C%3A/Windows/x"),
        ("file.txt:stream", "file.txt%3Astream"),
        ("C:\\evil", "C%3A%5Cevil"),
        ("\\\\server\\share\\x", "%5C%5Cserver%5Cshare%5Cx"),
        (".. /x", "..%20/x"),
        ("... /x", "...%20/x"),
        (".../x", "..%2E/x"),
        ("dots.", "dots%2E"),
        ("con", "%63on"),
        ("d/NUL.txt", "d/%4EUL.txt"),
        ("Aux .tar.gz", "%41ux .tar.gz"),
        ("com1", "%63om1"),
        ("LPT².x", "%4CPT².x"),
        ("CONIN$", "%43ONIN$"),
        ("console", "console"),
        ("com", "com"),
        ("community.txt", "community.txt"),
        (".hidden", ".hidden"),
        ("plain name (1).txt", "plain name (1).txt"),
        ("../x", ""),
        ("/etc/passwd", ""),
        ("//server/share", ""),
    ],
)
def test_a_name_in_an_archive_means_a_path_below_on_every_system(name: str, safe: str) -> None:
    assert zip_name(name.encode()) == safe


async def test_paths_that_are_too_long_to_use_are_left_out(workspace: SessionSandbox) -> None:
    await run(workspace, "open('top', 'w').close()\nfor _ in range(200): os.mkdir('d' * 100); os.chdir('d' * 100)")
    with anyio.fail_after(20):
        saved = await workspace.save()
        structure = await structure_of(workspace.list)
    names = zip_names(zip_of(saved))
    assert names[-1] == "top"
    assert max(map(len, names)) < 4096
    assert len(encode(structure)) < 2**20


# As a zip archive.


def zip_of(tar: bytes) -> bytes:
    packed = io.BytesIO()
    write_zip(tar, packed)
    return packed.getvalue()


def zip_names(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def tar_of(*added: tuple[str | bytes, Any], format: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive of names with their content: bytes, a TarInfo's type, or a type and the target of a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format, errors="surrogateescape") as tar:
        for name, what in added:
            about = tarfile.TarInfo(os.fsdecode(name))
            about.mtime = 10**9
            content = what if isinstance(what, bytes) and len(what) != 1 else b""
            if isinstance(what, tuple):
                about.type, about.linkname = what
            elif not content:
                about.type = what or tarfile.REGTYPE
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_zip_archive_has_the_files_and_folders_of_the_tar(format: int) -> None:
    long = "/".join(["folder" * 5] * (7 if format == tarfile.USTAR_FORMAT else 20)) + "/näme"
    tar = tar_of(("a", tarfile.DIRTYPE), ("a/b.txt", b"content"), (long, b"long"), ("./c", b""), format=format)
    with zipfile.ZipFile(io.BytesIO(zip_of(tar))) as archive:
        assert archive.namelist() == ["a/", "a/b.txt", long, "c"]
        assert archive.read("a/b.txt") == b"content"
        assert archive.read(long) == b"long"
        assert archive.getinfo("a/").is_dir()
        assert archive.getinfo("a/b.txt").date_time == (2001, 9, 9, 1, 46, 40)


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "a/..", "..", ".", "", ".toolyard/x", ".toolyard", "x" * 5000]
)
def test_names_that_lead_out_are_left_out(name: str) -> None:
    assert zip_names(zip_of(tar_of((name, b"evil"), ("good", b"good")))) == ["good"]


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        (b"..\\..\\x", "..%5C..%5Cx"),
        (b"new\nline", "new%0Aline"),
        (b"\xff\xfe", "%FF%FE"),
        (b'q"uote', 'q"uote'),
        ("näme\u202e".encode(), "näme%E2%80%AE"),
        (b"a/./b//c", "a/b/c"),
        (b"..a/b..", "..a/b.%2E"),
    ],
)
def test_names_that_are_no_text_or_mean_something_elsewhere_are_written_out(name: bytes, packed: str) -> None:
    assert zip_name(name) == packed
    assert zip_names(zip_of(tar_of((name, b"x1")))) == [packed]


def test_no_link_is_followed_or_packed_but_a_second_name_of_a_file_has_its_content() -> None:
    tar = tar_of(
        ("file", b"content"),
        ("second", (tarfile.LNKTYPE, "file")),
        ("third", (tarfile.LNKTYPE, "./second")),
        ("outside", (tarfile.LNKTYPE, "/etc/passwd")),
        ("forward", (tarfile.LNKTYPE, "later")),
        ("later", b"later"),
        ("passwd", (tarfile.SYMTYPE, "/etc/passwd")),
        ("etc", (tarfile.SYMTYPE, "/etc")),
        ("etc/evil", b"evil"),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
    )
    with zipfile.ZipFile(io.BytesIO(zip_of(tar))) as archive:
        assert archive.namelist() == ["file", "second", "third", "later", "etc/evil"]
        assert archive.read("third") == b"content"
        kinds = {stat.S_IFMT(about.external_attr >> 16) for about in archive.infolist()}
    assert kinds == {stat.S_IFREG}


def test_nothing_runs_with_the_rights_of_another() -> None:
    about = tarfile.TarInfo("program")
    about.mode = 0o6755
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(about)
    with zipfile.ZipFile(io.BytesIO(zip_of(packed.getvalue()))) as archive:
        assert archive.getinfo("program").external_attr >> 16 == stat.S_IFREG | 0o755


def test_a_small_archive_cannot_become_a_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ZIP_MOST", 2**28)
    links = [(f"link{number}", (tarfile.LNKTYPE, "file")) for number in range(5000)]
    began = time.monotonic()
    with pytest.raises(WorkspaceError, match="more than"):
        zip_of(tar_of(("file", bytes(50_000_000)), *links))
    monkeypatch.setattr(archives, "ZIP_FILES_MOST", 4999)
    with pytest.raises(WorkspaceError, match="more than"):
        zip_of(tar_of(("file", b"small"), *links))
    assert time.monotonic() - began < 30


def test_the_same_name_twice_is_packed_once() -> None:
    with zipfile.ZipFile(io.BytesIO(zip_of(tar_of(("a", b"first"), ("./a", b"second"))))) as archive:
        assert archive.namelist() == ["a"]
        assert archive.read("a") == b"first"


def test_an_archive_that_is_none_is_an_error_or_empty_but_never_a_hang() -> None:
    tar = tar_of(("folder", tarfile.DIRTYPE), ("x" * 300, b"content"), ("y" * 300, (tarfile.LNKTYPE, "x" * 300)))
    pax = tar_of(("n" * 300, b"content"), ("ä", b"more"), format=tarfile.PAX_FORMAT)
    change = random.Random(5)
    began = time.monotonic()
    for good in (tar, pax):
        for _ in range(1500):
            bad = bytearray(good)
            for _ in range(change.randrange(1, 12)):
                bad[change.randrange(len(bad))] = change.choice(b"\0 017x=/.\xff")
            try:
                zip_of(bytes(bad[: change.choice((len(bad), change.randrange(len(bad))))]))
            except WorkspaceError:
                continue
    with pytest.raises(WorkspaceError, match="not saved as a tar archive"):
        zip_of(b"x" * 5000)
    for records, said in (b"5 a=\n" * 100_000, ""), (b"5 a=\n" * 2_000_000, "takes 10000000 bytes"):
        header = bytearray(tar_of(("records", b"")))[:512]
        header[124:136] = b"%011o\0" % len(records)
        header[156:157] = b"x"
        if said:
            with pytest.raises(WorkspaceError, match=said):
                zip_of(bytes(header) + records)
        else:
            assert zip_names(zip_of(bytes(header) + records)) == []
    assert time.monotonic() - began < 30


def test_ten_thousand_files_are_packed_soon() -> None:
    tar = tar_of(*((f"folder{number % 100}/file{number}", b"content") for number in range(10_000)))
    began = time.monotonic()
    assert len(zip_names(zip_of(tar))) == 10_000
    assert time.monotonic() - began < 20


# As a structure.


def file(name: str) -> dict[str, Any]:
    return {"name": name, "type": "file"}


def folder(name: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": "directory", "children": list(children)}


def listing(entries: Callable[[str], list[Entry]]) -> Any:
    async def listed(path: str) -> list[Entry]:
        return entries(path)

    return listed


async def test_a_structure_has_files_links_and_folders(workspace: SessionSandbox) -> None:
    await run(
        workspace,
        r"os.makedirs('a/b'); open('a/b/c', 'w').close(); os.symlink('/etc', 'etc'); os.mkdir('.toolyard')"
        r"; open(b'\xff', 'w').close(); open('new\nline', 'w').close()",
    )
    found = await structure_of(workspace.list)
    assert found == folder(
        "workspace", folder("a", folder("b", file("c"))), file("etc"), file("new\nline"), file("\udcff")
    )
    assert json.loads(encode(found)) == found


async def test_a_structure_is_bounded_however_deep_or_wide() -> None:
    deep = await structure_of(listing(lambda path: [Entry("d", "directory", 0)]))
    depth = 0
    while deep["children"]:
        (deep,) = deep["children"]
        depth += 1
    assert depth == archives.DEPTH_MOST
    wide = await structure_of(listing(lambda path: [Entry(f"d{n}", "directory", 0) for n in range(300)]))
    assert len(wide["children"]) == 300
    assert encode(wide).count(b'"name"') == archives.ENTRIES_MOST + 1


@pytest.mark.thorough
async def test_ten_thousand_real_files_are_listed_soon() -> None:
    async with Provider("native", limits=Limits(disk_files=20_000)) as provider:
        workspace = await opened(provider)
        await run(
            workspace,
            "for f in range(1000):\n    os.mkdir(f'{f}')\n    for n in range(10): open(f'{f}/{n}', 'w').close()",
        )
        with anyio.fail_after(10):
            assert encode(await structure_of(workspace.list)).count(b'"name"') == 11_001
        with anyio.fail_after(20):
            assert len(zip_names(zip_of(await workspace.save()))) == 11_000


async def test_a_folder_that_is_gone_meanwhile_looks_empty_but_a_lost_workspace_does_not() -> None:
    def entries(path: str) -> list[Entry]:
        if path != ".":
            raise WorkspaceError(f"{path}: No such file or directory")
        return [Entry("gone", "directory", 0)]

    assert await structure_of(listing(entries)) == folder("workspace", folder("gone"))

    def lost(path: str) -> list[Entry]:
        raise WorkspaceError(f"{path}: No such file or directory")

    with pytest.raises(WorkspaceError):
        await structure_of(listing(lost))
