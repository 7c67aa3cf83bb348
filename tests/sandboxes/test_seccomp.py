"""The seccomp filters: run in an interpreter of BPF, compared with a plain statement of the policy, and in the kernel.

No filter is ever loaded into the test process. Calls that the kernel must refuse have arguments that would do no harm
if it did not.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
from functools import cache
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolyard.sandboxes.native import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM, RISCV64 = 0x40000003, 0x40000028, 0xC00000F3
MACHINES = sorted(ARCHITECTURES)
HERE = os.uname().machine

ALLOW, KILL = 0x7FFF0000, 0x80000000
UPPER = 0xDEADBEEF_00000000


def fails(error):
    return 0x00050000 | error


NOT_PERMITTED, NOT_THERE = fails(errno.EPERM), fails(errno.ENOSYS)
NO_SUCH_FAMILY, NO_SUCH_OPTION = fails(errno.EAFNOSUPPORT), fails(errno.ENOPROTOOPT)

# --- An interpreter for classic BPF over struct seccomp_data, as strict as the kernel's checker -----------------------


@cache
def instructions(program):
    return list(struct.iter_unpack("=HBBI", program))


def executed(program, *, machine, number, arguments=(0, 0, 0, 0, 0, 0), architecture=None):
    """The verdict, and how many instructions it took."""
    if architecture is None:
        architecture = ARCHITECTURES[machine]
    data = struct.pack("<IIQ6Q", number, architecture, 0x7F00_0000_0000, *arguments)
    code, accumulator, at = instructions(program), 0, 0
    for steps in range(1, len(code) + 1):
        operation, if_true, if_false, operand = code[at]
        at += 1
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                accumulator &= operand
            case 0x05:  # BPF_JMP | BPF_JA
                at += operand
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                at += if_true if accumulator >= operand else if_false
            case 0x06:  # BPF_RET | BPF_K
                return operand, steps
            case _:
                raise AssertionError(f"instruction {operation:#x} is none that the filters use")
    raise AssertionError("the program does not end")


def verdict(program, **call):
    return executed(program, **call)[0]


# --- The policy in plain words ----------------------------------------------------------------------------------------

REFUSED_TO_ALL = set(
    """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise add_key request_key keyctl bpf
    perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register memfd_secret vmsplice remap_file_pages
    migrate_pages move_pages set_mempolicy_home_node modify_ldt set_thread_area get_thread_area iopl ioperm
    swapon swapoff reboot kexec_load kexec_file_load init_module finit_module delete_module create_module query_module
    get_kernel_syms name_to_handle_at open_by_handle_at quotactl quotactl_fd acct settimeofday clock_settime adjtimex
    clock_adjtime fanotify_init fanotify_mark lookup_dcookie nfsservctl uselib vhangup syslog sysfs ustat _sysctl
    getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old epoll_wait_old
    """.split()  # noqa: SIM905
)
FOR_THE_AGENT = set(
    """
    mount umount2 pivot_root chroot open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount fspick
    statmount listmount unshare clone clone3 setns seccomp prctl prlimit64 sethostname setdomainname process_mrelease
    """.split()  # noqa: SIM905
)
HIDDEN_FROM_PROGRAMS = set(
    """
    clone3 seccomp io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents cachestat statmount listmount
    lsm_get_self_attr lsm_set_self_attr lsm_list_modules open_tree_attr file_getattr file_setattr listns
    """.split()  # noqa: SIM905
)
SHARED_BY_ALL = set(
    """
    shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend
    mq_timedreceive mq_notify mq_getsetattr inotify_init inotify_init1
    """.split()  # noqa: SIM905
)
ATTRIBUTES = set(
    """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
    """.split()  # noqa: SIM905
)
EXTENDED = {f"{what}xattr{at}" for what in ("set", "lset", "fset", "remove", "lremove", "fremove") for at in ("", "at")}
REFUSED_TO_PROGRAMS = REFUSED_TO_ALL | (FOR_THE_AGENT - HIDDEN_FROM_PROGRAMS - {"clone", "setns", "prctl", "prlimit64"})

NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSSERIAL, TIOCSETD, TIOCVHANGUP = 0x5412, 0x541C, 0x541D, 0x541F, 0x5423, 0x5437
INTO_TERMINALS = {TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSSERIAL, TIOCSETD, TIOCVHANGUP}
SIOCSIFFLAGS = 0x8914
SOCKET_QUESTIONS = {0x8901, 0x8902, 0x8903, 0x8904, 0x8905, 0x8906, 0x8907, 0x80108906, 0x80108907} | {
    0x8900 + low for low in (0x10, 0x12, 0x13, 0x15, 0x17, 0x19, 0x1B, 0x1D, 0x21, 0x27, 0x33, 0x42)
}
ABOUT_FILES = {0x2, 0x80086601, 0x40086602, 0xC020660B, 0x80087601, 0x801C581F, 0x401C5820} | {
    *(0x40049409, 0x4020940D, 0xC0189436, 0x80045200)
}
SOCKET_OPTIONS = {
    0: dict.fromkeys([16, 17, 64, 65, 66, 67, 96, 97, 98, 99, 128, 129, 130, 131], NOT_PERMITTED),
    1: dict.fromkeys([26, 50, 51, 52], NOT_PERMITTED),
    6: {31: NO_SUCH_OPTION},
    17: {100: NO_SUCH_OPTION},
    41: dict.fromkeys([34, 35, 64, 65], NOT_PERMITTED),
}


def intended_without_namespaces(name, a, *, network, own_user):
    """What differs for a program without namespaces. `None`: nothing."""
    if name in SHARED_BY_ALL:
        return NOT_THERE
    if name in EXTENDED:
        return fails(errno.EOPNOTSUPP)
    if name == "setns" or (name in ATTRIBUTES and not own_user):
        return NOT_PERMITTED
    match name:
        case "sched_setparam" | "sched_setscheduler" | "sched_setattr" | "sched_setaffinity":
            return ALLOW if a[0] == 0 else NOT_PERMITTED
        case "setpriority":
            return ALLOW if a[0] in (0, 1) and a[1] == 0 else NOT_PERMITTED
        case "ioprio_set":
            return ALLOW if a[0] in (1, 2) and a[1] == 0 else NOT_PERMITTED
        case "socketpair" if a[0] == 1:
            return ALLOW if a[1] & ~0o2004000 in (1, 5) else NOT_PERMITTED
        case "socket" if a[0] == 1 or not network:
            return NO_SUCH_FAMILY
    return None


def intended(name, arguments, *, agent=False):
    """The intended verdict on a call by name. `None` as name: the number has none."""
    a = [argument & 0xFFFFFFFF for argument in arguments]
    if name is None:
        return NOT_THERE
    if agent:
        if name == "ioctl" and a[1] == SIOCSIFFLAGS:
            return ALLOW
        if name == "socket" and a[0] == 16:
            return ALLOW if a[2] == 0 else NOT_PERMITTED
        if name in FOR_THE_AGENT:
            return ALLOW
    if name in HIDDEN_FROM_PROGRAMS:
        return NOT_THERE
    if name in REFUSED_TO_PROGRAMS:
        return NOT_PERMITTED
    match name:
        case "sync" | "syncfs":
            return fails(0)
        case "clone":
            return NOT_PERMITTED if any(a[0] & flag for flag in NAMESPACES.values()) else ALLOW
        case "setns":
            return ALLOW if a[1] in set(NAMESPACES.values()) - {NAMESPACES["cgroup"]} else NOT_PERMITTED
        case "mmap":
            return fails(errno.ENOMEM) if a[3] & 0x40000 else ALLOW
        case "memfd_create":
            return fails(errno.ENOMEM) if a[1] & 4 else ALLOW
        case "shmget":
            return fails(errno.ENOMEM) if a[2] & 0o4000 else ALLOW
        case "prlimit64":
            return ALLOW if a[0] == 0 else NOT_PERMITTED
        case "personality":
            return ALLOW if a[0] in (0, 0x40000, 0xFFFFFFFF) else NOT_PERMITTED
        case "prctl":
            invalid = fails(errno.EINVAL)
            return {22: invalid, 35: NOT_PERMITTED, 59: invalid, 62: invalid}.get(a[0], ALLOW)
        case "mknod" | "mknodat":
            mode = a[1 if name == "mknod" else 2] & 0o170000
            return ALLOW if mode in (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK) else NOT_PERMITTED
        case "socketpair":
            return ALLOW if a[0] == 1 else NO_SUCH_FAMILY
        case "socket":
            if a[0] == 1:
                return ALLOW
            if a[0] not in (2, 10):
                return NO_SUCH_FAMILY
            if a[1] & ~0o2004000 not in (1, 2):
                return NOT_PERMITTED
            return ALLOW if a[2] in (0, 6, 17) else fails(errno.EPROTONOSUPPORT)
        case "setsockopt":
            return SOCKET_OPTIONS[a[1]].get(a[2], ALLOW) if a[1] in SOCKET_OPTIONS else NO_SUCH_OPTION
        case "ioctl":
            if a[1] & 0xFF00 == 0x5400:
                return NOT_PERMITTED if a[1] in INTO_TERMINALS else ALLOW
            if a[1] & 0xFF00 == 0x8900:
                return ALLOW if a[1] in SOCKET_QUESTIONS else NOT_PERMITTED
            return ALLOW if a[1] in ABOUT_FILES else fails(errno.ENOTTY)
    return ALLOW


def names_by_number(machine):
    return {number: name for name, number in seccomp.numbers(machine).items()}


WITHOUT_NAMESPACES = {
    "without namespaces": {"network": False, "own_user": False},
    "without namespaces, own user": {"network": False, "own_user": True},
    "without namespaces, network": {"network": True, "own_user": False},
}
FILTERS = {
    (machine, who): program
    for machine in MACHINES
    for who, program in {
        "program": seccomp.program_filter(machine=machine),
        **{who: seccomp.shared_filter(**has, machine=machine) for who, has in WITHOUT_NAMESPACES.items()},
        "agent": seccomp.agent_filter(machine=machine),
    }.items()
}
ADDED = {(machine, "added"): seccomp.added_filter(machine=machine) for machine in MACHINES}
NAMES = {machine: names_by_number(machine) for machine in MACHINES}
every_filter = pytest.mark.parametrize(("machine", "who"), FILTERS, ids=lambda value: value.replace(" ", "_"))
added_too = pytest.mark.parametrize(("machine", "who"), FILTERS | ADDED, ids=lambda value: value.replace(" ", "_"))
every_machine = pytest.mark.parametrize("machine", MACHINES)


def intended_by(who, name, arguments):
    if who in WITHOUT_NAMESPACES:
        words = [argument & 0xFFFFFFFF for argument in arguments]
        different = intended_without_namespaces(name, words, **WITHOUT_NAMESPACES[who])
        if different is not None:
            return different
    return intended(name, arguments, agent=who == "agent")


# --- The numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_no_two_calls_have_one_number(machine):
    numbers = seccomp.numbers(machine)
    assert len(set(numbers.values())) == len(numbers)


def test_every_call_that_the_policy_names_exists_on_some_machine():
    known = {name for names in NAMES.values() for name in names.values()}
    assert set(seccomp.PROGRAM) <= known
    assert set(seccomp.AGENT) <= known
    assert set(seccomp.SHARED) <= known
    assert set(seccomp.ATTRIBUTES) <= known
    assert known >= REFUSED_TO_PROGRAMS


@pytest.mark.parametrize(
    ("name", "x86_64", "aarch64"),
    [
        *(("read", 0, 63), ("mmap", 9, 222), ("ioctl", 16, 29), ("socket", 41, 198), ("socketpair", 53, 199)),
        *(("setsockopt", 54, 208), ("clone", 56, 220), ("execve", 59, 221), ("ptrace", 101, 117)),
        *(("personality", 135, 92), ("pivot_root", 155, 41), ("prctl", 157, 167), ("chroot", 161, 51)),
        *(("mount", 165, 40), ("umount2", 166, 39), ("reboot", 169, 142), ("init_module", 175, 105)),
        *(("mknodat", 259, 33), ("keyctl", 250, 219), ("unshare", 272, 97), ("perf_event_open", 298, 241)),
        *(("prlimit64", 302, 261), ("open_by_handle_at", 304, 265), ("setns", 308, 268)),
        *(("process_vm_writev", 311, 271), ("finit_module", 313, 273), ("seccomp", 317, 277), ("bpf", 321, 280)),
        *(("memfd_create", 319, 279), ("kexec_file_load", 320, 294), ("userfaultfd", 323, 282), ("rseq", 334, 293)),
        *(("io_uring_setup", 425, 425), ("clone3", 435, 435), ("pidfd_getfd", 438, 438), ("mseal", 462, 462)),
    ],
)
def test_the_numbers_that_matter_most_are_right(name, x86_64, aarch64):
    assert (seccomp.numbers("x86_64")[name], seccomp.numbers("aarch64")[name]) == (x86_64, aarch64)


HEADERS = {
    machine: Path(found)
    for machine, found in [
        (HERE, "/usr/include/asm/unistd_64.h"),
        (HERE, f"/usr/include/{HERE}-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ]
    if Path(found).exists()
}
OF_32_BITS = {"sync_file_range2", "arch_specific_syscall", "syscalls"}  # in the generic header

if HEADERS:  # headers of the kernel, if installed

    @pytest.mark.parametrize("machine", HEADERS)
    def test_the_numbers_are_those_of_the_kernels_headers(machine):
        defined = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.MULTILINE)
        theirs = {
            "newfstatat" if name == "fstatat" else name: int(number)
            for name, number in defined
            if name not in OF_32_BITS and not 400 < int(number) < 424
        }
        ours = seccomp.numbers(machine)
        newest_of_both = min(max(theirs.values()), max(ours.values()))
        assert {name: number for name, number in theirs.items() if number <= newest_of_both} == {
            name: number
            for name, number in ours.items()
            if number <= newest_of_both and (name in theirs or name not in ("uretprobe", "uprobe"))
        }


def test_a_machine_without_a_table_is_refused_by_name():
    with pytest.raises(ValueError, match="no system calls are known for machine 'riscv64'; there are aarch64, x86_64"):
        seccomp.program_filter(machine="riscv64")


# --- The compiled filters, in the interpreter -------------------------------------------------------------------------


@added_too
def test_every_jump_lands_inside_the_program_and_every_path_returns(machine, who):
    code = instructions((FILTERS | ADDED)[machine, who])
    assert len(code) <= 800  # the kernel takes 4096
    for at, (operation, if_true, if_false, operand) in enumerate(code):
        targets = {0x05: [operand], 0x35: [if_true, if_false], 0x06: []}.get(operation, [0])
        assert all(at + 1 + target < len(code) for target in targets)
        if operation == 0x20:
            assert operand in (0, 4, *range(16, 64, 8))
        if operation == 0x06:
            assert operand in (ALLOW, KILL) or operand & 0xFFFF0000 == 0x00050000


@every_filter
def test_every_number_gets_the_verdict_that_was_meant(machine, who):
    program, names = FILTERS[machine, who], NAMES[machine]
    for number in range(600):
        for arguments in [(0,) * 6, (UPPER,) * 6, (1,) * 6, (UPPER | 1,) * 6, (0xFFFF_FFFF_FFFF_FFFF,) * 6]:
            got = verdict(program, machine=machine, number=number, arguments=arguments)
            assert got == intended_by(who, names.get(number), arguments), (number, names.get(number), arguments)


def other_architectures(machine):
    own = ARCHITECTURES[machine]
    return {*ARCHITECTURES.values(), I386, ARM, RISCV64, 0, own - 1, own + 1, own & 0x7FFFFFFF, 0xFFFFFFFF} - {own}


@every_filter
def test_another_architectures_table_kills(machine, who):
    program = FILTERS[machine, who]
    for architecture in other_architectures(machine):
        for number in range(600):
            assert verdict(program, machine=machine, number=number, architecture=architecture) == KILL


@every_filter
def test_the_x32_table_kills(machine, who):
    program = FILTERS[machine, who]
    for number in [*range(0x4000_0000, 0x4000_0258), 0x7FFF_FFFF, 0xC000_0000, 0xFFFF_FFFF]:
        assert verdict(program, machine=machine, number=number) == KILL


@every_filter
def test_numbers_nobody_has_named_are_absent(machine, who):
    program = FILTERS[machine, who]
    for number in [472, 512, 547, 1000, 0x3FFF_FFFF, 0x8000_0000, 0xBFFF_FFFF]:
        assert verdict(program, machine=machine, number=number) == NOT_THERE


BITS = [1 << bit for bit in range(32)]
SMALL = [*range(300), 0xFFFFFFFE, 0xFFFFFFFF]
FILE_TYPES = [kind << 12 | permissions for kind in range(17) for permissions in (0, 0o666, 0o7777)]
REQUESTS = {0xB701, 0xB702, 0x8010B70B, 0xFF01, 0xFF0B, 0xAA00, 0xAE01, 0x400454CA, 0xC0045877, *BITS} | {
    *(request + off for request in ABOUT_FILES | SOCKET_QUESTIONS for off in (-1, 0, 1)),
    *(size | family | low for size in (0, 0x80040000) for family in (0x5400, 0x8900) for low in range(256)),
}
SOCKET_TYPES = [kind | flags for kind in range(12) for flags in (0, 0o4000, 0o2000000, 0o2004000, 0x100, 0x10000)]
# For every call whose arguments matter: which of them, and values to try for each.
TO_TRY = {
    "clone": {0: [*BITS, *(one | 17 for one in BITS), 0x1200011, 0x3D0F00, 0xFFFFFFFF]},
    "setns": {1: [*BITS, *(one | other for one, other in combinations(NAMESPACES.values(), 2)), 0]},
    "mmap": {3: [*BITS, 0x22, 0x40022, 0xFFFFFFFF]},
    "memfd_create": {1: [*BITS, 0, 5, 0xFFFFFFFF]},
    "shmget": {2: [*BITS, 0o1666, 0o5666]},
    "prlimit64": {0: [*BITS, *SMALL]},
    "personality": {0: [*BITS, *SMALL, 0x40001, 0x50000]},
    "prctl": {0: [*BITS, *SMALL, 0x59616D61, 0x53564D41]},
    "mknod": {1: FILE_TYPES},
    "mknodat": {2: FILE_TYPES},
    "socketpair": {0: [*range(48), 0xFFFFFFFF], 1: SOCKET_TYPES},
    **{f"sched_set{what}": {0: [*BITS, *SMALL]} for what in ("param", "scheduler", "attr", "affinity")},
    **{name: {0: [*range(5), 0xFFFFFFFF], 1: [*BITS, *SMALL]} for name in ("setpriority", "ioprio_set")},
    "socket": {0: [*range(48), 0xFFFFFFFF], 1: SOCKET_TYPES, 2: [0, 1, 6, 17, 58, 115, 132, 262]},
    "setsockopt": {1: [*range(20), 41, 42, 255, 270, 282, 0xFFFFFFFF], 2: range(140)},
    "ioctl": {1: sorted(REQUESTS)},
}


def test_all_calls_whose_arguments_matter_are_tried():
    policies = (seccomp.PROGRAM, seccomp.SHARED)
    assert set(TO_TRY) == {name for policy in policies for name, rule in policy.items() if not isinstance(rule, int)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("machine", "who", "name"),
    [(machine, who, name) for machine, who in FILTERS for name in TO_TRY if name in seccomp.numbers(machine)],
    ids=lambda value: value.replace(" ", "_"),
)
def test_every_argument_that_matters_gets_the_verdict_that_was_meant(machine, who, name):
    number = seccomp.numbers(machine)[name]
    for upper, *words in product([0, 0xFFFFFFFF_00000000], *TO_TRY[name].values()):
        arguments = [UPPER] * 6
        for index, word in zip(TO_TRY[name], words, strict=True):
            arguments[index] = upper | word
        got = verdict(FILTERS[machine, who], machine=machine, number=number, arguments=arguments)
        assert got == intended_by(who, name, arguments), (name, [hex(word) for word in words], hex(upper))


words = st.one_of(
    st.sampled_from(sorted({word for tries in TO_TRY.values() for values in tries.values() for word in values})),
    st.integers(0, 0xFFFFFFFF),
)
registers = st.builds(lambda upper, lower: upper << 32 | lower, st.sampled_from([0, 1, 0x80000000, 0xFFFFFFFF]), words)


@pytest.mark.thorough
@every_filter
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_the_filter_agrees_with_the_policy_in_plain_words(machine, who, data):
    numbers = seccomp.numbers(machine)
    checked = st.sampled_from([numbers[name] for name in TO_TRY if name in numbers])
    number = data.draw(st.one_of(checked, checked, st.integers(0, 600), st.integers(0, 0x3FFF_FFFF)))
    arguments = data.draw(st.tuples(*[registers] * 6))
    got = verdict(FILTERS[machine, who], machine=machine, number=number, arguments=arguments)
    assert got == intended_by(who, NAMES[machine].get(number), arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_agent_may_do_all_that_programs_may(machine):
    for number in range(600):
        if verdict(FILTERS[machine, "program"], machine=machine, number=number) == ALLOW:
            assert verdict(FILTERS[machine, "agent"], machine=machine, number=number) == ALLOW


@added_too
def test_a_call_costs_a_handful_of_instructions(machine, who):
    program = (FILTERS | ADDED)[machine, who]
    assert max(executed(program, machine=machine, number=number)[1] for number in range(600)) <= 30
    assert executed(program, machine=machine, number=seccomp.numbers(machine)["read"])[1] <= 18


# --- An agent's filter, and what a program adds to it -----------------------------------------------------------------


def verdict_of_both(machine, **call):
    """As in the kernel: the stricter action counts, or the later filter if both are equal."""
    added = verdict(ADDED[machine, "added"], machine=machine, **call)
    agents = verdict(FILTERS[machine, "agent"], machine=machine, **call)
    return agents if action(agents) < action(added) else added


def action(verdict):
    kept = verdict & 0xFFFF0000
    return kept - 0x1_0000_0000 if kept & 0x8000_0000 else kept


def same_as_alone(machine, **call):
    return verdict_of_both(machine, **call) == verdict(FILTERS[machine, "program"], machine=machine, **call)


@every_machine
def test_with_what_it_adds_a_program_may_do_exactly_what_its_own_filter_allows(machine):
    odd = [
        472,
        512,
        547,
        1000,
        0x3FFF_FFFF,
        0x4000_0000,
        0x4000_0038,
        0x7FFF_FFFF,
        0x8000_0000,
        0xBFFF_FFFF,
        0xFFFF_FFFF,
    ]
    for number in [*range(600), *odd]:
        for arguments in [(0,) * 6, (UPPER,) * 6, (1,) * 6, (UPPER | 1,) * 6, (0xFFFF_FFFF_FFFF_FFFF,) * 6]:
            assert same_as_alone(machine, number=number, arguments=arguments), (number, arguments)
        for architecture in other_architectures(machine):
            assert same_as_alone(machine, number=number, architecture=architecture), (number, architecture)


@pytest.mark.thorough
@every_machine
def test_that_holds_for_every_argument_that_matters(machine):
    numbers = seccomp.numbers(machine)
    tries = {**TO_TRY, "ioctl": {1: [*TO_TRY["ioctl"][1], SIOCSIFFLAGS]}}
    for name in [name for name in tries if name in numbers]:
        for upper, *words in product([0, 0xFFFFFFFF_00000000], *tries[name].values()):
            arguments = [UPPER] * 6
            for index, word in zip(tries[name], words, strict=True):
                arguments[index] = upper | word
            assert same_as_alone(machine, number=numbers[name], arguments=arguments), (name, words)


@pytest.mark.thorough
@every_machine
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_and_for_any_call(machine, data):
    named = st.sampled_from(sorted(seccomp.numbers(machine).values()))
    number = data.draw(st.one_of(named, named, st.integers(0, 0xFFFF_FFFF)))
    assert same_as_alone(machine, number=number, arguments=data.draw(st.tuples(*[registers] * 6)))


@every_machine
def test_what_it_adds_is_short(machine):
    assert 3 * len(ADDED[machine, "added"]) < len(FILTERS[machine, "program"])


# --- In the kernel ----------------------------------------------------------------------------------------------------

LOADER = """
import ctypes, os, sys

