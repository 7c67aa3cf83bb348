"""`Workspace`: an environment with files, a notebook, shells and the web in one sandbox, for agents of any kind."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.core.environment import Toolset
from toolyard.core.workspace import Workspace as Files
from toolyard.tools.calculator import Calculator
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.notebook import PythonNotebook
from toolyard.tools.run_interpreter import CodeInterpreter
from toolyard.tools.sandboxed import SessionSandbox
from toolyard.tools.search_tools import SearchTools
from toolyard.tools.shell_env import ShellEnv
from toolyard.tools.shell_executor import ShellExecutor
from toolyard.tools.tool_maker import ToolMaker
from toolyard.tools.web import WebEnv, WebSearch

TOOLSETS: Sequence[type[Toolset]] = (
    FileSystemEnv,
    PythonNotebook,
    ShellExecutor,
    ShellEnv,
    WebEnv,
    CodeInterpreter,
    Calculator,
    WebSearch,
    ToolMaker,
    SearchTools,
)


class Workspace(ToolsEnvironment):
    """A machine for each session: one tool can read what another writes."""

    uses_sandbox = True
    toolsets = TOOLSETS

    @classmethod
    def name(cls) -> str:
        return "workspace"

    def workspace(self) -> Files:
        return SessionSandbox.of(self)
