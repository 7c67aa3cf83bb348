"""Names the server that made a directory or container, so that a later server can tell whether to remove it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes.endings import is_short, no_room
from toolyard.sandboxes.process_based.launcher import started
from toolyard.sandboxes.process_based.workspace import clear


def mine() -> str:
    """A name for this process: its pid, its start time, its pid namespace and its boot."""
    return f"{os.getpid()}-{started(os.getpid()):.0f}-{_namespace()}-{_boot()}"


def is_gone(origin: str, *, any_system: bool = False) -> bool:
    """Whether the process with this name has ended. False if it cannot be seen from here.

    `any_system`: only this computer can have made things with this name, so a process of an earlier boot has ended.
    """
    try:
        pid, moment, namespace, boot = origin.split("-")
        number = int(pid)
    except ValueError:  # not one of our names
        return False
    if boot != _boot():
        return any_system
    if namespace != _namespace():
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return f"{started(number):.0f}" != moment


def make_directory(kind: str) -> Path:
    """A temporary directory that a later server removes if this one cannot."""
    try:
        return Path(tempfile.mkdtemp(prefix=f"toolyard-{kind}-{mine()}-"))
    except OSError as error:
        if is_short(error):
            raise no_room(error) from error
        raise SandboxUnavailable(f"no directory for a sandbox can be made: {error}") from error


def forsaken_directories(kind: str) -> Iterator[Path]:
    """Directories of servers that have ended. Only our own: other users may plant some in a shared place."""
    prefix = f"toolyard-{kind}-"
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            origin = entry.name.removeprefix(prefix).rpartition("-")[0]
            if entry.name.startswith(prefix) and is_gone(origin, any_system=True):
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    if about.st_uid == os.getuid() and entry.is_dir(follow_symlinks=False):
                        yield Path(entry.path)


def remove(directory: Path) -> None:
    """Remove a directory, whatever programs have done in it."""
    directory.chmod(0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        clear(fd)
    finally:
        os.close(fd)
    directory.rmdir()


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # not Linux
        return "0"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return "0"
