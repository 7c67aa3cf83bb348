"""Bookings of a room, as pairs of hours."""

from intervals.merging import merge, total
from intervals.reading import parse

__all__ = ["merge", "parse", "total"]
