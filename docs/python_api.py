"""The page docs/api.md: what authors and clients import, with signatures and docstrings read from the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "toolyard"
PAGE = Path(__file__).parent / "api.md"

HEAD = """\
# Reference: the Python API

<!-- Written by docs/generate.py from the code. Do not edit: run `make docs`. -->

What you import to write environments, to run untrusted code, and to talk to a server. [Commands and
settings](reference.md) have a page of their own. Names that begin with an underscore, and modules that this page does
not name, may change without notice.
"""

CHAPTERS = {
    "Write environments: `from toolyard import …`": (
        ("core/environment.py", ("Environment", "Toolset", "Split")),
        ("core/tool.py", ("tool", "terminal", "Given", "ToolSpec", "ListToolsOutput")),
        ("core/forms.py", ("Tagged",)),
        ("core/output.py", ("ToolOutput", "TextBlock", "ImageBlock", "AskAgain")),
        ("core/errors.py", ("ToolError", "ServiceUnavailable")),
    ),
    "Serve them: `from toolyard import Server`": (("server.py", ("Server",)),),
    "Run untrusted code: `from toolyard.sandboxes import …`": (
        ("sandboxes/provider.py", ("open_sandbox", "execute", "usual_limits", "Provider")),
        (
            "sandboxes/base.py",
            (
                "Sandbox",
                "Limits",
                "Executed",
                "PythonError",
                "Finished",
                "Usage",
                "Process",
                "Entry",
                "Grader",
                "Report",
            ),
        ),
    ),
    "Talk to a server: `from toolyard import Client, AsyncClient`": (
        ("client/sync.py", ("Client", "Environments", "Environment", "Session")),
        ("client/aio.py", ("AsyncClient",)),
    ),
    "Test: `from toolyard.testing import …`": (
        ("testing/running.py", ("running", "Running")),
        ("testing/check.py", ("check_environment",)),
        ("testing/check_sandbox.py", ("check_sandbox",)),
    ),
}
"""The chapters of the page: of each module, the classes and functions to show, in this order."""


def python_api() -> str:
    parts = [HEAD]
    for heading, modules in CHAPTERS.items():
        parts.append(f"## {heading}\n")
        for module, names in modules:
            parts += entries(SOURCE / module, names)
    return "\n".join(parts)


def entries(path: Path, names: tuple[str, ...]) -> Iterator[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {
        node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name in names:
        node = found[name]
        yield class_entry(node) if isinstance(node, ast.ClassDef) else function_entry(node)


def class_entry(node: ast.ClassDef) -> str:
    lines = [f"### {node.name}", "", *described(node), *constructor(node)]
    rows = [*fields(node), *methods(node)]
    if rows:
        lines += ["| | |", "| --- | --- |", *(f"| `{cell(left)}` | {cell(right)} |" for left, right in rows), ""]
    return "\n".join(lines)


def function_entry(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return "\n".join([f"### {node.name}", "", "```py", signature(node), "```", "", *described(node)])


def constructor(node: ast.ClassDef) -> list[str]:
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    return ["```py", signature(made[0], node.name), "```", ""] if made else []


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The attributes that are declared with a type, each with the docstring that follows it."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not hidden(item.target.id):
            default = f" = {ast.unparse(item.value)}" if is_short(item.value) and item.value else ""
            yield f"{item.target.id}: {ast.unparse(item.annotation)}{default}", text_of(after)


def methods(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not hidden(item.name) and not is_overload(item):
            yield signature(item), " ".join(text.strip() for text in (ast.get_docstring(item) or "").split("\n"))


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    """As it is called: without `self`, and for a constructor under the name of the class."""
    given = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(given, ast.FunctionDef)
    if given.args.args and given.args.args[0].arg in ("self", "cls"):
        given.args.args = given.args.args[1:]
    if has(node, "property"):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    result = f" -> {ast.unparse(node.returns)}" if node.returns and not name else ""
    wait = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{wait}{name or node.name}({ast.unparse(given.args)}){result}"


def described(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [ast.get_docstring(node) or "", ""]


def text_of(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def is_short(value: ast.expr | None) -> bool:
    return value is not None and len(ast.unparse(value)) < 30


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return has(node, "overload")


def has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(ast.unparse(found) == decorator for found in node.decorator_list)


def hidden(name: str) -> bool:
    return name.startswith(("_", "model_"))  # pydantic's own


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
