"""Hostile programs that try to get out: to the host's files, processes, network and kernel, and to other sessions.

Numbers refer to the design's list of attacks; those with a letter were added to it. Each refused attempt must fail with
the right error: a wrong argument would fail too, and prove nothing.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from tests.sandboxes.hostile import CONCEALED, HIDDEN, PRELUDE, ROOT, SECRET, Box, Played, Stage, Suite, refused
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.native import rootfs

pytestmark = pytest.mark.thorough

SUITE = Suite()

NAMESPACE_FLAGS = {
    "mnt": 0x0002_0000,
    "cgroup": 0x0200_0000,
    "uts": 0x0400_0000,
    "ipc": 0x0800_0000,
    "user": 0x1000_0000,
    "pid": 0x2000_0000,
    "net": 0x4000_0000,
    "time": 0x80,
}


# ---- Other processes


@SUITE.case("10")
async def kill_everybody(stage: Stage, box: Box) -> None:
    """The interpreter can end what it started and itself; a program cannot even end the interpreter."""
    await box.sandbox.exec("kept = 1")
    ran = await box.bash("kill -9 -1; echo still here")
    assert b"still here" in ran.stdout
    assert (await box.sandbox.exec("kept")).value == "1"
    killed = await box.python("import os, signal; os.kill(-1, signal.SIGKILL)", seconds=5)
    assert killed.killed_by is None
    assert await box.alive()
    assert (await box.sandbox.run(["echo", "hello"])).stdout == b"hello\n"


@SUITE.case("10a")
async def every_signal_to_process_1(stage: Stage, box: Box) -> None:
    """In a program's own namespace that is its init, in the interpreter's the agent. Neither reacts."""
    attack = """
survived = 0
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EINVAL), error
    survived += 1
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL))
time.sleep(0.1)
outcomes["survived"] = survived
tell()
"""
    outcomes = await box.outcomes_beside_agent(attack)
    assert outcomes["survived"] == 64
    assert await box.alive()
    assert (await box.sandbox.run(["echo", "hello"])).stdout == b"hello\n"


@SUITE.case("11")
async def kill_every_number_there_could_be(stage: Stage, box: Box) -> None:
    """Including the server, its helpers and the neighbour."""
    attack = """
import os
own, killed = os.getpid(), []
for pid in range(1, min(int(open("/proc/sys/kernel/pid_max").read()), 2**17)):
    if pid != own:
        try:
            os.kill(pid, 9)
            killed.append(pid)
        except OSError:
            pass
print(killed)
"""
    executed = await box.python(attack)
    assert executed.error is None
    assert executed.stdout in ("[]\n", "[1]\n"), "there is nobody but process 1, and to kill that does nothing"
    ran = await box.run(["python3", "-c", attack])
    assert ran.stdout in (b"[]\n", b"[1]\n")
    assert await box.alive()


@SUITE.case("12")
async def hold_the_server_by_a_descriptor(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes(f"""
attempt("pidfd_open the server", os.pidfd_open, {stage.server})
attempt("pidfd_open its parent", os.pidfd_open, {os.getppid()})
tell()"""),
        "ESRCH",
    )
    refused(
        await box.outcomes("""
for fd in range(8):
    attempt(f"pidfd_getfd {fd} of process 1", call, "pidfd_getfd", os.pidfd_open(1), fd, 0)
    attempt(f"pidfd_getfd {fd} of oneself", call, "pidfd_getfd", os.pidfd_open(os.getpid()), fd, 0)
attempt("process_madvise", call, "process_madvise", os.pidfd_open(1), 0, 0, 0, 0)
attempt("process_mrelease", call, "process_mrelease", os.pidfd_open(1), 0)
attempt("read its limits", call, "prlimit64", 1, resource.RLIMIT_NOFILE, 0, bytes(16))
attempt("set its limits", call, "prlimit64", 1, resource.RLIMIT_NOFILE, struct.pack("=QQ", 0, 0), 0)
tell()"""),
        "EPERM",
    )


@SUITE.case("13")
async def trace_others(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes_beside_agent("""
TRACEME, PEEK, ATTACH, SEIZE = 0, 1, 16, 0x4206
attempt("traceme", call, "ptrace", TRACEME, 0, 0, 0)
for pid in (1, os.getpid(), os.getppid()):
    attempt(f"attach {pid}", call, "ptrace", ATTACH, pid, 0, 0)
    attempt(f"seize {pid}", call, "ptrace", SEIZE, pid, 0, 0)
child = os.fork()
if child == 0:
    time.sleep(5)
    os._exit(0)
attempt("seize a child", call, "ptrace", SEIZE, child, 0, 0)
attempt("kcmp", call, "kcmp", 1, os.getpid(), 0, 0, 0)
os.kill(child, 9)
os.waitpid(child, 0)
outcomes = {what.replace(str(os.getpid()), "self"): how for what, how in outcomes.items()}
tell()"""),
        "EPERM",
    )


@SUITE.case("14")
async def read_the_memory_of_others(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes_beside_agent("""
buffer = ctypes.create_string_buffer(64)
local = struct.pack("=QQ", ctypes.addressof(buffer), 64)
remote = struct.pack("=QQ", id(buffer), 64)
for pid in (1, os.getppid(), os.getpid()):
    whose = "self" if pid == os.getpid() else pid
    attempt(f"process_vm_readv {whose}", call, "process_vm_readv", pid, local, 1, remote, 1, 0)
    attempt(f"process_vm_writev {whose}", call, "process_vm_writev", pid, local, 1, remote, 1, 0)
