"""How a template begins: libraries are loaded, and then what is ours.

In that order, for then all that every copy of the template uses lies together, apart from the much that few of them do.
So modules that are used by copies are imported here when it is their turn.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from toolyard.sandboxes.native import heap, rootfs, syscalls, wire


def main(control_fd: int, parent: int) -> NoReturn:
    """Be a template for sandboxes until the server or the broker goes."""
    syscalls.die_with_parent()
    if os.getppid() != parent:
        os._exit(0)  # it was quicker
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 of a sandbox never gets from inside
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who started the server may have blocked some
    control = wire.at(control_fd)
    try:
        config, _, _ = wire.receive(control)
        own_users = rootfs.part_from_host()
        rootfs.cover(config["hidden"])  # so that no library that is loaded now finds it, either
        interpreter = _load(config)
        zygote = importlib.import_module("toolyard.sandboxes.native.zygote").Zygote(
            control, config, interpreter, own_users=own_users
        )
        wire.send(control, {"landlock": syscalls.landlock_version(), "own_users": own_users})
    except (wire.Closed, ConnectionError):
        os._exit(0)
    except OSError as error:
        wire.send(control, {"failed": str(error), "errno": error.errno})
        os._exit(1)
    syscalls.hide_arguments()
    nowhere = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nowhere, 2)  # until now a mistake of ours could be read where the server writes
    zygote.serve()
    os._exit(0)


def _load(config: Mapping[str, Any]) -> Any:
    """The interpreter, warm and unused, with the profile's libraries."""
    sys.path[:] = config["packages"]
    os.environ.clear()
    os.environ.update(config["environment"])  # before libraries are loaded that would start threads
    if config["large"]:
        heap.reserve()
    for module in config["preload"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    if config["ipython"]:
        interpreter = _interpreter(ipython=True)
        _warm_up(config)
        heap.fill_holes()
        return interpreter
    _warm_up(config)
    heap.fill_holes()
    return _interpreter(ipython=False)


def _warm_up(config: Mapping[str, Any]) -> None:
    for code in config["warm_up"]:
        exec(code, {"place": rootfs.place})


def _interpreter(*, ipython: bool) -> Any:
    module = importlib.import_module("toolyard.sandboxes.interpreter")
    interpreter = module.CodeRunner(ipython, changes=syscalls.version_of(vars(builtins)))
    interpreter.warm()
    return interpreter
