"""Every error this package raises on purpose.

    ToolyardError
      DefinitionError         the author's class is wrong; raised when it is defined or registered
      ToolError               the author's tool reports its own failure; the session goes on
      RequestError            the caller asked for something that is not here
        EnvironmentNotFound
        SplitNotFound
        TaskNotFound
        ToolsetUnavailable    the client asked for a toolset that is not there, or that this environment cannot use
        SessionNotFound
        CallNotFound
        CallConflict          a client's own id for a call names another call already, or there are too many of them
        NotSupported          this environment does not offer that
        GrantNotFound         an agent's token is unknown, expired or revoked, or its session is over
      SessionExists           the session id is taken
      SessionFailed           the author's constructor or setup() raised
      SessionClosed           the session ended while a request waited for it
      TooManyGrants           the session has as many tokens for agents as it may have
      Overloaded              a limit is reached; try again later
      SandboxError            untrusted code could not be run, through no fault of its own
        NoRoom                there is no room for another sandbox now; try again later
        SandboxUnavailable    this host cannot isolate as well as was asked for
        SandboxLost           the sandbox died or was closed
        CannotFork            something in the session cannot be copied
      ServiceUnavailable      a server that a tool asks, such as a search engine, does not answer as it should
      ClusterUnavailable      the cluster for sessions cannot be joined
      ModelUnavailable        the model for tool search is not installed, or incomplete
      WorkspaceError          a file of a sandbox's workspace cannot be read, written or listed
      ProcessError            a running program in a sandbox does not accept input
      BrowserError            the browser could not show a page, through no fault of the page
        BrowserUnavailable    there is no browser here, it did not start, or too many sessions use it
        BrowserLost           the browser died or was closed, and the session's pages with it

A tool that raises is none of these: it becomes a `ToolFailure`, which is data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToolyardError(Exception):
    """Base of the tree."""


class DefinitionError(ToolyardError):
    """An environment, toolset or tool is written in a way that cannot be served."""


class ToolError(ToolyardError):
    """Raise it in a tool for a failure that the agent should read and that must not end the session.

    `detail` says the same to a program, on wires that can carry it.
    """

    def __init__(self, message: object = "", detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class RequestError(ToolyardError):
    """The request names something that does not exist here."""


class EnvironmentNotFound(RequestError):
    pass


class SplitNotFound(RequestError):
    pass


class TaskNotFound(RequestError):
    pass


class ToolsetUnavailable(RequestError):
    pass


class SessionNotFound(RequestError):
    pass


class CallNotFound(RequestError):
    pass


class CallConflict(RequestError):
    """The client's id already names another call of this session. Nothing ran."""


class NotSupported(RequestError):
    pass


class GrantNotFound(RequestError):
    pass


class TooManyGrants(ToolyardError):
    pass


class SessionExists(ToolyardError):
    pass


class SessionFailed(ToolyardError):
    """The session cannot answer. The message is what the author's code raised."""


class SessionClosed(ToolyardError):
    pass


class Overloaded(ToolyardError):
    """A limit is reached. Ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxError(ToolyardError):
    """The sandbox could not do its work. A program that fails in it is a result, not this error."""


class NoRoom(SandboxError):
    """The host has no room for another sandbox; try again later. Nothing was made."""

    retry_after = 5


class SandboxUnavailable(SandboxError):
    """This host cannot make a sandbox. The message says what is missing and how to get it."""


class SandboxLost(SandboxError):
    pass


class CannotFork(SandboxError):
    pass


class ServiceUnavailable(ToolyardError):
    """Raise it in a tool when a service that it uses fails. The call counts as lost, and the agent is not blamed."""


class ClusterUnavailable(ToolyardError):
    """The cluster that sessions run on cannot be joined, or does not answer."""


class ModelUnavailable(ToolyardError):
    """The model for tool search is missing or incomplete. The message says what to install."""


class WorkspaceError(ToolyardError):
    """A file of the workspace cannot be read, written or listed. The message names its path."""


class ProcessError(ToolyardError):
    """The caller wrote to a program that has ended, or that does not read."""


class BrowserError(ToolyardError):
    """The browser could not do its work. A page that fails is a result that the agent reads, not this error."""


class BrowserUnavailable(BrowserError):
    pass


class BrowserLost(BrowserError):
    pass


def describe(error: BaseException) -> str:
    """The error as clients see it: `ValueError: its message`."""
    return f"{type(error).__name__}: {error}"
