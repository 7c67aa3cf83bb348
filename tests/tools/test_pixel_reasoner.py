"""`pixel_reasoner`: parts of pictures, as observations and as blocks."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from PIL import Image

from tests.tools.acting import Trainer
from toolyard.testing import Running, running
from toolyard.tools import pixel_reasoner
from toolyard.tools.pixel_reasoner import cropped, fitted

pytestmark = pytest.mark.anyio

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def encoded(picture: Image.Image, format: str = "PNG") -> str:
    written = io.BytesIO()
    picture.save(written, format=format)
    return base64.b64encode(written.getvalue()).decode()


def halves(width: int = 1000, height: int = 800) -> Image.Image:
    """Red on the left, blue on the right."""
    picture = Image.new("RGB", (width, height), RED)
    picture.paste(BLUE, (width // 2, 0, width, height))
    return picture


def url(picture: Image.Image, format: str = "PNG") -> str:
    return f"data:image/{format.lower()};base64,{encoded(picture, format)}"


def shown(image: str) -> Image.Image:
    head, _, data = image.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def colour(picture: Image.Image, x: float, y: float = 0.5) -> str:
    red, green, blue = picture.getpixel((int(x * (picture.width - 1)), int(y * (picture.height - 1))))
    if min(red, green, blue) > 200:
        return "white"
    return "red" if red > 200 > blue else "blue" if blue > 200 > red else f"{red} {green} {blue}"


def call(name: str, **arguments: Any) -> str:
    return f"<think>closer</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def yard() -> Iterator[Running]:
    with running([], tools="pixel_reasoner") as server:
        yield server


@pytest.fixture
async def trainer(yard: Running) -> AsyncIterator[Trainer]:
    async with Trainer(yard.url) as client:
        yield client


async def test_a_part_of_a_picture_is_shown_with_a_margin(trainer):
    seen = await trainer.act(call("crop_image", bbox_2d=[600, 200, 800, 400], target_image=1), images=[url(halves())])
    assert (seen.done, seen.valid) == (False, True)
    # 500 to 900 and 120 to 480, a tenth of the picture more on each side; then multiples of 28
    assert seen.observation.keys() == {"obs", "image"}
    assert seen.text == "Here is the cropped image. (Image Size: 392x364)\n<image>"
    picture = shown(seen.observation["image"])
    assert picture.size == (392, 364)
    assert (colour(picture, 0.05), colour(picture, 1)) == ("blue", "blue")


@pytest.mark.parametrize("name", ["zoom_in", "crop_image", "crop_image_normalized"])
async def test_numbers_up_to_one_are_parts_of_the_picture(trainer, name):
    seen = await trainer.act(call(name, bbox_2d=[0, 0, 0.3, 1], target_image="1"), images=[encoded(halves(), "JPEG")])
    assert seen.text == "Here is the cropped image. (Image Size: 392x812)\n<image>"
    assert colour(shown(seen.observation["image"]), 1) == "red"


async def test_the_whole_picture_can_be_asked_for(trainer):
    seen = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1), images=[url(halves(280, 140))])
    assert seen.text == "Here is the cropped image. (Image Size: 280x140)\n<image>"


async def test_what_was_shown_has_a_number_and_can_be_looked_at_closer(trainer):
    images = [url(halves())]
    first = await trainer.act(call("crop_image", bbox_2d=[0, 0, 500, 800], target_image=1), "t", images=images)
    assert colour(shown(first.observation["image"]), 0) == "red"
    second = await trainer.act(call("zoom_in", bbox_2d=[0.95, 0, 1, 1], target_image=2), "t", images=images)
    assert colour(shown(second.observation["image"]), 1) == "blue"
    third = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=4), "t", images=images)
    assert third == (
        "Invalid target_image index. It should be an integer between 1 and the number of previous images (3).",
        False,
        False,
    )
    await trainer.finish("t")
    again = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=2), "t", images=images)
    assert "(1)." in again.text


async def test_frames_are_shown_whole_with_a_tag_for_each(trainer):
    frames = [url(Image.new("RGB", (280, 140), colour)) for colour in (RED, BLUE, WHITE)]
    seen = await trainer.act(call("select_frames", target_frames=[3, 1]), images=frames)
    assert seen.text == ("Here are the selected frames. (Frame Size: 280x140, Numbered 1 to 2):<image><image>")
    assert [colour(shown(image), 0.9, 0.9) for image in seen.observation["image"]] == ["white", "red"]


async def test_transparent_pictures_are_laid_on_white(trainer):
    clear = Image.new("RGBA", (56, 56), (0, 0, 0, 0))
    for picture, format in [(clear, "PNG"), (clear, "WEBP"), (clear.convert("LA"), "PNG"), (clear, "GIF")]:
        seen = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1), images=[url(picture, format)])
        assert colour(shown(seen.observation["image"]), 0.5) == "white", format


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("zoom_in", {"bbox_2d": [1, 2, 3], "target_image": 1}, "It should be a list of four numbers."),
        ("zoom_in", {"bbox_2d": [float("nan")] * 4, "target_image": 1}, "It should be a list of four numbers."),
        ("zoom_in", {"bbox_2d": [9, 0, 5, 5], "target_image": 1}, "x1 must be less than x2"),
        ("zoom_in", {"bbox_2d": [2000, 0, 3000, 5], "target_image": 1}, "lies outside of the image, which is 1000x800"),
        ("zoom_in", {"bbox_2d": [-9, -9, -5, -5], "target_image": 1}, "it lies outside of the image"),
        ("crop_image_normalized", {"bbox_2d": [0, 0, 5, 5], "target_image": 1}, "each number should be from 0 to 1"),
        ("zoom_in", {"bbox_2d": [0, 0, 1, 1], "target_image": 0}, "It should be an integer between 1 and"),
        ("zoom_in", {"bbox_2d": [0, 0, 1, 1]}, "target_image"),
        ("zoom_in", {"bbox_2d": "all", "target_image": 1}, "bbox_2d"),
        ("select_frames", {"target_frames": [1, 2]}, "Invalid target_frames indices."),
        ("select_frames", {"target_frames": []}, "select from 1 to 64 frames"),
        ("select_frames", {"target_frames": [1] * 65}, "select from 1 to 64 frames"),
        ("select_frames", {}, "target_frames"),
    ],
)  # fmt: skip
async def test_what_cannot_be_shown_is_invalid_and_said_in_words(trainer, name, arguments, problem):
    seen = await trainer.act(call(name, **arguments), images=[url(halves())])
    assert problem in seen.text
    assert (seen.done, seen.valid) == (False, False)
    assert isinstance(seen.observation, str)


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("data:image/png;base64,AAAA", "Error processing image: cannot identify image file"),
        ("data:text/plain;base64,AAAA", "Error processing image 1: it begins with 'data:text/plain;base64'"),
        ("/etc/passwd", "files and addresses are not opened"),
        ("file:///etc/passwd", "files and addresses are not opened"),
        ("http://127.0.0.1:9/x.png", "files and addresses are not opened"),
        (encoded(halves(), "JPEG")[:400], "Error processing image: "),
        (encoded(halves(), "TIFF"), "Error processing image: cannot identify image file"),
    ],
)
async def test_what_is_no_picture_is_invalid_and_said_in_words(trainer, image, problem):
    seen = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1), images=[image])
    assert problem in seen.text
    assert (seen.done, seen.valid) == (False, False)


async def test_a_small_file_that_claims_to_be_a_huge_picture_is_not_opened(trainer):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000))
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    image = base64.b64encode(bomb).decode()
    seen = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1), images=[image])
    assert (seen.done, seen.valid) == (False, False)
    assert "Error processing image: " in seen.text
    assert "pixels" in seen.text


@pytest.mark.parametrize("size", [(1, 200_000), (200_000, 1)])
async def test_a_picture_that_is_too_narrow_to_be_shown_is_invalid_and_said_in_words(trainer, size):
    seen = await trainer.act(call("select_frames", target_frames=[1]), images=[url(Image.new("L", size))])
    assert seen.text == f"Error processing image: it is {size[0]}x{size[1]}, too narrow to be shown"
    assert seen.valid is False


async def test_without_pictures_there_is_nothing_to_look_at(trainer):
    seen = await trainer.act(call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1))
    assert "the number of previous images (0)" in seen.text
    assert seen.valid is False


async def test_more_than_an_answer_can_carry_is_refused(trainer, monkeypatch):
    monkeypatch.setattr(pixel_reasoner, "BYTES_SHOWN", 1000)
    seen = await trainer.act(call("select_frames", target_frames=[1]), images=[url(halves())])
    assert "more than 1000: ask for less at once" in seen.text
    assert seen.valid is False


async def test_more_than_a_trajectory_may_hold_is_refused(trainer, monkeypatch):
    monkeypatch.setattr(pixel_reasoner, "BYTES_HELD", 20_000)
    action, images = call("select_frames", target_frames=[1]), [url(halves())]
    seen = [await trainer.act(action, "full", images=images) for _ in range(5)]
    assert [one.valid for one in seen] == sorted((one.valid for one in seen), reverse=True)
    assert "and no room for more" in seen[-1].text


async def test_pictures_are_blocks_over_ors(trainer):
    tools = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert [tool["name"] for tool in tools] == ["zoom_in", "crop_image", "crop_image_normalized", "select_frames"]
    assert [*tools[0]["input_schema"]["properties"]] == ["bbox_2d", "target_image"]
    async with trainer.session(images=[url(halves())]) as sid:
        arguments = {"bbox_2d": [0.6, 0.2, 0.8, 0.4], "target_image": 1}
        answer = await trainer.call(sid, "crop_image_normalized", arguments, env="toolbox")
        text, image = answer.output["blocks"]
        assert text["text"].startswith("Here is the cropped image. (Image Size: 392x")
        assert (image["type"], image["mimeType"]) == ("image", "image/jpeg")
        assert Image.open(io.BytesIO(base64.b64decode(image["data"]))).width == 392
        answer = await trainer.call(sid, "select_frames", {"target_frames": [1, 2]}, env="toolbox")
        assert [block["type"] for block in answer.output["blocks"]] == ["text", "image", "image"]


async def test_trajectories_do_not_see_each_others_pictures(trainer):
    async def look(i: int) -> str:
        colours = [RED, BLUE]
        image = url(Image.new("RGB", (100, 100), colours[i % 2]))
        action = call("zoom_in", bbox_2d=[0, 0, 1, 1], target_image=1)
        return colour(shown((await trainer.act(action, images=[image])).observation["image"]), 0.5)

    assert await asyncio.gather(*map(look, range(8))) == ["red", "blue"] * 4


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1000, 800), (1008, 812)), ((10, 10), (56, 56)), ((1, 5000), (28, 5012)), ((9000, 9000), (1988, 1988))],
)
def test_sizes_are_those_that_vision_models_take(size, expected):
    assert fitted(*size) == expected


def test_a_margin_is_never_more_than_600_pixels():
    picture = Image.new("RGB", (10_000, 100))
    assert cropped(picture, [5000, 40, 5001, 60], normalized=False).size == (1201, 40)


def test_without_pillow_the_tool_says_what_to_install():
    code = "import sys; sys.modules['PIL'] = None\n"
    code += "from toolyard.tools.pixel_reasoner import PixelReasoner; print(PixelReasoner.missing())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Pillow is not installed: pip install 'toolyard[images]'\n"
