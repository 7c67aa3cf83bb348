"""Shows outputs of tools on a terminal, and saves their images as files."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolyard.core.output import Block, ImageBlock, TextBlock, ToolOutput


@dataclass(slots=True)
class Screen:
    images: Path | None = None
    """The folder where images go; without it, only their kind and size are shown."""
    saved: int = 0

    def show_output(self, output: ToolOutput) -> None:
        print(self.shown(output.blocks) or "  (nothing)")
        if output.metadata is not None:
            print(f"  metadata {json.dumps(output.metadata, ensure_ascii=False)}")
        if output.reward is not None:
            print(f"  reward {output.reward:g}")
        if output.finished:
            print("  the episode is finished")

    def shown(self, blocks: Sequence[Block]) -> str:
        """Blocks as lines; characters that a terminal cannot show are replaced."""
        texts = [block.text if isinstance(block, TextBlock) else self._image(block) for block in blocks]
        return textwrap.indent("\n".join(texts), "  ").encode(errors="replace").decode()

    def _image(self, image: ImageBlock) -> str:
        about = f"{image.mimeType}, {len(image.data) * 3 // 4:,} bytes"
        return f"[{about}]" if self.images is None else f"[{about}, {self._save(image, self.images)}]"

    def _save(self, image: ImageBlock, folder: Path) -> str:
        try:
            data = base64.b64decode(image.data, validate=True)
        except binascii.Error:
            return "not saved: its data is no base64"
        folder.mkdir(parents=True, exist_ok=True)
        kind = mimetypes.guess_extension(image.mimeType) or ".bin"
        while (path := folder / f"image-{self.saved + 1}{kind}").exists():  # of an earlier command
            self.saved += 1
        self.saved += 1
        path.write_bytes(data)
        return f"saved as {path}"
