"""An agent that has only a URL: it reads its prompt, finds a tool, and calls it.

    AGENT_URL=http://127.0.0.1:8081/agent/agt-…/mcp python examples/agent/agent.py

It needs only Python. A real agent lets a model decide; this one can only work out sums.
"""

import ast
import json
import operator
import os
import re
import time
import urllib.request
import uuid
from typing import Any
from urllib.error import HTTPError

DOOR = os.environ["AGENT_URL"].removesuffix("/mcp")
"""The plain JSON beside MCP."""
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def ask(path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{DOOR}/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def call(name: str, **input: Any) -> Any:
    """Call a tool. After a failure of the infrastructure, retry under the same id, which runs nothing twice."""
    body = {"name": name, "input": input, "call_id": uuid.uuid4().hex}
    while True:
        try:
            return ask("call", body)
        except HTTPError as refused:
            error = json.load(refused)["error"]
            if error["reason"] not in ("overloaded", "starting"):
                raise SystemExit(f"not my mistake: {error['message']}") from None
            time.sleep(float(refused.headers.get("Retry-After", 1)))


def worked_out(node: ast.expr) -> float:
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.BinOp(left, sign, right):
            return float(SIGNS[type(sign)](worked_out(left), worked_out(right)))
    raise ValueError("that is no sum")


def main() -> None:
    prompt = "\n".join(block.get("text", "") for block in ask("prompt"))
    (tool,) = ask("tools")["tools"]
    (parameter,) = tool["input_schema"]["properties"]
    found = re.search(r"What is (.*)\?", prompt)
    answer = worked_out(ast.parse(found[1], mode="eval").body) if found else 0
    told = call(tool["name"], **{parameter: f"{answer:g}"})
    print(f"agent: {tool['name']} {answer:g}: {told['blocks'][0]['text']}")
    print(f"agent: once more: {call(tool['name'], **{parameter: '1'})['error']['reason']}")


if __name__ == "__main__":
    main()
