"""The errors of a client. The tree keeps failures of the infrastructure apart from those of the agent.

ClientError
  ToolCallFailed            the tool's answer is no: the agent's fault; `reason` says which, and the session goes on
  RequestRefused            the caller asked for something missing or forbidden
  InfrastructureError       no fault of the agent: it must never become a reward
    ToolLost                the call's outcome is unknown or was cut short; `reason` says how
    SessionGone             the server does not have this session any more
    ServerBusy              the server kept saying "later"
    ServerFailed            the server, or the author's setup() or prompt, broke; or its answer makes no sense
    ConnectionLost          the server could not be reached within the client's patience
    AuthenticationFailed    the key is missing or wrong
"""

from __future__ import annotations

from toolyard.core.errors import ToolyardError
from toolyard.core.output import JsonObject


class ClientError(ToolyardError):
    """Base of the tree."""


class ToolCallFailed(ClientError):
    """The message is for the model to read. There is no reward, and the episode goes on.

    `metadata` says to a program which arguments are wrong, or which tools there are, if the server says so.
    `reason` is `no_such_tool`, `bad_arguments`, `tool_failed` (the tool refused), `tool_raised` (the tool broke) or
    `episode_finished`; other servers may have others.
    """

    def __init__(self, reason: str, message: str, metadata: JsonObject | None = None) -> None:
        super().__init__(reason, message, metadata)
        self.reason = reason
        self.message = message
        self.metadata = metadata

    def __str__(self) -> str:
        return self.message


class RequestRefused(ClientError):
    """The request is wrong. `status` is the HTTP status, or None if the client refused without asking the server."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return self.message


class InfrastructureError(ClientError):
    """Leave such an episode out of training, or run it again."""


class ToolLost(InfrastructureError):
    """`reason` is `timed_out`, `lost`, `overloaded` or `cancelled`. The tool may have run, wholly or in part."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


class SessionGone(InfrastructureError):
    pass


class ServerBusy(InfrastructureError):
    pass


class ServerFailed(InfrastructureError):
    pass


class ConnectionLost(InfrastructureError):
    pass


class AuthenticationFailed(InfrastructureError):
    pass
