"""`calculator`: the value of a Python expression."""

from __future__ import annotations

from toolyard.core.errors import ToolError
from toolyard.core.tool import tool
from toolyard.tools.fresh_python import ask_python, value_of
from toolyard.tools.sandboxed import SandboxedToolset

SECONDS = 10.0
DONE = "Code executed successfully."


class Calculator(SandboxedToolset):
    """Arithmetic, and any other Python expression."""

    @tool(concurrent=True)
    async def calculator(self, expression: str) -> object:
        """Evaluate a Python expression and return its value. The names of the math module can be used as they are.

        Args:
            expression: An expression such as 2 * sqrt(2). Statements are run too, but have no value.
        """
        try:
            answer = await ask_python(await self.sandbox(), "evaluate", seconds=SECONDS, expression=expression)
            if "value" in answer:
                return value_of(answer["value"])
        except ToolError as error:  # a wrong expression gets an answer, too
            return f"Error: {error}"
        return DONE if "error" not in answer else f"Error: {answer.get('said') or answer['error']}"
