"""Files in and out of a node over the ToolServer's wire: cases 130 to 132, and everything that can go wrong."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx2
import pytest

from tests.wires.toolserver_wire import Node
from tests.wires.wire import until
from toolyard import ToolError, tool
from toolyard.core.workspace import Workspace
from toolyard.protocols.toolserver.files import _disposition
from toolyard.testing import Running, running
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.sandboxed import SandboxedToolset, SessionSandbox

pytestmark = pytest.mark.anyio

BODY_MOST = 2 * 2**20


class Programs(SandboxedToolset):
    @tool
    async def run(self, code: str) -> str:
        """Run Python to its end."""
        finished = await (await self.sandbox()).run(["python3", "-c", "import os\n" + code], timeout=60)
        if finished.exit_code:
            raise ToolError(finished.stderr.decode())
        return finished.stdout.decode()


class Yard(ToolsEnvironment):
    toolsets = (FileSystemEnv, Programs)

    def workspace(self) -> Workspace:
        return SessionSandbox.of(self)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([Yard], body_bytes=BODY_MOST) as server:
        yield server


@pytest.fixture
async def node(served: Running) -> AsyncIterator[Node]:
    async with Node(served.url) as node:
        await node.cookie()
        yield node
        await node.post("/release_session")


async def upload(node: Node, name: str, content: bytes = b"content") -> httpx2.Response:
    """Like the real client: two parts, the second repeats the name."""
    parts = {"file": (name, content), "filename": ("filename", name.encode())}
    return await node.post("/upload_file", files=parts)


async def raw(node: Node, disposition: bytes, content: bytes = b"content") -> httpx2.Response:
    """A handwritten form."""
    body = b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n--b--\r\n" % (disposition, content)
    return await node.post("/upload_file", content=body, headers={"content-type": "multipart/form-data; boundary=b"})


async def download(node: Node, path: Any, **more: Any) -> httpx2.Response:
    return await node.post("/download_file", json={"file_path": path, **more})


async def names(node: Node) -> list[str]:
    structure = await node.answer("/get_workspace_structure")
    assert (structure["name"], structure["type"]) == ("workspace", "directory")
    return [child["name"] for child in structure["children"]]


def packed(response: httpx2.Response) -> dict[str, bytes]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/zip"
    assert response.headers["content-disposition"] == 'attachment; filename="workspace.zip"'
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# Uploads.


async def test_130_an_uploaded_file_is_in_the_workspace(node: Node) -> None:
    response = await upload(node, "a.txt", b"l1\r\nl2\0\xff")
    assert (response.status_code, response.json()) == (200, {"message": "Upload Success!"})
    assert (await download(node, "a.txt")).content == b"l1\r\nl2\0\xff"
    assert await names(node) == ["a.txt"]
    await upload(node, "a.txt", b"")
    assert (await download(node, "a.txt")).content == b""


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("../../x", "x"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\x", "x"),
        ("C:\\Users\\me\\x.txt", "x.txt"),
        ("a/b\\c", "c"),
        ("näme 文件.txt", "näme 文件.txt"),
        ("~", "~"),
        ("-rf", "-rf"),
        ("x; rm *", "x; rm *"),
        ("~root", "~root"),
        ("...", "..."),
    ],
)
async def test_130_a_file_is_stored_under_the_last_part_of_its_name(node: Node, given: str, stored: str) -> None:
    response = await upload(node, given)
    assert response.status_code == 200, response.text
    assert await names(node) == [stored]


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "a/", "a\\", "../", "x" * 256, "ä" * 128])
async def test_names_that_no_file_can_have_are_422(node: Node, name: str) -> None:
    response = await raw(node, b'name="file"; filename="%b"' % name.encode())
    assert response.status_code == 422, response.text
    assert response.json()["detail"][0]["loc"] == ["body", "file"]
    assert await names(node) == []


@pytest.mark.parametrize("name", [b"a\x00b", b"a\x1b[31m", b"a\x7f", "a\u202eb".encode(), b"a%0d\x0bb"])
async def test_names_with_characters_that_cannot_be_seen_are_422(node: Node, name: bytes) -> None:
    response = await raw(node, b'name="file"; filename="%b"' % name)
    assert response.status_code in (400, 422), response.text
    assert await names(node) == []


async def test_a_name_that_is_no_utf8_is_stored_as_one_that_is(node: Node) -> None:
    assert (await raw(node, b'name="file"; filename="caf\xe9"')).status_code == 200
    assert await names(node) == ["café"]
    assert (await raw(node, b"name=\"file\"; filename*=utf-8''na%C3%AFve%20b")).status_code == 200
    assert await names(node) == ["café", "naïve b"]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"json": {"file": "x"}},
        {"data": {"file": "x"}},
        {"files": {"other": ("x", b"x")}},
        {"files": {"filename": ("filename", b"x")}},
        {"files": {"file": (None, b"not a file")}},
        {"content": b"x", "headers": {"content-type": "multipart/mixed; boundary=x"}},
    ],
)
async def test_an_upload_without_its_file_is_422(node: Node, request_: dict[str, Any]) -> None:
    response = await node.post("/upload_file", **request_)
    assert response.status_code == 422, response.text
    (problem,) = response.json()["detail"]
    assert problem["loc"] == ["body", "file"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=", b"x"),
        ("multipart/form-data; boundary=b", b"no form at all"),
        ("multipart/form-data; boundary=b", b"--b\r\nno colon\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 300, b"--" + b"b" * 300 + b"\r\n"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n' * 9,
        ),
    ],
)
async def test_a_broken_form_is_refused(node: Node, kind: str, content: bytes) -> None:
    response = await node.post("/upload_file", content=content, headers={"content-type": kind})
    assert response.status_code in (400, 422), response.text
    assert response.json()["detail"]
    assert await names(node) == []


@pytest.mark.parametrize(
    "disposition",
    [
        b'name="file"; filename*0=a; filename*;=b',
        b"name=file; filename*=nonsense''%FF%00",
        b'name="file"; filename="x"; x="' + b"y" * 5000 + b'"',
        b'filename="x"',
        b"",
    ],
)
async def test_a_broken_header_is_refused(node: Node, disposition: bytes) -> None:
    response = await raw(node, disposition)
    assert response.status_code in (400, 422), response.text
    assert await names(node) == []


async def test_a_form_that_ends_too_soon_leaves_no_file(node: Node) -> None:
    content = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhalf of it'
    response = await node.post(
        "/upload_file", content=content, headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert response.status_code == 422, response.text
    assert await names(node) == []


async def test_a_form_of_many_parts_is_refused_and_forms_that_are_slow_to_read_hold_up_nobody(node: Node) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = await node.post("/upload_file", content=part * 10_000 + b"--b--\r\n", headers=headers)
    assert response.status_code == 400, response.text
    for filling in (b"\r", b"\r\n", b"\r\n-", b"\r\n--", b"-b"):
        body = part + filling * ((BODY_MOST - 300) // len(filling)) + b"\r\n--b--\r\n"
        began = time.monotonic()
        response = await node.post("/upload_file", content=body, headers=headers)
        assert response.status_code in (200, 400), response.text
        assert time.monotonic() - began < 10, filling


async def test_an_upload_is_bounded_by_the_body_and_by_the_disk(node: Node) -> None:
    assert (await upload(node, "large", bytes(BODY_MOST))).status_code == 413
    fill = "try:\n    for n in range(9): open(f'f{n}', 'wb').write(bytes(60_000_000))\nexcept OSError: pass"
    await node.execute("run", code=fill)
    response = await upload(node, "more", bytes(BODY_MOST // 2))
    assert response.status_code == 413, response.text
    assert "No space left" in response.json()["detail"]


async def test_an_upload_to_a_node_that_was_released_meanwhile_goes_nowhere(served: Running) -> None:
    async with Node(served.url) as node:
        await node.cookie()
        form = b"--b\r\nContent-Disposition: form-data; name=file; filename=a.txt\r\n\r\n"

        async def slowly() -> AsyncIterator[bytes]:
            yield form
            assert await node.answer("/release_session")
            yield b"content\r\n--b--\r\n"

        kind = {"content-type": "multipart/form-data; boundary=b"}
        response = await node.post("/upload_file", content=slowly(), headers=kind)
        assert (response.status_code, response.json()["detail"]) == (503, "node is not responding")
    await until(lambda: (served.server.sandboxes.count or (1, 0))[0] == 0)


async def test_an_upload_does_not_go_through_a_link_that_leads_out_nor_into_what_is_no_file(node: Node) -> None:
    await node.execute("run", code="os.symlink('/tmp/x', 'out'); os.mkdir('folder'); os.mkfifo('pipe')")
    with anyio.fail_after(10):
        for name, status in {"out": 404, "folder": 400, "pipe": 400}.items():
            assert (await upload(node, name)).status_code == status, name
    assert await node.execute("run", code="print(os.path.exists('/tmp/x'))") == "False\n"


# Downloads.


async def test_131_a_file_is_downloaded_by_its_path_with_or_without_the_name_of_the_workspace(node: Node) -> None:
    await node.execute("FileSystemEnv_write_to_file", filepath="sub/a.txt", content="text")
    for path in ("sub/a.txt", "workspace/sub/a.txt", "./sub/../sub/a.txt", "/home/work/sub/a.txt"):
        response = await download(node, path)
        assert (response.status_code, response.content) == (200, b"text\n"), path
        assert response.headers["content-disposition"] == 'attachment; filename="a.txt"'
        assert response.headers["content-type"] == "text/plain"
        assert response.headers["x-content-type-options"] == "nosniff"
    await node.execute("run", code="os.mkdir('workspace'); open('workspace/b', 'w').write('inner')")
    for path in ("workspace/b", "workspace/workspace/b"):
        assert (await download(node, path)).content == b"inner"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../secret", 404),
        ("workspace/../../secret", 404),
        ("/etc/passwd", 404),
        ("//etc/passwd", 404),
        ("link", 404),
        ("etc/passwd", 404),
        ("missing", 404),
        ("workspace/missing", 404),
        ("\udcff", 404),
        ("folder", 400),
        ("", 400),
        (".", 400),
        ("workspace", 404),
        ("pipe", 400),
        ("socket", 400),
        ("round", 400),
        ("file/x", 400),
        ("a\0b", 400),
        ("x" * 300, 400),
        ("x/" * 3000, 400),
        ("\ud800", 400),
    ],
)
async def test_131_what_is_outside_or_no_file_is_4xx_and_nobody_waits(node: Node, path: str, status: int) -> None:
    make = (
        "import socket; os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'etc'); os.mkdir('folder')\n"
        "os.mkfifo('pipe'); socket.socket(1).bind('socket'); os.symlink('round', 'round'); open('file', 'w').close()"
    )
    await node.execute("run", code=make)
    with anyio.fail_after(10):
        response = await node.post(
            "/download_file", content=b'{"file_path": "%b"}' % path.encode("unicode_escape").replace(b"\\x", b"\\u00")
        )
    assert response.status_code == status, response.text
    assert isinstance(response.json()["detail"], str)
    assert "root:" not in response.text


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"file_path": 3}', b'{"file_path": ["a"]}', b"{"])
async def test_a_download_that_does_not_say_of_what_is_422(node: Node, body: bytes) -> None:
    response = await node.post("/download_file", content=body)
    assert response.status_code == 422, response.text
    assert isinstance(response.json()["detail"], list)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("image/png", "image/png"),
        ("text/html; charset=utf-8", "text/html; charset=utf-8"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ("text/plain\r\nSet-Cookie: a=b", "application/octet-stream"),
        ("text/plain\n", "application/octet-stream"),
        ("nonsense", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("tëxt/plain", "application/octet-stream"),
        ("a/" + "b" * 10_000, "application/octet-stream"),
    ],
)
async def test_the_type_of_a_download_is_the_one_asked_for_if_it_is_one(node: Node, asked: str, answered: str) -> None:
    await upload(node, "a")
    response = await download(node, "a", file_type=asked)
    assert response.headers["content-type"] == answered
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a b.txt", 'attachment; filename="a b.txt"'),
        ('q"; x="y', "attachment; filename=\"q__ x__y\"; filename*=UTF-8''q%22%3B%20x%3D%22y"),
        ("a\r\nCookie: b", "attachment; filename=\"a__Cookie_ b\"; filename*=UTF-8''a%0D%0ACookie%3A%20b"),
        ("näme", "attachment; filename=\"n_me\"; filename*=UTF-8''n%C3%A4me"),
        ("\udcff", "attachment; filename=\"_\"; filename*=UTF-8''%FF"),
    ],
)  # fmt: skip
async def test_the_name_of_a_download_cannot_add_to_the_header(node: Node, name: str, header: str) -> None:
    assert _disposition(name) == header
    await node.execute("run", code=f"open(os.fsencode({name!a}), 'w').write('x')")
    response = await node.post(
        "/download_file",
        content=b'{"file_path": "%b"}' % name.encode("unicode_escape").replace(b'"', b'\\"').replace(b"\\x", b"\\u00"),
    )
    assert response.status_code == 200, response.text
    assert response.headers["content-disposition"] == header
    assert "cookie" not in response.headers


async def test_a_workspace_that_is_too_large_to_be_saved_is_not_downloaded() -> None:
    with running([Yard], sandbox_disk_bytes=2**20) as server:
        async with Node(server.url) as node:
            await node.cookie()
            await node.execute("run", code="for n in range(3): open(f'hole{n}', 'wb').truncate(60_000_000)")
            with anyio.fail_after(30):
                response = await node.post("/download_workspace")
            assert response.status_code == 413, response.text
            assert "larger than" in response.json()["detail"]
            assert (await download(node, "hole0")).content == bytes(60_000_000)


# All of it.


async def test_132_a_workspace_is_downloaded_as_an_archive_of_relative_names(node: Node) -> None:
    assert packed(await node.post("/download_workspace")) == {}
    await node.execute("FileSystemEnv_write_to_file", filepath="sub/a.txt", content="text")
    await upload(node, "b.bin", b"\0\xff")
    assert packed(await node.post("/download_workspace")) == {"b.bin": b"\0\xff", "sub/": b"", "sub/a.txt": b"text\n"}
    assert await node.answer("/get_workspace_structure") == {
        "name": "workspace",
        "type": "directory",
        "children": [
            {"name": "b.bin", "type": "file"},
            {"name": "sub", "type": "directory", "children": [{"name": "a.txt", "type": "file"}]},
        ],
    }


async def test_an_archive_has_nothing_of_the_host_and_names_that_do_no_harm(node: Node) -> None:
    make = (
        r"import socket; os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'etc'); os.symlink('..', 'up')"
        "\n"
        r"os.mkfifo('pipe'); socket.socket(1).bind('socket'); os.mkdir('.toolyard')"
        "\n"
        r"for name in (b'..\\..\\x', b'new\nline', b'\xff', b'q\"'): open(name, 'w').close()"
        "\n"
        r"os.makedirs('d/' * 200); open('d/' * 200 + 'bottom', 'w').write('deep')"
    )
    await node.execute("run", code=make)
    with anyio.fail_after(20):
        found = packed(await node.post("/download_workspace"))
    assert found.pop("d/" * 200 + "bottom") == b"deep"
    assert sorted(name for name in found if not name.endswith("/")) == ["%FF", "..%5C..%5Cx", "new%0Aline", 'q"']
    assert set(found.values()) == {b""}
    with anyio.fail_after(10):
        shown = await names(node)
    assert shown == ["..\\..\\x", "d", "etc", "link", "new\nline", 'q"', "up", "\udcff"]


async def test_a_workspace_of_thousands_of_files_is_told_and_packed_in_time(node: Node) -> None:
    code = "for f in range(400):\n    os.mkdir(f'{f}')\n    for n in range(15): open(f'{f}/{n}', 'w').write('x')"
    await node.execute("run", code=code)
    with anyio.fail_after(10):
        assert (await node.post("/get_workspace_structure")).content.count(b'"name"') == 400 * 16 + 1
    with anyio.fail_after(20):
        assert len(packed(await node.post("/download_workspace"))) == 400 * 16


async def test_two_nodes_have_nothing_in_common(node: Node, served: Running) -> None:
    await upload(node, "mine")
    async with Node(served.url) as other:
        await other.cookie()
        assert await names(other) == []
        assert (await download(other, "mine")).status_code == 404
        await other.post("/release_session")


async def test_files_survive_a_node_that_is_closed_and_reconnected(node: Node) -> None:
    await upload(node, "kept", b"x" * 1_000_000)
    await node.execute("run", code="os.makedirs('a/b'); os.chmod('a/b', 0o750); os.symlink('kept', 'link')")
    await node.answer("/close_session")
    assert (await download(node, "kept")).status_code == 503
    await node.answer("/reconnect_session")
    assert (await download(node, "link")).content == b"x" * 1_000_000
    assert await node.execute("run", code="print(oct(os.stat('a/b').st_mode))") == "0o40750\n"
