"""The parent of a program that has walls but no namespaces: it sets up the walls, and ends with it all that it started.

Its orders are those of a launcher that spawns, and these: `server` is the pid of the server, `owner` the user for the
program or -1, `shows` the paths that it may read, `hidden` the parts of those that it may not, `holds` its own paths,
`network` whether it may use one, and `walled` the descriptor for the report that all walls stand, or why not.
"""

from __future__ import annotations

import ast
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from toolyard.sandboxes import around
from toolyard.sandboxes.native import seccomp, syscalls
from toolyard.sandboxes.process_based import launcher

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PROCESSES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/uptime", "/proc/loadavg")
"""The readable parts of /proc: the program's own directory, but not that of any other process."""


def main(orders: str) -> NoReturn:
    told: Mapping[str, Any] = ast.literal_eval(orders)
    syscalls.die_with_parent(signal.SIGTERM)  # the handler ends our descendants, then us
    if os.getppid() != told["server"]:
        os._exit(0)  # the server ended before the call above
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until we have handlers
    launcher.spawn(sys.argv[1:], {**told, "warden": os.getpid()}, _become)
    os._exit(0)


def _become(argv: Sequence[str], orders: Mapping[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        _confine(orders)
    except Exception as error:  # any error: never run a program without all of its walls
        os.write(orders["walled"], f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(launcher.NEVER_BEGAN)
    os.write(orders["walled"], launcher.WALLED)
    os.close(orders["walled"])
    launcher.become(argv, orders)


def _confine(orders: Mapping[str, Any]) -> None:
    if not syscalls.landlock_version():
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    os.setsid()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory, the kernel kills programs first
    rules = syscalls.landlock_rules(_allowed(orders), tcp=orders["network"])
    calls = syscalls.Syscalls()
    if orders["owner"] >= 0:
        os.setgroups([])
        os.setresgid(*[orders["owner"]] * 3)
        os.setresuid(*[orders["owner"]] * 3)
    elif os.geteuid() == 0:
        syscalls.drop_capabilities(calls)
    syscalls.die_with_parent()  # after the change of user, which would undo it
    if os.getppid() != orders["warden"]:
        raise OSError(errno.ESRCH, "its warden has ended")
    syscalls.forbid_new_privileges()
    calls.add("landlock_restrict_self", rules, 0)
    calls.add("close", rules)
    syscalls.load_filter(calls, seccomp.shared_filter(network=orders["network"], own_user=orders["owner"] >= 0))
    calls.make()


def _allowed(orders: Mapping[str, Any]) -> dict[str, int]:
    """The rights for each existing path.

    A rule covers everything below its path. So folders around a hidden path may only be listed, and so may the hidden
    path: Python finds no module in a folder that it cannot list.
    """
    shown = [path for path in orders["shows"] if os.path.exists(path)]
    parts = [around.beside(path, orders["hidden"]) for path in shown]
    wanted = {
        **dict.fromkeys((path for _, listed in parts for path in listed), syscalls.LISTED),
        **dict.fromkeys((path for allowed, _ in parts for path in allowed), syscalls.READ_ONLY),
        **dict.fromkeys(_PROCESSES, syscalls.READ_ONLY),
        **dict.fromkeys(_DEVICES, syscalls.DEVICES),
        **dict.fromkeys(orders["holds"], syscalls.EVERYTHING),
    }
    return {path: rights for path, rights in wanted.items() if os.path.exists(path)}
