"""The kinds of images that browsers, notebooks and model APIs show."""

from __future__ import annotations

from collections.abc import Mapping

PICTURES: Mapping[str, str] = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""Media types, each with the ending of its files."""
