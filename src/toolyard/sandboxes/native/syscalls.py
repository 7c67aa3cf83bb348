"""The system calls that Python does not offer. Apart from `forking` and `heap`, no other module of the native backend
calls C functions through ctypes.

Every function raises OSError with the name of the call when the kernel refuses. Used only in single-threaded helper
processes, never in the server.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable, Collection, Iterator

from toolyard.sandboxes.native import seccomp

_libc = ctypes.CDLL(None, use_errno=True)

_x86 = os.uname().machine == "x86_64"
_NR_PIVOT_ROOT = 155 if _x86 else 41
_NR_OPENAT2, _NR_MOUNT_SETATTR = 437, 442  # numbers that all machines share
_NR_LANDLOCK_CREATE, _NR_LANDLOCK_ADD = 444, 445

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_MADV_COLLAPSE = 25
_SMALL, _LARGE = 4096, 2**21
_LARGE_FROM = 256
"""Small pages in use, of 512. With fewer, a large page would take more memory than it is worth."""
_LARGE_MANY = 8
"""Possible large pages. With fewer, each copy writes to nearly all of them, which splits them again."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2
_LAST_FILE = 2**32 - 1
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 23, 24, 28
_PR_SET_NO_NEW_PRIVS = 38
_SECUREBITS_ALL_LOCKED = 0b11101111
"""Root has no privileges, for ever: no capabilities by uid 0, by a change of uid, or ambient ones."""

_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _syscall(name: str, number: int, *args: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *args), name)


def _prctl(name: str, option: int, *args: int) -> int:
    padded = [ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl({name})")


class Syscalls:
    """System calls that a template prepares and its copies make. The less a copy does for each call, the fewer pages of
    memory it touches and copies."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, ...]] = []
        self._gives: list[int | None] = []
        self._names: list[str] = []
        self._kept: list[object] = []
        """Keeps alive what addresses among the arguments point to."""

    def add(self, name: str, *args: int | bytes, gives: int | None = 0, about: str = "") -> None:
        """Bytes are passed by address. A call fails unless it returns `gives`; with None, unless it returns no error.
        The error message names `about`."""
        numbers = [self.address(arg) if isinstance(arg, bytes) else int(arg) for arg in (*args, 0, 0, 0, 0, 0)[:5]]
        self._calls.append((_numbers()[name], *numbers))
        self._gives.append(gives)
        self._names.append(f"{name} {about}".rstrip())

    def write_file(self, path: str, data: bytes, *, fd: int) -> None:
        """`fd` must be the number that the next opened file gets: the lowest free one."""
        self.open_file(path, fd=fd, flags=os.O_WRONLY)
        self.add("write", fd, data, len(data), gives=len(data), about=path)
        self.add("close", fd)

    def open_file(self, path: str, *, fd: int, flags: int = os.O_RDONLY) -> None:
        self.add("openat", _AT_FDCWD, path.encode(), flags | os.O_CLOEXEC, gives=fd, about=path)

    def open_directory(self, path: str, *, fd: int) -> None:
        self.open_file(path, fd=fd, flags=os.O_RDONLY | os.O_DIRECTORY)

    def close_all_but(self, kept: Collection[int]) -> None:
        first = 0
        for fd in sorted(kept):
            if fd > first:
                self.add("close_range", first, fd - 1)
            first = fd + 1
        self.add("close_range", first, _LAST_FILE)

    def address(self, data: bytes) -> int:
        """The address of the bytes, valid as long as this object lives."""
        buffer = ctypes.create_string_buffer(data)
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def make(self) -> None:
        """Make the calls. At the first that fails, raise OSError and stop."""
        for at, call in enumerate(self._calls):
            given = raw(*call)
            if given != self._gives[at] and (given < 0 or self._gives[at] is not None):
                number = ctypes.get_errno() if given < 0 else 0
                raise OSError(number, f"{self._names[at]}: {os.strerror(number) if number else f'gave {given}'}")


raw = ctypes.PyDLL(None, use_errno=True).syscall
"""Makes any system call, by number, with five arguments. It keeps Python's lock."""
raw.argtypes = [ctypes.c_long] * 6
raw.restype = ctypes.c_long


@functools.cache
def _numbers() -> dict[str, int]:
    return seccomp.numbers(seccomp.MACHINE)


# Processes and namespaces.


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent ends, or rather the thread that forked us."""
    _prctl("PDEATHSIG", PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl("CHILD_SUBREAPER", PR_SET_CHILD_SUBREAPER, 1)


def hide_arguments() -> None:
    """Wipe our command line and our initial environment, which others can read."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, _, _, end = map(int, fields[45:49])  # bounds of both, in this order
    ctypes.memset(start, 0, end - start)


def executable(code: bytes) -> Callable[[int], int] | None:
    """This machine code as a function of an address; None where written memory may not be executed."""
    size = ctypes.c_size_t(len(code))
    at: int | None = _mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    if at is None or at == _MAP_FAILED:
        return None
    ctypes.memmove(at, code, len(code))
    if _libc.mprotect(ctypes.c_void_p(at), size, _PROT_READ | _PROT_EXEC):
        return None
    return ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long)(at)


_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_PROT_READ, _PROT_WRITE, _PROT_EXEC, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 4, 2, 0x20
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def trim_heap() -> None:
    """Return unused memory of the C library to the kernel."""
    _libc.malloc_trim(ctypes.c_size_t(0))