tell()"""),
        "EPERM",
    )


@SUITE.case("14a")
async def look_into_process_1(stage: Stage, box: Box) -> None:
    """Neither the agent nor a program's init can be inspected; and its command line is empty."""
    refused(
        await box.outcomes_beside_agent("""
for name in ("mem", "environ", "maps", "smaps", "pagemap", "auxv", "io", "stack", "syscall", "personality",
             "map_files", "fd", "fdinfo", "timers", "timerslack_ns", "clear_refs"):
    path = f"/proc/1/{name}"
    attempt(f"read {name}", lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
for name in ("exe", "cwd", "root", "fd/0", "fd/3", *(f"ns/{kind}" for kind in os.listdir("/proc/self/ns"))):
    attempt(f"follow {name}", os.readlink, f"/proc/1/{name}")
for name in ("mem", "comm", "oom_score_adj", "coredump_filter", "uid_map", "gid_map", "setgroups",
             "projid_map", "autogroup", "sched", "loginuid", "clear_refs"):
    attempt(f"write {name}", open, f"/proc/1/{name}", "wb", 0)
attempt("files", os.listdir, "/proc/1/root/")
attempt("tasks", open, "/proc/1/task/1/mem", "rb")
tell()"""),
        *("EACCES", "EPERM", "ENOENT"),
    )
    told = await box.python("print(open('/proc/1/cmdline').read().strip(chr(0)), end='')")
    assert told.stdout == ""
    told = await box.python("print(open('/proc/self/cmdline').read().strip(chr(0)), end='')")
    assert told.stdout == "", "the template's own, which would tell where the server lies"
    assert (await box.bash("tr -d '\\0' < /proc/1/cmdline")).stdout == b""


@SUITE.case("14b")
async def look_into_another_session(stage: Stage, box: Box) -> None:
    """Nothing of another session is there; a branch sees neither its siblings nor its parent session."""
    seen = """
print(sorted(name for name in os.listdir("/proc") if name.isdigit()))
"""
    async with stage.open() as other:
        assert (await other.sandbox.exec("import os; mine = os.getpid()")).error is None
        executed = await box.python("import os" + seen)
        assert executed.stdout.strip() == str(["1", (await box.python("os.getpid()")).value])
    one, two = await box.fork(2)
    for branch in (one, two):
        own = (await branch.python("os.getpid()")).value
        assert (await branch.python(seen)).stdout.strip() == str(sorted(["1", str(own)]))


@SUITE.case("14c", limits=Limits(network="loopback"))
async def meet_a_sibling(stage: Stage, box: Box) -> None:
    """Branches of one session share neither network, nor shared memory, nor files."""
    await box.python("import os, socket, ctypes; libc = ctypes.CDLL(None, use_errno=True); open('both', 'w').close()")
    one, two = await box.fork(2)
    waits = """
waiting = [socket.socket(socket.AF_UNIX), socket.socket()]
waiting[0].bind(chr(0) + "meet")
waiting[1].bind(("127.0.0.1", 8000))
for each in waiting:
    each.listen()
number = libc.shmget(0x7001, 4096, 0o1666)
for folder in ("/home/work", "/home/tmp", "/tmp", "/dev/shm"):
    open(folder + "/left", "w").close()
"""
    left = await one.python(waits)
    assert left.error is None, left.error.traceback
    outcomes = await two.outcomes(
        """
attempt("abstract socket", socket.socket(socket.AF_UNIX).connect, chr(0) + "meet")
attempt("port", lambda: socket.create_connection(("127.0.0.1", 8000), 1))
attempt("memory", call, "shmget", 0x7001, 4096, 0o666)
for folder in ("/home/work", "/home/tmp", "/tmp", "/dev/shm"):
    attempt(folder, open, folder + "/left")
tell()"""
    )
    refused(outcomes, "ECONNREFUSED", "ENOENT")
    again = await two.python(waits)
    assert again.error is None, "the other would have had it first"


# ---- Files


@SUITE.case("14d")
async def look_around_as_process_1(stage: Stage, box: Box) -> None:
    """A lone interpreter can inspect process 1, and finds itself: nothing of ours, and no way out."""
    done = await box.alone(f"""{PRELUDE}
assert os.getpid() == 1 and os.getppid() == 0
assert not [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
held = []
for name in os.listdir("/proc/1/fd"):
    try:
        held.append(os.readlink(f"/proc/1/fd/{{name}}").partition(":")[0])
    except FileNotFoundError:  # the one that lists them
        pass
assert sorted(held) == ["pipe"] * 6 + ["socket"], held  # standard files, copies of them, and the way to the server
attempt("marker", open, "/proc/1/root{stage.marker}")
attempt("marker by the directory", open, "/proc/1/cwd/../../../../{stage.marker}")
for kind in os.listdir("/proc/1/ns"):
    attempt(kind, lambda kind=kind: call("setns", os.open(f"/proc/1/ns/{{kind}}", os.O_RDONLY), 0))
attempt("its users", lambda: os.write(os.open("/proc/1/uid_map", os.O_WRONLY), b"0 0 1"))
attempt("its score", lambda: os.write(os.open("/proc/1/oom_score_adj", os.O_WRONLY), b"-1000"))
for number in range(1, 65):
    if number not in (signal.SIGINT, 32, 33):
        os.kill(1, number)
tell()
""")
    assert done.error is None, done.error.traceback
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert len(outcomes) > 10, outcomes
    refused(outcomes, "EPERM", "EACCES", "ENOENT")
    await stage.check()


@SUITE.case("15")
async def read_files_of_the_host(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes(f"""
for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/hostname", "/etc/fstab",
             "/root/.ssh", "/root/.bash_history", "/root/.netrc", "/var/log", "/var/lib", "/run/docker.sock",
             "/run/systemd", "/run/secrets", "/sys/kernel", "/sys/fs/cgroup", "/boot", "/media", "/srv", "/mnt",
             {str(stage.marker)!r}, {str(stage.folder)!r}, {str(ROOT / "pyproject.toml")!r}, {str(ROOT / "tests")!r}):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
tell()"""),
        "ENOENT",
    )


@SUITE.case("15a")
async def only_known_names_are_in_the_root(stage: Stage, box: Box) -> None:
    """The host's users, whose names may be secret, are not there."""
    listed = await box.python("import os; print(*os.listdir('/'))")
    interpreters = [Path(rootfs.place(prefix)).parts for prefix in (sys.prefix, sys.base_prefix)]
    usual = "bin dev etc home lib lib32 lib64 libx32 opt proc run sbin tmp usr var"
    assert set(listed.stdout.split()) <= {*usual.split(), *(parts[1] for parts in interpreters)}
    listed = await box.python("print(*os.listdir('/opt'))")
    assert set(listed.stdout.split()) <= {parts[2] for parts in interpreters if parts[1] == "opt"}
    listed = await box.python("print(*os.listdir('/home'), *os.listdir('/run'), *os.listdir('/var'))")
    assert set(listed.stdout.split()) == {"work", "tmp"}
    listed = await box.python("print(open('/etc/passwd').read().count(chr(10)))")
    assert listed.stdout == "2\n"


