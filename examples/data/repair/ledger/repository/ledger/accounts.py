"""Adds entries up."""


def balances(entries):
    """Cents by name."""
    found = {}
    for name, cents in entries:
        found[name] = found.get(name, 0) + abs(cents)
    return found
