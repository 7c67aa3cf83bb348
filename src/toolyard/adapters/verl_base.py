"""Stands in for `verl_tool.servers.tools.base`, for tools that need nothing else of verl-tool. Written from scratch.

It is loaded under that name, and only where verl-tool is not installed.
"""

from __future__ import annotations

from typing import Any, TypeVar

C = TypeVar("C", bound=type)

registered_tools: dict[str, type] = {}
ALL_TOOLS: list[str] = []
use_tqdm = False


def register_tool(cls: C) -> C:
    registered_tools[getattr(cls, "tool_type", cls.__name__)] = cls
    return cls


class BaseTool:
    """A tool, with its state for each trajectory. One instance serves all trajectories."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.env_cache: dict[str, Any] = {}

    def get_usage_inst(self) -> str:
        return ""

    def parse_action(self, action: str) -> tuple[Any, bool]:
        """The action in the text, and whether it is for this tool."""
        return action, True

    def get_action_priority(self, action: str, extra_field: dict[str, Any]) -> int:
        return 0 if self.parse_action(action)[1] else -1

    def conduct_action(self, trajectory_id: str, action: str, extra_field: dict[str, Any]) -> tuple[Any, bool, bool]:
        """The observation, whether the trajectory is over, and whether the action was valid."""
        raise NotImplementedError(f"{type(self).__name__} has no conduct_action()")

    def get_observations(
        self, trajectory_ids: list[str], actions: list[str], extra_fields: list[dict[str, Any]]
    ) -> tuple[list[Any], list[bool], list[bool]]:
        answers = [self.conduct_action(*asked) for asked in zip(trajectory_ids, actions, extra_fields, strict=True)]
        self.maybe_cleanup_env(trajectory_ids, actions, extra_fields)
        observations, dones, valids = map(list, zip(*answers, strict=True))
        return observations, dones, valids

    # The state of trajectories.

    def has_env(self, trajectory_id: str) -> bool:
        return trajectory_id in self.env_cache

    def load_env(self, trajectory_id: str) -> Any:
        """The saved state, or an initial one."""
        if (found := self.env_cache.get(trajectory_id)) is not None:
            return found
        return {"trajectory_id": trajectory_id, "metadata": {"turns": 0}, "previous_obs": []}

    def save_env(self, trajectory_id: str, env: Any) -> None:
        self.env_cache[trajectory_id] = env

    def update_env(  # noqa: PLR0917  # the order is verl-tool's
        self,
        trajectory_id: str,
        env: Any,
        action: Any,
        is_valid: bool,
        extra_field: dict[str, Any],
        observation: Any,
        **more: Any,
    ) -> None:
        """Add one turn to the state."""
        turn = {"action": action, "is_valid": is_valid, "observation": observation, "extra_field": extra_field}
        env["metadata"]["turns"] += 1
        env["previous_obs"].append({**turn, **more})

    def delete_env(self, trajectory_id: str) -> None:
        self.env_cache.pop(trajectory_id, None)

    def get_env_cache_keys(self) -> list[str]:
        return list(self.env_cache)

    def maybe_cleanup_env(
        self, trajectory_ids: list[str], actions: list[str], extra_fields: list[dict[str, Any]]
    ) -> None:
        for trajectory_id, extra_field in zip(trajectory_ids, extra_fields, strict=True):
            if extra_field.get("is_last_step") and self.has_env(trajectory_id):
                self.delete_env(trajectory_id)
