"""A web site on this machine: the pages of tests/pages, and some misbehaving ones. It records its requests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.installing import install
from toolyard.browser.chromium import find_chromium

PAGES = Path(__file__).parents[1] / "pages"


def chromium() -> str:
    """Installs Chromium where that needs no confirmation."""
    if find_chromium() is None:
        install("chromium")
    found = find_chromium()
    assert found, "these tests need Chromium: apt install chromium"
    return found


class Site(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.connections = 0
        self.closing = threading.Event()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.connections += 1
        return True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"


class _Handler(SimpleHTTPRequestHandler):
    server: Site

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(PAGES))

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        match path:
            case "/echo":
                said = " ".join(f"{name}={values[0]}" for name, values in query.items())
                self._answer(f"<title>Echo</title><p>{said}</p>")
            case "/later":
                time.sleep(float(query["seconds"][0]))
                self._answer("Here it is.")
            case "/redirect":
                self.send_response(302)
                self.send_header("Location", query["to"][0])
                self.send_header("Access-Control-Allow-Origin", "*")
                self.end_headers()
            case "/circle":
                self.send_response(302)
                self.send_header("Location", "/circle")
                self.end_headers()
            case "/download":
                self._answer("data", "application/octet-stream", disposition='attachment; filename="tools.bin"')
            case "/silent":
                self.server.closing.wait()
            case "/unending":
                self._answer("<title>Unending</title><p>The beginning.</p><img src='/silent'>")
            case "/gone":
                self.connection.shutdown(socket.SHUT_RDWR)
            case _:
                super().do_GET()

    def _answer(self, body: str, kind: str = "text/html", disposition: str = "inline") -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body.encode())))
        self.send_header("Content-Disposition", disposition)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Not to the terminal."""


@contextmanager
def serving() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield site
        site.closing.set()
        site.shutdown()
        thread.join()
