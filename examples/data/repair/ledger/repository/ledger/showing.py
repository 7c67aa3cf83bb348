"""Shows balances."""


def report(balances):
    """A line for each one, the largest balance first."""
    lines = {name: f"{cents / 100:.2f}" for name, cents in balances.items()}
    return "\n".join(f"{name} {lines[name]}" for name in sorted(lines, key=lambda name: lines[name]))