def use_large_pages() -> int:
    """If we use much memory, ask the kernel for large pages, each of which a fork shares as one. Returns how many; none
    where the kernel cannot do it, which is no error."""
    if os.sysconf("SC_PAGE_SIZE") != _SMALL:
        return 0
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        full = [at for at in _large_places(maps.read()) if _pages_at(at, pagemap.fileno()) >= _LARGE_FROM]
    if len(full) < _LARGE_MANY:
        return 0
    size = ctypes.c_size_t(_LARGE)
    return sum(_libc.madvise(ctypes.c_void_p(at), size, _MADV_COLLAPSE) == 0 for at in full)


def _pages_at(at: int, pagemap: int) -> int:
    """How many of the small pages are in use that a large page would replace."""
    entries = os.pread(pagemap, _LARGE // _SMALL * 8, at // _SMALL * 8)
    return sum(last_byte >> 7 for last_byte in entries[7::8])


def _large_places(maps: str) -> Iterator[int]:
    """Where large pages could be, in anonymous memory."""
    for line in maps.splitlines():
        where, rights, _, _, inode = line.split()[:5]
        if rights == "rw-p" and inode == "0":
            start, _, end = where.partition("-")
            first = -(-int(start, 16) // _LARGE) * _LARGE
            yield from range(first, int(end, 16) - _LARGE + 1, _LARGE)


def version_of(watched: dict[str, object]) -> Callable[[], int] | None:
    """A function whose number changes with every change of the dictionary; None if this Python keeps no such number.

    Up to 3.13 at least, the number follows the fields of every object and the count of entries. A trial with another
    dictionary checks that.
    """
    where = 3 * ctypes.sizeof(ctypes.c_void_p)

    def reader(of: dict[str, object]) -> Callable[[], int]:
        field = ctypes.c_uint64.from_address(id(of) + where)
        return lambda: field.value

    trial: dict[str, object] = {"name": 0}
    read = reader(trial)
    seen = [read(), read()]
    for change in (1, 2):
        trial["name"] = change
        seen.append(read())
    del trial["name"]
    seen.append(read())
    return reader(watched) if seen[0] == seen[1] and len({*seen}) == len(seen) - 1 else None


# Files.


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(done, f"mount {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount2 {target}")


def set_mount_attributes(target: str, attributes: int) -> None:
    """Add attributes to a mount and to all mounts below it."""
    changes = struct.pack("=4Q", attributes, 0, 0, 0)
    _syscall(
        f"mount_setattr {target}",
        _NR_MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        changes,
        ctypes.c_size_t(len(changes)),
    )


def pivot_root(new: str, old: str) -> None:
    _syscall("pivot_root", _NR_PIVOT_ROOT, new.encode(), old.encode())


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path that cannot lead out of the directory, neither by .. nor by any link."""
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    opened: int = _libc.syscall(
        ctypes.c_long(_NR_OPENAT2), ctypes.c_int(directory), os.fsencode(path), how, ctypes.c_size_t(len(how))
    )
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, "it leads out of the workspace" if number == errno.EXDEV else os.strerror(number))
    return opened


# Giving up privileges. None of it can be undone.


def forbid_new_privileges() -> None:
    _prctl("NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(calls: Syscalls) -> None:
    """Drop all capabilities, for ever, also for programs with file capabilities and for uid 0."""
    calls.add("prctl", _PR_SET_SECUREBITS, _SECUREBITS_ALL_LOCKED, about="SECUREBITS")
    capability = 0
    while _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(capability), 0, 0, 0) >= 0:
        calls.add("prctl", _PR_CAPBSET_DROP, capability, about="CAPBSET_DROP")
        capability += 1  # until the kernel knows no such capability
    version_3, own_process = 0x20080522, 0
    calls.add("capset", struct.pack("=Ii", version_3, own_process), struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def load_filter(calls: Syscalls, instructions: bytes) -> None:
    """From then on the process and its children may make only the system calls that the seccomp filter allows."""
    set_mode_filter = 1
    program = struct.pack("@HP", len(instructions) // 8, calls.address(instructions))
    calls.add("seccomp", set_mode_filter, 0, program)


# Landlock: which files a process may use, whichever way it reaches them.

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILES_BY_VERSION = (13, 13, 14, 15, 15, 16)
"""How many file rights each version of Landlock knows, from version 0."""
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights that apply to a file that is no directory."""
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals

LISTED = _READ_DIR
READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
DEVICES = _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEVICE
EVERYTHING = -1


def landlock_version() -> int:
    """0 where there is none."""
    version: int = _libc.syscall(ctypes.c_long(_NR_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(version, 0)


def landlock_rules(paths: dict[str, int], *, tcp: bool) -> int:
    """Rules that allow only these rights at each path and below, as a file descriptor for landlock_restrict_self. Needs
    version 1."""
    version = landlock_version()
    known = (1 << _FILES_BY_VERSION[min(version, len(_FILES_BY_VERSION) - 1)]) - 1
    handled = struct.pack("=3Q", known, 0 if tcp or version < 4 else _TCP, 0 if version < 6 else _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _syscall("landlock_create_ruleset", _NR_LANDLOCK_CREATE, handled, ctypes.c_size_t(size), ctypes.c_uint(0))
    for path, rights in paths.items():
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            meant = known if stat.S_ISDIR(os.fstat(opened).st_mode) else known & _OF_FILES
            below = struct.pack("=Qi", rights & meant, opened)
            path_beneath = 1
            _syscall(
                f"landlock_add_rule {path}",
                _NR_LANDLOCK_ADD,
                ctypes.c_int(rules),
                ctypes.c_int(path_beneath),
                below,
                ctypes.c_uint(0),
            )
        finally:
            os.close(opened)
    return rules


assert sys.byteorder == "little", "the sandbox is written for little-endian machines"
