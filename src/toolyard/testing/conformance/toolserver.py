"""The cases of XAgent's ToolServer: nodes, their tools and their files."""

from __future__ import annotations

import io
import secrets
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from typing import Any

import aiohttp

from toolyard.testing.conformance.case import Chapter, Kit, Untried
from toolyard.testing.conformance.http import Answer, Http, require
from toolyard.testing.conformance.target import Target

_NOBODY = "conform_nobody"
_FILE = "conform.txt"
_OFFER = {"available_envs", "available_tools", "tools_json"}
_MOST_NAMES = 50
_LONGEST = 1024


class ToolServer:
    """Cases that leave a node unchanged share one; the others make their own.

    A server without `/get_cookie` is a node without a manager. It has one workspace, and needs no cookie.
    """

    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._node = ""
        self._bare: bool | None = None
        self._made: set[str] = set()

    async def ask(self, path: str, body: Any = ..., *, node: str = "", method: str = "POST") -> Answer:
        headers = {"Cookie": f"node_id={node}"} if node else {}
        return await self._http.ask(method, path, json=body, headers=headers)

    async def cookie(self, path: str = "/get_cookie", method: str = "POST") -> Answer:
        answer = await self.ask(path, method=method)
        if node := node_of(answer):
            self._made.add(node)
        return answer

    async def is_bare(self) -> bool:
        if self._bare is None:
            self._bare = (await self.cookie()).status in (404, 405)
        return self._bare

    async def require_manager(self) -> None:
        if await self.is_bare():
            raise Untried("this is a node without a manager: it has no /get_cookie")

    async def node(self) -> str:
        if not self._node:
            self._node = await self.new_node()
        return self._node

    async def new_node(self) -> str:
        if await self.is_bare():
            return ""
        answer = (await self.cookie()).require(200)
        require(node := node_of(answer), f"{answer}, without the cookie node_id")
        return node

    async def release(self, node: str) -> Answer:
        """Delete a node that a manager has made."""
        answer = await self.ask("/release_session", node=node)
        self._made.discard(node)
        return answer

    @asynccontextmanager
    async def one_more(self) -> AsyncIterator[str]:
        node = await self.new_node()
        try:
            yield node
        finally:
            if node:
                await self.release(node)

    async def on_node(self, path: str, body: Any = ...) -> Answer:
        return await self.ask(path, body, node=await self.node())

    async def offered(self, body: Any = ...) -> dict[str, Any]:
        answer = (await self.on_node("/get_available_tools", body)).require(200)
        require(answer.object.keys() >= _OFFER, answer)
        found: dict[str, Any] = answer.object
        return found

    async def upload(self, node: str, name: str, content: bytes) -> Answer:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("file", content, filename=name)
        headers = {"Cookie": f"node_id={node}"} if node else {}
        return await self._http.ask("POST", "/upload_file", content=form, headers=headers)

    async def uploaded(self, node: str, name: str = _FILE) -> bytes:
        """Upload a file with unique content, and return the content."""
        content = secrets.token_hex(8).encode()
        answer = await self.upload(node, name, content)
        if answer.status in (404, 405, 501):
            raise Untried(f"the server keeps no files: {answer}")
        require(answer.status == 200 and answer.object.get("message") == "Upload Success!", answer)
        return content

    async def known(self) -> Answer:
        """The answer to a call that succeeds."""
        if not self._target.tool:
            raise Untried("no call is known that succeeds; name one with --tool and --arguments")
        body = {"tool_name": self._target.tool, "arguments": dict(self._target.arguments)}
        return await self.on_node("/execute_tool", body)

    async def close(self) -> None:
        for node in sorted(self._made):
            await self.release(node)


def node_of(answer: Answer) -> str:
    cookie = SimpleCookie(answer.headers.get("set-cookie", ""))
    return cookie["node_id"].value if "node_id" in cookie else ""


async def _speaks(server: ToolServer) -> bool:
    if (await server.ask("/alive", method="GET")).body == b'"alive"':
        return True
    answer = await server.ask("/get_available_tools", {})
    return answer.status == 200 and answer.object.keys() >= _OFFER


CHAPTER: Chapter[ToolServer] = Chapter("toolserver")
case = CHAPTER.case


# Nodes.


@case("E105", 'message "add cookie", a version, and another node_id each time', difference="D-32")
async def _cookies(server: ToolServer) -> None:
    """POST /get_cookie and GET /get_cookies"""
    await server.require_manager()
    answers = [await server.cookie(), await server.cookie("/get_cookies", "GET")]
    for answer in answers:
        require(answer.status == 200 and answer.object.get("message") == "add cookie", answer)
        require("version" in answer.object and node_of(answer), answer)
        require("secure" not in answer.headers["set-cookie"].lower().split("; "), f"{answer}: a secure cookie")
    require(len(set(map(node_of, answers))) == len(answers), "the same node twice")


