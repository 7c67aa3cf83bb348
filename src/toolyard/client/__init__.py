"""The client: `Client` for plain code, `AsyncClient` for asyncio, and the errors that they raise."""

from __future__ import annotations

from toolyard.client.aio import AsyncClient, AsyncEnvironment, AsyncSession
from toolyard.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    InfrastructureError,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    SessionGone,
    ToolCallFailed,
    ToolLost,
)
from toolyard.client.formats import Format
from toolyard.client.outcome import SessionOutcome
from toolyard.client.sync import Client, Environment, Session
from toolyard.client.talk import AgentUrl, Task

__all__ = [
    "AgentUrl",
    "AsyncClient",
    "AsyncEnvironment",
    "AsyncSession",
    "AuthenticationFailed",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Environment",
    "Format",
    "InfrastructureError",
    "RequestRefused",
    "ServerBusy",
    "ServerFailed",
    "Session",
    "SessionGone",
    "SessionOutcome",
    "Task",
    "ToolCallFailed",
    "ToolLost",
]
