"""Nodes of the ToolServer's wire when one of their sessions, or their files, has trouble."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import zipfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from threading import Event
from typing import Any, ClassVar

import anyio
import pytest

from tests.wires.toolserver_wire import Alone, Described, Node, Toolbox, node_of
from tests.wires.wire import until
from tests.worlds import OneTask
from toolyard import tool
from toolyard.core.errors import SandboxLost, WorkspaceError
from toolyard.placement.local import LocalPlacement
from toolyard.protocols.toolserver import nodes
from toolyard.protocols.toolserver.nodes import Nodes
from toolyard.runtime.limits import Limits
from toolyard.runtime.runtime import Runtime
from toolyard.sandboxes.base import Entry
from toolyard.settings import Settings
from toolyard.testing import running

pytestmark = pytest.mark.anyio


class Shelf(OneTask):
    """Files in memory, and a switch for trouble with them."""

    state: ClassVar[str] = ""
    saves: ClassVar[int] = 0
    harmed: ClassVar[bool] = False
    """Its programs were stopped during a save."""
    saving: ClassVar[Event]
    may_save: ClassVar[Event]

    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:
        super().__init__(task_spec, secrets)
        self.text = b""
        self.busy = False

    def workspace(self) -> Any:
        return self

    async def list(self, path: str = ".") -> Sequence[Entry]:
        self._look()
        return []

    async def stop_programs(self) -> None:
        self._look()
        Shelf.harmed |= self.busy

    async def save(self) -> bytes:
        self._look()
        if self.state == "slow":
            Shelf.saves += 1
            self.busy = True
            Shelf.saving.set()
            await anyio.to_thread.run_sync(Shelf.may_save.wait)
            self.busy = False
        if self.state == "unsaved":
            raise WorkspaceError("it cannot be packed")
        return self.text

    async def restore(self, saved: bytes) -> None:
        self._look()
        if self.state == "slow to restore":
            Shelf.saving.set()
            await anyio.to_thread.run_sync(Shelf.may_save.wait)
        self.text = saved

    def _look(self) -> None:
        if self.state == "lost":
            raise SandboxLost("the sandbox is gone")

    @tool
    async def put(self, text: str) -> str:
        self.text = text.encode()
        return text

    @tool
    async def get(self) -> str:
        return self.text.decode()


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(Shelf, "state", "")
    monkeypatch.setattr(Shelf, "saves", 0)
    monkeypatch.setattr(Shelf, "harmed", False)
    Shelf.saving, Shelf.may_save = Event(), Event()
    return monkeypatch


# One session of a node, and the others.


class Speechless(OneTask):
    def get_prompt(self) -> str:
        raise ValueError("there is nothing to say")

    @tool
    async def act(self) -> str:
        return ""


async def test_a_node_whose_prompt_cannot_be_told_is_none() -> None:
    async with node_of(Toolbox, Speechless) as (node, runtime):
        known = set(runtime.sessions)
        response = await node.post("/get_cookies", json={"environment": "speechless", "split": "train", "index": 0})
        assert response.status_code == 500
        assert "set-cookie" not in response.headers
        assert set(runtime.sessions) == known


class Demanding(OneTask):
    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:
        super().__init__(task_spec, secrets)
        self.size = task_spec["size"]

    @tool
    async def act(self) -> int:
        return self.size


async def test_an_environment_that_cannot_be_made_without_a_task_says_where_to_name_one(caplog: Any) -> None:
    async with node_of(Toolbox, Demanding) as (node, _):
        assert await node.detail("Demanding_act") == (
            "the environment could not be started: KeyError: 'size' "
            "(this node has no task of 'Demanding': name one in the body of /get_cookies)"
        )
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        assert await node.execute("stand_alone") == 1
        await node.cookie({"environment": "demanding", "task_spec": {"size": 3}})
        assert await node.execute("Demanding_act") == 3


class Broken(Described):
    async def setup(self) -> None:
        raise ValueError("it does not start")

    @tool
    async def act(self) -> str:
        return ""


class Flaky(OneTask):
    failures: ClassVar[int] = 0

    async def setup(self) -> None:
        if Flaky.failures:
            Flaky.failures -= 1
            raise ValueError("not this time")

    @tool
    async def act(self) -> str:
        return "acted"


async def test_an_environment_that_did_not_start_is_started_again_for_who_calls_it_again() -> None:
    Flaky.failures = 1
    async with node_of(Toolbox, Flaky) as (node, runtime):
        response = await node.asked("Flaky_act")
        assert (response.status_code, response.json()["retryable"]) == (500, True)
        assert await node.execute("Flaky_act") == "acted"
        assert len(runtime.sessions) == 1


class Slow(Described):
    started: ClassVar[Event]

    async def setup(self) -> None:
        await anyio.to_thread.run_sync(Slow.started.wait)

    @tool
    async def act(self) -> str:
        return "acted"


async def test_an_environment_that_does_not_start_is_in_nobodys_way() -> None:
    async with node_of(Toolbox, Broken, Slow) as (node, runtime):
        Slow.started = Event()
        assert (await node.asked("Broken_act")).status_code == 500
        async with anyio.create_task_group() as group:
            told: list[Any] = []

            async def act() -> None:
                told.append(await node.execute("Slow_act"))

            group.start_soon(act)
            await until(lambda: any("slow" in name for name in runtime.sessions))
            with anyio.fail_after(10):
                assert "stand_alone" in (await node.answer("/get_available_tools"))["available_tools"]
                assert (await node.detail("nope", 404)).startswith("The tool nope is not found!")
            Slow.started.set()
        assert told == ["acted"]
        assert await node.execute("stand_alone") == 1


class Endless(OneTask):
    async def setup(self) -> None:
        await anyio.sleep_forever()

    @tool
    async def act(self) -> str:
        return ""


async def test_an_environment_that_takes_for_ever_to_start_holds_up_neither_its_node_nor_its_end() -> None:
    async with node_of(Toolbox, Endless, toolserver_wait_seconds=0.2) as (node, runtime):
        with anyio.fail_after(10):
            detail = await node.detail("Endless_act", 450)
            assert await node.detail(detail["next_calling"], 450, **detail["arguments"]) == detail
            assert await node.execute("stand_alone") == 1
            await node.answer("/release_session")
        assert not runtime.sessions


class Quiet(OneTask):
    toolsets = [Alone]


async def test_a_node_is_not_idle_as_long_as_one_of_its_sessions_is_busy() -> None:
    async with node_of(Toolbox, Quiet, idle_seconds=0.3, sweep_seconds=0.05, toolserver_wait_seconds=20) as (
        node,
        runtime,
    ):
        await node.execute("Quiet_stand_alone")
        async with anyio.create_task_group() as group:
            told: list[Any] = []

            async def wait() -> None:
                told.append(await node.asked("Patience_wait"))

            group.start_soon(wait)
            await until(lambda: runtime.calls == 1)
            quiet = next(session for name, session in runtime.sessions.items() if "quiet" in name)
            used = quiet.last_seen
            await until(lambda: quiet.last_seen > used)  # the server has checked it for idleness
            await node.execute("Patience_open")
        assert told[0].json() == "waited 1"


# Files.


async def test_what_is_called_while_a_node_closes_is_refused_and_not_lost(shelf: Any) -> None:
    async with node_of(Shelf) as (node, _):
        await node.execute("Shelf_put", text="first")
        shelf.setattr(Shelf, "state", "slow")
        async with anyio.create_task_group() as group:
            group.start_soon(node.answer, "/close_session")
            await until(Shelf.saving.is_set)
            assert "not running" in await node.detail("Shelf_put", 503, text="second")
            Shelf.may_save.set()
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == "first"


async def test_a_node_that_cannot_be_saved_stays_open(shelf: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with node_of(Shelf) as (node, _):
        await node.execute("Shelf_put", text="kept")
        shelf.setattr(Shelf, "state", "unsaved")
        response = await node.post("/close_session")
        assert (response.status_code, response.json()["detail"]) == (503, "it cannot be packed")
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        assert await node.execute("Shelf_get") == "kept"


async def test_a_node_that_cannot_be_saved_does_not_stay_for_ever(shelf: Any) -> None:
    async with node_of(Shelf, idle_seconds=0.2, sweep_seconds=0.05, toolserver_keep_seconds=1) as (node, runtime):
        shelf.setattr(Shelf, "state", "unsaved")
        await until(lambda: not runtime.sessions)
        assert await node.answer("/reconnect_session") == f"invalid node_id: {node.node_id}"


async def test_a_node_whose_sandbox_is_gone_can_be_closed_and_opened_again(shelf: Any) -> None:
    async with node_of(Shelf) as (node, runtime):
        await node.execute("Shelf_put", text="gone")
        shelf.setattr(Shelf, "state", "lost")
        assert await node.answer("/close_session") == f"Close session: {node.node_id}"
        assert not runtime.sessions
        shelf.setattr(Shelf, "state", "")
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == ""


async def test_a_node_whose_sandbox_is_gone_is_made_anew_by_reconnecting(shelf: Any) -> None:
    async with node_of(Shelf) as (node, runtime):
        await node.execute("Shelf_put", text="there")
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == "there"
        shelf.setattr(Shelf, "state", "lost")
        assert (await node.post("/reconnect_session")).status_code == 503  # there is no new one either
        assert not runtime.sessions
        shelf.setattr(Shelf, "state", "")
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == ""


async def test_a_node_that_cannot_be_opened_again_leaves_nothing_and_keeps_its_files(shelf: Any) -> None:
    async with node_of(Shelf) as (node, runtime):
        await node.execute("Shelf_put", text="kept")
        await node.answer("/close_session")
        shelf.setattr(Shelf, "state", "lost")
        assert (await node.post("/reconnect_session")).status_code == 503
        assert not runtime.sessions
        shelf.setattr(Shelf, "state", "")
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == "kept"


async def test_workspaces_are_packed_two_at_a_time_and_all_that_were_asked_for_come(shelf: Any) -> None:
    async with node_of(Shelf) as (first, runtime), AsyncExitStack() as stack:
        others = [await stack.enter_async_context(Node(str(first.base_url))) for _ in range(4)]
        for other in others:
            await other.cookie()
        shelf.setattr(Shelf, "state", "slow")
        answers: list[Any] = []

        async def download(node: Node) -> None:
            answers.append(await node.post("/download_workspace"))

        async with anyio.create_task_group() as group:
            for node in (first, *others):
                group.start_soon(download, node)
            await until(lambda: Shelf.saves == 2)
            assert (await first.answer("/get_workspace_structure"))["children"] == []  # behind all of them
            assert Shelf.saves == 2
            Shelf.may_save.set()
        assert Shelf.saves == len(answers) == len(runtime.sessions) == 5
        assert all(zipfile.ZipFile(io.BytesIO(answer.content)).namelist() == [] for answer in answers)


async def test_a_node_that_is_closed_while_it_is_downloaded_waits_for_that(shelf: Any) -> None:
    async with node_of(Shelf) as (node, _):
        shelf.setattr(Shelf, "state", "slow")
        async with anyio.create_task_group() as group:
            answers: list[Any] = []

            async def ask(path: str) -> None:
                answers.append(await node.post(path))

            group.start_soon(ask, "/download_workspace")
            await until(Shelf.saving.is_set)
            group.start_soon(ask, "/close_session")
            with anyio.fail_after(10):
                while (await node.asked("Shelf_get")).status_code != 503:  # it has begun to close
                    pass
            Shelf.may_save.set()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert not Shelf.harmed


class Mortal(Shelf, Described):
    @tool
    async def die(self) -> str:
        os._exit(9)


async def test_a_node_whose_process_has_ended_says_so_and_is_made_anew_by_reconnecting() -> None:
    async with node_of(Mortal, Quiet, placement="process") as (node, _):
        await node.execute("Mortal_put", text="gone")
        assert (await node.asked("Mortal_die")).json()["reason"] == "lost"
        assert "Quiet_stand_alone" in (await node.answer("/get_available_tools"))["available_tools"]
        assert (await node.detail("nope", 404)).startswith("The tool nope is not found!")
        response = await node.post("/get_workspace_structure")
        assert (response.status_code, response.json()["detail"]) == (503, "node is not responding")
        assert await node.execute("Quiet_stand_alone") == 1
        await node.answer("/reconnect_session")
        assert await node.execute("Mortal_get") == ""


async def test_reconnecting_makes_anew_what_has_ended_and_nothing_else(shelf: Any) -> None:
    async with node_of(Shelf, Described, Mortal, placement="process") as (node, _):
        await node.execute("Shelf_put", text="kept")
        await node.execute("Mortal_put", text="gone")
        await node.asked("Mortal_die")
        await node.answer("/reconnect_session")
        assert await node.execute("Shelf_get") == "kept"
        assert await node.execute("Mortal_get") == ""


async def test_a_node_that_is_released_while_somebody_waits_to_open_it_again_stays_released() -> None:
    runtime = Runtime([Shelf], LocalPlacement(2), Settings().pick(Limits))
    async with runtime.running():
        known = Nodes(runtime, keep_seconds=60, keep_bytes=2**20)
        node, _ = await known.create(None)
        await asyncio.gather(known.close(node), known.release(node), known.reopen(node))
        assert not runtime.sessions
        assert known.find(node.id) is None


async def test_a_node_that_is_being_opened_again_makes_no_room_for_others(shelf: Any) -> None:
    runtime = Runtime([Shelf], LocalPlacement(2), Settings().pick(Limits))
    async with runtime.running():
        known = Nodes(runtime, keep_seconds=60, keep_bytes=4)
        (node, _), (other, _), (last, _) = [await known.create(None) for _ in range(3)]
        await node.sessions[Shelf].start("put", {"text": "mine"}).finished()
        await known.close(node)
        shelf.setattr(Shelf, "state", "slow to restore")
        opening = asyncio.ensure_future(known.reopen(node))
        await until(Shelf.saving.is_set)
        for one in (other, last):
            await one.sessions[Shelf].start("put", {"text": "more"}).finished()
            await known.close(one)
        Shelf.may_save.set()
        await opening
        assert known.find(node.id) is node
        assert (await node.sessions[Shelf].start("get", {}).finished()) == "mine"
        assert (known.find(other.id), known.find(last.id)) == (None, last)


async def test_closed_nodes_hold_a_part_of_the_open_files_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(nodes, "_SHARE_OF_OPEN_FILES", open_files // 2)
    with running([Shelf]) as server:
        async with Node(server.url) as node:
            seen: list[str] = []
            for _ in range(3):
                seen.append(await node.cookie())
                await node.answer("/close_session")
            for node_id, answer in zip(seen, ("invalid node_id", "Reconnect", "Reconnect"), strict=True):
                response = await node.post("/reconnect_session", headers={"cookie": f"node_id={node_id}"})
                assert response.json().startswith(answer)
