"""A real Chromium that sessions share: what a tool needs to look at web pages as text, and to act on them."""
