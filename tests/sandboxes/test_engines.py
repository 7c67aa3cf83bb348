"""Containers of a real engine, which `make test-engines` prepares: ENGINE_UNDER_TEST and IMAGE_UNDER_TEST name it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.sandboxes import hostile, test_hostile_escapes, test_hostile_lifecycle, test_hostile_machinery
from tests.sandboxes import test_hostile_resources as resources
from tests.sandboxes.hostile import Box, Case, Stage, Traces, Unsafe
from toolyard.sandboxes.base import Executed, Limits
from toolyard.sandboxes.containers import ContainerBackend
from toolyard.testing import check_sandbox
from toolyard.testing.sandbox_rules import RULES

ENGINE, IMAGE = os.environ.get("ENGINE_UNDER_TEST", ""), os.environ.get("IMAGE_UNDER_TEST", "")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.thorough,
    pytest.mark.skipif(not ENGINE, reason="make test-engines runs it with an engine"),
]

_OWN = ("pid", "mnt", "net", "ipc", "uts")
"""Namespaces that every engine gives a container."""


def backend() -> ContainerBackend:
    return ContainerBackend(ENGINE, image=IMAGE)  # type: ignore[arg-type]


@asynccontextmanager
async def started() -> AsyncIterator[ContainerBackend]:
    one = backend()
    await one.start()
    try:
        yield one
    finally:
        await one.close()


@pytest.mark.parametrize("topic", dict.fromkeys(rule.topic for rule in RULES))
@pytest.mark.timeout(600)
def test_it_keeps_the_contract(topic):
    report = check_sandbox(backend(), only=[topic])
    assert report.ok, str(report)
    assert report.of("ok")


async def test_it_isolates_as_well_as_it_says():
    async with started() as engine:
        report = engine.report()
    assert (report.level, report.missing) == ("L3", []), report
    assert report.layers["system calls"] == "seccomp allowlist"


async def test_a_container_goes_when_its_server_is_killed():
    code = (
        "import asyncio, os\nfrom tests.sandboxes.test_engines import backend\n"
        "async def main():\n    engine = backend()\n    await engine.start()\n    box = await engine.open()\n"
        "    await box.start(['sleep', '1000'])\n    print((await box.run(['hostname'])).exit_code, flush=True)\n"
        "    os.kill(os.getpid(), 9)\nasyncio.run(main())\n"
    )
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert (await server.communicate())[0] == b"0\n"
    deadline = time.monotonic() + 30
    while await _containers():
        assert time.monotonic() < deadline, "the container is still there"
        await asyncio.sleep(0.2)


async def test_a_program_that_kills_everybody_does_not_end_its_container():
    async with started() as engine, await engine.open() as box:
        await box.write("kept", b"data")
        done = await box.run(["sh", "-c", "kill -9 -1; kill -9 1; echo $?"])
        assert (done.exit_code, done.stdout) in [(137, b""), (0, b"1\n")], done
        assert (await box.run(["cat", "kept"])).stdout == b"data"
        assert (await box.exec("6 * 7")).value == "42"


async def test_programs_see_nothing_of_the_servers_environment(monkeypatch):
    for name in ("HTTP_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://user:a-secret-word@127.0.0.1:1")
    async with started() as engine, await engine.open() as box:
        seen = await box.run(["sh", "-c", "env; cat /proc/1/environ"])
    assert b"a-secret-word" not in seen.stdout, seen


async def _containers() -> list[str]:
    listing = await asyncio.create_subprocess_exec(
        *(ENGINE, "ps", "--all", "--quiet", "--filter", "label=toolyard.server"), stdout=asyncio.subprocess.PIPE
    )
    return (await listing.communicate())[0].decode().split()


# The hostile programs of the native sandbox, in containers.


class EngineStage(Stage):
    """The same walls, but for those that are the native sandbox's own: user namespaces and limits of each process."""

    def check_walls(self, said: Mapping[str, Any], limits: Limits, *, branch: bool) -> None:
        walls = {
            "few processes are visible": said["processes"] <= 12,
            "namespaces of its own": all(said["namespaces"][kind] != self._namespaces[kind] for kind in _OWN),
            "no capabilities": set(said["capabilities"]) == {"0000000000000000"},
            "no new privileges": said["no_new_privileges"] == "1",
            "a filter of system calls": said["seccomp"] == "2",
            "the host's file is not readable": said["marker"] is False,
            "no network": said["interfaces"] == ["lo"],
            "open files": 0 < said["limits"]["NOFILE"] <= limits.open_files,
            "size of files": 0 < said["limits"]["FSIZE"] <= limits.file_bytes,
            "memory": self.enforced,
        }
        if fallen := [wall for wall, stands in walls.items() if not stands]:
            raise Unsafe(f"not run, for lack of: {', '.join(fallen)}; {said}")

    def _traces(self, said: Mapping[str, Any]) -> Traces:
        namespace = said["namespaces"]["pid"]
        members = hostile._in_namespace(namespace)
        assert members, "the sandbox's processes are not to be found on the host"
        [first] = [pid for pid in members if hostile._number_inside(pid) == 1]
        return Traces(-1, first, namespace, ())

    @asynccontextmanager
    async def open(self, limits: Limits = hostile.USUAL) -> AsyncIterator[Box]:
        box = EngineBox(self, await self.backend.open(limits))  # type: ignore[arg-type]
        try:
            traces = self._traces(await box.show("exec"))
        except BaseException:
            await box.close()
            raise
        self._open[box] = traces
        try:
            yield box
        finally:
            members = self._open.pop(box).members()
            await box.close()
        await traces.check_gone(members)


