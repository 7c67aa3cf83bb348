"""Joins bookings."""


def merge(bookings):
    """Those that overlap or touch become one. They come back in order."""
    merged = []
    for start, end in bookings:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def total(bookings):
    """How many hours the room is taken."""
    return sum(end - start for start, end in merge(bookings))
