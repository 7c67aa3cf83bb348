"""A stand-in for docker and podman: it takes the commands that Toolyard sends, and runs them as local processes.

It checks the form of each command as the engines do, and refuses what they would refuse. It isolates nothing:
"containers" are directories. Tests against it show that the backend sends the right commands and handles the answers,
not that a container isolates.

Started as `stand_in_engine.py STATE command …`; it logs all commands in STATE/log. As Podman does, it leaves a file in
the folder in which it runs.
"""

from __future__ import annotations

import os
import sys

if sys.argv[2:3] != ["exec"]:  # there are very many of those, and they need nothing of this, which takes long to import
    import argparse
    import contextlib
    import json
    import shutil
    import signal
    import subprocess
    import time
    from pathlib import Path

WORKSPACE = "/home/work"


def main() -> None:
    state, command, *arguments = sys.argv[1:]
    with open(f"{state}/log", "a") as log:
        log.write(ascii([command, *arguments]) + "\n")
    if command in ("run", "exec"):
        open("oom", "a").close()
    if os.path.exists(f"{state}/down"):
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\nIs the docker daemon running?")
    if command == "exec":
        execute(f"{state}/containers", arguments)
    else:
        commands = {"version": version, "image": image, "run": run, "rm": remove, "ps": ps, "inspect": inspect}
        commands[command](Path(state, "containers"), arguments)


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(allow_abbrev=False, add_help=False)


def version(containers: Path, arguments: list[str]) -> None:
    assert arguments == ["--format", "{{.Server.Version}}"]
    print("0.0.0 (stand-in)")


def image(containers: Path, arguments: list[str]) -> None:
    *asked, name = arguments
    assert asked == ["inspect", "--format", "{{.Id}}"]
    if name == "missing":
        sys.exit(f"[]\nError: {name}:\nNo such image")
    print("sha256:0")


def run(containers: Path, arguments: list[str]) -> None:
    options = parser()
    for flag in ("--rm", "--interactive", "--init", "--read-only"):
        options.add_argument(flag, action="store_true", required=True)
    for name in ("--name", "--label", "--network", "--user", "--hostname", "--workdir", "--memory", "--memory-swap"):
        options.add_argument(name, required=True)
    options.add_argument("--http-proxy", choices=["false"])
    options.add_argument("--pull", choices=["never"], required=True)
    options.add_argument("--cap-drop", choices=["ALL"], required=True)
    options.add_argument("--security-opt", action="append", required=True)
    options.add_argument("--pids-limit", type=int, required=True)
    options.add_argument("--cpus", type=float, required=True)
    options.add_argument("--tmpfs", action="append", required=True)
    options.add_argument("--volume", action="append", default=[])
    options.add_argument("--env", action="append", default=[])
    options.add_argument("image")
    options.add_argument("command", nargs=argparse.REMAINDER)
    wanted = options.parse_args(arguments)
    privileges, *profiles = wanted.security_opt
    if privileges != "no-new-privileges" or any(not one.startswith("seccomp=/") for one in profiles):
        sys.exit(f"invalid --security-opt: {wanted.security_opt}")
    for one in profiles:
        assert json.loads(Path(one.removeprefix("seccomp=")).read_text())["defaultAction"] == "SCMP_ACT_ERRNO"
    if (containers.parent / "full").exists():
        sys.exit("docker: Error response from daemon: no space left on device.")
    container = containers / wanted.name
    (container / "work").mkdir(parents=True)
    (container / "label").write_text(wanted.label)
    (container / "env").write_text("\0".join(pair.replace(WORKSPACE, f"{container}/work") for pair in wanted.env))
    first = subprocess.Popen(wanted.command, env=environment(str(container)), cwd=container / "work")
    (container / "first").write_text(str(first.pid))
    code = first.wait()
    end(container)
    sys.exit(code if code >= 0 else 128 - code)


def execute(containers: str, arguments: list[str]) -> None:
    flag, *rest = arguments
    assert flag == "--interactive"
    options: dict[str, list[str]] = {"--workdir": [], "--user": [], "--env": []}
    while rest[0].startswith("--"):
        name, value, *rest = rest
        options[name].append(value)
    name, *command = rest
    container = f"{containers}/{name}"
    if not os.path.exists(container):
        sys.exit(f"Error response from daemon: No such container: {name}")
    assert (options["--workdir"], options["--user"]) == ([WORKSPACE], ["1000:1000"])
    env = environment(container) | dict(pair.split("=", 1) for pair in options["--env"])
    program = os.fork()
    if program == 0:
        os.setsid()  # apart from this command, as in an engine: killing the command does not end the program
        os.chdir(f"{container}/work")
        try:
            os.execvpe(command[0], command, env)
        except OSError as error:
            os.write(2, f"OCI runtime exec failed: {command[0]}: {error}\n".encode())
            os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def remove(containers: Path, arguments: list[str]) -> None:
    force, name = arguments
    assert force == "--force"
    if (containers / name).exists():
        end(containers / name)
    else:
        sys.exit(f"Error response from daemon: No such container: {name}")


def ps(containers: Path, arguments: list[str]) -> None:
    assert arguments == ["--all", "--quiet", "--filter", "label=toolyard.server"]
    print(*(container.name for container in containers.iterdir()), sep="\n")


def inspect(containers: Path, arguments: list[str]) -> None:
    option, template, name = arguments
    assert option == "--format"
    assert template == '{{index .Config.Labels "toolyard.server"}}'
    print((containers / name / "label").read_text().removeprefix("toolyard.server="))


def environment(container: str) -> dict[str, str]:
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"])
    with open(f"{container}/env") as pairs:
        given = dict(pair.split("=", 1) for pair in filter(None, pairs.read().split("\0")))
    return {"PATH": path, "STAND_IN_CONTAINER": container, **given}


def end(container: Path) -> None:
    """End everything that runs in it, wherever it went, and remove its files."""
    for _ in range(1000):
        for pid in inside(container):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(container, ignore_errors=True)
        if not container.exists() and not inside(container):
            return
        time.sleep(0.01)


def inside(container: Path) -> list[int]:
    """An engine uses a pid namespace; here programs of a container inherit its name."""
    name = b"STAND_IN_CONTAINER=" + os.fsencode(container)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(int(pid))
    return found


if __name__ == "__main__":
    main()
