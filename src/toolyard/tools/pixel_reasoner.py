"""`pixel_reasoner`: zoom in on pictures of the task, or select some of many."""

from __future__ import annotations

import asyncio
import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from toolyard.core.environment import Environment, Toolset
from toolyard.core.forms import Unwrapped
from toolyard.core.output import ImageBlock, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.tools.data_urls import decoded

try:
    from PIL import Image
except ImportError:  # the extra `images`; missing() says so
    HAS_PILLOW = False
else:
    HAS_PILLOW = True

T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
PIXELS_READ = 50_000_000
"""The most pixels of a picture to open. A few bytes can claim to be a picture of any size."""
FRAMES_MOST = 64
"""The most frames of one call."""
BYTES_SHOWN = 2 * 2**20
"""The most bytes of all pictures that one call returns."""
BYTES_HELD = 64 * 2**20
"""The most bytes of all pictures of a trajectory."""

_GRID = 28
"""Vision models read patches of this many pixels; width and height are multiples of it."""
_PIXELS_LEAST = 4 * _GRID**2
_PIXELS_MOST = 5120 * _GRID**2
_SIDE_MOST = 65_500
"""The longest side of a JPEG."""
_MARGIN, _MARGIN_PIXELS = 0.1, 600
"""The margin on each side of a box: this share of the picture, and at most this many pixels."""

_PART, _IN_PARTS = "The corners of the part, [x1, y1, x2, y2]", "from 0 to 1 as parts of width and height."
_NUMBER = "The number of the picture, from 1 on. What a tool shows is a picture with a number too."
Corners = Annotated[list[float], Field(description=f"{_PART}, in pixels, or {_IN_PARTS}")]
RelativeCorners = Annotated[list[float], Field(description=f"{_PART}, {_IN_PARTS}")]
Number = Annotated[int, Field(description=_NUMBER)]
Pictures = Annotated[list[str], Given(), Field(description="The pictures of the task, as data URLs or base64.")]


class PixelReasoner(Toolset):
    """The pictures of a trajectory: the task's, then each one that a tool made."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._pictures: list[bytes] | None = None

    @classmethod
    def missing(cls) -> str:
        return "" if HAS_PILLOW else "Pillow is not installed: pip install 'toolyard[images]'"

    @tool(form=Unwrapped())
    async def zoom_in(self, bbox_2d: Corners, target_image: Number, images: Pictures = []) -> ToolOutput:
        """Zoom in on a part of a picture."""
        return await self._crop(bbox_2d, target_image, images)

    @tool(form=Unwrapped())
    async def crop_image(self, bbox_2d: Corners, target_image: Number, images: Pictures = []) -> ToolOutput:
        """Cut a part out of a picture."""
        return await self._crop(bbox_2d, target_image, images)

    @tool(form=Unwrapped())
    async def crop_image_normalized(
        self, bbox_2d: RelativeCorners, target_image: Number, images: Pictures = []
    ) -> ToolOutput:
        """Cut a part out of a picture."""
        if any(edge > 1 for edge in bbox_2d):
            return _refused(f"Invalid bbox_2d: each number should be from 0 to 1, and this is {bbox_2d}.")
        return await self._crop(bbox_2d, target_image, images)

    @tool(form=Unwrapped())
    async def select_frames(self, target_frames: list[int], images: Pictures = []) -> ToolOutput:
        """Show some of the pictures again, such as frames of a video.

        Args:
            target_frames: Their numbers, from 1 on.
        """
        try:
            held = await self._held(images)
            if not 1 <= len(target_frames) <= FRAMES_MOST:
                raise ValueError(f"Invalid target_frames: select from 1 to {FRAMES_MOST} frames.")
            if not all(1 <= frame <= len(held) for frame in target_frames):
                raise ValueError(
                    f"Invalid target_frames indices. Each index should be an integer between 1 and the number of "
                    f"previous images ({len(held)})."
                )
            frames = await _in_thread(lambda: [shown(opened(held[frame - 1])) for frame in target_frames])
        except ValueError as problem:
            return _refused(str(problem))
        (_, width, height), count = frames[0], len(frames)
        text = f"Here are the selected frames. (Frame Size: {width}x{height}, Numbered 1 to {count}):"
        return self._output(text + "<image>" * count, [data for data, _, _ in frames], held)

    async def _crop(self, box: Sequence[float], number: int, images: Sequence[str]) -> ToolOutput:
        """Crop a picture. Numbers up to 1 are parts of width and height."""
        normalized = all(edge <= 1 for edge in box)
        try:
            held = await self._held(images)
            _check_box(box)
            if not 1 <= number <= len(held):
                raise ValueError(
                    f"Invalid target_image index. It should be an integer between 1 and the number of previous "
                    f"images ({len(held)})."
                )
            data, width, height = await _in_thread(
                lambda: shown(cropped(opened(held[number - 1]), box, normalized=normalized))
            )
        except ValueError as problem:
            return _refused(str(problem))
        return self._output(f"Here is the cropped image. (Image Size: {width}x{height})\n<image>", [data], held)

    async def _held(self, images: Sequence[str]) -> list[bytes]:
        """The pictures so far. The trainer sends the task's pictures again with each call."""
        if self._pictures is None:
            found = await _in_thread(lambda: [_decoded(written, i) for i, written in enumerate(images, 1)])
            if self._pictures is None:  # unless another call was faster
                self._pictures = found
        return self._pictures

    def _output(self, text: str, pictures: Sequence[bytes], held: list[bytes]) -> ToolOutput:
        size = sum(map(len, pictures))
        if size > BYTES_SHOWN:
            return _refused(f"The pictures have {size} bytes together, more than {BYTES_SHOWN}: ask for less at once.")
        if size + sum(map(len, held)) > BYTES_HELD:
            return _refused(f"There are {len(held)} pictures already, and no room for more.")
        held.extend(pictures)
        blocks = [ImageBlock(data=base64.b64encode(data).decode(), mimeType="image/jpeg") for data in pictures]
        return ToolOutput(blocks=[TextBlock(text=text), *blocks])


