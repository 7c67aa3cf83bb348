"""Play tasks with OpenEnv's own client: `pip install openenv`, and `toolyard serve examples/arithmetic.py`.

    python play.py http://127.0.0.1:8080

`expression` stands in for a model. It knows one kind of question.
"""

import re
import sys
from typing import Any

from openenv import GenericEnvClient  # type: ignore[attr-defined]  # only who plays this needs it


def expression(question: str) -> str:
    """The answer to `What is (99 - 37) * 79?`; a wrong one to other questions."""
    found = re.match(r"What is \((\d+) - (\d+)\) \* (\d+)\?", question)
    if found is None:
        return "0"
    first, second, third = map(int, found.groups())
    return str((first - second) * third)


def play(url: str, index: int) -> dict[str, Any]:
    """Play a task to its end; returns how it ended."""
    with GenericEnvClient(base_url=f"{url}/openenv/arithmetic").sync() as env:
        seen = env.reset(split="train", index=index)
        tools = env.step({"type": "list_tools"}).observation["tools"]
        answer = expression(seen.observation["prompt"])
        seen = env.step({"type": "call_tool", "tool_name": tools[0]["name"], "arguments": {"answer": answer}})
        print(seen.observation["result"]["data"], "reward", seen.reward, "done", seen.done)
        state: dict[str, Any] = env.state()
    return state


if __name__ == "__main__":
    for index in (0, 1):
        print(play(sys.argv[1], index)["step_count"], "steps")
