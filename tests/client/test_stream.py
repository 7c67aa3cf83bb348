"""Server-sent events out of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from toolyard.client.stream import Event, Listening

WHOLE = (
    b"event: task_id\ndata: abc\n\n: ping - 1\n\nevent: chunk\ndata:  two spaces\n\n"
    b"event: error\r\ndata: line1\r\ndata: \xc3\xa9\r\ndata:\r\n\r\n"
    b": reason lost\n\nevent: error\ndata: x\n\nevent: cut\ndata: y\n"
)
EVENTS = [
    Event("task_id", "abc"),
    Event("chunk", " two spaces"),
    Event("error", "line1\né\n"),
    Event("error", "x", "lost"),
]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20))
def test_how_the_bytes_are_cut_makes_no_difference(cuts):
    stream = Listening()
    places = [0, *sorted(cuts), len(WHOLE)]
    for start, stop in itertools.pairwise(places):
        stream.feed(WHOLE[start:stop])
    assert stream.heard().events == EVENTS


def test_fields_that_nobody_knows_and_data_without_an_event_are_skipped():
    stream = Listening()
    stream.feed(b"id: 1\nretry: 5\nevent: end\nnew\ndata:x\n\ndata: nobody's\n\n")
    assert stream.heard().events == [Event("end", "x")]


def test_a_stream_is_as_old_as_its_last_byte():
    now = [0.0]
    stream = Listening(clock=lambda: now[0])
    now[0] = 7.0
    stream.feed(b": ping\n\n")
    now[0] = 100.0
    assert stream.heard("silence").lived == 7.0
    assert stream.heard("silence").broken == "silence"
