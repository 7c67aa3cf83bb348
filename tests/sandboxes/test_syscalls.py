"""System calls that are prepared by one process and made by its copies."""

import errno
import os

import pytest

from toolyard.sandboxes.native import syscalls


def test_prepared_calls_are_made_in_their_order_with_what_they_were_given(tmp_path):
    calls = syscalls.Calls()
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "one"), 0o700)
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "one/two"), 0o700)
    assert not list(tmp_path.iterdir())
    calls.make()
    assert (tmp_path / "one/two").is_dir()


def test_a_prepared_call_that_is_refused_is_named_and_the_next_ones_are_not_made(tmp_path):
    calls = syscalls.Calls()
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "missing/one"), 0o700, about="the first")
    calls.add("mkdirat", syscalls._AT_FDCWD, os.fsencode(tmp_path / "two"), 0o700)
    with pytest.raises(OSError, match="mkdirat the first: No such file") as refused:
        calls.make()
    assert refused.value.errno == errno.ENOENT
    assert not (tmp_path / "two").exists()


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
