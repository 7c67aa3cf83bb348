"""What MCP's conformance suite expects on a server, as far as an environment has it."""

from __future__ import annotations

import base64
import zlib

import anyio

from toolyard import Environment, ImageBlock, ListToolsOutput, TextBlock, ToolError, ToolOutput, ToolSpec, tool


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


_HEAD = (1).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
_PIXEL = (
    b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", _HEAD) + _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + _chunk(b"IEND", b"")
)
PIXEL = ImageBlock(data=base64.b64encode(_PIXEL).decode(), mimeType="image/png")

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class Conforming(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "This is a simple prompt for testing."

    def list_task_tools(self):
        described = "A tool whose schema uses what JSON Schema 2020-12 has."
        return ListToolsOutput(
            tools=[ToolSpec(name="json_schema_2020_12_tool", description=described, input_schema=SCHEMA)]
        )

    def call_task_tool(self, name, arguments):
        return f"{name} got {arguments}"

    @tool
    async def test_simple_text(self) -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @tool
    async def test_image_content(self) -> ImageBlock:
        """Return a picture."""
        return PIXEL

    @tool
    async def test_error_handling(self) -> str:
        """Say no."""
        raise ToolError("This tool intentionally returns an error for testing")

    @tool
    async def test_tool_with_progress(self) -> ToolOutput:
        """Take a while."""
        await anyio.sleep(0.5)
        return ToolOutput(blocks=[TextBlock(text="done")])
