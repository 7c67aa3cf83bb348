"""Tools as a user of verl-tool writes them: nothing here knows of Toolyard."""

import re
import time

from verl_tool.servers.tools.base import BaseTool, register_tool

deleted = []


@register_tool
class DoubleTool(BaseTool):
    """Parses its action, keeps state by trajectory, and is plain throughout."""

    tool_type = "double"

    def get_usage_inst(self):
        return "Write <double>n</double> to double a number."

    def parse_action(self, action):
        found = re.search(r"<double>(.*?)</double>", action, re.DOTALL)
        return (found[1], True) if found else ("", False)

    def conduct_action(self, trajectory_id, action, extra_field):
        number, valid = self.parse_action(action)
        env = self.load_env(trajectory_id)
        observation = f"\n<twice>{2 * int(number)}</twice> turn {env['metadata']['turns'] + 1}"
        self.update_env(trajectory_id, env, number, valid, extra_field, observation)
        self.save_env(trajectory_id, env)
        return observation, False, True

    def delete_env(self, trajectory_id):
        deleted.append(trajectory_id)
        super().delete_env(trajectory_id)


@register_tool
class JudgeTool(BaseTool):
    """Answers with an object, ends trajectories, and says what was invalid."""

    tool_type = "judge"

    def get_usage_inst(self):
        return "Write <judge>answer</judge>."

    def parse_action(self, action):
        if action == "break the parser":
            raise RuntimeError("the parser broke")
        return action, "<judge>" in action

    def conduct_action(self, trajectory_id, action, extra_field):
        if "picture" in action:
            return {"obs": "<image>", "image": "data:image/png;base64,aGk="}, False, True
        if "nothing" in action:
            return "", False, False
        right = extra_field.get("answer", "42") in action
        return (
            {
                "obs": "judged",
                "reward": int(right),
                "metrics": {"right": right},
                "last": extra_field.get("is_last_step"),
            },
            True,
            True,
        )


@register_tool
class SlowSearch(BaseTool):
    """A coroutine for a whole batch, as verl-tool's search tools have it. It has no name of its own but its class's."""

    tool_type = "slow_search"

    def parse_action(self, action):
        return action, action.startswith("find ")

    async def aget_observations(self, trajectory_ids, actions, extra_fields):
        return [f"{action[5:]} for {one}" for one, action in zip(trajectory_ids, actions, strict=True)], [False], [True]


@register_tool
class BatchTool(BaseTool):
    """Overrides what answers a batch, and forgets conduct_action()."""

    tool_type = "batch"

    def parse_action(self, action):
        return action, action.startswith("batch ")

    def get_observations(self, trajectory_ids, actions, extra_fields):
        time.sleep(0.01)
        return [f"{len(actions)}: {actions[0]} {extra_fields[0].get('word')}"], [False], [True]


@register_tool
class AsyncTool(BaseTool):
    """One coroutine."""

    tool_type = "awaited"

    def parse_action(self, action):
        return action, action.startswith("await ")

    async def conduct_action(self, trajectory_id, action, extra_field):
        return action.upper(), False, True


@register_tool
class WitnessTool(BaseTool):
    """Tells of the others."""

    tool_type = "witness"

    def parse_action(self, action):
        return action, action == "who was deleted?"

    def conduct_action(self, trajectory_id, action, extra_field):
        return " ".join(deleted), False, True


class Unregistered(BaseTool):
    """A base of somebody's own."""

    tool_type = "unregistered"
