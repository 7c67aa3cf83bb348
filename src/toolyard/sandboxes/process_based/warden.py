"""The parent of a program that has walls but no namespaces: puts it behind them, and ends with it whatever it started.

Its orders are those of a launcher that spawns, and these: `server` is who started it, `owner` the user that the program
is to be or -1, `shows` and `holds` the paths that it may read and those that are its own, `hidden` what it may not read
of the former, `network` whether it may use
one, and `walled` the descriptor on which it is said that all walls stand, or why they do not.
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
"""Of /proc: the program's own directory, but not that of any other process."""


def main(orders: str) -> NoReturn:
    told: Mapping[str, Any] = ast.literal_eval(orders)
    syscalls.die_with_parent(signal.SIGTERM)  # which ends what is below, and then us
    if os.getppid() != told["server"]:
        os._exit(0)  # it was quicker
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until we can do what they ask for
    launcher.spawn(sys.argv[1:], {**told, "warden": os.getpid()}, _become)
    os._exit(0)


def _become(argv: Sequence[str], orders: Mapping[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        _confine(orders)
    except Exception as error:  # whatever it is: no program without all of its walls
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
        file.write("1000")  # a program before anything else, should memory run out
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
    """What may be done with which paths, as far as they are there.

    Rules are for all that is below a path. So the folders around what is hidden can only be listed, and it with them:
    Python finds no module in a folder that it cannot list.
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
