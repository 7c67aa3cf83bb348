"""`register_new_tool`: lets an agent write a tool of its own. Its code runs only in the session's sandbox.

The workspace keeps the code, so that the tool goes wherever the files of the session go.
"""

from __future__ import annotations

import asyncio
import keyword
from collections.abc import Sequence
from dataclasses import dataclass

from toolyard.core.environment import Environment, full_name, lists_task_tools, resolved
from toolyard.core.errors import ToolError, WorkspaceError
from toolyard.core.output import JsonObject
from toolyard.core.tool import ListToolsOutput, ToolSpec, tool
from toolyard.sandboxes.base import Sandbox
from toolyard.tools.archives import OURS
from toolyard.tools.fresh_python import ask_python, value_of
from toolyard.tools.sandboxed import SandboxedToolset, SessionSandbox
from toolyard.tools.tool_specs import described, parameters

FOLDER = f"{OURS}/tools"
DESCRIBE_SECONDS = 20.0
CALL_SECONDS = 300.0
TOOLS_MOST = 64
CODE_MOST = 64 * 1024
NAME_MOST = 64

NOT_FOUND = "Failed to find tool, please verify the tool_name!"


@dataclass(frozen=True, slots=True)
class MadeTool:
    """A tool that an agent wrote in this session."""

    spec: ToolSpec
    code: str


class MadeTools:
    """The made tools of one session, by name. Other toolsets of the session can read them."""

    def __init__(self) -> None:
        self.by_name: dict[str, MadeTool] = {}
        self.are_loaded = False
        self.turn = asyncio.Lock()

    @classmethod
    def of(cls, env: Environment) -> MadeTools:
        found = vars(env).get("_made_tools")
        if found is None:
            found = vars(env)["_made_tools"] = cls()
        assert isinstance(found, cls)
        return found

    @property
    def specs(self) -> list[ToolSpec]:
        return [made.spec for made in self.by_name.values()]


class ToolMaker(SandboxedToolset):
    """Makes tools from an agent's code."""

    @tool
    async def register_new_tool(self, tool_name: str, code: str) -> JsonObject:
        """Make a new tool of Python code. It can be called from then on, as any other tool of this session.

        The code defines a function of that name, decorated with `@toolwrapper()`, which needs no import. The docstring
        of the function says what the tool does, and has a line such as `:param integer a: the first number` for each
        parameter; `integer?` if it can be left out. Types are string, integer, number, boolean, object and array. The
        code is run anew for every call, in the workspace. A tool returns anything that JSON can hold, or bytes.

        Args:
            tool_name: The name of the function.
            code: The code that defines it, with everything that it needs.
        """
        made = MadeTools.of(self.env)
        sandbox = await self.sandbox()
        async with made.turn:
            await self._load(sandbox, made)
            await self._check(tool_name, code, made)
            new = MadeTool(await _described(sandbox, tool_name, code), code)
            try:
                await sandbox.write(f"{FOLDER}/{tool_name}.py", code.encode(errors="replace"))
            except WorkspaceError as error:
                raise ToolError(f"Failed to keep new tool code: {error}") from error
            made.by_name[tool_name] = new
        spec = new.spec
        return {"name": spec.name, "description": spec.description, "parameters": spec.input_schema}

    async def list_task_tools(self) -> ListToolsOutput:
        made = MadeTools.of(self.env)
        if not made.are_loaded and SessionSandbox.of(self.env).is_open:  # before that, there are no files
            async with made.turn:
                await self._load(await self.sandbox(), made)
        return ListToolsOutput(tools=made.specs)

    async def call_task_tool(self, name: str, arguments: JsonObject) -> object:
        code = MadeTools.of(self.env).by_name[name].code
        answer = await ask_python(
            await self.sandbox(), "call", seconds=CALL_SECONDS, name=name, code=code, arguments=dict(arguments)
        )
        if "error" in answer:
            raise ToolError(str(answer["error"]))
        return value_of(answer.get("value"))

    async def _load(self, sandbox: Sandbox, made: MadeTools) -> None:
        """Load the tools in the workspace. Ignores files that are no tools."""
        if made.are_loaded:
            return
        for name, code in await _kept(sandbox):
            try:
                await self._check(name, code, made)
                made.by_name[name] = MadeTool(await _described(sandbox, name, code), code)
            except ToolError:
                continue
        made.are_loaded = True

    async def _check(self, name: str, code: str, made: MadeTools) -> None:
        if not name.isidentifier() or keyword.iskeyword(name) or len(name) > NAME_MOST:
            raise ToolError(NOT_FOUND)
        if name in made.by_name or name in await self._taken():
            raise _refused(name)
        if len(made.by_name) >= TOOLS_MOST:
            raise ToolError(f"Failed to execute new tool code: a session has at most {TOOLS_MOST} tools of its own")
        if len(code) > CODE_MOST:
            raise ToolError(f"Failed to execute new tool code: it is longer than {CODE_MOST} characters")

    async def _taken(self) -> set[str]:
        """Every name that something else in this session has, on any wire."""
        definition = type(self.env)._definition
        taken = {*definition.tools, *definition.catalogue}
        taken |= {full_name(known.owner, known.name) for known in definition.tools.values()}
        taken |= {full_name(owner, name) for name, (owner, _) in definition.catalogue.items()}
        if lists_task_tools(type(self.env)):
            listed = await resolved(self.env.list_task_tools())
            taken.update(spec.name for spec in listed.tools)
        return taken


async def _described(sandbox: Sandbox, name: str, code: str) -> ToolSpec:
    try:
        answer = await ask_python(sandbox, "describe", seconds=DESCRIBE_SECONDS, name=name, code=code)
    except ToolError as error:
        raise ToolError(f"Failed to execute new tool code: {error}") from error
    if "error" in answer:
        line = answer.get("line")
        where = f" (line {line})" if isinstance(line, int) else ""
        raise ToolError(f"Failed to execute new tool code: {answer['error']}{where}")
    if not answer.get("found"):
        raise ToolError(NOT_FOUND)
    if not answer.get("labelled"):
        raise _refused(name)
    return described(name, str(answer.get("doc", "")), parameters(answer.get("parameters")))


async def _kept(sandbox: Sandbox) -> Sequence[tuple[str, str]]:
    """The name and the code of each tool in the workspace."""
    found: list[tuple[str, str]] = []
    try:
        entries = await sandbox.list(FOLDER)
    except WorkspaceError:  # there is no such folder
        return found
    for entry in entries:
        name, dot, ending = entry.name.rpartition(".")
        if entry.kind == "file" and entry.size <= 4 * CODE_MOST and (dot, ending) == (".", "py"):
            try:
                found.append((name, (await sandbox.read(f"{FOLDER}/{entry.name}")).decode(errors="replace")))
            except WorkspaceError:  # the file has vanished
                continue
        if len(found) == TOOLS_MOST:
            break
    return found


def _refused(name: str) -> ToolError:
    return ToolError(
        f"Tool: {name} has no labels or replicated! Decorate the function with @toolwrapper(), and give it a name that "
        f"no other tool has."
    )