class EngineBox(Box):
    async def alone(self, code: str, *, seconds: float | None = None) -> Executed:
        """Containers have nothing lighter than a sandbox."""
        async with self._stage.open(self.sandbox.limits) as other:
            return await other.python(code, seconds=seconds)


PLAYED = {
    "03a-a_bomb_in_one_piece",
    "04-many_children_that_each_take_little",
    "05a-files_in_memory_are_bounded_by_number_and_size",
    "05b-shared_memory_of_the_old_kind",
    "06a-files_with_holes",
    "07a-directories_in_directories",
    "08-open_files_without_end",
    "09-output_without_end",
    "09a-output_of_many_at_once",
    "09b-values_and_errors_without_end",
    "12-hold_the_server_by_a_descriptor",
    "18-scan_the_heap_for_secrets",
    "21-connect_to_local_sockets_of_the_host",
    "22-open_every_kind_of_socket",
    "25a-become_somebody_else",
    "26-make_namespaces",
    "27-use_the_kernels_keyrings",
    "28-mount_something",
    "30-make_devices",
    "31-use_what_has_had_many_holes",
    "32-open_files_by_their_handles",
    "35-a_daemon_that_holds_the_output_open",
    "36-a_program_that_closes_its_standard_files",
    "38-a_program_that_leaves_by_sys_exit",
    "39-a_program_that_leaves_at_once",
    "45-a_program_that_raises_its_limits",
    "46-a_program_that_wants_to_go_first",
    "47-shared_memory_that_is_left_behind",
    "48-a_program_that_poisons_the_libraries",
    "49-a_program_that_poisons_its_interpreter",
    "50-a_program_that_patches_the_memory_that_it_shares",
    "56-a_hoard_of_descriptors_in_flight",
    "58-files_by_their_handles",
    "59-a_disk_that_takes_the_memory",
    "60-a_program_that_takes_all_processors",
    "60-all_processors_at_once",
    "61-a_program_that_lifts_its_confinement",
    "63-a_program_that_removes_everything",
    "a2-an_interpreter_that_is_alone_and_does_not_end",
    "e1-an_answer_that_says_something_else_each_time",
    "o2-output_when_nobody_listens",
    "o3-output_that_is_no_text",
    "o4-a_shell_that_is_lied_to",
    "o5-input_that_nobody_reads",
    "w2-files_that_become_something_else",
    "w6-files_that_change_while_they_are_read",
    "10a-every_signal_to_process_1",
}
"""The cases that are about any sandbox. The others look for parts that only the native one has, such as its agent, or
for what it does beyond an engine: a limit of processes to the last one, inotify, terminals, files without a trace."""


def cases() -> list[Any]:
    suites = (test_hostile_escapes, test_hostile_lifecycle, resources, test_hostile_machinery)
    found = {name: case for module in suites for name, case in module.SUITE.cases.items()}
    return [pytest.param(found[name], id=name) for name in sorted(PLAYED)]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[EngineStage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("API_KEY", hostile.server_environment()["API_KEY"])
        with hostile._planted() as folder:
            async with started() as engine:
                made = EngineStage(engine, folder)  # type: ignore[arg-type]
                try:
                    await made.set_up()
                    yield made
                finally:
                    made.tear_down()


@pytest.mark.parametrize("case", cases())
@pytest.mark.timeout(180)
async def test_the_program_achieves_nothing(stage: EngineStage, case: Case):
    async with stage.open(case.limits) as box:
        await case.play(stage, box)
    await stage.check()
