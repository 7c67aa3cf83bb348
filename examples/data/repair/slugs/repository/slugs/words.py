"""From a title to an address."""


def slug(title):
    """Small letters and digits; whatever is between them becomes one dash."""
    return "".join(character if character.isalnum() else "-" for character in title.lower())
