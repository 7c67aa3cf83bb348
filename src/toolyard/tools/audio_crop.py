"""`audio_crop`: cut a time window out of a recording that came with the task. It reads and writes WAV."""

from __future__ import annotations

import asyncio
import io
import json
import math
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from toolyard.core.environment import Environment, Toolset
from toolyard.core.forms import tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.tools.data_urls import data_url, decoded

SECONDS_LEAST = 1.0
"""The shortest clip."""
BYTES_SHOWN = 2 * 2**20
"""The most bytes of a clip."""
BYTES_HELD = 64 * 2**20
"""The most bytes of all recordings and clips of a trajectory."""

Source: TypeAlias = str | dict[str, Any]
"""A data URL or base64, or an object with one as `audio` or `audio_url`."""


@dataclass(frozen=True, slots=True)
class AudioForm:
    """Reads a JSON call in `<tool_call>` tags, or as the whole text."""

    shown: Sequence[str] = ("audio",)

    def read(self, text: str) -> JsonObject | None:
        for written in tagged(text, "tool_call") or [text]:
            if written.lstrip().startswith("{") and (arguments := _arguments(written)) is not None:
                return arguments
        return None

    def answer(self, text: str, result: str) -> str:
        return result


class AudioCrop(Toolset):
    """The recordings of a trajectory: the task's, then each clip."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._recordings: list[bytes] | None = None

    @tool(form=AudioForm())
    async def audio_crop(
        self,
        time_window: list[float],
        target_audio: int,
        audios: Annotated[list[Source], Given()] = [],
        audio: Annotated[list[Source] | Source, Given()] = [],
    ) -> ToolOutput:
        """Cut a time window out of a recording.

        Args:
            time_window: Its start and its end, in seconds.
            target_audio: The number of the recording, from 1 on. A clip is a recording with a number too.
            audios: The recordings of the task.
            audio: The same, by the name that trainers use.
        """
        try:
            recordings = await self._held(audios or (audio if isinstance(audio, list) else [audio]))
            if not recordings:
                raise ValueError("No audio sources supplied for cropping.")
            _check(time_window, target_audio, len(recordings))
            start, end = time_window
            clip, start, end = await asyncio.to_thread(cut_out, recordings[target_audio - 1], start, end)
            if len(clip) + sum(map(len, recordings)) > BYTES_HELD:
                raise ValueError(f"Audio crop failed: there are {len(recordings)} already, and no room for more.")
        except ValueError as problem:
            return ToolOutput(blocks=[TextBlock(text=str(problem))], metadata={"valid": False})
        recordings.append(clip)
        text = (
            f"<audio>This is the audio clip ({start:.2f}s - {end:.2f}s) from the original audio #{target_audio} "
            f"according to your request."
        )
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"audio": data_url(clip, "audio/wav")})

    async def _held(self, sources: Sequence[Source]) -> list[bytes]:
        """The recordings so far. The trainer sends the task's recordings again with each call."""
        if self._recordings is None:
            self._recordings = await asyncio.to_thread(lambda: [_decoded(source) for source in sources])
        return self._recordings


def cut_out(recording: bytes, start: float, end: float) -> tuple[bytes, float, float]:
    """The clip, and its exact start and end. Raises ValueError if it cannot be cut."""
    try:
        with wave.open(io.BytesIO(recording)) as source:
            rate, length = source.getframerate(), source.getnframes()
            if not rate:
                raise ValueError("the recording says that it has no samples in a second")
            first, last = (round(max(0, min(moment, length / rate)) * rate) for moment in (start, end))
            if last <= first:
                raise ValueError(f"the recording is only {length / rate:.2f}s long")
            if (last - first) / rate < SECONDS_LEAST:
                raise ValueError(
                    f"the recording has only {(last - first) / rate:.2f}s of it, less than {SECONDS_LEAST:.2f}s"
                )
            size = (last - first) * source.getsampwidth() * source.getnchannels()
            if size > BYTES_SHOWN:
                raise ValueError(f"the clip would have {size} bytes, more than {BYTES_SHOWN}: ask for a shorter one")
            source.setpos(first)
            return _written(source, source.readframes(last - first)), first / rate, last / rate
    except (wave.Error, EOFError) as error:
        raise ValueError(f"Audio crop failed: only WAV with plain samples (PCM) can be read here: {error}") from None
    except ValueError as problem:
        raise ValueError(f"Audio crop failed: {problem}") from None


def _written(source: wave.Wave_read, frames: bytes) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as clip:
        clip.setnchannels(source.getnchannels())
        clip.setsampwidth(source.getsampwidth())
        clip.setframerate(source.getframerate())
        clip.writeframes(frames)
    return written.getvalue()


def _check(window: Sequence[float], number: int, count: int) -> None:
    if len(window) != 2 or not all(map(math.isfinite, window)):
        problem = "time_window must be a list of two numbers."
    elif window[1] <= window[0]:
        problem = "time_window end must be greater than start."
    elif window[1] - window[0] < SECONDS_LEAST:
        problem = f"time_window is {window[1] - window[0]:.2f}s long, less than {SECONDS_LEAST:.2f}s."
    elif not 1 <= number <= count:
        problem = f"target_audio must be between 1 and {count}."
    else:
        return
    raise ValueError(f"Audio crop arguments error: {problem}")


def _decoded(source: Source) -> bytes:
    written = source if isinstance(source, str) else source.get("audio") or source.get("audio_url")
    try:
        if not isinstance(written, str):
            raise ValueError("it has neither 'audio' nor 'audio_url'")
        return decoded(written, "audio")
    except ValueError as error:
        raise ValueError(f"Audio crop failed: {error}") from None


def _arguments(written: str) -> JsonObject | None:
    try:
        call = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or (call.get("name") or call.get("tool_name")) != "audio_crop":
        return None
    arguments = call.get("arguments", {})
    return arguments if isinstance(arguments, dict) else None
