"""The two SDKs, each with its plain and its async client, behind the few differences between them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from common import described


def async_client(sdk: str, api_key: str | None = None, url: str = "") -> Any:
    if sdk == "ors":
        from ors.client import AsyncORS

        return AsyncORS(base_url=url, api_key=api_key)
    from openreward import AsyncOpenReward

    return AsyncOpenReward(api_key=api_key, base_url=url)


def plain_client(sdk: str, api_key: str | None = None, url: str = "") -> Any:
    if sdk == "ors":
        from ors.client import ORS

        return ORS(base_url=url, api_key=api_key)
    from openreward import OpenReward

    return OpenReward(api_key=api_key, base_url=url)


def environment(client: Any, sdk: str, url: str, name: str, variant: bool = True) -> Any:
    """An environment of the server at `url`; `variant` makes openreward's client name it in its paths."""
    if sdk == "ors":
        return client.environments.get(name)
    return client.environments.get(name, variant=name if variant else None, base_url=url)


def task(sdk: str, name: str, spec: dict[str, Any]) -> Any:
    """A task that the client makes up itself."""
    if sdk == "ors":
        from ors.client import Task

        return Task(environment_name=name, task_spec=spec)
    from openreward.api.environments.types import Task

    return Task(server_name=name, environment_name=name, task_spec=spec, namespace=None)


async def close(client: Any) -> None:
    """Close the connections of an async client; neither SDK does it by itself."""
    for session in list(client.environments._clients.values()):
        await session.close()


class Driver:
    """Makes the async client look like the plain one, so that one script covers both."""

    def __init__(self, sdk: str, mode: str, url: str, api_key: str | None = None) -> None:
        self.sdk = sdk
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._async = mode == "async"
        self.client = (async_client if self._async else plain_client)(sdk, api_key, url)

    def do(self, value: Any) -> Any:
        return self._loop.run_until_complete(value) if inspect.isawaitable(value) else value

    def error(self, function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The error that a call raises."""
        try:
            answer = self.do(function(*args, **kwargs))
        except Exception as error:
            return described(error)
        raise AssertionError(f"no error, but {answer!r}")

    def environment(self, name: str, variant: bool = True) -> Any:
        async def get() -> Any:  # the async clients need a running loop here
            return environment(self.client, self.sdk, self.url, name, variant)

        return self.do(get()) if self._async else environment(self.client, self.sdk, self.url, name, variant)

    @contextlib.contextmanager
    def session(self, environment: Any, **kwargs: Any) -> Iterator[Any]:
        session = self.do(self._make(environment, kwargs)) if self._async else environment.session(**kwargs)
        entered = self.do(session.__aenter__()) if self._async else session.__enter__()
        try:
            yield entered
        finally:
            if self._async:
                self.do(session.__aexit__(None, None, None))
            else:
                session.__exit__(None, None, None)

    async def _make(self, environment: Any, kwargs: dict[str, Any]) -> Any:
        return environment.session(**kwargs)

    def close(self) -> None:
        if self._async:
            self.do(close(self.client))
        else:
            self.client.close()
        self._loop.close()
