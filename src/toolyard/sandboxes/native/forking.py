"""Forks of this process, into new or existing namespaces. Only for a process with one thread.

These forks call no hooks of Python or of libraries unless the caller does; for them, only the pid changes. A fork must
copy every page that it writes to, and the hooks would write to most pages that a small new process touches.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import struct
from collections.abc import Callable, Mapping

from toolyard.sandboxes.native import syscalls
from toolyard.sandboxes.native.syscalls import raw

_x86 = os.uname().machine == "x86_64"
_NR_CLONE, _NR_CLONE3 = 56 if _x86 else 220, 435

_CLONE_PIDFD = 0x00001000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_CLONE_INTO_CGROUP = 0x200000000
_PR_GET_TID_ADDRESS = 40
_CHILD = int(signal.SIGCHLD)
_WAIT_FOR_ALL = 0x40000000
"""Also wait for children that end without a signal, such as our helpers, which the code's handler must not see."""

before_fork, after_in_child, after_in_parent = (
    ctypes.pythonapi.PyOS_BeforeFork,
    ctypes.pythonapi.PyOS_AfterFork_Child,
    ctypes.pythonapi.PyOS_AfterFork_Parent,
)
"""These inform Python of a fork."""

_own_thread = ctypes.c_ulong(0)
"""The address where the C library keeps this thread's id, which differs in a copy. The address is the same there."""
raw(157 if _x86 else 167, _PR_GET_TID_ADDRESS, ctypes.addressof(_own_thread), 0, 0, 0)
_NUMBERED = _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID if _own_thread.value else 0


def _rseq_place() -> int:
    """The address where the kernel notes this thread's processor, if the C library registered one; else 0."""
    library, own = ctypes.CDLL(None), ctypes.c_ulong(0)
    try:
        size = ctypes.c_uint.in_dll(library, "__rseq_size").value
        offset = ctypes.c_ssize_t.in_dll(library, "__rseq_offset").value
    except ValueError:  # the library never registers it
        return 0
    raw(158, _ARCH_GET_FS, ctypes.addressof(own), 0, 0, 0)
    return own.value + offset if size and own.value else 0


_NR_RSEQ_X86, _RSEQ_BYTES, _RSEQ_MARK, _ARCH_GET_FS = 334, 32, 0x53053053, 0x1003
_rseq = _rseq_place() if _x86 else 0
_pidfd = ctypes.c_int(-1)
_clone_fields = struct.Struct("=11Q")
_clone_args = ctypes.create_string_buffer(_clone_fields.size)
_fork_rest = (0, 0, *((_own_thread.value, 0) if _x86 else (0, _own_thread.value)))


def clone(flags: int, *, into_cgroup: int | None = None) -> tuple[int, int]:
    """fork() into new namespaces, and optionally into a version 2 cgroup. Returns (0, -1) in the child; pid and pidfd
    in the parent."""
    flags |= _CLONE_PIDFD | _NUMBERED
    if into_cgroup is not None:
        flags |= _CLONE_INTO_CGROUP
    told = ctypes.addressof(_pidfd), _own_thread.value, 0, _CHILD
    _clone_fields.pack_into(_clone_args, 0, flags, *told, 0, 0, 0, 0, 0, into_cgroup or 0)
    pid = raw(_NR_CLONE3, ctypes.addressof(_clone_args), _clone_fields.size, 0, 0, 0)
    if pid < 0:
        raise _failure("clone3", ctypes.get_errno())
    return (pid, _pidfd.value) if pid else (0, -1)


def fork(ends_with: int = _CHILD) -> int:
    """`ends_with` is the signal that the parent gets when the child ends."""
    pid: int = raw(_NR_CLONE, ends_with | _NUMBERED, *_fork_rest)
    if pid < 0:
        raise _failure("clone", ctypes.get_errno())
    return pid


def _failure(call: str, number: int) -> OSError:
    return OSError(number, f"{call}: {os.strerror(number)}")


# Into existing namespaces.


def fork_into(namespaces: Mapping[int, int]) -> int:
    """fork() with the child in these namespaces (file descriptor to kind). One of them is a pid namespace, whose
    process 1 becomes the parent. Returns 0 in the child, otherwise another number.

    Only a child enters a pid namespace, and only a child of that child gets another parent there: so this takes three
    processes. With the machine code below, the first two share our memory, which is then copied only once.
    """
    enter = entrance()
    return _fork_into_slowly(namespaces) if enter is None else _fork_into(enter, namespaces)


