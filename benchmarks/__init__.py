"""Toolyard beside reference servers: all up at once, loaded in turn, compared by ratios within one run."""
