"""`audio_crop`: parts of recordings, as observations and over ORS."""

from __future__ import annotations

import base64
import io
import json
import struct
import wave
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.tools.acting import Trainer
from toolyard.testing import Running, running
from toolyard.tools import audio_crop

pytestmark = pytest.mark.anyio

RATE = 8000


def recording(seconds: float = 10, channels: int = 1, rate: int = RATE) -> bytes:
    """Each sample encodes its second."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = (struct.pack("<h", frame // rate) * channels for frame in range(int(seconds * rate)))
        file.writeframes(b"".join(samples))
    return written.getvalue()


def url(data: bytes, kind: str = "wav") -> str:
    return f"data:audio/{kind};base64,{base64.b64encode(data).decode()}"


def heard(address: str) -> tuple[int, int, list[int]]:
    """Channels, rate and, for each second, the number in it."""
    head, _, data = address.partition(",")
    assert head == "data:audio/wav;base64"
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        frames = struct.unpack(f"<{file.getnframes() * file.getnchannels()}h", file.readframes(file.getnframes()))
        step = file.getframerate() * file.getnchannels()
        return file.getnchannels(), file.getframerate(), list(frames[::step])


def call(start: Any, end: Any, number: Any = 1, name: str = "name") -> str:
    arguments = {"time_window": [start, end], "target_audio": number}
    return f"<tool_call>{json.dumps({name: 'audio_crop', 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def yard() -> Iterator[Running]:
    with running([], tools="audio_crop") as server:
        yield server


@pytest.fixture
async def trainer(yard: Running) -> AsyncIterator[Trainer]:
    async with Trainer(yard.url) as client:
        yield client


@pytest.mark.parametrize("field", ["audios", "audio"])
async def test_a_time_window_is_cut_out_of_a_recording(trainer, field):
    seen = await trainer.act(call(2, 5), **{field: [url(recording())]})
    assert (seen.done, seen.valid) == (False, True)
    assert seen.observation.keys() == {"obs", "audio"}
    assert seen.text == (
        "<audio>This is the audio clip (2.00s - 5.00s) from the original audio #1 according to your request."
    )
    assert heard(seen.observation["audio"]) == (1, RATE, [2, 3, 4])


@pytest.mark.parametrize(
    "source", [url(recording(3)), base64.b64encode(recording(3)).decode(), {"audio": url(recording(3))},
               {"audio_url": url(recording(3), "x-wav")}]
)  # fmt: skip
async def test_a_recording_may_come_in_several_ways(trainer, source):
    assert heard((await trainer.act(call(1, 3), audios=[source])).observation["audio"])[2] == [1, 2]
    assert heard((await trainer.act(call(1, 3), audio=source)).observation["audio"])[2] == [1, 2]


@pytest.mark.parametrize(
    "text", [call(1, 3).removeprefix("<tool_call>").removesuffix("</tool_call>"), call(1, 3, name="tool_name")]
)
async def test_a_call_may_be_written_in_several_ways(trainer, text):
    assert heard((await trainer.act(text, audio=[url(recording())])).observation["audio"])[2] == [1, 2]


async def test_channels_and_rate_stay_as_they_are(trainer):
    seen = await trainer.act(call(0, 2), audio=[url(recording(3, channels=2, rate=16_000))])
    assert heard(seen.observation["audio"]) == (2, 16_000, [0, 1])


async def test_a_clip_has_a_number_and_can_be_cut_again(trainer):
    audio = [url(recording())]
    await trainer.act(call(4, 8), "t", audio=audio)
    seen = await trainer.act(call(2, 4, 2), "t", audio=audio)
    assert heard(seen.observation["audio"])[2] == [6, 7]
    assert "must be between 1 and 3" in (await trainer.act(call(2, 4, 4), "t", audio=audio)).text
    await trainer.finish("t")
    assert "must be between 1 and 1" in (await trainer.act(call(2, 4, 2), "t", audio=audio)).text


@pytest.mark.parametrize("end", [2.5, 1e308])
async def test_a_window_that_goes_on_beyond_the_end_ends_there(trainer, end):
    seen = await trainer.act(call(-3, end), audio=[url(recording(2))])
    assert "(0.00s - 2.00s)" in seen.text
    assert heard(seen.observation["audio"])[2] == [0, 1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (call(3, 2), "Audio crop arguments error: time_window end must be greater than start."),
        (call(3, 3.5), "Audio crop arguments error: time_window is 0.50s long, less than 1.00s."),
        (call(1, 2, 0), "Audio crop arguments error: target_audio must be between 1 and 1."),
        (call(1, 2, 2), "Audio crop arguments error: target_audio must be between 1 and 1."),
        (call(float("nan"), 2), "Audio crop arguments error: time_window must be a list of two numbers."),
        (call(0, float("inf")), "Audio crop arguments error: time_window must be a list of two numbers."),
        (call(20, 30), "Audio crop failed: the recording is only 10.00s long"),
        (call(9.5, 12), "Audio crop failed: the recording has only 0.50s of it, less than 1.00s"),
        (call("soon", 2), "time_window"),
        ('<tool_call>{"name": "audio_crop", "arguments": {"target_audio": 1}}</tool_call>', "time_window"),
    ],
)
async def test_what_cannot_be_cut_is_invalid_and_said_in_words(trainer, text, problem):
    seen = await trainer.act(text, audio=[url(recording())])
    assert problem in seen.text
    assert (seen.done, seen.valid) == (False, False)


def as_floats() -> bytes:
    """The same header, but with floating point samples."""
    data = bytearray(recording(2))
    data[20:22] = struct.pack("<H", 3)
    return bytes(data)


def without_rate() -> bytes:
    data = bytearray(recording(2))
    data[24:28] = struct.pack("<L", 0)
    return bytes(data)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            url(b"ID3\x04 an MP3 file", "mpeg"),
            "only WAV with plain samples (PCM) can be read here: file does not start",
        ),
        (url(as_floats()), "only WAV with plain samples (PCM) can be read here: unknown format: 3"),
        (url(recording()[:30]), "only WAV with plain samples (PCM) can be read here: "),
        (url(without_rate()), "the recording says that it has no samples in a second"),
        (url(b""), "only WAV with plain samples (PCM) can be read here: "),
        ("/etc/passwd", "files and addresses are not opened"),
        ({"path": "x"}, "it has neither 'audio' nor 'audio_url'"),
    ],
)
async def test_what_is_no_wav_is_invalid_and_said_in_words(trainer, source, problem):
    seen = await trainer.act(call(0, 2), audio=[source])
    assert seen.text.startswith("Audio crop failed: ")
    assert problem in seen.text
    assert (seen.done, seen.valid) == (False, False)
    assert isinstance(seen.observation, str)


async def test_without_recordings_there_is_nothing_to_cut(trainer):
    assert await trainer.act(call(0, 2)) == ("No audio sources supplied for cropping.", False, False)


async def test_more_than_an_answer_or_a_trajectory_can_carry_is_refused(trainer, monkeypatch):
    audio = [url(recording())]
    monkeypatch.setattr(audio_crop, "BYTES_SHOWN", 20_000)
    assert "more than 20000: ask for a shorter one" in (await trainer.act(call(0, 2), audio=audio)).text
    monkeypatch.setattr(audio_crop, "BYTES_HELD", len(recording()) + 20_000)
    seen = [await trainer.act(call(0, 1), "full", audio=audio) for _ in range(2)]
    assert [one.valid for one in seen] == [True, False]
    assert "no room for more" in seen[1].text


@pytest.mark.parametrize("text", ["plain", '{"name": "other", "arguments": {}}', "<tool_call>{</tool_call>", "[1]", ""])
async def test_text_that_does_not_ask_for_it_is_no_action(trainer, text):
    assert await trainer.act(text, audio=[url(recording(1))]) == ("", False, False)


async def test_it_is_a_tool_over_ors(trainer):
    (tool,) = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert [*tool["input_schema"]["properties"]] == ["time_window", "target_audio"]
    async with trainer.session(audios=[url(recording())]) as sid:
        arguments = {"time_window": [7, 9], "target_audio": 1}
        answer = await trainer.call(sid, "audio_crop", arguments, env="toolbox")
        assert answer.text.startswith("<audio>This is the audio clip (7.00s - 9.00s)")
        assert heard(answer.output["metadata"]["audio"])[2] == [7, 8]
