"""A real Chromium that sessions share: with it, tools read web pages as text and act on them."""