libc = ctypes.CDLL(None, use_errno=True)
program = bytes.fromhex(sys.argv[1])

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

def must(result):
    if result:
        raise OSError(ctypes.get_errno(), "the filter was not loaded")

PR_SET_NO_NEW_PRIVS, SECCOMP_SET_MODE_FILTER = 38, 1
must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
must(libc.syscall(int(sys.argv[2]), SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(Program(len(program) // 8, program))))
os.execvp(sys.argv[3], sys.argv[3:])
"""


def loading(program):
    return [sys.executable, "-I", "-S", "-c", LOADER, program.hex(), str(seccomp.numbers(HERE)["seccomp"])]


def confined(*argv, program, cwd=None):
    """Run a command with a filter loaded for it, in its own session."""
    return subprocess.run(
        [*loading(program), *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )


CALLER = """
import ctypes, json, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for number, arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    print(result, ctypes.get_errno())
"""


def calling(*calls):
    wire = json.dumps([[number, arguments] for number, *arguments in calls])
    return [sys.executable, "-I", "-S", "-c", CALLER, wire]


def answers(done):
    """The kernel's answer to each call: 0 or more, or minus the error."""
    assert done.returncode == 0, done.stderr
    pairs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    return [-error if result == -1 else result for result, error in pairs]


def outcomes(program, *calls):
    return answers(confined(*calling(*calls), program=program))


def named(name, *arguments):
    return seccomp.numbers(HERE)[name], *arguments


PROGRAM, AGENT = FILTERS[HERE, "program"], FILTERS[HERE, "agent"]
NOWHERE = (-1,) * 6  # as a descriptor, an address, a size, a command or a set of flags, nothing that exists


def test_the_kernel_refuses_programs_every_call_that_is_not_for_them():
    names = sorted(REFUSED_TO_PROGRAMS & set(seccomp.numbers(HERE)))
    got = dict(zip(names, outcomes(PROGRAM, *(named(name, *NOWHERE) for name in names)), strict=True))
    assert got == dict.fromkeys(names, -errno.EPERM)


def test_the_kernel_refuses_the_agent_what_it_does_not_need():
    names = sorted(REFUSED_TO_ALL & set(seccomp.numbers(HERE)))
    got = dict(zip(names, outcomes(AGENT, *(named(name, *NOWHERE) for name in names)), strict=True))
    assert got == dict.fromkeys(names, -errno.EPERM)


def test_the_kernel_lets_the_agent_try_to_mount_and_to_make_namespaces():
    tries = {
        "mount": NOWHERE,
        "umount2": NOWHERE,
        "setns": (-1, 0),
        "clone3": (0, 0),
        "unshare": (1,),
        "seccomp": (99,),
    }
    got = dict(
        zip(tries, outcomes(AGENT, *(named(name, *arguments) for name, arguments in tries.items())), strict=True)
    )
    assert got == dict.fromkeys(tries, -errno.EINVAL) | {"mount": -errno.EFAULT, "setns": -errno.EBADF}


def test_the_kernel_hides_from_programs_what_a_newer_library_may_try():
    hidden = [named(name, *NOWHERE) for name in sorted(HIDDEN_FROM_PROGRAMS)]
    assert set(outcomes(PROGRAM, *hidden, (472, *NOWHERE), (600, *NOWHERE))) == {-errno.ENOSYS}


@pytest.mark.parametrize("upper", [0, 1 << 32, 0xFFFF_FFFF << 32])
@pytest.mark.parametrize("flag", NAMESPACES.values(), ids=list(NAMESPACES))
def test_the_kernel_makes_no_namespace_for_a_program(flag, upper):
    thread = 0x10000  # CLONE_THREAD without CLONE_SIGHAND, which clone() itself refuses
    flags = int.from_bytes((upper | flag | thread).to_bytes(8, "little"), "little", signed=True)
    assert outcomes(PROGRAM, named("clone", flags, 0, 0, 0, 0), named("unshare", flags)) == [-errno.EPERM] * 2
    if not upper:
        assert outcomes(PROGRAM, named("clone", thread, 0, 0, 0, 0)) == [-errno.EINVAL]


@pytest.mark.thorough
@pytest.mark.parametrize("upper", [0, 1 << 32])
@pytest.mark.parametrize(
    ("error", "name", "arguments"),
    [
        (errno.EPERM, "ioctl", (-1, TIOCSTI)),
        (errno.EBADF, "ioctl", (-1, 0x5413)),  # TIOCGWINSZ: the kernel's own answer
        (errno.EPERM, "ioctl", (-1, 0x8914)),  # SIOCSIFFLAGS
        (errno.ENOTTY, "ioctl", (-1, 0xB701)),  # NS_GET_USERNS
        (errno.EAFNOSUPPORT, "socket", (16, 3, 0)),  # netlink
        (errno.EAFNOSUPPORT, "socket", (38, 5, 0)),  # the kernel's cryptography
        (errno.EAFNOSUPPORT, "socket", (40, 1, 0)),  # vsock
        (errno.EPERM, "socket", (2, 3, 1)),  # raw
        (errno.EPROTONOSUPPORT, "socket", (2, 1, 132)),  # SCTP
        (errno.EAFNOSUPPORT, "socketpair", (2, 1, 0, 0)),
        (errno.EPERM, "setsockopt", (-1, 0, 64)),  # IPT_SO_SET_REPLACE
        (errno.EBADF, "setsockopt", (-1, 0, 2)),
        (errno.EPERM, "prlimit64", (1, 7, 0, 0)),
        (errno.EPERM, "personality", (8,)),
        (0, "personality", (0xFFFFFFFF,)),
        (errno.EPERM, "mknodat", (-1, -1, stat.S_IFCHR | 0o666, 0x103)),
        (errno.EFAULT, "mknodat", (-1, -1, stat.S_IFIFO | 0o666, 0)),
        (errno.EPERM, "setns", (-1, NAMESPACES["cgroup"])),
        (errno.EPERM, "setns", (-1, 0)),
        (errno.EBADF, "setns", (-1, NAMESPACES["user"])),
        (errno.ENOMEM, "mmap", (0, 4096, 3, 0x40022, -1, 0)),
        (errno.ENOMEM, "memfd_create", (-1, 4)),
        (errno.EFAULT, "memfd_create", (-1, 1)),
        (errno.EINVAL, "prctl", (22, 2, 0, 0, 0)),
        (errno.EPERM, "prctl", (35, 0, 0, 0, 0)),
    ],
)
def test_the_kernel_looks_at_arguments_and_only_at_their_lower_half(error, name, arguments, upper):
    raised = [argument if argument == -1 else upper | argument for argument in arguments]
    assert outcomes(PROGRAM, named(name, *raised)) == [-error]


def test_sync_says_that_it_is_done_without_asking_the_kernel():
    assert outcomes(PROGRAM, named("sync"), named("syncfs", -1)) == [0, 0]  # the kernel would return EBADF


def test_a_program_without_namespaces_has_no_sockets_and_no_memory_that_others_share():
    sockets = [named("socket", family, 1, 0) for family in (1, 2, 10)]
    assert outcomes(FILTERS[HERE, "without namespaces"], *sockets) == [-errno.EAFNOSUPPORT] * 3
    unix, inet, inet6 = outcomes(FILTERS[HERE, "without namespaces, network"], *sockets)
    assert unix == -errno.EAFNOSUPPORT
    assert min(inet, inet6) > 2
    shared = [named("shmget", 0, 4096, 0o1600), named("semget", 0, 1, 0o1600), named("msgget", 0, 0o1600)]
    assert outcomes(FILTERS[HERE, "without namespaces"], *shared) == [-errno.ENOSYS] * 3


@pytest.mark.parametrize("program", [PROGRAM, AGENT], ids=["program", "agent"])
def test_a_call_with_the_x32_bit_kills_the_process(program):
    call = "import ctypes; print(ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 39)))"
    done = confined(sys.executable, "-I", "-S", "-c", call, program=program)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "")


INT_0X80 = """
import ctypes, mmap, sys

getpid = bytes.fromhex("b814000000 cd80 c3")  # mov eax, 20; int 0x80; ret
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(getpid)
print("calling", flush=True)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""

if HERE == "x86_64":  # only this machine has such an instruction

    @pytest.mark.parametrize("program", [PROGRAM, AGENT], ids=["program", "agent"])
    def test_a_call_through_int_0x80_kills_the_process(program):
        argv = [sys.executable, "-I", "-S", "-c", INT_0X80]
        unconfined = subprocess.run(argv, capture_output=True, timeout=30, check=False)
        done = confined(*argv, program=program)
        # A kernel without 32-bit support has no such gate, and kills the process.
        assert done.returncode == (unconfined.returncode or -signal.SIGSYS)
        assert done.stdout == "calling\n"


def test_a_kill_takes_all_threads_with_it():
    code = """
import ctypes, threading
thread = threading.Thread(target=lambda: ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000)))
thread.start()
thread.join()
print("survived")
"""
    done = confined(sys.executable, "-I", "-S", "-c", code, program=PROGRAM)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "")


def test_a_program_under_both_filters_gets_the_stricter_answer():
    calls = [named("unshare", *NOWHERE), named("clone3", *NOWHERE), named("bpf", *NOWHERE), named("getppid")]
    inner = [*loading(PROGRAM), *calling(*calls)]
    done = confined(*inner, program=AGENT)
    *refused, last = answers(done)
    assert refused == [-errno.EPERM, -errno.ENOSYS, -errno.EPERM]
    assert last > 0


# --- Ordinary programs ------------------------------------------------------------------------------------------------

PYTHON_PROGRAMS = {
    "an asyncio subprocess": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    print((await process.communicate(b"ok"))[0].decode())
asyncio.run(main())
""",
    "an asyncio server and client on loopback": """
import asyncio
async def main():
    async def serve(reader, writer):
        writer.write(await reader.read(2))
        writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"ok")
    print((await reader.read()).decode())
    writer.close()
    server.close()
asyncio.run(main())
""",
    "a multiprocessing pool": """
import multiprocessing
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    print("ok")
""",
    "shared memory, a semaphore, a queue": """
import multiprocessing, multiprocessing.shared_memory
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
memory.buf[0] = 1
memory.close(); memory.unlink()
queue = multiprocessing.Queue()
process = multiprocessing.get_context("fork").Process(target=queue.put, args=("ok",))
process.start()
print(queue.get(timeout=20))
process.join()
""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(abs, range(100))) == 4950
print("ok")
""",
    "sqlite with a journal on disk": """
import sqlite3
for mode in ("delete", "wal"):
    with sqlite3.connect(f"{mode}.db") as db:
        db.execute(f"pragma journal_mode={mode}")
        db.execute("create table t (a)")
        db.executemany("insert into t values (?)", [(n,) for n in range(100)])
        db.commit()
        assert db.execute("select sum(a) from t").fetchone() == (4950,)
print("ok")
""",
    "files of every kind": """
import os, shutil, tempfile, fcntl, select, socket, mmap, stat
with tempfile.TemporaryDirectory(dir=".") as name, tempfile.NamedTemporaryFile(dir=name) as file:
    file.write(b"x" * 10000); file.flush(); os.fsync(file.fileno())
    fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)
    shutil.copytree(name, name + "/copy", ignore=shutil.ignore_patterns("copy"))
    os.mkfifo(name + "/fifo"); os.mknod(name + "/file")
    os.symlink("a", name + "/link"); os.link(file.name, name + "/b")
    os.chmod(name + "/b", 0o600); os.utime(name + "/b"); os.truncate(name + "/b", 5); os.statvfs(name); os.sync()
    os.posix_fallocate(file.fileno(), 0, 20000); os.copy_file_range(file.fileno(), file.fileno(), 10, 0, 15000)
    assert stat.S_ISFIFO(os.stat(name + "/fifo").st_mode)
    mmap.mmap(file.fileno(), 4096).flush()
    socket.socket(socket.AF_UNIX).bind(name + "/s")
    os.scandir(name).close()
a, b = socket.socketpair(); a.send(b"1"); select.select([b], [], [], 1)
poll = select.epoll(); poll.register(b); poll.poll(1)
print("ok")
""",
    "a terminal of its own": """
import os, pty, termios, fcntl, struct
pid, master = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "stty -a >/dev/null && test -t 0 && echo ok"])
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
print(os.read(master, 100).decode().strip())
os.waitpid(pid, 0)
""",
    "event descriptors, signals, timers": """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for made in (libc.inotify_init1(0), libc.timerfd_create(1, 0), libc.eventfd(0, 0), os.memfd_create("m"),
             libc.signalfd(-1, ctypes.create_string_buffer(128), 0), libc.epoll_create1(0), os.pidfd_open(os.getpid())):
    assert made > 2, made
signal.signal(signal.SIGALRM, lambda *_: print("ok"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
""",
    "SysV IPC and message queues": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
IPC_PRIVATE, IPC_RMID = 0, 0
shm, sem = libc.shmget(IPC_PRIVATE, 4096, 0o600), libc.semget(IPC_PRIVATE, 1, 0o600)
msg = libc.msgget(IPC_PRIVATE, 0o600)
assert min(shm, sem, msg) >= 0
libc.shmctl(shm, IPC_RMID, 0); libc.semctl(sem, 0, IPC_RMID); libc.msgctl(msg, IPC_RMID, 0)
name = b"/toolyard-%d" % os.getpid()
assert libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, 0) >= 0, ctypes.get_errno()
assert libc.mq_unlink(name) == 0
print("ok")
""",
    "extended attributes, limits, scheduling, scatter and gather": """
