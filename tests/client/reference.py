"""A small real server that does as the SDKs' own servers do, where those differ from ours.

It makes the ids of calls itself, answers `unknown task_id` to any other and runs nothing then, writes CRLF, sends the
session id as an event whatever it is asked, and has no `/messages` and no `/task_tools`.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Reference(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.ran = 0
        self.results: dict[str, str] = {}
        self.asked: list[dict[str, Any]] = []
        """The bodies of all requests to `/call`."""
        self.created: list[dict[str, Any]] = []
        self.sessions: set[str] = set()
        self.drop_before_the_name = 0
        self.drop_after_the_name = 0
        """How many of the next calls are dropped there, after the tool ran."""
        self.ignores_ids = False
        """Run every request to `/call`, whatever id it gives."""

    def handle_error(self, request, client_address) -> None:
        """Clients that go away are what this server is for."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Reference

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        match self.path:
            case "/list_environments":
                self.answer(200, ["refenv"])
            case "/refenv/prompt" if self.headers["X-Session-ID"] in self.server.sessions:
                self.answer(200, [{"type": "text", "text": "hello", "detail": None}])
            case "/refenv/tools":
                self.answer(200, {"tools": [{"name": "go", "description": "Go.", "input_schema": None}]})
            case "/refenv/splits":
                self.answer(200, ["train", "odd"])
            case _:
                self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        sid = self.headers["X-Session-ID"]
        match self.path:
            case "/create_session":
                self.stream([("task_id", str(uuid.uuid4())), ("end", "")])
            case "/create":
                self.server.created.append(body)
                self.server.sessions.add(sid)
                self.answer(200, {"sid": sid})
            case "/ping" | "/refenv/call" if sid not in self.server.sessions:
                self.answer(404, {"detail": "Active environment not found"})
            case "/ping":
                self.answer(200, {"status": "ok"})
            case "/delete" | "/delete_session":
                self.server.sessions.discard(sid)
                self.answer(200, {"sid": sid})
            case "/refenv/call":
                self.call(body)
            case _:
                self.answer(404, {"detail": "Not Found"})

    def call(self, body: dict[str, Any]) -> None:
        server = self.server
        server.asked.append(body)
        name = body.get("task_id")
        if name is None or server.ignores_ids:
            name = uuid.uuid4().hex
            server.ran += 1
            output = {"blocks": [{"type": "text", "text": f"run {server.ran}", "detail": None}]}
            server.results[name] = json.dumps(
                {"ok": True, "output": {**output, "metadata": None, "reward": None, "finished": False}}
            )
        elif name not in server.results:
            return self.stream([("error", "unknown task_id")])
        if server.drop_before_the_name:
            server.drop_before_the_name -= 1
            return self.stream([], whole=False)
        if server.drop_after_the_name:
            server.drop_after_the_name -= 1
            return self.stream([("task_id", name)], whole=False)
        result = server.results[name]
        return self.stream([("task_id", name), ("chunk", result[:9]), ("end", result[9:])])

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, events: list[tuple[str, str]], *, whole: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name, data in events:
            text = f"event: {name}\r\ndata: {data}\r\n\r\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
        self.close_connection = not whole


@contextmanager
def reference() -> Iterator[Reference]:
    with Reference() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