@case("E106", '403 {"detail": "invalid node_id: None"}')
async def _no_cookie(server: ToolServer) -> None:
    """POST /execute_tool without a cookie"""
    await server.require_manager()
    answer = await server.ask("/execute_tool", {"tool_name": _NOBODY, "arguments": {}})
    require(answer.status == 403 and answer.object.get("detail") == "invalid node_id: None", answer)


@case("E107", '200, the text "invalid node_id: …"', difference="D-46")
async def _close_nobody(server: ToolServer) -> None:
    """POST /close_session with an unknown cookie"""
    await server.require_manager()
    answer = await server.ask("/close_session", node=_NOBODY)
    require(answer.status == 200 and answer.json == f"invalid node_id: {_NOBODY}", answer)


@case("E108", '503 "node is not running: …" for a closed node; "Reconnect session: …", and it answers again')
async def _close(server: ToolServer) -> None:
    """POST /close_session, then /reconnect_session"""
    await server.require_manager()
    async with server.one_more() as node:
        answer = await server.ask("/close_session", node=node)
        require(answer.status == 200 and answer.json == f"Close session: {node}", answer)
        answer = await server.ask("/get_available_tools", {}, node=node)
        require(answer.status == 503 and answer.object.get("detail") == f"node is not running: {node}", answer)
        answer = await server.ask("/reconnect_session", node=node)
        require(answer.status == 200 and answer.json == f"Reconnect session: {node}", answer)
        (await server.ask("/get_available_tools", {}, node=node)).require(200)


@case("E109", '"Release session: …", then 403')
async def _release(server: ToolServer) -> None:
    """POST /release_session"""
    await server.require_manager()
    node = await server.new_node()
    answer = await server.release(node)
    require(answer.status == 200 and answer.json == f"Release session: {node}", answer)
    (await server.ask("/get_available_tools", {}, node=node)).require(403)


@case("E136", '"alive" and {"message": "Hello World"}')
async def _alive(server: ToolServer) -> None:
    """GET /alive and GET /"""
    await server.require_manager()
    answer = await server.ask("/alive", method="GET")
    require(answer.status == 200 and answer.json == "alive", answer)
    answer = await server.ask("/", method="GET")
    require(answer.status == 200 and answer.json == {"message": "Hello World"}, answer)


# Tools.


@case("E110", "available_envs, available_tools and tools_json, in each of which parameters.type is object")
async def _available(server: ToolServer) -> None:
    """POST /get_available_tools with {} and with no body"""
    bodies: tuple[Any, ...] = ({}, ...)
    for body in bodies:
        told = await server.offered(body)
        for tool in told["tools_json"]:
            require({"name", "description", "parameters"} <= tool.keys(), f"the tool {tool}")
            require(tool["parameters"].get("type") == "object", f"the tool {tool}")
        names = [tool["name"] for tool in told["tools_json"]]
        require(names == told["available_tools"], f"available_tools and tools_json differ: {names}")


@case("E111", f"at most {_MOST_NAMES} names of each env, and total_tools tells how many there are", difference="D-33")
async def _capped(server: ToolServer) -> None:
    """POST /get_available_tools: available_envs"""
    for env in (await server.offered())["available_envs"]:
        require(len(env["tools"]) <= _MOST_NAMES and "..." not in env["tools"], f"the env {env}")
        require(env.get("total_tools", 0) >= len(env["tools"]), f"the env {env}")


@case("E112", f"at most {_LONGEST} characters")
async def _descriptions(server: ToolServer) -> None:
    """POST /get_available_tools: descriptions of tools"""
    for tool in (await server.offered())["tools_json"]:
        require(len(tool["description"]) <= _LONGEST, f"{tool['name']}: {len(tool['description'])} characters")


@case(
    "E113",
    "the same answer to each: tools_json of those that are there, missing_tools of the others",
    difference="D-35",
)
async def _tool_schemas(server: ToolServer) -> None:
    """POST /get_json_schema_for_tools with a list, with {"tools": …} and with {"tool_names": …}"""
    names = [*(await server.offered())["available_tools"][:1], _NOBODY]
    await same_for_all_forms(server, "/get_json_schema_for_tools", "tools", "tool_names", names)


@case(
    "E114", "the same answer to each: envs_json of those that are there, missing_envs of the others", difference="D-35"
)
async def _env_schemas(server: ToolServer) -> None:
    """POST /get_json_schema_for_envs with a list, with {"envs": …} and with {"env_names": …}"""
    names = [*(env["name"] for env in (await server.offered())["available_envs"][:1]), _NOBODY]
    await same_for_all_forms(server, "/get_json_schema_for_envs", "envs", "env_names", names)


async def same_for_all_forms(server: ToolServer, path: str, one: str, other: str, names: list[str]) -> None:
    for body in (names, {one: names}, {other: names}):
        answer = await server.on_node(path, body)
        require(answer.status == 200, answer)
        require([found["name"] for found in answer.object[f"{one}_json"]] == names[:-1], answer)
        require(answer.object[f"missing_{one}"] == [_NOBODY], answer)


