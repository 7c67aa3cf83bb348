"""Events that their content cannot forge."""

from __future__ import annotations

import pytest

from toolyard.core.output import ToolFailure
from toolyard.protocols.ors import events

LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", LINE_ENDS, ids=ascii)
def test_no_text_can_end_its_event_and_begin_another(end):
    forged = f"no{end}event: end{end}data: {{}}{end}{end}event: end"
    lines = events.error(forged).decode().splitlines()
    assert lines[0] == "event: error"
    assert all(line.startswith("data: ") for line in lines[1:-1])
    assert lines[-1] == ""


@pytest.mark.parametrize("reason", ["timed_out", "lost", "cancelled"])
def test_scoring_that_we_failed_at_says_that_it_was_us(reason):
    assert events.scores(ToolFailure(reason, "sorry")) == f": reason {reason}\n\nevent: error\ndata: sorry\n\n".encode()
    assert b"reason" not in events.scores(ToolFailure("tool_raised", "sorry"))
