"""A server with sandboxes that have no namespaces, and a program in one of them that tries to get out.

It runs as a separate program, as the user and with the Python under test. It prints the result of each attempt, and
what is different afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from toolyard.sandboxes.landlock import LandlockBackend
from toolyard.sandboxes.native import seccomp

_ATTEMPTS = """
import ctypes, errno, json, os, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
numbers = {numbers!r}
found = {{}}
def attempt(name, work, *args):
    try:
        work(*args)
        found[name] = "done"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error.errno))
def call(name, *args):
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(numbers[name]), *args) == -1:
        raise OSError(ctypes.get_errno(), name)
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def write(path, mode="wb"):
    with open(path, mode) as file:
        file.write(b"x")
def connect(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        sock.connect(address)
        sock.send(b"x")
def send_by_pair(path):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", path)

outside, server, warden = {outside!r}, {server}, os.getppid()
secret, public, writable, folder = (f"{{outside}}/{{name}}" for name in ("secret", "public", "writable", "folder"))

for path in (secret, public):
    roots = [f"/proc/{{who}}/root" for who in ("self", "thread-self", server)]
    for way in ("", *roots, "/proc/self/cwd/" + "../" * 40):
        attempt(f"read {{path}} by {{way}}", read, way + path)
os.symlink(public, "link")
attempt("read by a link", read, "link")
attempt("write by a link", write, "link")
for path in (outside, folder, "/", "/root", "/home", "/var", "/tmp", "/proc", "/sys"):
    attempt(f"list {{path}}", os.listdir, path)
attempt("write", write, writable)
attempt("append", write, writable, "ab")
attempt("truncate", os.truncate, writable, 0)
attempt("create", write, f"{{folder}}/new")
attempt("make a folder", os.mkdir, f"{{folder}}/new")
attempt("make a pipe", os.mkfifo, f"{{folder}}/new")
attempt("make a link", os.symlink, "/", f"{{folder}}/new")
attempt("remove", os.unlink, f"{{folder}}/old")
attempt("remove a folder", os.rmdir, folder)
attempt("link in", os.link, public, "stolen")
attempt("move in", os.rename, f"{{folder}}/old", "stolen")
write("mine")
attempt("link out", os.link, "mine", f"{{folder}}/new")
attempt("move out", os.rename, "mine", f"{{folder}}/new")
for path in (outside, folder, public, writable):
    attempt(f"mode of {{path}}", os.chmod, path, 0o777)
    attempt(f"owner of {{path}}", os.chown, path, os.getuid(), os.getgid())
    attempt(f"times of {{path}}", os.utime, path, (1, 1))
    attempt(f"attribute of {{path}}", os.setxattr, path, "user.x", b"x")
for path in ("/usr/bin/env", "/etc/passwd"):
    attempt(f"write to {{path}}", write, path, "ab")
for path in ("/usr/bin/new", "/etc/new", "/dev/shm/new", "/tmp/new", "/new"):
    attempt(f"create {{path}}", write, path)
attempt("read /etc/shadow", read, "/etc/shadow")
attempt("make a device", os.mknod, "device", 0o60644, os.makedev(8, 0))
attempt("settings of the kernel", read, "/proc/sys/kernel/hostname")

for who, pid in (("server", server), ("warden", warden)):
    for name in ("environ", "mem", "maps", "cmdline", "status", "stat", "auxv", "io", "limits", "fd/0"):
        attempt(f"{{name}} of the {{who}}", read, f"/proc/{{pid}}/{{name}}")
    attempt(f"files of the {{who}}", os.listdir, f"/proc/{{pid}}/fd")
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        attempt(f"signal {{number}} to the {{who}}", os.kill, pid, number)
    attempt(f"signal by descriptor to the {{who}}", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9))
    attempt(f"signal to a thread of the {{who}}", call, "tgkill", pid, pid, 9)
    attempt(f"queued signal to the {{who}}", call, "rt_sigqueueinfo", pid, 9, bytes(128))
    attempt(f"trace the {{who}}", call, "ptrace", 16, pid, 0, 0)
    attempt(f"memory of the {{who}}", call, "process_vm_readv", pid, None, 0, None, 0, 0)
    attempt(f"priority of the {{who}}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"processors of the {{who}}", os.sched_setaffinity, pid, {{0}})
    attempt(f"scheduler of the {{who}}", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    attempt(f"disk priority of the {{who}}", call, "ioprio_set", 1, pid, 3 << 13)
    attempt(f"limits of the {{who}}", call, "prlimit64", pid, 7, struct.pack("QQ", 9, 9), None)
attempt("priority of the user", os.setpriority, os.PRIO_USER, 0, 19)
attempt("disk priority of the user", call, "ioprio_set", 3, 0, 3 << 13)

attempt("TCP", connect, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port}))
attempt("UDP", connect, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", {port}))
attempt("a socket with a path", connect, socket.AF_UNIX, socket.SOCK_STREAM, f"{{outside}}/socket")
attempt("a socket without one", connect, socket.AF_UNIX, socket.SOCK_STREAM, {abstract!r})
attempt("a datagram by a pair", send_by_pair, f"{{outside}}/datagrams")
for name, family in (("netlink", 16), ("packet", 17), ("algorithms", 38), ("the hypervisor", 40)):
    attempt(f"socket to {{name}}", socket.socket, family, 3)

attempt("a user namespace", call, "unshare", 0x10000000)
attempt("a mount namespace", call, "unshare", 0x20000)
attempt("a namespace of somebody", call, "setns", 0, 0)
attempt("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
attempt("another root", os.chroot, ".")
attempt("shared memory", call, "shmget", 0x70797264, 4096, 0o1600)
attempt("semaphores", call, "semget", 0x70797264, 1, 0o1600)
attempt("messages", call, "msgget", 0x70797264, 0o1600)
attempt("a queue", call, "mq_open", b"toolyard", 0o102, 0o600, None)
attempt("watch a folder", call, "inotify_init1", 0)
attempt("keys", call, "keyctl", 0, -3, 1)
attempt("bpf", call, "bpf", 0, None, 0)
attempt("io_uring", call, "io_uring_setup", 1, bytes(120))
attempt("page faults", call, "userfaultfd", 1)
attempt("more files", lambda: call("prlimit64", 0, resource.RLIMIT_NOFILE, struct.pack("QQ", 2**20, 2**20), None))
if os.getuid():
    attempt("be root", os.setresuid, 0, 0, 0)
print(json.dumps(found))
"""


def main() -> None:
    print(json.dumps(asyncio.run(_played())))


async def _played() -> Mapping[str, object]:
    backend = LandlockBackend()
    report = await backend.start()
    try:
        with tempfile.TemporaryDirectory() as outside, _planted(Path(outside)) as before:
            attempts = await _attempts(backend, Path(outside))
            after = _state(Path(outside))
        return {
            "level": report.level,
            "missing": [one.feature for one in report.missing],
            "attempts": attempts,
            "changed": [name for name in before if before[name] != after.get(name)] + [*(after.keys() - before.keys())],
        }
    finally:
        await backend.close()


async def _attempts(backend: LandlockBackend, outside: Path) -> Mapping[str, str]:
    abstract = b"\0toolyard-%d" % os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as by_name:
        by_name.bind(abstract)
        by_name.listen()
        code = _ATTEMPTS.format(
            outside=str(outside),
            server=os.getpid(),
            port=tcp.getsockname()[1],
            abstract=abstract,
            numbers=seccomp.numbers(seccomp.MACHINE),
        )
        async with await backend.open() as box:
            tried = await box.exec(code)
    assert tried.error is None, tried.error.traceback
    found: Mapping[str, str] = json.loads(tried.stdout)
    return found


@contextmanager
def _planted(outside: Path) -> Iterator[Mapping[str, object]]:
    """Files and sockets of the host, most of them open to all users, and their state."""
    outside.chmod(0o777)
    (outside / "folder").mkdir()
    (outside / "folder").chmod(0o777)
    for name, mode in {"secret": 0o600, "public": 0o644, "writable": 0o666, "folder/old": 0o666}.items():
        (outside / name).write_text(name)
        (outside / name).chmod(mode)
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        stream.bind(f"{outside}/socket")
        stream.listen()
        datagrams.bind(f"{outside}/datagrams")
        for name in ("socket", "datagrams"):
            (outside / name).chmod(0o777)
        yield _state(outside)


def _state(outside: Path) -> Mapping[str, object]:
    """The state of everything that an attempt could have changed."""
    found: dict[str, object] = {
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "scheduler": os.sched_getscheduler(0),
    }
    for path in [outside, *outside.rglob("*")]:
        about = path.stat()
        found[str(path.relative_to(outside))] = about.st_mode, about.st_uid, about.st_size, about.st_mtime_ns
    return found


if __name__ == "__main__":
    main()
