"""Failures as a client sees them: which error, its message, and whether the session goes on."""

from __future__ import annotations

from typing import Any

from common import main
from sdk import Driver, task


def failures(sdk: str, mode: str, url: str, locked_url: str) -> dict[str, Any]:
    driver = Driver(sdk, mode, url)
    do, error = driver.do, driver.error
    math = driver.environment("mathenv")
    seen: dict[str, Any] = {}
    with driver.session(math, split="train", index=0) as session:
        if sdk == "ors":
            seen["tool_error"] = error(session.call_tool, "read_file", {"path": "x"})
        else:
            seen["tool_error"] = do(session.call_tool("read_file", {"path": "x"}))
        seen["unknown_tool"] = error(session.call_tool, "nope", {})
        seen["not_a_tool"] = error(session.call_tool, "setup", {})
        seen["bad_arguments"] = error(session.call_tool, "submit", {})
        seen["still_alive"] = do(session.call_tool("submit", {"answer": "yes"}))
        seen["after_finished"] = error(session.call_tool, "noparam", {})
    with driver.session(math, split="train", index=0) as session:
        seen["raised"] = error(session.call_tool, "boom", {})
        try:
            seen["after_raised"] = do(session.call_tool("noparam"))
        except Exception as problem:
            seen["after_raised"] = type(problem).__name__
    if sdk == "openreward":
        with driver.session(driver.environment("gravenv"), split="train", index=0) as session:
            seen["image"] = do(session.call_tool("draw", {"count": 1}))
            seen["images"] = do(session.call_tool("draw", {"count": 2}))
            seen["late"] = error(session.call_tool, "never", {})
            seen["after_late"] = error(session.call_tool, "draw", {"count": 1})
    with driver.session(math, task=task(sdk, "mathenv", {"setup_boom": True})) as session:
        seen["setup_prompt"] = error(session.get_prompt)
        if sdk == "openreward":  # ors-sdk retries five times after a 500, for a quarter of a minute
            seen["setup_call"] = error(session.call_tool, "noparam", {})
    seen["unknown_split"] = error(math.list_tasks, "nope")
    seen["unknown_environment"] = error(driver.environment("nowhere").list_tools)
    driver.close()

    locked = Driver(sdk, mode, locked_url, "wrong")
    seen["wrong_key"] = locked.error(locked.environment("mathenv").list_splits)
    locked.close()
    opened = Driver(sdk, mode, locked_url, "right")
    seen["right_key"] = opened.do(opened.environment("mathenv").list_splits())
    opened.close()
    return seen


main(failures)
