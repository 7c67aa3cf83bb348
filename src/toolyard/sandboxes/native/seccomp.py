"""The seccomp filters of the native sandbox: which system calls may reach the kernel, and the compiler for that list.

Both filters are allowlists. A known call that is not listed fails with EPERM. A number that had no name when this was
written fails with ENOSYS, as on an older kernel, so that a newer C library falls back. A call by another architecture's
table (`int 0x80`, x32) kills the process: its numbers mean other calls.

The policy is data: a tree of `Switch`es. The compiler below turns it into classic BPF. This module imports nothing of
Toolyard, because it is loaded where nothing else of Toolyard should be.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

MACHINE = os.uname().machine


def program_filter(*, machine: str = MACHINE) -> bytes:
    """The filter of untrusted programs, as an array of `struct sock_filter`.

    Internet sockets are harmless in a private network namespace: other addresses give "Network is unreachable".
    """
    return _compiled_for(machine, PROGRAM)


def added_filter(*, machine: str = MACHINE) -> bytes:
    """The filter for a program that already has an agent's filter, and only for such: it forbids the rest.

    Every program of a native sandbox loads it. Loading takes time in proportion to its length, a quarter of the whole.
    """
    return b"".join(_compiled(_added(_tree(machine, AGENT), _tree(machine, PROGRAM))))


def shared_filter(*, network: bool, own_user: bool, machine: str = MACHINE) -> bytes:
    """The filter for a program without namespaces: it also forbids what all programs of the host share.

    Without its own user, a program may not change modes, owners and times either: Landlock does not cover them, and
    other files of that user have them too.
    """
    policy = SHARED if own_user else SHARED | dict.fromkeys(ATTRIBUTES, REFUSE)
    return _compiled_for(machine, policy | {"socket": INET_SOCKET} if network else policy)


def agent_filter(*, machine: str = MACHINE) -> bytes:
    """The filter of process 1 of a sandbox: a program's calls, and those to set up namespaces, mounts and programs.

    Programs that it starts keep this filter and add theirs; the stricter answer of the two counts.
    """
    return _compiled_for(machine, AGENT)


def container_profile(*, machine: str = MACHINE) -> dict[str, Any]:
    """The filter of untrusted programs as Docker and Podman read it, in JSON. Raises ValueError for unknown machines.

    Their language has no "all but": where the policy needs that, for `ioctl`, `prctl` and `setsockopt`, the profile
    allows more than the filter does. Where the policy refuses certain arguments, the error is always EPERM.
    """
    numbers(machine)
    policy = PROGRAM | {"setns": REFUSE}
    rules: list[dict[str, Any]] = []
    for error in sorted({rule for rule in policy.values() if isinstance(rule, int)} - {ALLOW, REFUSE}):
        names = [name for name, rule in policy.items() if rule == error]
        rules.append({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error & 0xFFFF})
    for name, rule in policy.items():
        for tests in _allowing(rule):
            rules.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": tests})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": rules,
    }


def _allowing(rule: Rule) -> list[list[dict[str, Any]]]:
    """Lists of tests; passing all tests of one list allows the call."""
    if isinstance(rule, int):
        return [[]] if rule == ALLOW else []
    if isinstance(rule.otherwise, Switch) or rule.otherwise == ALLOW:
        return [[]]
    index, mask = (rule.offset - _argument(0)) // 8, rule.mask
    return [
        [{"index": index, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}, *more]
        for value, inner in rule.cases.items()
        for more in _allowing(inner)
    ]


# --- What a filter can answer -----------------------------------------------------------------------------------------


def fail(error: int) -> int:
    """The call is not made and returns this error. The program goes on."""
    return 0x0005_0000 | error


ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
"""Kills the whole process, not just the thread."""
REFUSE = fail(errno.EPERM)
ABSENT = fail(errno.ENOSYS)
PRETEND = fail(0)
"""The call is not made and returns 0."""

Rule: TypeAlias = "int | Switch"

WORD = 0xFFFF_FFFF
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data


class Switch(NamedTuple):
    """Decide by one 32-bit word of `struct seccomp_data`; only the bits in `mask` count."""

    offset: int
    cases: Mapping[int, Rule]
    otherwise: Rule
    mask: int = WORD


# Every argument tested below is an int, an unsigned int, or a set of flags below bit 32: the kernel itself ignores the
# upper half of the register, and so must we. A bit there would evade a comparison of all 64 bits.


def _argument(index: int) -> int:
    return 16 + 8 * index  # the lower half: both machines are little-endian


def only(index: int, values: Collection[int], *, error: int = errno.EPERM, mask: int = WORD) -> Switch:
    return Switch(_argument(index), dict.fromkeys(values, ALLOW), fail(error), mask)


def all_but(index: int, errors: Mapping[int, int]) -> Switch:
    return Switch(_argument(index), {value: fail(error) for value, error in errors.items()}, ALLOW)


def without(index: int, bits: int, *, error: int = errno.EPERM) -> Switch:
    return Switch(_argument(index), {0: ALLOW}, fail(error), mask=bits)


# --- The policy -------------------------------------------------------------------------------------------------------


def _names(text: str) -> list[str]:
    return [name for line in text.splitlines() for name in line.partition("#")[0].split()]


ALLOWED = _names(
    """
    # Files
    open openat openat2 creat close close_range read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2
    lseek sendfile copy_file_range splice tee readahead fadvise64 fallocate truncate ftruncate fsync fdatasync
    sync_file_range dup dup2 dup3 fcntl flock stat fstat lstat newfstatat statx statfs fstatfs access faccessat
    faccessat2 chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat umask utime utimes futimesat utimensat
    setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr
    listxattrat removexattr lremovexattr fremovexattr removexattrat inotify_init inotify_init1 inotify_add_watch
    inotify_rm_watch

    # Directories and names
    getcwd chdir fchdir getdents getdents64 mkdir mkdirat rmdir rename renameat renameat2 link linkat unlink unlinkat
    symlink symlinkat readlink readlinkat

    # Pipes, waiting, events
    pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime

    # Memory
    brk munmap mremap mprotect msync mincore madvise mlock mlock2 munlock mlockall munlockall mseal map_shadow_stack
    pkey_mprotect pkey_alloc pkey_free membarrier mbind get_mempolicy set_mempolicy

    # Processes, threads, signals. The kernel's own trampolines make the last two when the host traces a program.
    fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal pause
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo
    rt_sigsuspend sigaltstack restart_syscall futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list
    get_robust_list set_tid_address rseq rseq_slice_yield arch_prctl getcpu sched_yield sched_setparam sched_getparam
    sched_setscheduler sched_getscheduler sched_setattr sched_getattr sched_setaffinity sched_getaffinity
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval uretprobe uprobe

    # Identity and limits
    getpid getppid gettid getpgid setpgid getpgrp getsid setsid getuid geteuid getgid getegid getresuid getresgid
    getgroups setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset getrlimit
    setrlimit getrusage getpriority setpriority ioprio_get ioprio_set times sysinfo uname getrandom
    landlock_create_ruleset landlock_add_rule landlock_restrict_self

    # Time
    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer timer_create
    timer_settime timer_gettime timer_getoverrun timer_delete

    # Sockets that are open
    bind listen accept accept4 connect shutdown getsockname getpeername getsockopt sendto sendmsg sendmmsg recvfrom
    recvmsg recvmmsg

    # System V IPC and POSIX message queues
    shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend
    mq_timedreceive mq_notify mq_getsetattr
    """
)

NOT_THERE = _names(
    """
    clone3  # its flags are in memory, where a filter cannot see them; the C library then uses clone
    seccomp  # no BPF programs of the guest's in the kernel; see PR_SET_SECCOMP and SO_ATTACH_FILTER
    io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents  # one guest could take the whole host's supply
    cachestat statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules open_tree_attr file_getattr
    file_setattr listns  # too new for anything to depend on them
    """
)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
CLONE_NEW = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MAP_HUGETLB, MFD_HUGETLB, SHM_HUGETLB = 0x4_0000, 0x4, 0o4000

SETTABLE_PERSONALITIES = {
    0,  # Linux
    0x0004_0000,  # Linux without address randomisation
    WORD,  # asks for the present one
}

PRCTL_ERRORS = {
    22: errno.EINVAL,  # PR_SET_SECCOMP; what a kernel without filters says
    35: errno.EPERM,  # PR_SET_MM: forges what /proc says of the process
    59: errno.EINVAL,  # PR_SET_SYSCALL_USER_DISPATCH
    62: errno.EINVAL,  # PR_SCHED_CORE: would idle the other thread of a processor core, at its neighbours' expense
}

# Other protocols would load kernel modules that no program needs here (SCTP, L2TP, SMC, ...).
_INET_PROTOCOL = only(2, {0, 6, 17}, error=errno.EPROTONOSUPPORT)  # the type's own, TCP, UDP
_SOCK_NONBLOCK, _SOCK_CLOEXEC = 0o4000, 0o2000000
_INET_TYPE = Switch(
    _argument(1),
    {1: _INET_PROTOCOL, 2: _INET_PROTOCOL},  # SOCK_STREAM, SOCK_DGRAM
    REFUSE,
    mask=WORD & ~(_SOCK_NONBLOCK | _SOCK_CLOEXEC),
)
_CONNECTED = only(1, {1, 5}, mask=WORD & ~(_SOCK_NONBLOCK | _SOCK_CLOEXEC))  # SOCK_STREAM, SOCK_SEQPACKET
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
UNIX_SOCKET = only(0, {AF_UNIX}, error=errno.EAFNOSUPPORT)
INET_SOCKET = UNIX_SOCKET._replace(cases={AF_INET: _INET_TYPE, AF_INET6: _INET_TYPE})
SOCKET = INET_SOCKET._replace(cases={**INET_SOCKET.cases, AF_UNIX: ALLOW})
AGENT_SOCKET = SOCKET._replace(cases={**SOCKET.cases, AF_NETLINK: only(2, {0})})  # NETLINK_ROUTE

# Firewall tables, IPsec, kernel TLS and BPF have been the way out of many sandboxes.
SETSOCKOPT = Switch(
    _argument(1),
    {
        # IPPROTO_IP: IP_IPSEC_POLICY, IP_XFRM_POLICY, and to replace the tables of iptables, arptables and ebtables
        0: all_but(2, dict.fromkeys([16, 17, *range(64, 68), *range(96, 100), *range(128, 132)], errno.EPERM)),
        # SOL_SOCKET: SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF
        1: all_but(2, dict.fromkeys([26, 50, 51, 52], errno.EPERM)),
        6: all_but(2, {31: errno.ENOPROTOOPT}),  # IPPROTO_TCP: TCP_ULP
        17: all_but(2, {100: errno.ENOPROTOOPT}),  # IPPROTO_UDP: UDP_ENCAP
        # IPPROTO_IPV6: IPV6_IPSEC_POLICY, IPV6_XFRM_POLICY, and to replace the tables of ip6tables
        41: all_but(2, dict.fromkeys([34, 35, 64, 65], errno.EPERM)),
    },
    fail(errno.ENOPROTOOPT),
)

_TERMINAL_IOCTLS = all_but(
    1,
    {
        0x5412: errno.EPERM,  # TIOCSTI: types into the terminal of another program
        0x541C: errno.EPERM,  # TIOCLINUX: the same, through the console
        0x541D: errno.EPERM,  # TIOCCONS: takes the console's output
        0x541F: errno.EPERM,  # TIOCSSERIAL
        0x5423: errno.EPERM,  # TIOCSETD: loads line disciplines
        0x5437: errno.EPERM,  # TIOCVHANGUP
    },
)
# Requests that only read: signal owner, at-mark, time stamps, and an interface's name, list, flags, addresses, metric,
# MTU, hardware address, index and queue length. The requests that set values are numbered between them.
_SOCKET_IOCTLS = only(
    1,
    [
        *range(0x8901, 0x8908),
        0x8010_8906,
        0x8010_8907,
        *(0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933, 0x8942),
    ],
)
_AGENT_SOCKET_IOCTLS = _SOCKET_IOCTLS._replace(cases={**_SOCKET_IOCTLS.cases, 0x8914: ALLOW})  # SIOCSIFFLAGS
_FILE_IOCTLS = only(
    1,
    {
        0x0000_0002,  # FIGETBSZ
        0x8008_6601,  # FS_IOC_GETFLAGS
        0x4008_6602,  # FS_IOC_SETFLAGS
        0xC020_660B,  # FS_IOC_FIEMAP
        0x8008_7601,  # FS_IOC_GETVERSION
        0x801C_581F,  # FS_IOC_FSGETXATTR
        0x401C_5820,  # FS_IOC_FSSETXATTR
        0x4004_9409,  # FICLONE
        0x4020_940D,  # FICLONERANGE
        0xC018_9436,  # FIDEDUPERANGE
        0x8004_5200,  # RNDGETENTCNT
    },
    error=errno.ENOTTY,  # the kernel's answer to a request that the file does not know
)
# Chosen by the family of the request, its second byte. The only devices here are terminals and random numbers. The last
# case also covers requests to namespaces and pidfds, which would return descriptors of namespaces.
_IOCTL_FAMILY = 0xFF00
IOCTL = Switch(_argument(1), {0x5400: _TERMINAL_IOCTLS, 0x8900: _SOCKET_IOCTLS}, _FILE_IOCTLS, mask=_IOCTL_FAMILY)

_MAKEABLE_FILES = {0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK}  # no devices

PROGRAM: dict[str, Rule] = {
    **dict.fromkeys(ALLOWED, ALLOW),
    **dict.fromkeys(NOT_THERE, ABSENT),
    # Both would write back every file of the host. A workspace is in memory and needs no write-back.
    "sync": PRETEND,
    "syncfs": PRETEND,
    "clone": without(0, CLONE_NEW),
    # For moving into a branch that process 1 has prepared. A process that enters a user namespace has every capability
    # in it, so nothing that this filter allows may rely on a lack of capabilities.
    "setns": only(1, {CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUTS}),
    # The host's reserve of huge pages is charged to no sandbox. The error is that of an empty reserve.
    "mmap": without(3, MAP_HUGETLB, error=errno.ENOMEM),
    "memfd_create": without(1, MFD_HUGETLB, error=errno.ENOMEM),
    "shmget": without(2, SHM_HUGETLB, error=errno.ENOMEM),
    "prlimit64": only(0, {0}),  # its own
    "personality": only(0, SETTABLE_PERSONALITIES),
    "prctl": all_but(0, PRCTL_ERRORS),
    "mknod": only(1, _MAKEABLE_FILES, mask=stat.S_IFMT(0xFFFF)),
    "mknodat": only(2, _MAKEABLE_FILES, mask=stat.S_IFMT(0xFFFF)),
    "socket": SOCKET,
    "socketpair": UNIX_SOCKET,
    "setsockopt": SETSOCKOPT,
    "ioctl": IOCTL,
}

# A program that may open a socket by a path, or send a datagram to one, can talk to services of the host that obey its
# user. Only connected pairs are left.
SHARED: dict[str, Rule] = {
    **PROGRAM,
    **dict.fromkeys(
        _names(
            """
            shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
            mq_timedsend mq_timedreceive mq_notify mq_getsetattr inotify_init inotify_init1
            """
        ),
        ABSENT,
    ),
    # Landlock does not cover these: a program could add them to outside files that it may not write.
    **dict.fromkeys(
        _names(
            """
            setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
            """
        ),
        fail(errno.EOPNOTSUPP),
    ),
    **dict.fromkeys(
        _names("sched_setparam sched_setscheduler sched_setattr sched_setaffinity"),
        only(0, {0}),  # its own
    ),
    "setpriority": Switch(_argument(0), dict.fromkeys([0, 1], only(1, {0})), REFUSE),  # a process, a group of them
    "ioprio_set": Switch(_argument(0), dict.fromkeys([1, 2], only(1, {0})), REFUSE),
    "setns": REFUSE,
    "socket": fail(errno.EAFNOSUPPORT),
    "socketpair": UNIX_SOCKET._replace(cases={AF_UNIX: _CONNECTED}),
}

ATTRIBUTES = _names("chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat")

AGENT: dict[str, Rule] = {
    **PROGRAM,
    **dict.fromkeys(
        _names(
            """
            clone clone3 unshare setns seccomp prctl prlimit64 process_mrelease sethostname setdomainname
            mount umount2 pivot_root chroot open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount
            fspick statmount listmount
            """
        ),
        ALLOW,
    ),
    # To bring the loopback interface up.
    "socket": AGENT_SOCKET,
    "ioctl": IOCTL._replace(cases={**IOCTL.cases, 0x8900: _AGENT_SOCKET_IOCTLS}),
}

# --- The compiler -----------------------------------------------------------------------------------------------------
# The program is a tree, like the policy: every branch jumps forward into its own subtree, and every leaf returns. So a
# call costs about log2(calls) instructions. A call allowed for all arguments costs none: since 5.11 the kernel finds
# those when it loads the filter, and skips the filter for them.

X32_BIT = 0x4000_0000

_LOAD, _AND, _JUMP, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x35, 0x06


def _compiled_for(machine: str, policy: Mapping[str, Rule]) -> bytes:
    return b"".join(_compiled(_tree(machine, policy)))


def _tree(machine: str, policy: Mapping[str, Rule]) -> Rule:
    calls = {number: policy.get(name, REFUSE) for name, number in numbers(machine).items()}
    native = Switch(NUMBER, {0: Switch(NUMBER, calls, ABSENT)}, KILL, mask=X32_BIT)
    return Switch(ARCHITECTURE, {AUDIT_ARCHITECTURES[machine]: native}, KILL)


def _added(before: Rule, rule: Rule) -> Rule:
    """What a rule still forbids where another one is in force: nothing where both agree."""
    if before == rule:
        return ALLOW
    if isinstance(before, int) or isinstance(rule, int) or (before.offset, before.mask) != (rule.offset, rule.mask):
        return rule
    values = before.cases.keys() | rule.cases.keys()
    cases = {
        value: _added(before.cases.get(value, before.otherwise), rule.cases.get(value, rule.otherwise))
        for value in values
    }
    return Switch(rule.offset, cases, _added(before.otherwise, rule.otherwise), rule.mask)


def _compiled(rule: Rule) -> list[bytes]:
    if isinstance(rule, int):
        return [_instruction(_RETURN, rule)]
    masked = [_instruction(_AND, rule.mask)] if rule.mask != WORD else []
    return [_instruction(_LOAD, rule.offset), *masked, *_search(_spans(rule))]


def _spans(switch: Switch) -> list[tuple[int, Rule]]:
    """All values from 0 up, as spans of one rule: each span's first value and its rule."""
    otherwise = switch.otherwise
    starts = {0: otherwise} | {value + 1: otherwise for value in switch.cases if value != WORD} | dict(switch.cases)
    spans: list[tuple[int, Rule]] = []
    for start in sorted(starts):
        if not spans or spans[-1][1] != starts[start]:
            spans.append((start, starts[start]))
    return spans


