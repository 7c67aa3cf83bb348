"""Reads a ledger from text."""

import re

_LINE = re.compile(r"(\w+)\s+-?(\d+)\.(\d\d)")


def read(text):
    """Pairs of a name and cents, one for each line that is not empty."""
    entries = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"not an entry: {line}")
        name, whole, cents = found.groups()
        entries.append((name, int(whole) * 100 + int(cents)))
    return entries
