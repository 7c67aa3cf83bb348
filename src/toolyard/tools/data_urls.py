"""Decodes files inside JSON: base64, bare or in a `data:` URL."""

from __future__ import annotations

import base64
import binascii


def decoded(written: str, kind: str) -> bytes:
    """The bytes of a data URL of this kind, such as `image`, or of bare base64. Raises ValueError for anything else."""
    head, comma, data = written.partition(",")
    if not comma:
        data = written
    elif not (head.startswith(f"data:{kind}") and head.endswith(";base64")):
        raise ValueError(f"it begins with {head[:40]!r}; send it as a data URL of kind {kind}, or as base64")
    try:
        return base64.b64decode(data.strip(), validate=True)
    except binascii.Error:
        raise ValueError("it is neither a data URL nor base64; files and addresses are not opened") from None


def data_url(data: bytes, mime_type: str) -> str:
    return f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
