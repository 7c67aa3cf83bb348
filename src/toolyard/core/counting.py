"""Writes a number with its noun, for messages to people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 call`, `2,000 calls`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
