"""Runs the tests of container sandboxes with a real engine: Podman, as Debian packages it.

Everything that it makes lies in one folder, which it removes: the engine's settings and storage, an image of Debian
with Python, and the image of `deploy/Containerfile` on top of that. It pulls nothing from a registry of images.

    python -m tests.engines [--build-option=OPTION …] [ARGUMENT OF PYTEST …]

`--build-option` is for hosts where pip needs more to find its packages, as in
`--build-option=--volume=/etc/pip.conf:/etc/pip.conf:ro`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "catatonit": "catatonit",
    "debootstrap": "debootstrap",
    "/usr/share/containers/seccomp.json": "golang-github-containers-common",
}
"""Programs and files, and the Debian packages that have them."""
BASE, SERVER = "localhost/toolyard-python:latest", "localhost/toolyard:latest"
_INCLUDE = "python3,python3-venv,python-is-python3,ca-certificates"
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines")
    parser.add_argument("--build-option", action="append", default=[])
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="work in this folder, and keep it for the next time"
    )
    options, more = parser.parse_known_args()
    if problem := missing():
        print(f"tests.engines: {problem}", file=sys.stderr)
        return 2
    folder = options.keep or Path(tempfile.mkdtemp(prefix="toolyard-engines-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(folder)
    try:
        engine.prepare()
        engine.build(options.build_option)
        engine.try_server()
        return engine.test(more)
    except subprocess.CalledProcessError as error:
        print(f"tests.engines: {' '.join(map(str, error.cmd))} ended with code {error.returncode}", file=sys.stderr)
        return 1
    finally:
        engine.clear_up(keep=options.keep is not None)


def missing() -> str:
    """Why this machine cannot do it."""
    if os.geteuid() != 0:
        return "only root can make the image; run it with sudo"
    needed = [package for name, package in PACKAGES.items() if not (Path(name).exists() or shutil.which(name))]
    return f"packages are missing: apt-get install --no-install-recommends {' '.join(needed)}" if needed else ""


class Engine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings, storage = folder / "containers.conf", folder / "storage.conf"
        settings.write_text(_CONTAINERS)
        storage.write_text(_STORAGE.format(folder=folder))
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(settings),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "ENGINE_UNDER_TEST": "podman",
            "IMAGE_UNDER_TEST": BASE,
        }

    def prepare(self) -> None:
        """Make the image of Debian with Python, unless it is there."""
        if self._podman("image", "exists", BASE, check=False):
            return
        root = self._folder / "root"
        site, suite = mirror()
        say(f"making an image of Debian {suite}")
        with (self._folder / "debootstrap.log").open("w") as log:
            argv = ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}", suite, str(root), site]
            subprocess.run(argv, stdout=log, stderr=log, check=True)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packing:
            subprocess.run(
                ["podman", "import", "-q", "-", BASE], stdin=packing.stdout, env=self._environment, check=True
            )
        shutil.rmtree(root)

    def build(self, options: Sequence[str]) -> None:
        say("building deploy/Containerfile")
        self._podman(
            *("build", "--quiet", "--format", "docker", "--network", "host", "--build-arg", f"BASE={BASE}", *options),
            *("--file", "deploy/Containerfile", "--tag", SERVER, str(ROOT)),
        )

    def try_server(self) -> None:
        """Start what was built, and ask it how it is and for its environments."""
        say("starting the server in a container")
        port = free_port()
        run = ("run", "--detach", "--rm", "--network", "host", "--env", f"TOOLYARD_PORT={port}")
        self._podman(*run, "--name", "toolyard-server", "--env", "TOOLYARD_API_KEY=secret", SERVER)
        try:
            self._wait_for(port)
        finally:
            self._podman("stop", "--time", "30", "toolyard-server", check=False)

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/list_environments", headers={"Authorization": "Bearer secret"}
                )
                with urllib.request.urlopen(request, timeout=2) as answer:
                    assert b"arithmetic" in answer.read()
                    return
            except OSError:
                if time.monotonic() > deadline:
                    self._podman("logs", "toolyard-server", check=False)
                    raise
                time.sleep(0.2)

    def test(self, more: Sequence[str]) -> int:
        say("testing sandboxes in containers")
        argv = [sys.executable, "-m", "pytest", "-q", "tests/sandboxes/test_engines.py", *more]
        return subprocess.run(argv, cwd=ROOT, env=self._environment, check=False).returncode

    def clear_up(self, *, keep: bool) -> None:
        self._podman("rm", "--all", "--force", check=False)
        if not keep:
            self._podman("rmi", "--all", "--force", check=False)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _podman(self, *arguments: str, check: bool = True) -> bool:
        argv = ["podman", *arguments]
        return subprocess.run(argv, cwd=ROOT, env=self._environment, stdout=sys.stderr, check=check).returncode == 0


def mirror() -> tuple[str, str]:
    """Where apt has Debian from, and which suite: the first of its sources."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        site, suite, component = line.split()
        if component == "main" and not any(part in f"{site} {suite}" for part in ("security", "updates", "backports")):
            return site, suite
    raise SystemExit("tests.engines: apt knows no source of Debian: run apt-get update")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def say(what: str) -> None:
    print(f"tests.engines: {what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
