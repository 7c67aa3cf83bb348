"""ORS, listing what is served: cases 1-19, and what the specification says beyond them."""

from __future__ import annotations

import pytest

from tests.wires.wire import H, Wire, strict_json
from tests.worlds import ManyEnv, MathEnv, OtherEnv
from toolyard import Environment, __version__, tool
from toolyard.core.errors import DefinitionError
from toolyard.server import Server
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

TASKS = [{"q": str(n), "a": str(n)} for n in range(5)]


async def test_E01_health_says_exactly_ok(wire: Wire):
    response = await wire.get("/health")
    assert (response.status_code, response.content) == (200, b'{"status":"ok"}')


async def test_E02_environments_are_listed_in_lower_case_and_order(wire: Wire):
    response = await wire.get("/list_environments")
    assert (response.status_code, response.json()) == (200, ["mathenv", "otherenv"])


async def test_E03_splits_of_an_environment_named_in_any_case(wire: Wire):
    response = await wire.get("/MATHENV/splits")
    assert response.status_code == 200
    assert response.json() == [
        {"name": "train", "type": "train"},
        {"name": "custom", "type": "validation"},
        {"name": "test", "type": "test"},
    ]


async def test_E04_a_bare_path_is_redirected_to_the_first_environment(wire: Wire):
    response = await wire.get("/splits?a=b")
    assert response.status_code == 308
    assert response.headers["location"] == "/mathenv/splits?a=b"
    assert response.content == b""


async def test_E05_an_unknown_environment_is_404(wire: Wire):
    response = await wire.get("/nosuch/tools")
    assert (response.status_code, response.json()["detail"]) == (404, "unknown environment 'nosuch'")


async def test_E06_tasks_echo_the_name_as_written(wire: Wire):
    response = await wire.post("/MathEnv/tasks", json={"split": "test"})
    assert (response.status_code, response.json()) == (200, {"tasks": TASKS[:1], "env_name": "MathEnv"})


async def test_E07_an_unknown_split_is_400(wire: Wire):
    response = await wire.post("/mathenv/tasks", json={"split": "nope"})
    body = response.json()
    assert (response.status_code, body["detail"], body["error"]) == (400, "Invalid split", "Invalid split")


async def test_E08_an_empty_split_is_an_empty_list(wire: Wire):
    response = await wire.post("/mathenv/tasks", json={"split": "custom"})
    assert (response.status_code, response.json()["tasks"]) == (200, [])


async def test_E09_a_missing_split_is_422_and_located(wire: Wire):
    response = await wire.post("/mathenv/tasks", json={})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "split"]


async def test_E10_an_unknown_key_is_422(wire: Wire):
    response = await wire.post("/mathenv/tasks", json={"split": "train", "x": 1})
    assert response.status_code == 422
    assert response.json()["detail"][0]["type"] == "extra_forbidden"


async def test_E11_num_tasks(wire: Wire):
    response = await wire.post("/mathenv/num_tasks", json={"split": "train"})
    assert (response.status_code, response.json()) == (200, {"num_tasks": 5})


async def test_E12_a_negative_index_counts_from_the_end(wire: Wire):
    response = await wire.post("/mathenv/task", json={"split": "train", "index": -1})
    assert (response.status_code, response.json()) == (200, {"task": {"q": "4", "a": "4"}, "env_name": "mathenv"})


@pytest.mark.parametrize("index", [5, -6])
async def test_E13_an_index_out_of_range_is_400(wire: Wire, index: int):
    response = await wire.post("/mathenv/task", json={"split": "train", "index": index})
    assert (response.status_code, response.json()["detail"]) == (400, "Invalid index")


async def test_E14_get_task_is_task(wire: Wire):
    body = {"split": "train", "index": 0}
    task, alias = await wire.post("/mathenv/task", json=body), await wire.post("/mathenv/get_task", json=body)
    assert task.status_code == alias.status_code == 200
    assert task.json() == alias.json() == {"task": TASKS[0], "env_name": "mathenv"}


async def test_E15_a_range_from_the_end(wire: Wire):
    response = await wire.post("/mathenv/task_range", json={"split": "train", "start": -2})
    assert (response.status_code, response.json()) == (200, {"tasks": TASKS[3:], "env_name": "mathenv"})


