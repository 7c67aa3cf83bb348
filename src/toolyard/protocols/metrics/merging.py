"""Merges the metrics of several gateways, in Prometheus' text format. Every sample gets a label with its gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (.*)")


def merged(texts: Mapping[int, str]) -> str:
    """One text in which the samples of each family stay together, as the format demands."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for gateway, text in texts.items():
        heads, samples = families.setdefault("", ([], []))
        for line in text.splitlines():
            if line.startswith("# HELP "):
                heads, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
                del heads[:]
            if line.startswith("#"):
                heads.append(line)
            elif found := _SAMPLE.fullmatch(line):
                name, labels, value = found.groups()
                samples.append(f'{name}{{gateway="{gateway}"{"," * bool(labels)}{labels or ""}}} {value}')
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads, *samples))
