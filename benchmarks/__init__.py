"""Toolyard side by side with reference servers: both up at once, driven in turn, compared by ratios of one run."""
