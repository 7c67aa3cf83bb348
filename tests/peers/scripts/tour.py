"""Case 65: everything a client can do, from the list of splits to the reward; openreward's client can do more."""

from __future__ import annotations

from typing import Any

from common import main, names
from sdk import Driver

FORMATS = ("openai", "anthropic", "google", "openrouter")


def tour(sdk: str, mode: str, url: str, api_key: str | None = None) -> dict[str, Any]:
    driver = Driver(sdk, mode, url, api_key)
    do = driver.do
    math = driver.environment("mathenv")
    seen: dict[str, Any] = {
        "splits": do(math.list_splits()),
        "tasks": [task.task_spec for task in do(math.list_tasks("train"))],
        "num_tasks": do(math.num_tasks("train")),
        "task": do(math.get_task("train", -1)).task_spec,
        "range": [task.task_spec["q"] for task in do(math.get_task_range("train", -2))],
        "slice": [task.task_spec["q"] for task in do(math.get_task_range("train", 1, 3))],
        "tools": names(do(math.list_tools())),
        "formats": {format: do(math.list_tools(format=format)) for format in FORMATS},
    }
    # openreward's client must know which sites may see secrets that it does not know.
    secret: Any = "v é" if sdk == "ors" else ("v é", ["example.org"])
    with driver.session(math, split="train", index=2, secrets={"k": secret}) as session:
        seen |= {
            "prompt": do(session.get_prompt()),
            "session_tools": names(do(session.list_tools())),
            "session_formats": {format: len(do(session.list_tools(format=format))) for format in FORMATS},
            "secret": do(session.call_tool("secret", {"answer": "k"})),
            "nothing": do(session.call_tool("noparam")),
            "half": do(session.call_tool("half", {"number": "42"})),
            "hidden": do(session.call_tool("hidden")),
            "submit": do(session.call_tool("submit", {"answer": "4"})),
        }
        if sdk == "openreward":
            seen |= {
                "version": do(session.version()),
                "messages": do(session.get_messages()),
                "scoring": do(session.supports_score_group()),
                "score_error": driver.error(session.score_group, []),
                "terminal": do(session.terminal_tool()),
            }
    with driver.session(math, task=do(math.get_task("test", 0))) as session:
        seen["from_task"] = do(session.get_prompt())
    with driver.session(driver.environment("otherenv"), split="train", index=1) as session:
        seen["other_prompt"] = do(session.get_prompt())
        seen["other"] = do(session.call_tool("other"))
    with driver.session(driver.environment("chatenv"), split="train", index=0) as session:
        seen["chat_tools"] = names(do(session.list_tools()))
        seen["chat_prompt"] = do(session.get_prompt())
        if sdk == "openreward":
            seen |= chat(driver, session)
    if sdk == "openreward":
        seen |= more(driver)
    driver.close()
    return seen


def chat(driver: Driver, session: Any) -> dict[str, Any]:
    """Conversations, group scores and a terminal tool: only openreward's client supports them."""
    from openreward import GroupCandidate, Message, ReasoningBlock, ToolCallBlock, ToolResultBlock
    from openreward.api.environments.types import TextBlock

    do = driver.do
    said = [
        Message(role="assistant", blocks=[ReasoningBlock(text="hm"), ToolCallBlock(id="1", name="x", input={"a": 1})]),
        Message(role="user", blocks=[ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="r")])]),
        Message(role="assistant", blocks=[TextBlock(text="four")]),
    ]
    return {
        "chat_messages": do(session.get_messages()),
        "chat_formats": [type(do(session.get_messages(format=f))).__name__ for f in ("openai", "anthropic")],
        "chat_scoring": do(session.supports_score_group()),
        "scores": do(session.score_group([GroupCandidate(messages=said, metadata={"n": 1}), said[:1]])),
        "score_failure": driver.error(session.score_group, []),
        "chat_terminal": do(session.terminal_tool()),
        "final": do(session.is_assistant_message_final()),
        "answered": do(session.call_terminal_tool("four")),
        "after_the_end": driver.error(session.call_terminal_tool, "five"),
    }


def more(driver: Driver) -> dict[str, Any]:
    """What only openreward's client sends: paths without an environment, toolsets by name, overrides."""
    do = driver.do
    bare = driver.environment("whatever", variant=False)
    named = driver.environment("otherenv", variant=False)
    spaced = driver.client.environments.get("someone/otherenv", base_url=driver.url)
    seen: dict[str, Any] = {
        "bare_tools": names(do(bare.list_tools())),
        "bare_task": do(bare.get_task("train", 1)),
        "named_prompt": None,
        "namespaced_tools": names(do(spaced.list_tools())),
        "env_terminal": do(driver.environment("chatenv").terminal_tool()),
        "env_scoring": do(driver.environment("chatenv").supports_score_group()),
    }
    with driver.session(bare, split="train", index=1, toolset="codex", env_overrides={"A": "b"}) as session:
        seen["toolset_tools"] = names(do(session.list_tools()))
        seen["toolset_call"] = do(session.call_tool("shell"))
        seen["bare_submit"] = do(session.call_tool("submit", {"answer": "1"}))
    with driver.session(named, split="train", index=0) as session:
        seen["named_prompt"] = do(session.get_prompt())
    return seen


main(tour)
