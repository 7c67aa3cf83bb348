"""System calls that one process prepares and its copies make."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolyard.sandboxes.native import forking, syscalls


def test_prepared_calls_are_made_in_their_order_with_what_they_were_given(tmp_path):
    calls = syscalls.Syscalls()
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "one"), 0o700)
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "one/two"), 0o700)
    assert not list(tmp_path.iterdir())
    calls.make()
    assert (tmp_path / "one/two").is_dir()


def test_a_prepared_call_that_is_refused_is_named_and_the_next_ones_are_not_made(tmp_path):
    calls = syscalls.Syscalls()
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "missing/one"), 0o700, about="the first")
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "two"), 0o700)
    with pytest.raises(OSError, match="mkdirat the first: No such file") as refused:
        calls.make()
    assert refused.value.errno == errno.ENOENT
    assert not (tmp_path / "two").exists()


def test_a_prepared_call_that_gives_something_else_is_refused_too(tmp_path):
    reads, writes = os.pipe()
    os.close(writes)
    calls = syscalls.Syscalls()
    calls.add("read", reads, b"?", 1, gives=1, about="the first")
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "two"), 0o700)
    with pytest.raises(OSError, match="read the first: gave 0"):
        calls.make()
    os.close(reads)
    assert not (tmp_path / "two").exists()


def test_a_file_is_written_only_if_it_gets_the_number_that_was_foreseen(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    lowest = os.dup(0)
    os.close(lowest)
    calls = syscalls.Syscalls()
    calls.write_file(str(path), b"AFTER", fd=lowest)
    calls.make()
    assert path.read_text() == "AFTERe"
    held, second = os.dup(0), os.dup(0)
    os.close(second)
    with pytest.raises(OSError, match=f"openat {path}: gave {second}$"):
        calls.make()
    os.close(held)
    os.close(second)


def test_a_child_in_which_one_goes_on_has_just_the_files_that_were_kept():
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        if forking.fork():
            os._exit(0)
        calls = syscalls.Syscalls()
        calls.close_all_but({0, 1, 2, writes})
        calls.make()
        listing = os.listdir("/proc/self/fd")  # including the one that lists them
        os.write(writes, f"{os.getppid()} {len(listing)}".encode())
        os._exit(0)
    os.close(writes)
    parent, count = os.read(reads, 100).split()
    os.close(reads)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(parent) != os.getpid()
    assert int(count) == 5


_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def _use_large_pages_with(memory: int) -> tuple[int, int]:
    """For a process with so much memory: its own count of large pages, and the kernel's count in kilobytes."""
    code = (
        "import re\n"
        "from toolyard.sandboxes.native import syscalls\n"
        f"held = bytes(range(1, 201)) * ({memory} // 200)\n"
        "said = syscalls.use_large_pages()\n"
        "assert held == bytes(range(1, 201)) * (len(held) // 200)\n"
        "print(said, re.search(r'AnonHugePages: *([0-9]+)', open('/proc/self/smaps_rollup').read())[1])\n"
    )
    said, found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.split()
    return int(said), int(found)


def test_only_a_process_with_much_memory_uses_large_pages():
    assert _use_large_pages_with(2**21)[0] == 0
    said, found = _use_large_pages_with(64 * 2**20)
    assert found >= said * 2048 * 0.9  # the kernel may have split one since
    version = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if version >= (6, 1) and os.sysconf("SC_PAGE_SIZE") == 4096 and _LARGE_PAGES.exists():
        assert said > 0


def test_every_change_of_a_dictionary_is_another_version_and_looking_at_it_is_none():
    watched: dict[str, object] = {"kept": 1}
    version = syscalls.version_of(watched)
    if version is None:
        pytest.skip("this Python does not count the changes of a dictionary")
    seen = [version()]
    for change in (
        lambda: watched.update(added=1),
        lambda: watched.update(added=2),
        lambda: watched.pop("added"),
        lambda: watched.setdefault("other", 3),
        watched.clear,
    ):
        change()
        assert version() == version()
        seen.append(version())
    assert watched.get("kept") is None
    assert len({*seen, version()}) == len(seen)
