"""Addresses of pages, made from their titles."""

from slugs.sites import Site
from slugs.words import slug

__all__ = ["Site", "slug"]
