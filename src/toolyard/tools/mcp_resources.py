"""Shows resources of MCP servers to a model: text, pictures, and the address of anything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from mcp import Client
from mcp.types import BlobResourceContents, CallToolResult, ResourceLink, TextResourceContents

from toolyard.core.output import ImageBlock

READ = "mcp.read_resource"
"""The helper that reads a resource."""
PICTURES_MOST = 16 * 2**20
"""The most characters of base64 in all pictures of a resource."""

Contents: TypeAlias = TextResourceContents | BlobResourceContents


async def read(client: Client, arguments: Mapping[str, Any]) -> tuple[str, list[ImageBlock]]:
    """The text of a resource, and its pictures."""
    uri = arguments.get("uri")
    if not isinstance(uri, str) or not uri:
        return f"{READ} needs the argument uri, the address of a resource; mcp.list_resources lists them", []
    parts: list[str] = []
    pictures: list[ImageBlock] = []
    room = PICTURES_MOST
    for one in (await client.read_resource(uri)).contents:
        picture = picture_of(one)
        if picture is not None and (room := room - len(picture.data)) >= 0:
            pictures.append(picture)
            parts.append(f"[{one.uri}: {one.mime_type}]")
        else:
            parts.append(text_of(one))
    return "\n".join(parts) or f"[{uri} is empty]", pictures


def text_of(one: Contents) -> str:
    """The text, or a note about what there is instead."""
    if isinstance(one, TextResourceContents):
        return one.text
    return f"[{one.uri}: {one.mime_type or 'bytes'}, about {len(one.blob) * 3 // 4} bytes that are not shown]"


def picture_of(one: Contents) -> ImageBlock | None:
    if isinstance(one, BlobResourceContents) and (one.mime_type or "").startswith("image/"):
        return ImageBlock(data=one.blob, mimeType=one.mime_type or "")
    return None


def pictures_of(result: CallToolResult) -> Iterator[ImageBlock]:
    """The pictures that a tool returned, as such or as resources."""
    for one in result.content:
        if one.type == "image":
            yield ImageBlock(data=one.data, mimeType=one.mime_type)
        elif one.type == "resource" and (picture := picture_of(one.resource)) is not None:
            yield picture


def link(one: ResourceLink) -> str:
    """A note about a resource that a tool only points to, with the call that reads it."""
    about = ", ".join(filter(None, (one.title or one.name, one.mime_type, one.description)))
    return f"[resource {one.uri}: {about}; {READ} reads it]"
