"""What tools may return, and what becomes of it."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from toolyard import ImageBlock, TextBlock, ToolOutput
from toolyard.core.output import ToolFailure, as_blocks, as_output, cut

PNG = b"\x89PNG\r\n\x1a\n and so on"


def test_a_tool_output_stays_what_it_is():
    output = ToolOutput(blocks=[TextBlock(text="x")], reward=1)
    assert as_output(output) is output
    assert output.reward == 1.0


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("words", "words"),
        ({"a": 1, "é": [2]}, '{"a": 1, "é": [2]}'),
        ([1, 2], "[1, 2]"),
        ([], "[]"),
        (3, "3"),
        (True, "true"),
        (TextBlock(text="b"), "b"),
        ([TextBlock(text="a"), TextBlock(text="b")], "a\nb"),
        ([TextBlock(text="a"), "b"], "a\nb"),
    ],
)
def test_friendlier_returns_become_text(returned, text):
    assert as_output(returned).text == text


def test_nothing_becomes_no_blocks():
    assert as_output(None).blocks == []


def test_an_empty_prompt_has_no_blocks_and_a_missing_one_is_refused():
    assert list(as_blocks([])) == []
    assert list(as_blocks(())) == []
    with pytest.raises(TypeError, match="None where text, blocks, an image or another JSON value is expected"):
        as_blocks(None)


def test_encoded_images_and_pillow_images_become_image_blocks():
    (block,) = as_output(PNG).blocks
    assert block == ImageBlock(data=base64.b64encode(PNG).decode(), mimeType="image/png")
    (drawn,) = as_output(Image.new("RGB", (2, 3))).blocks
    assert Image.open(io.BytesIO(base64.b64decode(drawn.data))).size == (2, 3)
    text, picture = as_output(["look:", PNG]).blocks
    assert (text.text, picture.mimeType) == ("look:", "image/png")


def test_bytes_that_are_no_image_are_an_error_that_says_so():
    with pytest.raises(TypeError, match="are not a PNG, JPEG, GIF or WebP image"):
        as_output(b"plain")


def test_what_is_too_long_is_cut_with_a_note_and_the_rest_is_gone():
    whole = ToolOutput(
        blocks=[TextBlock(text="a" * 10), TextBlock(text="b" * 100), ImageBlock(data="c" * 50, mimeType="image/png")],
        reward=0.5,
        finished=True,
    )
    shorter = cut(whole, 30)
    assert shorter.blocks[0].text == "a" * 10
    assert shorter.blocks[1].text == "b" * 20 + "\n[cut here: 100 characters, only the first 20 are shown]"
    assert "left out" in shorter.blocks[2].text
    assert (shorter.reward, shorter.finished, shorter.metadata) == (0.5, True, {"cut_from": 160})
    assert whole.blocks[1].text == "b" * 100


@pytest.mark.parametrize(
    ("reason", "retryable"), [("tool_raised", False), ("bad_arguments", False), ("lost", True), ("timed_out", True)]
)
def test_only_failures_of_the_infrastructure_are_worth_another_try(reason, retryable):
    assert ToolFailure(reason, "").retryable is retryable


def test_metadata_that_is_too_long_by_itself_is_left_out():
    whole = ToolOutput(blocks=[TextBlock(text="short")], metadata={"long": "x" * 100})
    assert cut(whole, 30).metadata == {"cut_from": 5}
    assert cut(whole, 30).text == "short"
    assert cut(whole, 200) is whole