@pytest.mark.parametrize(
    ("span", "tasks"),
    [
        ({"start": 3, "stop": 100}, TASKS[3:]),
        ({"start": 4, "stop": 2}, []),
        ({"start": -100, "stop": -4}, TASKS[:1]),
        ({"start": None, "stop": None}, TASKS),
        ({}, TASKS),
        ({"start": 10**30, "stop": -(10**30)}, []),
    ],
)
async def test_E16_a_range_is_never_an_index_error(wire: Wire, span: dict, tasks: list):
    for path in ("task_range", "get_task_range"):
        response = await wire.post(f"/mathenv/{path}", json={"split": "train", **span})
        assert (response.status_code, response.json()["tasks"]) == (200, tasks)


async def test_E17_an_environment_that_cannot_list_is_asked_by_index():
    with running([ManyEnv]) as server:
        async with Wire(server.url) as wire:
            response = await wire.post("/manyenv/tasks", json={"split": "train"})
            assert response.status_code == 400
            assert response.json()["detail"] == (
                "list_tasks is not supported for this environment. "
                "Use the index-based API (num_tasks + get_task) instead."
            )
            response = await wire.post("/manyenv/task_range", json={"split": "train", "start": -2})
            assert response.status_code == 200
            assert response.json()["tasks"] == [{"q": "999998"}, {"q": "999999"}]


async def test_E18_tools_lists_shared_tools_with_exactly_three_keys(wire: Wire):
    response = await wire.get("/mathenv/tools")
    assert response.status_code == 200
    tools = {spec["name"]: spec for spec in response.json()["tools"]}
    assert "hidden" not in tools
    assert "dyn" not in tools
    assert all(spec.keys() == {"name", "description", "input_schema"} for spec in tools.values())
    assert tools["noparam"]["input_schema"] is None
    assert tools["submit"]["description"] == "Submit the answer."
    assert tools["submit"]["input_schema"]["required"] == ["answer"]


async def test_E19_a_doubled_slash_is_one(wire: Wire, pair: Running):
    sid = await wire.open()
    response = await wire.post(f"{pair.url}//ping", headers=H(sid))
    assert str(response.request.url).endswith("//ping")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


# Beyond the cases.


@pytest.mark.parametrize(
    "path",
    [
        "splits",
        "tasks",
        "num_tasks",
        "task",
        "task_range",
        "get_task",
        "get_task_range",
        "tools",
        "task_tools",
        "prompt",
        "messages",
        "call",
        "score_group",
    ],
)
async def test_every_bare_path_of_an_environment_is_redirected_with_method_and_body(wire: Wire, path: str):
    for method in ("GET", "POST"):
        response = await wire.request(method, f"/{path}")
        assert (response.status_code, response.headers["location"]) == (308, f"/mathenv/{path}")


async def test_a_client_that_follows_a_redirect_arrives(wire: Wire):
    response = await wire.post("/task", json={"split": "train", "index": "1"}, follow_redirects=True)
    assert (response.status_code, response.json()) == (200, {"task": TASKS[1], "env_name": "mathenv"})


@pytest.mark.parametrize("deployment", ["otherenv", "OtherEnv", "somebody/OtherEnv"])
async def test_the_deployment_header_chooses_the_environment_of_a_bare_path(wire: Wire, deployment: str):
    response = await wire.get("/tools", headers={"X-Deployment": deployment})
    assert (response.status_code, response.headers["location"]) == (308, "/otherenv/tools")


async def test_a_deployment_that_is_not_served_changes_nothing(wire: Wire):
    response = await wire.get("/tools", headers={"X-Deployment": "somebody/else"})
    assert response.headers["location"] == "/mathenv/tools"


@pytest.mark.parametrize("path", ["/nosuch", "/mathenv", "/mathenv/nosuch", "/mathenv/tools/more", "/favicon.ico"])
async def test_what_is_no_endpoint_is_404_and_not_redirected(wire: Wire, path: str):
    response = await wire.get(path)
    assert (response.status_code, response.json()["detail"]) == (404, "Not Found")


@pytest.mark.parametrize("path", ["/health", "/mathenv/splits", "/list_environments"])
async def test_a_trailing_slash_is_redirected_away(wire: Wire, path: str):
    response = await wire.get(f"{path}/?a=b")
    assert (response.status_code, response.headers["location"]) == (307, f"{path}?a=b")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/health", "GET"),
        ("POST", "/list_environments", "GET"),
        ("POST", "/version", "GET"),
        ("GET", "/create_session", "POST"),
        ("GET", "/create", "POST"),
        ("GET", "/ping", "POST"),
        ("DELETE", "/delete", "POST"),
        ("PUT", "/delete_session", "POST"),
        ("POST", "/mathenv/tools", "GET"),
        ("POST", "/mathenv/splits", "GET"),
        ("POST", "/mathenv/prompt", "GET"),
        ("POST", "/mathenv/messages", "GET"),
        ("POST", "/mathenv/task_tools", "GET"),
        ("GET", "/mathenv/call", "POST"),
        ("GET", "/mathenv/tasks", "POST"),
        ("GET", "/mathenv/num_tasks", "POST"),
        ("GET", "/mathenv/task", "POST"),
        ("GET", "/mathenv/task_range", "POST"),
        ("GET", "/mathenv/score_group", "POST"),
        ("OPTIONS", "/mathenv/call", "POST"),
    ],
)
async def test_a_wrong_method_is_405_and_says_the_right_one(wire: Wire, method: str, path: str, allowed: str):
    response = await wire.request(method, path)
    assert (response.status_code, response.json()["detail"]) == (405, "Method Not Allowed")
    assert response.headers["allow"] == allowed