def _search(spans: list[tuple[int, Rule]]) -> list[bytes]:
    if len(spans) == 1:
        return _compiled(spans[0][1])
    middle = len(spans) // 2
    lower, upper = _search(spans[:middle]), _search(spans[middle:])
    return [*_jump_if_at_least(spans[middle][0], over=len(lower)), *lower, *upper]


def _jump_if_at_least(value: int, *, over: int) -> list[bytes]:
    if over <= 255:  # the range of a conditional jump
        return [_instruction(_JUMP_IF_AT_LEAST, value, if_true=over)]
    return [_instruction(_JUMP_IF_AT_LEAST, value, if_false=1), _instruction(_JUMP, over)]


def _instruction(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


# --- The numbers ------------------------------------------------------------------------------------------------------
# A row starts with the number of its first name; the others follow in order.

AUDIT_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


def numbers(machine: str) -> dict[str, int]:
    """Every system call that has a name on this machine."""
    if machine not in _TABLES:
        raise ValueError(f"no system calls are known for machine {machine!r}; there are {', '.join(sorted(_TABLES))}")
    rows = [row.split() for row in (_TABLES[machine] + _SINCE_424).splitlines() if row.strip()]
    return {name: int(first) + place for first, *names in rows for place, name in enumerate(names)}


_TABLES = {
    "x86_64": """
  0  read write open close stat fstat lstat poll lseek mmap
 10  mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv
 20  writev access pipe select sched_yield mremap msync mincore madvise shmget
 30  shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid
 40  sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
 50  listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve
 60  exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
 70  msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd
 80  chdir fchdir rename mkdir rmdir creat link unlink symlink readlink
 90  chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
100  times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
110  getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid
120  getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo
130  rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
140  getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
147  sched_get_priority_min sched_rr_get_interval mlock
150  munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex
160  setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot
170  sethostname setdomainname iopl ioperm create_module init_module delete_module get_kernel_syms query_module quotactl
180  nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr
190  fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr
200  tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit
210  io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64
218  set_tid_address restart_syscall
220  semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime
228  clock_gettime clock_getres
230  clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy
240  mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key
250  keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
260  fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
270  pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages
280  utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4
290  eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg
300  fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns
309  getcpu
310  process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
319  memfd_create
320  kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
330  pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
""",
    "aarch64": """
  0  io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr
 10  fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2
 20  epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl
 30  ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2
 40  mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir
 50  fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2
 60  quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
 70  pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat
 80  fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct
 90  capget capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
100  get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create timer_gettime
109  timer_getoverrun
110  timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam
119  sched_setscheduler
120  sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
126  sched_get_priority_min sched_rr_get_interval restart_syscall kill
130  tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo
139  rt_sigreturn
140  setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid setresgid
150  getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups
160  uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday
170  settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
180  mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd
190  semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair
200  bind listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt
210  shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl
220  clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
230  mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages
240  rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260  wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs setns sendmmsg
270  process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
279  memfd_create
280  bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
290  pkey_free statx io_pgetevents rseq kexec_file_load
""",
}

_SINCE_424 = """
424  pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount
430  fsopen fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
440  process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
446  landlock_restrict_self memfd_secret process_mrelease futex_waitv
450  set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount
458  listmount lsm_get_self_attr
460  lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr
468  file_getattr file_setattr
470  listns rseq_slice_yield
"""