def _fork_into_slowly(namespaces: Mapping[int, int]) -> int:
    pid = fork(ends_with=0)
    if pid:
        return _helped(pid)
    try:
        for fd, kind in namespaces.items():
            syscalls.setns(fd, kind)
        if fork():
            os.wait()  # until then the copy's parent is not its process 1
            os._exit(0)
        if fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    return 0


def _fork_into(enter: Callable[[int], int], namespaces: Mapping[int, int]) -> int:
    table = (ctypes.c_long * _WORDS)()
    table[0], table[_FLAGS], table[_THREAD] = len(namespaces), _CHILD | _NUMBERED, _own_thread.value
    for place, (fd, kind) in enumerate(namespaces.items(), start=1):
        table[place], table[place + _NAMESPACES_MOST] = fd, kind
    pid = enter(ctypes.addressof(table))
    if pid < 0:
        raise _failure("clone", -pid)
    if pid == 0 and _rseq:  # vfork drops it, so the copy of that child lacks it
        raw(_NR_RSEQ_X86, _rseq, _RSEQ_BYTES, 0, _RSEQ_MARK, 0)
    return _helped(pid, -table[_PROBLEM]) if pid else 0


def _helped(pid: int, problem: int = 0) -> int:
    """Wait for that process to end. Raises OSError if it had a problem."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, _WAIT_FOR_ALL)[1])
    except ChildProcessError:  # the code ignores SIGCHLD
        code = 0
    if problem := problem or code:
        raise _failure("setns", abs(problem))
    return pid


_NAMESPACES_MOST = 8
_FLAGS, _THREAD, _PROBLEM, _WORDS = range(1 + 2 * _NAMESPACES_MOST, 5 + 2 * _NAMESPACES_MOST)
"""Places in the table for the code below. First come the number of namespaces, their files and their kinds."""
_ENTER_X86 = """
f3 0f 1e fa             endbr64
49 89 f8                mov r8, rdi             ; the table
bf 00 41 00 00          mov edi, 0x4100         ; CLONE_VM, CLONE_VFORK, and no signal when it ends
31 f6                   xor esi, esi            ; the stack is ours too, so nothing may be written to it
31 d2                   xor edx, edx
45 31 d2                xor r10d, r10d
b8 38 00 00 00          mov eax, 56             ; clone
0f 05                   syscall
48 85 c0                test rax, rax
75 75                   jnz back                ; we are still we, and the child has ended
45 31 c9                xor r9d, r9d
4d 3b 08                next: cmp r9, [r8]
73 1b                   jae inside
4b 8b 7c c8 08          mov rdi, [r8 + 8 * r9 + 8]
4b 8b 74 c8 48          mov rsi, [r8 + 8 * r9 + 72]
b8 34 01 00 00          mov eax, 308            ; setns
0f 05                   syscall
48 85 c0                test rax, rax
75 47                   jnz problem
49 ff c1                inc r9
eb e0                   jmp next
bf 00 41 00 00          inside: mov edi, 0x4100
31 f6                   xor esi, esi
b8 38 00 00 00          mov eax, 56             ; clone: a child, in the pid namespace
0f 05                   syscall
48 85 c0                test rax, rax
78 2f                   js problem
74 11                   jz copy
48 89 c7                mov rdi, rax
ba 00 00 00 40          mov edx, 0x40000000     ; __WALL
b8 3d 00 00 00          mov eax, 61             ; wait4: until then the copy has the wrong parent
0f 05                   syscall
eb 23                   jmp leave
49 8b b8 88 00 00 00    copy: mov rdi, [r8 + 136]   ; flags
4d 8b 90 90 00 00 00    mov r10, [r8 + 144]     ; where the number of its thread is
b8 38 00 00 00          mov eax, 56             ; clone: the copy
0f 05                   syscall
48 85 c0                test rax, rax
74 12                   jz back                 ; that is the copy: on its own stack, it returns 0
79 07                   jns leave
49 89 80 98 00 00 00    problem: mov [r8 + 152], rax
31 ff                   leave: xor edi, edi
b8 e7 00 00 00          mov eax, 231            ; exit_group
0f 05                   syscall
c3                      back: ret
"""


@functools.cache
def entrance() -> Callable[[int], int] | None:
    """The code as a function; None if there is none for this machine, or if it may not run. Prepare it in a
    template."""
    if not _x86:
        return None
    return syscalls.executable(b"".join(bytes.fromhex(line[:24]) for line in _ENTER_X86.strip().splitlines()))
