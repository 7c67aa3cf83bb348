"""What tools may return, and what becomes of it."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from toolyard import ImageBlock, TextBlock, ToolOutput
from toolyard.core.output import ToolFailure, ValueOutput, as_blocks, as_output, cut, snapshot

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


def test_bytes_that_are_no_image_are_written_down_whole():
    (block,) = as_output(b"plain").blocks
    assert block.text == "data:application/octet-stream;base64,cGxhaW4="
    with pytest.raises(TypeError, match="are not a PNG, JPEG, GIF or WebP image"):
        as_blocks(b"plain")


@pytest.mark.parametrize("value", [{"a": [1, None]}, [], [1], (), (1, {"b": "ü"}), 3, 2.5, False, b"", b"\x00\xff"])
def test_a_wire_that_carries_values_gets_the_one_that_was_returned(value):
    output = as_output(value)
    assert isinstance(output, ValueOutput)
    assert output.value == value
    assert type(output.value) is type(value)
    assert snapshot(output)[0].value == value


@pytest.mark.parametrize("shown", ["words", None, TextBlock(text="x"), PNG, [PNG, 1], ToolOutput()])
def test_what_is_text_or_blocks_is_no_value(shown):
    assert not isinstance(as_output(shown), ValueOutput)


def test_a_value_that_had_to_be_cut_is_none_any_more():
    assert not isinstance(cut(as_output(list(range(100))), 30), ValueOutput)


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


def test_a_detail_counts_as_what_it_takes_and_is_left_out_where_there_is_no_room_for_it():
    blocks = [TextBlock(text="one", detail={"a": 1}), TextBlock(text="two", detail={"long": "x" * 5_000_000})]
    shorter = cut(ToolOutput(blocks=blocks), 1000)
    assert [(block.text, block.detail) for block in shorter.blocks] == [("one", {"a": 1}), ("two", None)]
    assert shorter.metadata == {"cut_from": 3 + 7 + 3 + 5_000_011}
    image = ImageBlock(data="c" * 50, mimeType="image/png", detail={"long": "x" * 100})
    assert (
        len(cut(ToolOutput(blocks=[TextBlock(text="b" * 90, detail={"k": "v" * 20}), image]), 100).model_dump_json())
        < 300
    )
    whole = ToolOutput(blocks=[TextBlock(text="short", detail={"a": 1})])
    assert cut(whole, 12) is whole
