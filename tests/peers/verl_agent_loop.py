"""What verl-tool's clients do on the wire, rewritten from what is known of them: its agent loop, its evaluation service
and its test scripts. They are as strict, and as impatient, as the originals.
"""

from __future__ import annotations

import asyncio
import re
import socket
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import aiohttp
import numpy
import requests

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
LONGEST = 100_000
PAUSE = 1.0
"""Seconds before a retry."""
NOT_STATS = {"observations", "dones", "valids", "processing_time_ms", "success"}


def cleaned(value: Any) -> Any:
    """Without control characters, and with arrays as lists."""
    if isinstance(value, numpy.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {cleaned(key): cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(cleaned(one) for one in value)
    return CONTROL.sub("", value) if isinstance(value, str) else value


class AgentLoop:
    """The request methods of the agent loop. One trajectory per request, and one session for all of them."""

    def __init__(self, url: str, *, timeout: float | None = 30, retries: int = 1, connections: int = 1024) -> None:
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self.failures: list[str] = []
        """Why a request was repeated or given up."""
        self._closing: set[asyncio.Task[None]] = set()
        self._connections = connections

    async def __aenter__(self) -> AgentLoop:
        many = self._connections
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            connector=aiohttp.TCPConnector(limit=many, limit_per_host=many, ttl_dns_cache=300, family=socket.AF_INET),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.closed()
        await self._session.close()

    async def closed(self) -> None:
        """Wait until every finish has been answered; raises the error of any."""
        while self._closing:
            await asyncio.gather(*self._closing)

    async def post(self, payload: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for _ in range(self.retries + 1):
            try:
                async with self._session.post(self.url, json=payload) as response:
                    response.raise_for_status()
                    answer = await response.json()
                    answer["success"] = True
                    answer["X-Process-Time"] = float(response.headers.get("X-Process-Time", "0.0"))
                    return answer
            except TimeoutError:
                answer = self._failed(f"Tool call timeout after {self.timeout} seconds.")
            except aiohttp.ClientConnectorError as error:
                answer = self._failed(f"Tool server connection error: {error}.")
            except Exception as error:
                answer = self._failed(f"Tool call error: {error}.")
            await asyncio.sleep(PAUSE)
        return answer

    def _failed(self, why: str) -> dict[str, Any]:
        self.failures.append(why)
        return {"observations": [why], "dones": [1], "valids": [0], "processing_time_ms": 0.0, "success": False}

    async def interact(
        self, trajectory: str, action: str, extra: dict[str, Any] | None = None, *, last: bool = False
    ) -> dict[str, Any]:
        """One action, and everything that the trainer keeps of it."""
        payload: dict[str, Any] = {
            "trajectory_ids": [trajectory],
            "actions": [action],
            "finish": [False],
            "is_last_step": [last],
        }
        if extra is not None:
            payload["extra_fields"] = [extra]
        answer = await self.post(cleaned(payload))
        info = read_observation(answer["observations"][0])
        info |= {
            "done": int(answer["dones"][0]),
            "valid_action": int(answer["valids"][0]),
            "processing_time_ms": float(answer.get("processing_time_ms", 0.0)),
            "success": answer["success"],
        }
        stats = {name: value for name, value in answer.items() if name not in NOT_STATS and isinstance(value, float)}
        return {**info, **stats}

    def close(self, trajectory: str) -> None:
        """Send the finish of a trajectory without waiting for the answer."""
        payload = {"trajectory_ids": [trajectory], "actions": [""], "finish": [True], "is_last_step": [True]}
        task = asyncio.ensure_future(self._close(payload))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, payload: dict[str, Any]) -> None:
        answer = await self.post(payload)
        assert answer["success"], answer


def read_observation(observation: Any) -> dict[str, Any]:
    """A string, or an object with a string `obs`; a reward is a number or absent. Anything else stops training."""
    if isinstance(observation, str):
        return {"obs": observation[:LONGEST], "reward": None}
    if not isinstance(observation, dict):
        raise ValueError(f"Invalid observation type: {type(observation)}")
    assert "obs" in observation
    text, reward = observation["obs"], observation.get("reward")
    assert isinstance(text, str)
    assert reward is None or isinstance(reward, int | float)
    info = {**observation, "obs": text[:LONGEST], "reward": reward}
    info["metrics"] = {name: float(value) for name, value in observation.get("metrics", {}).items()}
    return info


def new_trajectory() -> str:
    return uuid.uuid4().hex


class EvalService:
    """The evaluation service: all active trajectories in one request, one attempt, no extra fields, no patience."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, ids: Sequence[str], actions: Sequence[str], finish: Sequence[bool]) -> list[tuple[str, bool, bool]]:
        payload = {"trajectory_ids": list(ids), "actions": list(actions), "finish": list(finish)}
        response = requests.post(self.url, json=cleaned(payload), timeout=60)
        response.raise_for_status()
        answer = response.json()
        told = [
            "" if done else observation
            for observation, done in zip(answer["observations"], answer["dones"], strict=True)
        ]
        return [
            (tokenized(text), done, valid)
            for text, done, valid in zip(told, answer["dones"], answer["valids"], strict=True)
        ]


def tokenized(text: str) -> str:
    """A tokenizer takes only text."""
    if not isinstance(text, str):
        raise TypeError(f"text input must be of type str, not {type(text)}")
    return text


def script(url: str, action: str, trajectory: str = "test-001", **more: Any) -> dict[str, Any]:
    """What verl-tool's test scripts send; some put their parameters beside the lists."""
    payload = {"trajectory_ids": [trajectory], "actions": [action], "extra_fields": [{}], **more}
    response = requests.post(url, json=payload, timeout=60)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer
