"""The parts of the host that programs in a sandbox may read and run."""

from __future__ import annotations

import functools
import glob
import os
import stat
from collections.abc import Sequence

PROGRAMS: Sequence[str] = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC: Sequence[str] = (
    *("alternatives", "ca-certificates", "crypto-policies", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "resolv.conf", "terminfo", "timezone"),
    *("ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"),  # beside them lie private keys
    *("pki/ca-trust", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf"),
    # Languages. Debian's packages move what upstream keeps beside the program to /etc and leave links behind.
    *("java-*/*.cfg", "java-*/*.properties*", "java-*/jfr", "java-*/security"),  # not management, which has passwords
    *("java/*/*/conf/*.properties", "java/*/*/conf/security", "java/*/*/lib"),  # where Fedora has the same
    *("R/Makeconf", "R/Renviron", "R/ldpaths", "R/repositories"),  # not *.site, where sites keep tokens
    *("php/*/cli", "php/*/mods-available", "php.d", "php.ini"),  # not those of a web server
    *("dmd.conf", "dotnet", "ldc2.conf", "mono/[0-9]*", "mono/config", "nim", "perl", "python3.*", "racket", "sbclrc"),
)
"""Patterns below /etc. Each backend writes its own files of users and hosts.

Each pattern names only what programs cannot do without. Files that may hold a secret are left out, even those of a
language: npmrc, pip.conf, gitconfig, OpenStack's `swift`.
"""


@functools.cache
def etc() -> Sequence[str]:
    """The existing paths of the patterns that every user of the host may read."""
    found = [path for pattern in ETC for path in sorted(glob.glob(f"/etc/{pattern}"))]
    return [path for path in found if _is_public(path)]


def _is_public(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:  # a link to nowhere
        return False
