"""Starts a template: it loads libraries, and then our own modules.

In that order, the memory that every copy uses lies together, apart from the large part that few copies use. So this
imports modules for copies only when it is their turn.
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
    """Be a template for sandboxes until the server or the broker ends."""
    syscalls.die_with_parent()
    if os.getppid() != parent:
        os._exit(0)  # the parent ended before the call above
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 of a sandbox never gets it from inside
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the server's parent may have blocked some
    control = wire.at(control_fd)
    try:
        config, _, _ = wire.receive(control)
        own_users = rootfs.part_from_host()
        rootfs.cover(config["hidden"])  # so that no library loaded now finds it either
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
    os.dup2(nowhere, 2)  # until now our errors went to the server's standard error
    zygote.serve()
    os._exit(0)


def _load(config: Mapping[str, Any]) -> Any:
    """The interpreter, warm and unused, with the profile's libraries."""
    sys.path[:] = config["packages"]
    os.environ.clear()
    os.environ.update(config["environment"])  # before loading libraries, some of which would start threads
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
