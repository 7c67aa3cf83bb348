"""The file system that every sandbox starts from: a read-only root with the host's programs, and nothing else of it.

Each template process builds it once, in its own mount namespace. A sandbox inherits it and mounts its private parts
over it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from toolyard.sandboxes import host
from toolyard.sandboxes.native import syscalls

HOME = "/home"
WORK = "/home/work"
TEMPORARY = "/home/tmp"
"""All private directories are below /home: Landlock's rule for writable files is attached to a directory that every
branch of a session shares."""

_FILES = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/home/work:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_ROOMS = ("/tmp", "/mnt", "/media", "/srv", "/run", "/var")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "tmp": TEMPORARY,
    "dev/shm": TEMPORARY,
    "dev/ptmx": "pts/ptmx",
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
}


def place(path: str) -> str:
    """The path inside of a host path: the same, unless something private covers it."""
    return f"/opt{path}" if path.startswith(("/tmp/", f"{WORK}/", f"{TEMPORARY}/")) else path


def part_from_host() -> bool:
    """Get our own mount namespace. Returns whether each sandbox can have its own user, too."""
    if os.getuid() == 0:
        try:
            os.setgroups([])
            syscalls.unshare(syscalls.CLONE_NEWNS)
        except PermissionError:  # root without all capabilities, as in a container
            pass
        else:
            return True
    _be_root_of_own_namespace()
    return False


def cover(paths: Sequence[str]) -> None:
    """Hide these paths from here on, in all sandboxes too: a bind mount made later takes the covers along. Nothing
    inside can unmount them: they belong to a namespace above the sandbox's own."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    for path in paths:
        if os.path.isdir(path):
            flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
            syscalls.mount("hidden", path, "tmpfs", flags, "mode=555,size=4k,nr_inodes=1")
        elif os.path.exists(path):
            # not an empty file: it could be imported as a module
            syscalls.mount("/dev/null", path, flags=syscalls.MS_BIND)


class Covers:
    """The covers of hidden paths in the template. It renews one when the host has replaced a path: removing a file also
    removes what is mounted over it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._covered = {path: _identity(path) for path in paths}

    def renew(self) -> None:
        """Renew covers before a sandbox is made. A running sandbox already sees the replacement."""
        for path, covered in self._covered.items():
            if (found := _identity(path)) != covered and found is not None:
                cover([path])
                self._covered[path] = _identity(path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def enter(prefixes: Sequence[str]) -> None:
    """Make the template this process's root. `prefixes` are the interpreters that must be there."""
    root = _room(prefixes)
    syscalls.mount("template", root, "tmpfs", syscalls.MS_NOSUID, "mode=755,size=4m")
    for name in ("opt", "proc", "dev", "dev/pts", "etc", "run", "var", "home", "home/work", "home/tmp"):
        os.mkdir(f"{root}/{name}")
    for path in (*host.PROGRAMS, *prefixes, *host.etc()):
        _show(path, root)
    for name, text in _FILES.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    for name in _DEVICES:
        _bind(f"/dev/{name}", root)
        # Programs can still write to the devices, but not change their time stamps, which are the host's.
        syscalls.set_mount_attributes(f"{root}/dev/{name}", syscalls.ATTR_RDONLY | syscalls.ATTR_NOSUID)
    for name, target in _LINKS.items():
        os.symlink(target, f"{root}/{name}")
    # Only a process that sees a whole /proc may mount a new one. Each sandbox covers this one with its own.
    syscalls.mount("/proc", f"{root}/proc", flags=syscalls.MS_BIND | syscalls.MS_REC)
    os.chdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".")
    os.chdir("/")
    read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
    syscalls.mount("none", "/", flags=read_only)


def _room(prefixes: Sequence[str]) -> str:
    """A directory to build in, which gets covered only in our namespace. Any will do that contains no interpreter."""
    places = [place for place in _ROOMS if not any(f"{prefix}/".startswith(f"{place}/") for prefix in prefixes)]
    return next(place for place in places if os.path.isdir(place))


def _show(path: str, root: str) -> None:
    """Bind a host path read-only. Links are recreated; missing paths are left out."""
    target = root + place(path)
    if os.path.lexists(target):
        return
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
    elif os.path.exists(path):
        _bind(path, root)
        syscalls.set_mount_attributes(target, syscalls.ATTR_RDONLY | syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV)


def _bind(path: str, root: str) -> None:
    target = root + place(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    syscalls.mount(path, target, flags=syscalls.MS_BIND | syscalls.MS_REC)


def _be_root_of_own_namespace() -> None:
    """Without root, a process must first own a user namespace to make others in it."""
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