import errno, os, resource
open("f", "w").close()
try:
    os.setxattr("f", "user.a", b"1"); assert os.listxattr("f") == ["user.a"]
except OSError as error:
    assert error.errno == errno.ENOTSUP  # not every file system has them
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.prlimit(0, resource.RLIMIT_NOFILE)
os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1); os.getrandom(8)
r, w = os.pipe(); os.writev(w, [b"o", b"k"]); print(os.read(r, 2).decode())
""",
    "the network as it is": """
import socket
assert socket.getaddrinfo("127.0.0.1", 80)
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as udp:
    udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
with socket.socket() as tcp:
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
except OSError as error:
    print("ok", error.strerror)
""",
}


@pytest.mark.parametrize("code", PYTHON_PROGRAMS.values(), ids=[name.replace(" ", "_") for name in PYTHON_PROGRAMS])
def test_ordinary_python_works_under_the_filter(tmp_path, code):
    script = tmp_path / "program.py"
    script.write_text(code)
    done = confined(sys.executable, str(script), program=PROGRAM, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok")


SHELL_PROGRAMS = {
    "bash": "set -o pipefail; (sleep 0.01 & wait); x=$(echo o | tr o k); cat <(echo o$x); ulimit -n >/dev/null",
    "ls": "mkdir d; touch d/a; ls -la / d >/dev/null; ls d | wc -l | grep -q 1; echo ok",
    "grep": "printf 'ok\\nno\\n' > f; grep -r ok . | cut -d: -f2",
    "find": "mkdir -p a/b; touch a/b/c; find . -name c -exec cp {} d \\; ; mv d e; rm -r a; test -f e; sync; echo ok",
    "tar": "echo ok > f; tar czf a.tgz f; rm f; tar xzf a.tgz; cat f",
    "sort": "seq 99 | sort -R --parallel=2 | sort -n | tail -1 | grep -q 99; seq 9 | dd of=z status=none; echo ok",
    "git": (
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=$PWD; "
        "git init -q . && echo 1 > f && git add f && git commit -qm ok && git clone -q . c && git -C c log --format=%s"
    ),
    "gcc": "printf '#include <stdio.h>\\nint main(){puts(\"ok\");}' > a.c; gcc -O2 -o a a.c && ./a",
    "perl": "perl -e 'print `echo ok`'",
    "sqlite3": "sqlite3 a.db 'create table t(a); insert into t values (1); select \"ok\" from t;'",
}


@pytest.mark.parametrize("name", [name for name in SHELL_PROGRAMS if shutil.which(name)])
def test_ordinary_commands_work_under_the_filter(tmp_path, name):
    done = confined("bash", "-ec", SHELL_PROGRAMS[name], program=PROGRAM, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ok", "")


def test_the_module_loads_without_the_package():
    code = (
        "import seccomp, sys; print(len(seccomp.program_filter()), any(m.startswith('toolyard') for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(Path(seccomp.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == [str(len(PROGRAM)), "False"]