def opened(data: bytes) -> Image.Image:
    """Open a picture. Raises ValueError if it is none, or too large."""
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = picture.size
        if width * height > PIXELS_READ:
            raise ValueError(f"it is {width}x{height}, and a picture may have {PIXELS_READ} pixels")
        picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"Error processing image: {error}") from error
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA")).convert("RGB")
    return picture.convert("RGB")


def cropped(picture: Image.Image, box: Sequence[float], *, normalized: bool) -> Image.Image:
    """Cut the box out of the picture, with a margin as far as the picture reaches."""
    sizes = (*picture.size, *picture.size)
    edges = [edge if normalized else edge / size for edge, size in zip(box, sizes, strict=True)]
    if edges[0] >= 1 or edges[1] >= 1 or edges[2] <= 0 or edges[3] <= 0:
        raise ValueError(f"Invalid bbox_2d: it lies outside of the image, which is {sizes[0]}x{sizes[1]}.")
    margins = [min(_MARGIN, _MARGIN_PIXELS / size) for size in sizes]
    moved = (edges[0] - margins[0], edges[1] - margins[1], edges[2] + margins[2], edges[3] + margins[3])
    left, top, right, bottom = (int(min(max(edge, 0), 1) * size) for edge, size in zip(moved, sizes, strict=True))
    return picture.crop((left, top, max(right, left + 1), max(bottom, top + 1)))


def shown(picture: Image.Image) -> tuple[bytes, int, int]:
    """The picture as JPEG, in a size that vision models accept; and that size."""
    width, height = fitted(*picture.size)
    if max(width, height) > _SIDE_MOST:
        raise ValueError(f"Error processing image: it is {picture.width}x{picture.height}, too narrow to be shown")
    written = io.BytesIO()
    picture.resize((width, height)).save(written, format="JPEG")
    return written.getvalue(), width, height


def fitted(width: int, height: int) -> tuple[int, int]:
    """The nearest size whose sides are multiples of the grid and whose pixels are within the limit."""
    sides = [max(_GRID, round(side / _GRID) * _GRID) for side in (width, height)]
    if sides[0] * sides[1] > _PIXELS_MOST:
        shrink = math.sqrt(width * height / _PIXELS_MOST)
        sides = [max(_GRID, math.floor(side / shrink / _GRID) * _GRID) for side in (width, height)]
    elif sides[0] * sides[1] < _PIXELS_LEAST:
        grow = math.sqrt(_PIXELS_LEAST / (width * height))
        sides = [math.ceil(side * grow / _GRID) * _GRID for side in (width, height)]
    return sides[0], sides[1]


def _check_box(box: Sequence[float]) -> None:
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError("Invalid bbox_2d format. It should be a list of four numbers.")
    if not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"Invalid bbox_2d: x1 must be less than x2 and y1 less than y2, and this is {list(box)}.")


def _decoded(written: str, number: int) -> bytes:
    try:
        return decoded(written, "image")
    except ValueError as error:
        raise ValueError(f"Error processing image {number}: {error}") from None


def _refused(problem: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=problem)], metadata={"valid": False})


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
