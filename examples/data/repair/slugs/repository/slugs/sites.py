"""A site knows which addresses are taken."""

from slugs.words import slug


class Site:
    def __init__(self):
        self.taken = set()

    def add(self, title):
        """The address of a new page."""
        address = slug(title) or "page"
        self.taken.add(address)
        return address
