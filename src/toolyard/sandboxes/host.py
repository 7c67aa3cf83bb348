"""What programs in a sandbox may see of the host, to read and to run."""

from __future__ import annotations

from collections.abc import Sequence

PROGRAMS: Sequence[str] = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC: Sequence[str] = (
    *("alternatives", "ca-certificates", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "pki"),
    *("resolv.conf", "ssl", "terminfo"),
)
"""Below /etc. Who is who, and what is where, each backend tells in its own way."""
