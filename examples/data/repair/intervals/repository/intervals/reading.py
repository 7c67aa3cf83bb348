"""Reads bookings from text."""


def parse(text):
    """`9-10, 12-14` as pairs of numbers."""
    bookings = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        start, _, end = part.partition("-")
        if not end or int(start) > int(end):
            raise ValueError(f"not a booking: {part}")
        bookings.append((int(start), int(end)))
    return bookings
