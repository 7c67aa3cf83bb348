"""The parts of the host's /etc that programs see: what languages need, and nothing that may be a secret."""

from __future__ import annotations

import glob
import mmap
import shutil

import pytest

from tests.sandboxes import backends
from tests.sandboxes.test_process_based import started
from toolyard.sandboxes import host

pytestmark = pytest.mark.anyio

_SECRETS = ("ssl/private", "pki/tls/private", "java-*/management", "R/*.site", "shadow", "npmrc", "pip.conf", "ssh")
_READ = """\
for path; do
    if [ -d "$path" ]; then ls "$path/" || exit 1; else cat "$path" || exit 1; fi
done >/dev/null 2>&1
"""


def reading(*paths: str) -> list[str]:
    return ["sh", "-c", _READ, "sh", *paths]


@pytest.fixture(params=["native", *backends.others("bubblewrap", "landlock")])
async def box(request, tmp_path):
    async with started(backends.backend(request.param, tmp_path)) as backend, await backend.open() as sandbox:
        yield sandbox


async def test_what_languages_keep_in_etc_can_be_read_inside(box):
    assert host.etc()
    for path in host.etc():
        assert (await box.run(reading(path))).exit_code == 0, path


async def test_what_lies_beside_it_and_may_be_a_secret_cannot(box):
    found = [path for pattern in _SECRETS for path in glob.glob(f"/etc/{pattern}")]
    assert found, "every host has /etc/shadow"
    for path in found:
        assert (await box.run(reading(path))).exit_code != 0, path


async def test_a_file_that_only_some_users_of_the_host_may_read_is_not_shown(monkeypatch):
    monkeypatch.setattr(host, "ETC", ("shadow", "passwd", "no-such-file"))
    assert host.etc.__wrapped__() == ["/etc/passwd"]


_MAPPING = """\
import mmap, sys
mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=int(sys.argv[2]))
print('mapped')
"""


async def test_address_space_may_be_reserved_beyond_the_memory_and_none_of_it_written(box):
    """As the run-times of Java, Go and Node do."""
    assert (await box.run(["python3", "-c", _MAPPING, str(2**31), "0"])).stdout == b"mapped\n"
    if box.report().layers["memory"] == "data of each process, watched":
        written = await box.run(["python3", "-c", _MAPPING, str(2**30), str(mmap.PROT_WRITE)])
        assert b"Cannot allocate memory" in written.stderr


LANGUAGES = [["javac", "-version"], ["go", "version"], ["node", "--version"], ["Rscript", "-e", "median(1:3)"]]
HERE = [argv for argv in LANGUAGES if shutil.which(argv[0], path="/usr/bin:/bin") is not None]


@pytest.mark.parametrize("argv", HERE, ids=repr)
async def test_a_language_that_the_host_has_starts_without_a_complaint(box, argv):
    ran = await box.run(argv)
    assert (ran.exit_code, ran.killed_by, ran.stderr) == (0, None, b"")
