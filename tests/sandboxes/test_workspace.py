"""A directory that hostile programs share with us: no file of the host is read or written through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolyard.sandboxes.process_based import workspace as module
from toolyard.sandboxes.process_based.workspace import WorkspaceFolder

MOST = 10**6


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_bytes(b"of the host")
    return tmp_path / "root"


@pytest.fixture
def workspace(root) -> WorkspaceFolder:
    return WorkspaceFolder(str(root))


@contextmanager
def swapping(*changes) -> Iterator[None]:
    """Make the changes, one after the other, again and again."""
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for change in changes:
                change()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def replace(path: Path, make) -> None:
    """Atomically replace a path by something else."""
    other = path.with_name(path.name + ".new")
    make(other)
    os.rename(other, path)


def test_a_file_that_turns_into_a_link_while_it_is_read_shows_nothing_of_the_host(root, workspace):
    victim = root / "victim"
    victim.write_bytes(b"inside")
    seen = set()
    with swapping(
        lambda: replace(victim, lambda other: other.symlink_to("../secret")),
        lambda: replace(victim, lambda other: other.symlink_to(root.parent / "secret")),
        lambda: replace(victim, lambda other: other.write_bytes(b"inside")),
    ):
        for _ in range(2000):
            try:
                seen.add(workspace.read("victim", MOST))
            except OSError as error:
                seen.add(error.errno)
    assert b"of the host" not in seen
    assert b"inside" in seen
    assert len(seen) > 1


def test_a_link_that_turns_outwards_while_files_are_written_lets_nothing_out(root, workspace):
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "real").mkdir()
    (root / "directory").symlink_to("real")
    written = 0
    with swapping(
        lambda: replace(root / "directory", lambda other: other.symlink_to("../outside")),
        lambda: replace(root / "directory", lambda other: other.symlink_to(outside)),
        lambda: replace(root / "directory", lambda other: other.symlink_to("real")),
    ):
        for number in range(1000):
            try:
                workspace.write(f"directory/deep/{number}", b"x", MOST)
                written += 1
            except OSError:
                continue
    assert 0 < written < 1000
    assert not list(outside.iterdir())


def test_a_copy_made_while_links_are_put_in_has_nothing_of_the_host(root, workspace):
    for number in range(20):
        (root / f"file{number}").write_bytes(b"inside")
    victim = root / "file7"
    copied = root.parent / "copy"
    copied.mkdir()
    with swapping(
        lambda: replace(victim, lambda other: other.symlink_to("../secret")),
        lambda: replace(victim, lambda other: other.write_bytes(b"inside")),
    ):
        for _ in range(100):
            try:
                WorkspaceFolder(str(copied)).copy_from(workspace)
            except OSError:  # the path was just being replaced
                continue
            for path in copied.iterdir():
                assert path.is_symlink() or path.read_bytes() != b"of the host"


def test_links_are_followed_as_far_as_they_stay_inside(root, workspace):
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_bytes(b"inside")
    for name, target in {
        "direct": "a/b/file",
        "up": "a/../a/b/../b/file",
        "folder": "a/b",
        "a/back": "..",
        "a/far": "../../root/a/b/file",
        "absolute": str(root / "a/b/file"),
        "round": "round",
    }.items():
        (root / name).symlink_to(target)
    for path in ("direct", "up", "folder/file", "a/back/a/b/file", "folder/../b/file", "./a//b/./file"):
        assert workspace.read(path, MOST) == b"inside", path
    for path in ("a/far", "absolute", "round", "..", "../secret", "folder/../../../secret", "direct/file"):
        with pytest.raises(OSError):  # noqa: PT011  # which one depends on the path
            workspace.read(path, MOST)


def test_a_file_is_written_through_links_that_stay_inside(root, workspace):
    (root / "made").symlink_to("later/file")
    with pytest.raises(FileNotFoundError):
        workspace.write("made", b"x", MOST)
    (root / "later").mkdir()
    workspace.write("made", b"x", MOST)
    assert (root / "later/file").read_bytes() == b"x"


def test_nothing_but_files_is_read_and_nobody_waits_for_a_pipe(root, workspace):
    os.mkfifo(root / "pipe")
    (root / "directory").mkdir()
    for path in ("pipe", "directory", "."):
        with pytest.raises(OSError, match=r"regular|directory"):
            workspace.read(path, MOST)
        with pytest.raises(OSError, match=r"regular|directory|device"):
            workspace.write(path, b"", MOST)


def test_a_file_is_written_whole_or_not_begun(root, workspace):
    workspace.write("file", b"longer", MOST)
    workspace.write("file", b"new", MOST)
    assert (root / "file").read_bytes() == b"new"
    with pytest.raises(OSError, match="larger than the 2 bytes"):
        workspace.write("file", b"too", 2)
    with pytest.raises(OSError, match="larger than the 2 bytes"):
        workspace.read("file", 2)
    assert workspace.read("file", 3) == b"new"


def test_a_copy_has_what_the_other_has_and_nothing_else(root, workspace):
    (root / "a/empty").mkdir(parents=True)
    (root / "a/program").write_text("#!/bin/sh")
    (root / "a/program").chmod(0o751)
    (root / "link").symlink_to("../secret")
    os.mkfifo(root / "pipe")
    copied = root.parent / "copy"
    (copied / "old/deep").mkdir(parents=True)
    (copied / "old/file").touch()
    (copied / "old/link").symlink_to(root)
    WorkspaceFolder(str(copied)).copy_from(workspace)
    assert sorted(str(path.relative_to(copied)) for path in copied.rglob("*")) == ["a", "a/empty", "a/program", "link"]
    assert (copied / "a/program").stat().st_mode & 0o7777 == 0o751
    assert os.readlink(copied / "link") == "../secret"
    assert (root / "a/program").exists()


def test_its_text_alone_does_the_same_elsewhere(root):
    text = Path(module.__file__).read_text()

    def elsewhere(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", text, *arguments]
        return subprocess.run(argv, input=stdin, cwd=root, capture_output=True, timeout=30, check=False)

    assert elsewhere("write", "a/file", "10", stdin=b"data").returncode == 0
    assert elsewhere("read", "a/file", "10").stdout == b"data"
    assert json.loads(elsewhere("list", "a", "0").stdout) == [["file", "file", 4]]
    refused = elsewhere("read", "../secret", "10")
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, b"", b"it leads out of the workspace\n")
