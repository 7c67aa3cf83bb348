"""Archives that programs in a sandbox may have forged: what of them reaches the host."""

from __future__ import annotations

import io
import os
import random
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolyard.archives import clean, contents_of, lay_out, packed_files
from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.native.backend import NativeBackend

LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def tar_of(*added: tuple[str, Any], format: int = tarfile.GNU_FORMAT) -> bytes:
    """Names, and what each is: bytes, a type, or a type and the target of a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format, errors="surrogateescape") as tar:
        for name, what in added:
            about = tarfile.TarInfo(name)
            about.mode = 0o7777
            content = what if isinstance(what, bytes) and len(what) != 1 else b""
            if isinstance(what, tuple):
                about.type, about.linkname = what
            elif not content:
                about.type = what
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def below(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in (*folders, *files))


def check(tar: bytes, here: Path, most: int = 1000) -> tuple[list[str], list[str]]:
    """Lay an archive out by ourselves and by the library, which believes all of it. Nothing may be outside."""
    secret = here / "secret"
    secret.write_bytes(b"of the host")
    contents = contents_of(tar, most)
    left_out = list(contents.left_out)
    target, other = here / "target", here / "other"
    lay_out(contents_of(tar, most), target)
    other.mkdir()
    with tarfile.open(fileobj=io.BytesIO(clean(contents, "single"))) as cleaned:
        cleaned.extractall(other, filter="fully_trusted")
    assert sorted(path.name for path in here.iterdir()) == ["other", "secret", "target"]
    assert secret.read_bytes() == b"of the host"
    for root in (target, other):
        for path in below(root):
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)), path
            if path.is_file():
                assert path.read_bytes() != b"of the host"
            assert path.lstat().st_mode & 0o6000 == 0, path
            assert path.lstat().st_uid == os.geteuid()
    if target.is_dir():
        assert sorted(map(str, (path.relative_to(target) for path in below(target)))) == sorted(
            map(str, (path.relative_to(other) for path in below(other)))
        )
    return sorted(str(path.relative_to(target)) for path in below(target)), left_out


@pytest.mark.parametrize(
    "bad",
    [
        [("../secret", b"evil")],
        [("a/../../secret", b"evil")],
        [("/etc/evil", b"evil")],
        [("a/..", b"evil")],
        [("out", (LINK, "..")), ("out/secret", b"evil")],
        [("out", (LINK, "../secret"))],
        [("out", (LINK, "/etc"))],
        [("out", (LINK, ""))],
        [("dot", (LINK, ".")), ("out", (LINK, "dot/.."))],
        [("a", FOLDER), ("a/up", (LINK, "..")), ("out", (LINK, "a/up/.."))],
        [("a/b/c", b"12"), ("d", (LINK, "a/b")), ("out", (LINK, "d/../../.."))],
        [("a/out", (LINK, "../../secret"))],
        [("out", (HARD, "../secret"))],
        [("out", (HARD, "/etc/passwd"))],
        [("ln", (LINK, "file")), ("out", (HARD, "ln"))],
        [("a", (LINK, "b")), ("b", (LINK, "..")), ("a/secret", b"evil")],
        [("file2", b"12"), ("file2/below", b"evil")],
        [("pipe", tarfile.FIFOTYPE), ("tty", tarfile.CHRTYPE), ("disk", tarfile.BLKTYPE)],
        [("x" * 300, b"evil")],
        [("y/" * 3000 + "z", b"evil")],
        [("evil" * 200_000, b"evil")],
    ],
    ids=lambda bad: " ".join(name[:20] for name, _ in bad),
)
def test_what_leads_out_stays_behind_and_the_rest_is_there(bad, tmp_path):
    found, left_out = check(tar_of(("good", b"good"), *bad, ("last", b"last")), tmp_path)
    assert {"good", "last"} <= set(found)
    assert len(left_out) >= 1 or bad[0][1] == tarfile.FIFOTYPE
    assert max(map(len, left_out), default=0) <= 200
    assert (tmp_path / "target/good").read_bytes() == b"good"


def test_links_that_stay_inside_are_kept(tmp_path):
    found, left_out = check(
        tar_of(
            ("a/b", b"content"),
            ("c/up", (LINK, "../a/b")),
            ("dot", (LINK, ".")),
            ("through", (LINK, "dot/a")),
            ("second", (HARD, "a/b")),
            ("third", (HARD, "./second")),
            ("nowhere", (LINK, "not/there")),
        ),
        tmp_path,
    )
    assert found == ["a", "a/b", "c", "c/up", "dot", "nowhere", "second", "third", "through"]
    assert left_out == []
    for path in ("c/up", "through/b", "third"):
        assert (tmp_path / "target" / path).read_bytes() == b"content"


def test_the_first_of_two_with_one_name_counts(tmp_path):
    check(tar_of(("a", b"first"), ("a/.", b"second"), ("b/c", b"12"), ("b", (LINK, "a")), ("a", FOLDER)), tmp_path)
    assert (tmp_path / "target/a").read_bytes() == b"first"
    assert (tmp_path / "target/b/c").read_bytes() == b"12"


def test_a_file_has_no_other_things_in_its_archive(tmp_path):
    with pytest.raises(WorkspaceError, match="that of a file"):
        contents_of(tar_of((".", b"content"), ("beside", b"evil")), 10)
    lay_out(contents_of(tar_of((".", b"content")), 10), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode & 0o7022 == 0


def test_archives_of_too_many_things_are_refused_soon_and_take_no_memory(tmp_path):
    many = tar_of(("x", b"")) * 0 + b"".join(tar_of((f"{number}", FOLDER))[:512] for number in range(200_000))
    began = time.monotonic()
    tracemalloc.start()
    with pytest.raises(WorkspaceError, match="more than 1000 files and folders"):
        contents_of(many, 1000)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    assert time.monotonic() - began < 5


def test_a_path_of_this_host_that_is_taken_is_left_as_it_is(tmp_path):
    good = contents_of(tar_of(("good", b"good")), 10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for taken in ("full", "file", "link"):
        with pytest.raises(FileExistsError):
            lay_out(good, tmp_path / taken)
    with pytest.raises(FileExistsError):
        lay_out(contents_of(tar_of((".", b"content")), 10), tmp_path / "file")
    lay_out(good, tmp_path / "empty")
    assert (tmp_path / "empty/good").read_bytes() == b"good"
    assert (tmp_path / "file").read_bytes() == (tmp_path / "full/mine").read_bytes() == b"mine"


def test_of_a_copy_that_fails_nothing_is_left(tmp_path, monkeypatch):
    contents = contents_of(tar_of(("a", b"content"), ("b", b"content")), 10)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", full)
        for name in ("new/folder", "empty"):
            with pytest.raises(OSError, match="No space"):
                lay_out(contents, tmp_path / name)
    assert not (tmp_path / "new/folder").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_archives_that_are_changed_at_random_reach_nothing_else(tmp_path):
    change = random.Random(8)
    good = tar_of(
        ("folder", FOLDER),
        ("folder/link", (LINK, "../file")),
        ("file", b"content"),
        ("second", (HARD, "file")),
        ("n" * 200 + "/deep", b"content"),
    )
    made = 0
    for number in range(400):
        bad = bytearray(good)
        for _ in range(change.randrange(1, 10)):
            at = change.randrange(len(bad) // 512) * 512 + change.choice((0, 1, 2, 100, 124, 156, 157, 158, 257, 345))
            bad[at : at + 1] = change.choice((b"/", b".", b"..", b"\0", b"1", b"2", b"5", b"\xff"))[:1]
        here = tmp_path / str(number)
        here.mkdir()
        try:
            check(bytes(bad), here)
            made += 1
        except WorkspaceError:
            continue
    assert made > 50


def test_links_of_the_host_that_lead_out_are_not_put(tmp_path):
    (tmp_path / "source/a").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"of the host")
    for name, target in {"out": "../secret", "a/up": "../..", "in": "a", "a/b": "../in", "abs": "/etc/passwd"}.items():
        (tmp_path / "source" / name).symlink_to(target)
    os.mkfifo(tmp_path / "source/pipe")
    (packed,), left_out = packed_files(tmp_path / "source", 2**20)
    assert sorted(left_out) == ["a/up", "abs", "out", "pipe"]
    assert b"of the host" not in packed
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert sorted(tar.getnames()) == ["a", "a/b", "in"]


@pytest.mark.anyio
async def test_a_workspace_made_to_hurt_is_refused_and_the_sandbox_goes_on(tmp_path):
    backend = NativeBackend(templates=1)
    await backend.start()
    try:
        async with await backend.open(Limits(disk_bytes=2**24, disk_files=3000)) as box:
            code = """
import os
os.makedirs('holes'); os.makedirs('many'); os.makedirs('deep')
for n in range(500): open(f'holes/{n}', 'wb').truncate(2**25)
for n in range(2000): os.mkdir(f'many/{n}')
open('one', 'w').write('x')
os.mkfifo('many/pipe'); os.symlink('/etc', 'many/out'); os.link('one', 'many/second')
os.chdir('deep')
for n in range(300): os.mkdir('d' * 200); os.chdir('d' * 200)
"""
            assert (await box.run(["python3", "-c", code])).exit_code == 0
            began = time.monotonic()
            with pytest.raises(WorkspaceError, match=r"holes: it cannot be packed: it is larger than \d+ bytes"):
                await box.get("holes", tmp_path / "holes")
            with pytest.raises(WorkspaceError, match="larger than"):
                await box.pack()
            assert await box.get("many", tmp_path / "many") == ["out"]
            assert len(list((tmp_path / "many").iterdir())) == 2001
            await box.get("deep", tmp_path / "deep")
            assert time.monotonic() - began < 60
            assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "many"]
            assert (await box.run(["cat", "one"])).stdout == b"x"
    finally:
        await backend.close()