@SUITE.case("15b")
async def uncover_what_is_hidden(stage: Stage, box: Box) -> None:
    """Remove the cover, look below it, or reach the file by another way."""
    folder, file = (rootfs.place(str(path)) for path in CONCEALED)
    refused(
        await box.outcomes(f"""
folder, file, clone, detach = {folder!r}, {file!r}, 1, 2
below, around, flags = folder + "/simple_server.py", os.path.dirname(folder).encode(), {NAMESPACE_FLAGS!r}
def listed(path):
    if not os.listdir(path):
        raise FileNotFoundError(errno.ENOENT, "empty")
    return os.listdir(path)
attempt("list", listed, folder)
attempt("open", open, below)
attempt("open the file", lambda: open(file).read())
for path in (folder, file):
    for how in (0, detach):
        attempt(f"umount {{path}} {{how}}", call, "umount2", path.encode(), how)
    attempt(f"rename {{path}}", os.rename, path, "moved")
    attempt(f"link {{path}}", os.link, path, "linked")
    attempt(f"mount over {{path}}", call, "mount", b"none", path.encode(), b"tmpfs", 0, None)
attempt("write", open, folder + "/new", "w")
attempt("mount namespace", call, "unshare", flags["mnt"])
attempt("user and mount namespace", call, "unshare", flags["mnt"] | flags["user"])
os.makedirs("around", exist_ok=True)
attempt("bind what is around", call, "mount", around, b"around", None, 4096, None)
attempt("clone what is around", call, "open_tree", -100, around, clone)
attempt("handle", call, "open_by_handle_at", -100, struct.pack("=Ii8s", 8, 1, b""), 0)
attempt("by its root", open, f"/proc/self/root{{below}}")
attempt("the file by its root", lambda: open(f"/proc/self/root{{file}}").read())
around = os.open(around, os.O_RDONLY)
attempt("from what is around", os.open, "wsgiref/simple_server.py", os.O_RDONLY, dir_fd=around)
attempt("the file from what is around", os.open, "this.py", os.O_RDONLY, dir_fd=around)
seen = os.open(file, os.O_PATH)
attempt("what was seen", open, f"/proc/self/fd/{{seen}}")
os.close(seen)
os.close(around)
os.rmdir("around")
tell()"""),
        *("ENOENT", "EACCES", "EPERM", "EROFS", "EXDEV"),
    )
    refused(
        await box.outcomes_beside_agent(f"""
for path in ({folder!r} + "/simple_server.py", {file!r}):
    attempt(path, open, "/proc/1/root" + path)
tell()"""),
        "EACCES",
    )


@SUITE.case("16")
async def reach_the_host_by_links_of_proc(stage: Stage, box: Box) -> None:
    """/proc/N/root, cwd and exe of every process, and up from every open directory."""
    path = str(stage.marker)
    refused(
        await box.outcomes_beside_agent(f"""
up = "../" * 40
everybody = sorted(name for name in os.listdir("/proc") if name.isdigit()) + ["self", "thread-self"]
for number, who in enumerate(everybody):
    for link in ("root", "cwd", "task/1/root"):
        attempt(f"{{number}}/{{link}}", open, f"/proc/{{who}}/{{link}}{path}")
        attempt(f"{{number}}/{{link}} up", open, f"/proc/{{who}}/{{link}}/{{up}}{path}")
for folder in (".", "/", "/proc", "/dev", "/dev/pts", "/usr", "/home", "/home/tmp"):
    fd = os.open(folder, os.O_RDONLY)
    attempt(f"up from {{folder}}", os.open, up + {path!r}, os.O_RDONLY, dir_fd=fd)
    attempt(f"openat2 from {{folder}}", call, "openat2", fd, (up + {path!r}).encode(), struct.pack("=QQQ", 0, 0, 0), 24)
os.symlink("/proc/1/root", "link")
attempt("by a link of its own", open, "link" + {path!r})
os.unlink("link")
tell()"""),
        *("ENOENT", "EACCES"),
    )