async def test_version_is_served_at_the_root(wire: Wire):
    response = await wire.get("/version")
    assert (response.status_code, response.json()) == (200, {"version": __version__, "build_sha": None})


async def test_tools_say_what_else_the_environment_can_do(wire: Wire):
    body = (await wire.get("/otherenv/tools")).json()
    assert body == {
        "tools": [{"name": "other", "description": "Say so.", "input_schema": None}],
        "terminal_tool": None,
        "supports_score_group": False,
        "message_block_types": ["text", "image", "reasoning", "tool_call", "tool_result"],
    }


async def test_a_session_header_is_ignored_where_none_is_needed(wire: Wire):
    assert (await wire.get("/mathenv/tools", headers=H("nobody"))).status_code == 200
    assert (await wire.post("/mathenv/num_tasks", headers=H("nobody"), json={"split": "train"})).status_code == 200


class OddTasks(Environment):
    """Tasks that JSON cannot express, and hooks of every kind."""

    @classmethod
    async def list_splits(cls):
        return ["train"]

    @classmethod
    async def list_tasks(cls, split):
        return [{"nan": float("nan"), "inf": [float("-inf")], "big": 2**80, "broken": "\ud800"}]

    async def get_prompt(self):
        return "?"

    @tool
    def look(self) -> str:
        """Look."""
        return "?"


async def test_tasks_are_json_whatever_the_author_put_into_them():
    with running([OddTasks]) as server:
        async with Wire(server.url) as wire:
            response = await wire.post("/oddtasks/tasks", json={"split": "train"})
            assert response.status_code == 200
            task = {"nan": None, "inf": [None], "big": 2**80, "broken": "\ud800"}
            assert strict_json(response.content)["tasks"] == [task]


class Broken(OddTasks):
    asked = 0

    @classmethod
    def list_splits(cls):
        cls.asked += 1
        if cls.asked == 1:
            raise OSError("the disk is on holiday")
        return ["train"]


async def test_a_list_that_could_not_be_read_is_asked_for_again():
    with running([Broken]) as server:
        async with Wire(server.url) as wire:
            response = await wire.get("/broken/splits")
            assert (response.status_code, response.json()["detail"]) == (500, "OSError: the disk is on holiday")
            assert (await wire.get("/broken/splits")).json() == [{"name": "train", "type": "train"}]


def test_two_environments_of_one_name_are_refused():
    class Mathenv(MathEnv):
        pass

    with pytest.raises(DefinitionError, match="mathenv"):
        Server([MathEnv, Mathenv])


@pytest.mark.parametrize("name", ["Health", "create", "PING", "splits", "call", "version"])
def test_E139_an_environment_named_like_a_path_is_refused(name: str):
    with pytest.raises(DefinitionError, match=name.lower()):
        Server([type(name, (OtherEnv,), {})])


def test_an_environment_with_only_task_specific_tools_may_start():
    class OnlyHidden(Environment):
        @classmethod
        def list_splits(cls):
            return ["train"]

        @classmethod
        def list_tasks(cls, split):
            return []

        def get_prompt(self):
            return "?"

        @tool(shared=False)
        def hidden(self) -> str:
            """Look."""
            return "?"

    assert list(Server([OnlyHidden]).runtime.environments) == ["onlyhidden"]


@pytest.mark.parametrize("missing", ["tool", "split"])
def test_an_environment_without_tool_or_split_is_refused(missing: str):
    members = {
        "tool": {"list_splits": classmethod(lambda cls: ["train"]), "get_prompt": lambda self: "?"},
        "split": {"look": tool(lambda self: "?"), "get_prompt": lambda self: "?"},
    }[missing]
    with pytest.raises(DefinitionError, match=f"has no {missing}"):
        Server([type("Half", (Environment,), members)])
