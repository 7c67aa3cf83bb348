"""`http_protocol.py` and `web_socket.py` use parts of uvicorn that it does not promise to keep. If a new version
changes one, this test fails first and names it, before others fail in obscure ways."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

METHODS = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "send_400_response": ["self", "msg"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "_start_asgi_task": ["self", "cycle", "app"],
    "shutdown": ["self"],
}
"""What we override or replace."""
OURS_ALONE = {"look", "unsent", "expire", "give_up", "hold", "release", "abort", "turn", "received", "_known", "_begun"}
"""Names that we add. uvicorn must not have them."""
OF_A_CONNECTION = {
    *("app", "app_state", "access_log", "access_logger", "cycle", "flow", "headers", "limit_concurrency", "logger"),
    *("loop", "parser", "pipeline", "scope", "server_state", "tasks", "transport"),
}
OF_A_CYCLE = {
    *("scope", "transport", "flow", "default_headers", "message_event", "on_response", "disconnected", "keep_alive"),
    *("waiting_for_100_continue", "body", "more_body", "response_started", "response_complete"),
}
CYCLE = [
    *("self", "scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers"),
    *("message_event", "expect_100_continue", "keep_alive", "on_response"),
]


def parameters(of: object) -> list[str]:
    return list(inspect.signature(of).parameters)  # type: ignore[arg-type]


def connection() -> HttpToolsProtocol:
    async def app(scope, receive, send): ...

    return HttpToolsProtocol(uvicorn.Config(app, log_config=None), ServerState(), {}, _loop=object())


@pytest.mark.parametrize(("name", "wanted"), METHODS.items())
def test_a_protocol_of_uvicorn_has_the_methods_that_we_replace(name: str, wanted: list[str]):
    found = getattr(HttpToolsProtocol, name, None)
    assert found is not None, f"uvicorn {version('uvicorn')} has no HttpToolsProtocol.{name}, which we replace"
    assert parameters(found) == wanted, f"HttpToolsProtocol.{name} of uvicorn {version('uvicorn')} has other parameters"


def test_a_protocol_of_uvicorn_has_the_attributes_that_we_use_and_none_of_ours():
    made = connection()
    missing = {name for name in OF_A_CONNECTION if not hasattr(made, name)}
    assert not missing, f"HttpToolsProtocol of uvicorn {version('uvicorn')} has no {missing}"
    taken = {name for name in OURS_ALONE if hasattr(made, name)}
    assert not taken, f"HttpToolsProtocol of uvicorn {version('uvicorn')} has {taken}, which we took for other things"


def test_uvicorn_makes_an_exchange_as_we_do():
    found = parameters(RequestResponseCycle.__init__)
    assert found == CYCLE, f"RequestResponseCycle of uvicorn {version('uvicorn')} is made of other things"
    cycle = RequestResponseCycle(**dict.fromkeys(CYCLE[1:], None))  # type: ignore[arg-type]
    missing = {name for name in OF_A_CYCLE if not hasattr(cycle, name)}
    assert not missing, f"RequestResponseCycle of uvicorn {version('uvicorn')} has no {missing}"
    assert isinstance(cycle.body, bytearray), "the body of an exchange is not a bytearray, to which we add"
    assert cycle.more_body is True, "an exchange begins with a body that is complete"


def test_requests_in_a_pipeline_wait_where_we_look():
    source = inspect.getsource(HttpToolsProtocol.on_headers_complete)
    for line in ("self.pipeline.appendleft((self.cycle, app))", "self.flow.pause_reading()", 'self.scope["path"]'):
        assert line in source, f"on_headers_complete of uvicorn {version('uvicorn')} does no {line}"
    source = inspect.getsource(HttpToolsProtocol.on_response_complete)
    assert "self.pipeline.pop()" in source, "uvicorn takes the next of a pipeline from its other end"


def test_reading_is_paused_as_we_do_it():
    assert HIGH_WATER_LIMIT == 65536
    flow = FlowControl(object())  # type: ignore[arg-type]
    assert (flow.read_paused, flow.write_paused) == (False, False)
    assert parameters(FlowControl.resume_reading) == parameters(FlowControl.pause_reading) == ["self"]


def test_the_parser_says_where_it_stopped_for_an_upgrade():
    class Nothing:
        def on_headers_complete(self): ...

    parser = httptools.HttpRequestParser(Nothing())
    head = b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as stopped:
        parser.feed_data(memoryview(head + b"rest"))
    assert stopped.value.args == (len(head),), "httptools does not say where it stopped, or not behind the head"


def test_uvicorn_calls_what_makes_a_protocol_and_does_not_look_at_it():
    def makes(**_: object) -> None: ...

    config = uvicorn.Config(lambda: None, http=makes, log_config=None)  # type: ignore[arg-type]
    config.load()
    assert config.http_protocol_class is makes
    assert "config.http_protocol_class(" in inspect.getsource(uvicorn.Server.startup)


SOCKET_METHODS = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "send_receive_event_to_app": ["self"],
    "handle_parser_exception": ["self"],
    "receive": ["self"],
}
OF_A_SOCKET = {
    *("conn", "frames", "read_paused", "handshake_complete", "close_sent", "transport", "logger", "connections"),
}
OURS_IN_A_SOCKET = {"look", "unsent", "expire", "give_up", "hold", "release", "abort", "turn", "received", "_is_held"}


def test_a_socket_of_uvicorn_is_as_we_extend_it():
    config = uvicorn.Config(lambda: None, log_config=None, ws_per_message_deflate=False)  # type: ignore[arg-type]
    made = WebSocketsSansIOProtocol(config, ServerState(), {}, _loop=object())  # type: ignore[arg-type]
    for name, wanted in SOCKET_METHODS.items():
        found = getattr(WebSocketsSansIOProtocol, name, None)
        assert found is not None, f"uvicorn {version('uvicorn')} has no WebSocketsSansIOProtocol.{name}"
        assert parameters(found) == wanted, f"WebSocketsSansIOProtocol.{name} has other parameters"
    missing = {name for name in OF_A_SOCKET if not hasattr(made, name)}
    assert not missing, f"WebSocketsSansIOProtocol of uvicorn {version('uvicorn')} has no {missing}"
    taken = {name for name in OURS_IN_A_SOCKET if hasattr(made, name)}
    assert not taken, f"WebSocketsSansIOProtocol of uvicorn {version('uvicorn')} has {taken}"
    assert isinstance(made.conn.reader.buffer, bytearray), "websockets holds what it has not parsed elsewhere"
    assert not made.conn.extensions, "uvicorn compresses messages although it is told not to"


def test_versions_of_uvicorn_that_nobody_has_tried_are_not_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [wanted] = [line for line in project["dependencies"] if line.startswith("uvicorn")]
    assert "<" in wanted, f"{wanted}: its next version may change what this file names"