@SUITE.case("17")
async def read_the_servers_environment(stage: Stage, box: Box) -> None:
    assert any(SECRET in value for value in os.environ.values())
    look = f"""
import os
found = dict(os.environ)
for who in os.listdir("/proc"):
    for name in ("environ", "cmdline"):
        try:
            text = open(f"/proc/{{who}}/{{name}}", "rb").read().strip(b"\\0")
            found[f"{{who}}/{{name}}"] = text.replace(b"\\0", b" ").decode()
        except OSError:
            pass
print({SECRET[:4]!r} + {SECRET[4:]!r} in str(found))
print(sorted(os.environ))
print(repr(found.get("self/environ")))
"""
    threads = ["MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    usual = ["HOME", "JE_ARROW_MALLOC_CONF", "LANG", *threads, "PATH", "TERM", "USER"]
    executed = await box.python(look)
    assert executed.error is None
    holds_it, names, block = executed.stdout.splitlines()
    assert holds_it == "False"
    assert set(ast.literal_eval(names)) <= {*usual, "LC_CTYPE"}
    assert block == "''", "the block that the template was started with"
    ran = await box.run(["python3", "-c", look])
    holds_it, names, block = ran.stdout.decode().splitlines()
    assert holds_it == "False"
    assert set(ast.literal_eval(names)) == set(usual)


SCAN = f"""
import re
wanted = bytes(byte ^ 1 for byte in {HIDDEN!r}) + b"[0-9a-f]{{32}}"
found, scanned = [], 0
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split()
    if "r" in rights and rest[-1:] not in (["[vvar]"], ["[vsyscall]"], ["[vvar_vclock]"]):
        begin, end = (int(number, 16) for number in span.split("-"))
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(begin)
            try:
                text = memory.read(end - begin)
            except OSError:
                continue
        scanned += len(text)
        found += re.findall(wanted, text)
print(len(found), scanned > 2**20)
"""


@SUITE.case("18")
async def scan_the_heap_for_secrets(stage: Stage, box: Box) -> None:
    """Secrets of the server and the neighbour, which the template would have passed on."""
    executed = await box.python(SCAN)
    assert executed.stdout == "0 True\n", executed
    planted = f"planted = bytes(byte ^ 1 for byte in {HIDDEN!r}) + b'0123456789abcdef' * 2"
    executed = await box.python(planted + SCAN)
    assert int(executed.stdout.split()[0]) > 0, "the scan would have found none"


@SUITE.case("18a")
async def use_inherited_descriptors(stage: Stage, box: Box) -> None:
    """The server held an inheritable listener, directory and file. None has come through."""
    look = """
import os, socket, stat
kinds = {}
for fd in range(4096):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else os.readlink(f"/proc/self/fd/{fd}")
    if kind == "socket":
        with socket.socket(fileno=os.dup(fd)) as found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            kind = f"{found.family.name} {found.type.name} {'listens' if listens else ''}".strip()
    kinds.setdefault(kind, []).append(fd)
print(kinds)
"""
    ran = await box.run(["python3", "-c", look])
    assert ran.stdout == b"{'pipe': [0, 1, 2]}\n"
    executed = await box.python(look)
    kinds = ast.literal_eval(executed.stdout)
    assert set(kinds) == {"pipe", "AF_UNIX SOCK_SEQPACKET"}
    assert kinds["pipe"][:3] == [0, 1, 2]
    assert len(kinds["AF_UNIX SOCK_SEQPACKET"]) == 2, "to the host, and to its agent"


@SUITE.case("19", alone=True)
async def write_everywhere(stage: Stage, box: Box) -> None:
    """Try every directory. Only its own can be written."""
    attack = f"""
import os
written, tried = [], 0
for folder, names, files in os.walk("/"):
    if folder.startswith("/proc/") and folder.count("/") > 3 or tried > 20000:
        names.clear()
    tried += 1
    path = os.path.join(folder, {stage.tag!r})
    for make in (lambda: open(path, "w").close(), lambda: os.mkdir(path), lambda: os.symlink("/", path)):
        try:
            make()
            written.append(folder)
            break
        except OSError:
            pass
print(tried, *written)
"""
    for done in (await box.python(attack, seconds=20), await box.run(["python3", "-c", attack], seconds=20)):
        assert done.killed_by is None
        text = done.stdout if isinstance(done.stdout, str) else done.stdout.decode()
        tried, *written = text.split()
        assert int(tried) > 500
        assert {path for path in written if not path.startswith("/home/")} == set(), written
        await box.sandbox.exec(f"import shutil; shutil.rmtree('/home/tmp/{stage.tag}', ignore_errors=True)")


@SUITE.case("19a")
async def change_what_others_will_run(stage: Stage, box: Box) -> None:
    """Programs, the standard library and its compiled form: the next session uses the same files of the host."""
    refused(
        await box.outcomes(f"""
import shutil
tag = {stage.tag!r}
for path in ("/etc/passwd", "/usr/bin/env", os.path.realpath(sys.executable), os.__file__, json.__cached__,
             "/dev/null", "/usr/bin", os.path.dirname(os.__file__)):
    attempt(f"chmod {{path}}", os.chmod, path, 0o777)
    attempt(f"chown {{path}}", os.chown, path, 1000, 1000)
    attempt(f"utime {{path}}", os.utime, path)
    attempt(f"rename {{path}}", os.rename, path, path + tag)
    attempt(f"link {{path}}", os.link, path, path + tag)
    attempt(f"link out {{path}}", os.link, path, "linked")
    attempt(f"setxattr {{path}}", os.setxattr, path, "user.hostile", b"1")
    if os.path.isdir(path):
        attempt(f"rmtree {{path}}", shutil.rmtree, path)
        continue
    attempt(f"unlink {{path}}", os.unlink, path)
    if not path.startswith("/dev"):
        attempt(f"write {{path}}", open, path, "r+b")
        attempt(f"append {{path}}", open, path, "ab")
        attempt(f"truncate {{path}}", os.truncate, path, 0)
        attempt(f"write again {{path}}", open, f"/proc/self/fd/{{os.open(path, os.O_RDONLY)}}", "r+b")
tell()"""),
        *("EROFS", "EPERM", "EACCES", "EXDEV", "EBUSY", "ENOTSUP", "EOPNOTSUPP", "EINVAL"),
    )


# ---- Network


@SUITE.case("20")
async def connect_to_the_host(stage: Stage, box: Box) -> None:
    attack = f"""
def tcp(family, address):
    with socket.socket(family) as mine:
        mine.settimeout(2)
        mine.connect((address, {stage.port}))
def udp(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as mine:
        mine.sendto(b"hello", (address, {stage.port}))
for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.0.1", "169.254.169.254", "172.17.0.1", "8.8.8.8",
                "255.255.255.255"):
    attempt(f"TCP {{address}}", tcp, socket.AF_INET, address)
    attempt(f"UDP {{address}}", udp, socket.AF_INET, address)
for address in ("::1", "::ffff:127.0.0.1", "fe80::1", "ff02::1", "2001:4860:4860::8888"):
    attempt(f"TCP {{address}}", tcp, socket.AF_INET6, address)
    attempt(f"UDP {{address}}", udp, socket.AF_INET6, address)
tell()"""
    nowhere = ("ENETUNREACH", "EACCES", "EADDRNOTAVAIL", "EINVAL", "EHOSTUNREACH")
    outcomes = await box.outcomes(attack)
    del outcomes["UDP 0.0.0.0"]  # sent to itself, and lost
    refused(outcomes, *nowhere)
    async with stage.open(Limits(network="loopback")) as inside:
        outcomes = await inside.outcomes(attack)
        alone = {what: outcomes.pop(what) for what in list(outcomes) if "127.0.0" in what or "0.0.0.0" in what}
        assert {how for what, how in alone.items() if "TCP" in what} == {"ECONNREFUSED"}
        refused({what: how for what, how in outcomes.items() if "::1" not in what}, *nowhere)
    assert not stage.hits


@SUITE.case("21")
async def connect_to_local_sockets_of_the_host(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes(f"""
def connect(kind, address):
    with socket.socket(socket.AF_UNIX, kind) as mine:
        mine.connect(address)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    attempt(f"abstract {{kind}}", connect, kind, chr(0) + {stage.abstract!r})
    attempt(f"file {{kind}}", connect, kind, {str(stage.folder / "socket")!r})
tell()"""),
        *("ECONNREFUSED", "ENOENT", "EPERM"),
    )
    assert not stage.hits


@SUITE.case("22")
async def open_every_kind_of_socket(stage: Stage, box: Box) -> None:
    """vsock, netlink, packet, AF_ALG, raw, Bluetooth, ... : only local and internet sockets are allowed."""
    outcomes = await box.outcomes("""
for family in range(64):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for protocol in (0, 1, 132, 255):
            def make():
                call("socket", family, kind, protocol)
            attempt(f"{family} {kind} {protocol}", make)
attempt("pair of netlink", call, "socketpair", 16, 3, 0, struct.pack("=ii", 0, 0))
attempt("pair of TIPC", call, "socketpair", 30, 1, 0, struct.pack("=ii", 0, 0))
tell()""")
    made = {what for what, how in outcomes.items() if how.startswith("did it")}
    local = {f"1 {kind} {protocol}" for kind in (1, 2, 3, 5) for protocol in (0, 1)}
    internet = {f"{family} {kind} 0" for family in (2, 10) for kind in (1, 2)}
    assert made - local == internet
    kinds = ("EAFNOSUPPORT", "EPERM", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT")
    refused({what: how for what, how in outcomes.items() if what not in made}, *kinds)


# ---- The kernel's own files, and devices


@SUITE.case("23")
async def change_settings_of_the_kernel(stage: Stage, box: Box) -> None:
    attack = """
import os
opened, tried = [], 0
for top in ("/proc/sys", "/proc/irq", "/proc/fs", "/proc/driver", "/proc/acpi", "/proc/bus", "/proc/tty"):
    for folder, names, files in os.walk(top):
        for name in files:
            tried += 1
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                opened.append(os.path.join(folder, name))
            except OSError:
                pass
print(tried, *opened)
"""
    executed = await box.python(attack)
    tried, *opened = executed.stdout.split()
    assert int(tried) > 100
    assert set(opened) <= {"/proc/sys/kernel/ns_last_pid"}, "all may open that, and nobody here write it"
    ran = await box.run(["python3", "-c", attack])
    tried, *opened = ran.stdout.decode().split()
    assert int(tried) > 100
    assert set(opened) <= {"/proc/sys/kernel/ns_last_pid"}, "all may open that, and nobody here write it"
    refused(
        await box.outcomes("""
for name in ("sysrq-trigger", "kmsg", "timer_list", "mtrr", "slabinfo", "vmallocinfo", "sys/kernel/core_pattern",
             "sys/kernel/modprobe", "sys/vm/drop_caches", "sys/user/max_user_namespaces"):
    if os.path.exists(f"/proc/{name}"):
        attempt(f"write {name}", os.open, f"/proc/{name}", os.O_WRONLY)
        attempt(f"truncate {name}", os.truncate, f"/proc/{name}", 0)
tell()"""),
        *("EACCES", "EPERM", "EROFS", "EIO"),
    )
    refused(
        await box.outcomes("""
attempt("sethostname", call, "sethostname", b"hostile", 7)
attempt("setdomainname", call, "setdomainname", b"hostile", 7)
attempt("settimeofday", call, "settimeofday", struct.pack("=QQ", 0, 0), 0)
attempt("clock_settime", call, "clock_settime", 0, struct.pack("=QQ", 0, 0))
attempt("clock_adjtime", call, "clock_adjtime", 0, bytes(256))
attempt("adjtimex", call, "adjtimex", bytes(256))
attempt("syslog", call, "syslog", 3, bytes(16), 16)
attempt("quotactl", call, "quotactl", 0, 0, 0, 0)
attempt("acct", call, "acct", 0)
attempt("vhangup", call, "vhangup")
attempt("lookup_dcookie", call, "lookup_dcookie", 0, 0, 0)
tell()"""),
        "EPERM",
    )


@SUITE.case("24")
async def open_devices_and_the_kernels_memory(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes("""
for name in ("kcore", "kpagecount", "kpageflags", "kpagecgroup", "kmsg", "iomem", "ioports", "slabinfo", "vmallocinfo",
             "pagetypeinfo", "timer_list", "sysrq-trigger"):
    path = f"/proc/{name}"
    if not os.path.exists(path):
        continue
    def read():
        text = open(path, "rb").read(4096)
        if name in ("iomem", "ioports") and not any(line.strip(b" 0-").startswith(b":") for line in text.splitlines()):
            return text
        raise OSError(errno.EACCES, "the addresses are all zero")
    attempt(path, read)
for name in ("vda", "vda1", "sda", "sda1", "nvme0n1", "dm-0", "loop0", "loop-control", "kvm", "mem", "kmem", "port",
             "kmsg", "fuse", "net/tun", "vhost-vsock", "vhost-net", "vsock", "dri/card0", "nvidia0", "nvidiactl",
             "input/event0", "uinput", "console", "tty0", "tty1", "hpet", "rtc0", "userfaultfd", "autofs",
             "btrfs-control", "mapper/control", "cuse", "snapshot", "watchdog", "cpu_dma_latency", "hwrng", "tpm0",
             "udmabuf"):
    attempt(name, os.open, f"/dev/{name}", os.O_RDONLY)
attempt("the disk by number", os.open, "/dev/block", os.O_RDONLY)
tell()"""),
        *("ENOENT", "EACCES", "EPERM"),
    )
    listed = await box.python("import os; print(*sorted(os.listdir('/dev')), *os.listdir('/dev/pts'))")
    usual = "fd full null ptmx pts random shm stderr stdin stdout urandom zero"
    assert set(listed.stdout.split()) - {"tty"} == {*usual.split(), "ptmx"}
    addresses = await box.python("""
print(*{line.split()[0] for line in open('/proc/kallsyms')} if os.path.exists('/proc/kallsyms') else ())""")
    assert set(addresses.stdout.split()) <= {"0" * 16}, "where the kernel's functions are"


# ---- Privileges


@SUITE.case("25")
async def run_programs_that_give_rights(stage: Stage, box: Box) -> None:
    """setuid, setgid, and files with capabilities: the host's, and new ones."""
    made = await box.bash(
        """
cp /usr/bin/id mine && chmod 6755 mine && ./mine -u && ./mine -g
cp $(readlink -f $(command -v bash)) shell && chmod 4755 shell && ./shell -p -c 'echo $EUID'
grep -h -E 'Cap(Eff|Prm|Bnd)' /proc/self/status | sort -u
"""
    )
    assert made.stdout.decode().split() == ["1000", "1000", "1000", *(
        word for name in ("CapBnd:", "CapEff:", "CapPrm:") for word in (name, "0" * 16)
    )]  # fmt: skip
    found = await box.bash(
        "find /usr /root -xdev -perm /6000 -type f 2>/dev/null |"
        " while read program; do findmnt -n -o OPTIONS -T $program; done | sort -u",
        seconds=30,  # a host may have many files on a slow disk
    )
    assert found.stdout
    assert all("nosuid" in options for options in found.stdout.decode().split())
    became = await box.bash(
        "echo | su root -c id; sudo -n id; newgrp root; mount -t tmpfs none /home/tmp; unshare -Ur id"
    )
    assert b"uid=0" not in became.stdout
    assert b"root" not in became.stdout


@SUITE.case("25a")
async def become_somebody_else(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes("""
for user in (0, 1, 1001, 65534, 0x70000000):
    attempt(f"setuid {user}", os.setuid, user)
    attempt(f"setgid {user}", os.setgid, user)
    attempt(f"setresuid {user}", os.setresuid, user, user, user)
    attempt(f"setreuid {user}", os.setreuid, user, -1)
    attempt(f"setgroups {user}", os.setgroups, [user])
attempt("setgroups to none", os.setgroups, [])
header = struct.pack("=Ii", 0x20080522, 0)
attempt("capset", call, "capset", header, struct.pack("=6I", *[0xffffffff] * 6))
attempt("capset one", call, "capset", header, struct.pack("=6I", 1, 1, 0, 0, 0, 0))
for capability in range(41):
    attempt(f"ambient {capability}", call, "prctl", 47, 2, capability, 0, 0)
attempt("securebits", call, "prctl", 28, 0)
attempt("new privileges", call, "prctl", 38, 0)
tell()"""),
        *("EPERM", "EINVAL"),
    )


@SUITE.case("26")
async def make_namespaces(stage: Stage, box: Box) -> None:
    """Its own user namespace would give it every capability in there."""
    outcomes = await box.outcomes(f"""
flags = {NAMESPACE_FLAGS!r}
flags["user and all"] = sum(flags.values()) - flags["time"]
for kind, flag in flags.items():
    attempt(f"unshare {{kind}}", call, "unshare", flag)
    attempt(f"unshare {{kind}}, high bits", call, "unshare", flag | 1 << 32)
    if kind != "time":
        attempt(f"clone {{kind}}", call, "clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
        attempt(f"clone {{kind}}, high bits", call, "clone", flag | signal.SIGCHLD | 1 << 40, 0, 0, 0, 0)
    args = struct.pack("=11Q", flag, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    attempt(f"clone3 {{kind}}", call, "clone3", args, len(args))
tell()""")
    three = {what: outcomes.pop(what) for what in list(outcomes) if what.startswith("clone3")}
    refused(three, "ENOSYS")
    refused(outcomes, "EPERM")
    ran = await box.bash("unshare -Ur id; unshare -r true || unshare --user true; bwrap --unshare-all true; echo end")
    assert ran.stdout == b"end\n"


@SUITE.case("27")
async def use_the_kernels_keyrings(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes("""
attempt("add_key", call, "add_key", b"user", b"hostile", b"x", 1, -3)
attempt("request_key", call, "request_key", b"user", b"hostile", b"", -3)
for operation in range(33):
    attempt(f"keyctl {operation}", call, "keyctl", operation, -3, 0, 0, 0)
tell()"""),
        "EPERM",
    )


@SUITE.case("28")
async def mount_something(stage: Stage, box: Box) -> None:
    """With the old calls and the new ones."""
    outcomes = await box.outcomes("""
here, nothing = b".", ctypes.c_char_p()
attempt("mount tmpfs", call, "mount", b"none", here, b"tmpfs", 0, 0)
attempt("mount proc", call, "mount", b"none", here, b"proc", 0, 0)
attempt("mount overlay", call, "mount", b"none", here, b"overlay", 0, b"lowerdir=/,upperdir=.,workdir=/tmp")
attempt("bind", call, "mount", b"/", here, nothing, 0x1000, 0)
attempt("remount", call, "mount", b"none", b"/", nothing, 0x20 | 0x1000, 0)
attempt("make shared", call, "mount", b"none", b"/", nothing, 1 << 20, 0)
attempt("umount", call, "umount2", b"/proc", 0)
attempt("umount lazily", call, "umount2", b"/home/work", 2)
attempt("pivot_root", call, "pivot_root", here, here)
attempt("chroot", call, "chroot", here)
attempt("chroot to root", call, "chroot", b"/")
attempt("fsopen", call, "fsopen", b"tmpfs", 0)
attempt("fsconfig", call, "fsconfig", 0, 6, 0, 0, 0)
attempt("fsmount", call, "fsmount", 0, 0, 0)
attempt("fspick", call, "fspick", -100, b"/", 0)
attempt("open_tree", call, "open_tree", -100, b"/", 0)
attempt("open_tree clone", call, "open_tree", -100, b"/", 1 | 0x8000)
attempt("move_mount", call, "move_mount", -100, b"/proc", -100, here, 0)
attempt("mount_setattr", call, "mount_setattr", -100, b"/", 0, struct.pack("=4Q", 0, 1, 0, 0), 32)
attempt("open_tree_attr", call, "open_tree_attr", -100, b"/", 1, struct.pack("=4Q", 0, 1, 0, 0), 32)
attempt("statmount", call, "statmount", bytes(24), bytes(512), 512, 0)
attempt("listmount", call, "listmount", bytes(24), bytes(512), 64, 0)
attempt("swapon", call, "swapon", b"file", 0)
attempt("swapoff", call, "swapoff", b"file")
tell()""")
    newest = {what: outcomes.pop(what) for what in ("open_tree_attr", "statmount", "listmount")}
    refused(newest, "ENOSYS")
    refused(outcomes, "EPERM")


@SUITE.case("29")
async def enter_namespaces(stage: Stage, box: Box) -> None:
    """setns() itself is allowed, for branches. But no file that it can get leads anywhere."""
    outcomes = await box.outcomes_beside_agent(
        f"""
flags = {NAMESPACE_FLAGS!r}
child = os.fork()
if child == 0:
    time.sleep(10)
    os._exit(0)
found = {{}}
for whose, who in (("own", "self"), ("first", 1), ("child's", child)):
    for kind in (*flags, "pid_for_children", "time_for_children"):
        try:
            found[f"{{whose}} {{kind}}"] = os.open(f"/proc/{{who}}/ns/{{kind}}", os.O_RDONLY)
        except OSError:
            continue
found["pidfd of 1"] = os.pidfd_open(1)
found["pidfd of self"] = os.pidfd_open(os.getpid())
found["pidfd of child"] = os.pidfd_open(child)
found["root"] = os.open("/", os.O_RDONLY)
for fd in range(3):
    found[f"descriptor {{fd}}"] = fd
assert "own user" in found and "first user" not in found
everything = sum(flags.values())
for what, fd in found.items():
    for kind, flag in {{**flags, "any": 0, "all": everything}}.items():
        attempt(f"{{what}} as {{kind}}", call, "setns", fd, flag)
        attempt(f"{{what}} as {{kind}}, high bits", call, "setns", fd, flag | 1 << 35)
        attempt(f"{{what}} user and {{kind}}", call, "setns", fd, flag | flags["user"])
for name, request in (("user", 0xb701), ("parent", 0xb702), ("type", 0xb703), ("owner", 0xb704), ("pid", 0x8004b706)):
    attempt(f"ioctl {{name}} of namespaces", call, "ioctl", found["own user"], request, bytes(8))
for request in range(1, 12):
    attempt(f"ioctl {{request}} of a pidfd", call, "ioctl", found["pidfd of self"], 0xff00 | request, 0)
os.kill(child, 9)
os.waitpid(child, 0)
for fd in list(found.values())[:-3]:
    os.close(fd)
tell()"""
    )
    refused(outcomes, "EPERM", "EINVAL", "EBADF", "ENOTTY")


@SUITE.case("29a")
async def enter_a_branch_with_all_its_capabilities(stage: Stage, box: Box) -> None:
    """A session may enter its own branches: they belong to its user. There it has every capability over them, but
    cannot use any."""
    await box.fork(1)
    told = await box.python(
        PRELUDE
        + f"""
import fcntl
flags = {NAMESPACE_FLAGS!r}
own = os.readlink("/proc/self/ns/user")
def another(pid):
    try:
        return pid.isdigit() and os.readlink(f"/proc/{{pid}}/ns/user") != own
    except OSError:
        return False
branch = next(pid for pid in os.listdir("/proc") if another(pid))
agents = [pid for pid in os.listdir("/proc") if pid.isdigit() and not os.access(f"/proc/{{pid}}/cwd", os.R_OK)]
if os.fork() == 0:
    namespaces = {{kind: os.open(f"/proc/{{branch}}/ns/{{kind}}", os.O_RDONLY) for kind in flags}}
    status = open("/proc/self/status")
    call("setns", namespaces["user"], flags["user"])
    for number, agent in enumerate(agents):
        attempt(f"agent {{number}} memory", open, f"/proc/{{agent}}/mem")
        attempt(f"agent {{number}} namespaces", os.open, f"/proc/{{agent}}/ns/user", os.O_RDONLY)
        attempt(f"agent {{number}} files", os.listdir, f"/proc/{{agent}}/fd")
    for kind in ("ipc", "net", "mnt", "pid"):
        call("setns", namespaces[kind], flags[kind])
    assert "CapEff:\\t0000000000000000" not in status.read()
    nothing = ctypes.c_char_p()
    attempt("mount", call, "mount", b"none", b"/home/tmp", b"tmpfs", 0, 0)
    attempt("bind", call, "mount", b"/", b"/home/tmp", nothing, 0x1000, 0)
    attempt("remount", call, "mount", b"none", b"/", nothing, 0x20 | 0x1000, 0)
    attempt("umount", call, "umount2", b"/home/work", 2)
    attempt("pivot_root", call, "pivot_root", b".", b".")
    attempt("chroot", call, "chroot", b"/")
    attempt("open_tree", call, "open_tree", -100, b"/", 1)
    attempt("fsopen", call, "fsopen", b"tmpfs", 0)
    attempt("mount_setattr", call, "mount_setattr", -100, b"/", 0, struct.pack("=4Q", 0, 1, 0, 0), 32)
    attempt("unshare", call, "unshare", flags["mnt"])
    attempt("sethostname", call, "sethostname", b"hostile", 7)
    attempt("open_by_handle_at", call, "open_by_handle_at", 0, struct.pack("=IiII", 8, 1, 2, 0), 0)
    attempt("bpf", call, "bpf", 0, bytes(128), 128)
    attempt("keyctl", call, "keyctl", 0, -3, 0)
    attempt("raw socket", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
    attempt("packet socket", call, "socket", 17, 3, 0)
    attempt("netlink", call, "socket", 16, 3, 0)
    attempt("device", os.mknod, "/home/tmp/device", 0o060666, os.makedev(254, 0))
    attempt("setuid", os.setuid, 0)
    attempt("interface up", fcntl.ioctl, socket.socket(), 0x8914, struct.pack("16sH22x", b"lo", 1))
    attempt("limits", resource.setrlimit, resource.RLIMIT_NPROC, (10000, 10000))
    attempt("realtime", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
    attempt("priority", os.setpriority, os.PRIO_PROCESS, 0, -5)
    attempt("lock memory", call, "mlockall", 3)
    attempt("write /", open, "/hostile", "w")
    attempt("write /usr", open, "/usr/hostile", "w")
    attempt("kernel setting", open, "/proc/sys/net/ipv4/ip_forward", "w")
    attempt("namespace setting", open, "/proc/sys/user/max_user_namespaces", "w")
    attempt("oom", lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
    attempt("host's file", open, {str(stage.marker)!r})
    attempt("tcp", lambda: socket.create_connection(("127.0.0.1", {stage.port}), 1))
    attempt("up", os.open, "../" * 40 + {str(stage.marker)!r}, os.O_RDONLY, dir_fd=os.open("/home/work", os.O_RDONLY))
    tell()
    os._exit(0)
os.wait()
"""
    )
    assert told.error is None, told.error.traceback
    assert told.stdout, told
    outcomes = json.loads(told.stdout)
    assert sum("agent" in what for what in outcomes) == 6, "its own, and the branch's"
    if not stage.landlock:  # those capabilities suffice to set them, and they are the branch's own
        del outcomes["kernel setting"], outcomes["namespace setting"]
    refused(
        outcomes, "EPERM", "EACCES", "EINVAL", "ENOENT", "EROFS", "EAFNOSUPPORT", "ENETUNREACH", "ENOMEM", "ValueError"
    )
    assert await box.alive()


@SUITE.case("30")
async def make_devices(stage: Stage, box: Box) -> None:
    refused(
        await box.outcomes("""
for kind, mode in (("block", 0o060666), ("character", 0o020666)):
    for major, minor in ((1, 1), (1, 3), (8, 0), (10, 232), (253, 0), (254, 0)):
        attempt(f"{kind} {major}:{minor}", os.mknod, f"device{major}", mode, os.makedev(major, minor))
        attempt(f"{kind} {major}:{minor} in /dev", os.mknod, "/dev/device", mode, os.makedev(major, minor))
attempt("whiteout", call, "mknodat", -100, b"whiteout", 0o020000, 0)
attempt("high bits", call, "mknodat", -100, b"high", 0o020666 | 1 << 33, os.makedev(1, 1))
tell()"""),
        "EPERM",
    )


@SUITE.case("31")
async def use_what_has_had_many_holes(stage: Stage, box: Box) -> None:
    """bpf, perf, userfaultfd, io_uring and the like do not reach the kernel."""
    outcomes = await box.outcomes("""
for command in range(38):
    attempt(f"bpf {command}", call, "bpf", command, bytes(128), 128)
attempt("perf_event_open", call, "perf_event_open", struct.pack("=II", 1, 112) + bytes(104), 0, -1, -1, 0)
attempt("userfaultfd", call, "userfaultfd", 0)
attempt("userfaultfd for user mode", call, "userfaultfd", 1)
attempt("io_uring_setup", call, "io_uring_setup", 1, bytes(120))
attempt("io_uring_enter", call, "io_uring_enter", 0, 0, 0, 0, 0, 0)
attempt("io_uring_register", call, "io_uring_register", -1, 0, 0, 0)
attempt("io_setup", call, "io_setup", 1, bytes(8))
attempt("fanotify_init", call, "fanotify_init", 0, 0)
attempt("vmsplice", call, "vmsplice", 1, 0, 0, 0)
attempt("modify_ldt", call, "modify_ldt", 0, bytes(16), 16) if "modify_ldt" in numbers else None
attempt("init_module", call, "init_module", b"", 0, b"")
attempt("finit_module", call, "finit_module", 0, b"", 0)
attempt("delete_module", call, "delete_module", b"none", 0)
attempt("kexec_load", call, "kexec_load", 0, 0, 0, 0)
attempt("kexec_file_load", call, "kexec_file_load", -1, -1, 0, 0, 0)
attempt("iopl", call, "iopl", 3) if "iopl" in numbers else None
attempt("ioperm", call, "ioperm", 0, 1, 1) if "ioperm" in numbers else None
attempt("move_pages", call, "move_pages", 1, 0, 0, 0, 0, 0)
attempt("migrate_pages", call, "migrate_pages", 1, 0, 0, 0)
attempt("memfd_secret", call, "memfd_secret", 0)
attempt("remap_file_pages", call, "remap_file_pages", 0, 0, 0, 0, 0)
attempt("seccomp", call, "seccomp", 1, 0, 0)
attempt("seccomp listener", call, "seccomp", 1, 8, bytes(16))
tell()""")
    absent = {what: outcomes.pop(what) for what in ("io_setup", "seccomp", "seccomp listener")}
    refused(absent, "ENOSYS")
    refused(outcomes, "EPERM")


@SUITE.case("32")
async def open_files_by_their_handles(stage: Stage, box: Box) -> None:
    """A handle names any file of a file system, whether bound here or not."""
    refused(
        await box.outcomes("""
handle = struct.pack("=Ii", 8, 1) + struct.pack("=II", 2, 0)
for folder in (".", "/usr", "/proc", "/"):
    fd = os.open(folder, os.O_RDONLY)
    attempt(f"open_by_handle_at {folder}", call, "open_by_handle_at", fd, handle, os.O_RDONLY)
    room = struct.pack("=Ii", 128, 0) + bytes(128)
    attempt(f"name_to_handle_at {folder}", call, "name_to_handle_at", fd, b".", room, bytes(8), 0)
    os.close(fd)
tell()"""),
        "EPERM",
    )


@pytest.mark.parametrize("case", SUITE.cases)
def test_a_hostile_program_does_not_get_out(case: str, played: Played) -> None:
    played.check(case)


def test_the_server_does_not_notice_and_nothing_is_left(played: Played) -> None:
    played.check_end()
