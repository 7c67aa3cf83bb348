"""The chart example: the pictures arrive, and the answer can be read off them."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from toolyard import Client, ImageBlock
from toolyard.client import ToolCallFailed

RGB = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 119, 180),
    "orange": (255, 127, 14),
    "purple": (148, 103, 189),
}


def opened(block: ImageBlock) -> Image.Image:
    assert block.mimeType == "image/png"
    return Image.open(io.BytesIO(base64.b64decode(block.data))).convert("RGB")


def height_of(image: Image.Image, colour: str, scale: int) -> float:
    """How many rows of pixels have the colour, in units of the chart."""
    wide, high = image.size
    rows = [row for row in range(high) if any(image.getpixel((column, row)) == RGB[colour] for column in range(wide))]
    return len(rows) / scale


def asked_for(text: str) -> str:
    return text.removeprefix("How high is the ").partition(" ")[0]


@pytest.mark.parametrize("index", range(5))
def test_an_agent_that_looks_at_the_picture_earns_the_reward(client: Client, index: int):
    with client.environments.get("chart").session(split="train", index=index) as session:
        text, image = session.get_prompt()
        height = height_of(opened(image), asked_for(text.text), scale=2)
        output = session.call_tool("submit", {"value": height})
    assert (output.reward, output.finished) == (1, True), output.text


def test_a_closer_look_is_a_larger_picture_of_that_bar_alone(client: Client):
    with client.environments.get("chart").session(split="train", index=0) as session:
        text, image = session.get_prompt()
        colour = asked_for(text.text)
        (closer,) = session.call_tool("look_closer", {"bar": f" {colour.upper()} "}).blocks
        assert opened(closer).size == (240, 660)
        assert height_of(opened(closer), colour, scale=6) == height_of(opened(image), colour, scale=2)


def test_a_bar_that_is_not_there_is_said_so_and_the_task_goes_on(client: Client):
    with client.environments.get("chart").session(split="train", index=0) as session:
        with pytest.raises(ToolCallFailed, match="there is no pink bar; there are ") as refused:
            session.call_tool("look_closer", {"bar": "pink"})
        assert refused.value.reason == "tool_failed"
        assert session.call_tool("submit", {"value": 50}).finished


def test_the_reward_falls_with_the_distance(client: Client):
    environment = client.environments.get("chart")
    task = environment.get_task("train", 0)
    height = task.task_spec["bars"][task.task_spec["ask"]]
    for off, reward in ((0, 1.0), (2, 0.8), (5, 0.5), (10, 0.0)):
        with environment.session(task) as session:
            value = height + off if height + off <= 100 else height - off
            assert session.call_tool("submit", {"value": value}).reward == pytest.approx(reward)


def test_a_height_off_the_chart_is_refused(client: Client):
    with (
        client.environments.get("chart").session(split="train", index=0) as session,
        pytest.raises(ToolCallFailed) as refused,
    ):
        session.call_tool("submit", {"value": 101})
    assert refused.value.reason == "bad_arguments"