@case("E115", "200: JSON, in which objects and several parts are wrapped with type and data")
async def _execute(server: ToolServer) -> None:
    """POST /execute_tool"""
    answer = await server.known()
    require(answer.status == 200 and answer.kind == "application/json", answer)
    value = answer.json
    wrapped = isinstance(value, Mapping) and value.get("type") in ("simple", "composite", "binary") and "data" in value
    require(not isinstance(value, Mapping) or wrapped, answer)


@case("E123", "no binary part has a name that is null", difference="D-37")
async def _names_of_parts(server: ToolServer) -> None:
    """The result of POST /execute_tool"""
    answer = (await server.known()).require(200)
    require(all(part.get("name", "") is not None for part in parts_of(answer.json)), answer)


def parts_of(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, list):
        return [part for one in value for part in parts_of(one)]
    return [value, *parts_of(value.get("data"))] if isinstance(value, Mapping) else []


@case("E119", '404 "The tool … is not found!"; 422 without arguments, and with arguments that are text')
async def _unknown_tool(server: ToolServer) -> None:
    """POST /execute_tool of a tool that is not there, and with broken bodies"""
    answer = await server.on_node("/execute_tool", {"tool_name": _NOBODY, "arguments": {}})
    detail = str(answer.object.get("detail"))
    require(answer.status == 404 and detail.startswith(f"The tool {_NOBODY} is not found!"), answer)
    for body in ({"tool_name": _NOBODY}, {"tool_name": _NOBODY, "arguments": "x"}):
        (await server.on_node("/execute_tool", body)).require(422)


@case("E115b", "404, as with tool_name and arguments", difference="D-34")
async def _documented_body(server: ToolServer) -> None:
    """POST /execute_tool with tool and parameters"""
    (await server.on_node("/execute_tool", {"tool": _NOBODY, "parameters": {}})).require(404)


@case("E119b", "404", difference="D-45")
async def _unknown_env(server: ToolServer) -> None:
    """POST /execute_tool with an env_name that is not there"""
    body = {"tool_name": _NOBODY, "arguments": {}, "env_name": "ConformNobody"}
    (await server.on_node("/execute_tool", body)).require(404)


@case("E128", "200, at most top_k names, and the same names in tools_json", difference="D-40")
async def _retrieving(server: ToolServer) -> None:
    """POST /retrieving_tools with top_k 2"""
    answer = await server.on_node("/retrieving_tools", {"question": "read a file", "top_k": 2})
    require(answer.status == 200 and len(answer.object["retrieved_tools"]) <= 2, answer)
    require([tool["name"] for tool in answer.object["tools_json"]] == answer.object["retrieved_tools"], answer)


@case("E129", "406")
async def _broken_tool(server: ToolServer) -> None:
    """POST /register_new_tool with code that is not Python"""
    answer = await server.on_node("/register_new_tool", {"tool_name": _NOBODY, "code": "def ("})
    if answer.status in (404, 501):
        raise Untried(f"the server takes no new tools: {answer}")
    answer.require(406)


# Files.


@case("E130", '"Upload Success!", and the file is in the workspace under the last part of its name')
async def _upload(server: ToolServer) -> None:
    """POST /upload_file of ../conform.txt"""
    async with server.one_more() as node:
        await server.uploaded(node, f"../{_FILE}")
        answer = await server.ask("/get_workspace_structure", node=node)
        names = [child["name"] for child in answer.object["children"]]
        require(answer.object["name"] and _FILE in names, answer)


@case("E131", "the bytes; 4xx for a path outside and for a file that is not there", difference="D-41")
async def _download(server: ToolServer) -> None:
    """POST /download_file"""
    async with server.one_more() as node:
        content = await server.uploaded(node)
        answer = await server.ask("/download_file", {"file_path": _FILE}, node=node)
        require(answer.status == 200 and answer.body == content, answer)
        for path in ("../../etc/hostname", f"{_NOBODY}.txt"):
            answer = await server.ask("/download_file", {"file_path": path}, node=node)
            require(400 <= answer.status < 500, answer)


@case("E132", "a zip whose names are relative to the workspace")
async def _workspace(server: ToolServer) -> None:
    """POST /download_workspace"""
    async with server.one_more() as node:
        content = await server.uploaded(node)
        answer = (await server.ask("/download_workspace", node=node)).require(200)
        require(zipfile.is_zipfile(io.BytesIO(answer.body)), f"{answer.asked}: no zip")
        with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
            names = archive.namelist()
            require(_FILE in names and archive.read(_FILE) == content, f"the names {names}")


@case("E133", "4xx: the other node does not see it")
async def _isolated(server: ToolServer) -> None:
    """POST /download_file of another node's file"""
    await server.require_manager()
    async with server.one_more() as one, server.one_more() as other:
        await server.uploaded(one)
        answer = await server.ask("/download_file", {"file_path": _FILE}, node=other)
        require(400 <= answer.status < 500, answer)


KIT: Kit[ToolServer] = Kit("toolserver", ToolServer, _speaks, ToolServer.close, CHAPTER.cases)
