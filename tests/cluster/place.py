"""Where a cluster is: a directory with all its state, and the namespaces that its processes share."""

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODE = "node"
NODE_ADDRESS = "10.217.0.1"
POD_ADDRESSES = "10.244.0.0/20"
SERVICE_ADDRESSES = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
PAUSE_IMAGE = "sandbar.test/pause:latest"
# Renewed four times in its duration, by kubelet and kwok alike.
LEASE_SECONDS = 20
API = f"https://{NODE_ADDRESS}:6443"

# Opened before any namespace is entered, because pids are remembered as the machine counts them.
HOST_PROC = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000

# What the daemons write to by habit; inside, these are directories of the cluster's own.
PRIVATE = {"/run": "run", "/var/lib": "lib", "/var/log": "log"}


class Failed(Exception):
    """A sentence for the person who ran the command."""


def call(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def started_at(pid):
    """When a process started, or None when it is gone; with the pid it names one process forever."""
    try:
        file = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=HOST_PROC)
    except OSError:
        return None
    with os.fdopen(file, "rb") as stat:
        try:
            fields = stat.read().rpartition(b")")[2].split()
        except ProcessLookupError:
            return None
    return None if not fields or fields[0] in b"ZX" else int(fields[19])


class Place:
    def __init__(self, directory):
        self.dir = Path(directory).resolve()
        for private in PRIVATE:
            if str(self.dir).startswith(private + "/"):
                raise Failed(f"{self.dir} is below {private}, which a cluster hides from itself: choose another directory")
        self.name = "sandbar-" + hashlib.sha256(str(self.dir).encode()).hexdigest()[:8]
        self.netns = Path("/run/netns") / self.name

    def path(self, *parts):
        return self.dir.joinpath(*parts)

    def text(self, name, content, mode=0o600):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        return path

    def options(self):
        try:
            return json.loads(self.path("options.json").read_text())
        except OSError:
            raise Failed(f"no cluster in {self.dir}: make one with `cluster up {self.dir}`") from None

    def bin(self, program):
        return str(Path(self.options()["bin"]) / program)

    def remember(self, part, pid):
        self.text(f"pids/{part}", f"{pid} {started_at(pid)}\n")

    def pid(self, part):
        """The pid of a part that still runs, or None."""
        try:
            pid, start = self.path("pids", part).read_text().split()
        except (OSError, ValueError):
            return None
        # One that had ended before it was remembered has no beginning.
        return int(pid) if start != "None" and str(started_at(int(pid))) == start else None

    def hold(self, pause):
        """Makes the namespaces and a process that keeps them: its end is the end of everything inside."""
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        for inside in PRIVATE.values():
            self.path(inside).mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                self.enter_one(str(self.netns))
                call(LIBC.unshare(CLONE_NEWNS | CLONE_NEWPID))
                holder = os.fork()
                if holder:
                    os.write(write, str(holder).encode())
                    os._exit(0)
                self.become_holder(pause)
            except BaseException as error:
                print(f"cluster: failed to make namespaces: {error}", file=sys.stderr)
            os._exit(1)
        os.close(write)
        os.waitpid(child, 0)
        holder = os.read(read, 32)
        os.close(read)
        if not holder:
            raise Failed("the namespaces were not made")
        self.remember("holder", int(holder))

    def become_holder(self, pause):
        log = os.open(self.path("log", "holder.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Shared among themselves, so that a volume mounted by kubelet is seen by containerd, and with nobody else.
        for mount in (
            ["--make-rprivate", "/"],
            ["--make-rshared", "/"],
            *(["--bind", str(self.path(inside)), private] for private, inside in PRIVATE.items()),
            ["-t", "proc", "proc", "/proc"],
        ):
            subprocess.run(["mount", *mount], check=True)
        # Written last: it says that everything above is done.
        self.path("held").touch()
        os.execv(pause, [pause])

    @staticmethod
    def enter_one(path):
        namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        call(LIBC.setns(namespace, 0))
        os.close(namespace)

    def enter(self):
        """Moves this process, and the pid namespace of its children, into the cluster."""
        holder = self.pid("holder")
        if holder is None:
            raise Failed(f"the cluster in {self.dir} does not run: `cluster down {self.dir}`, then up")
        namespaces = [os.open(f"{holder}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=HOST_PROC) for kind in ("net", "mnt", "pid")]
        for namespace in namespaces:
            call(LIBC.setns(namespace, 0))
            os.close(namespace)
        os.chdir(self.dir)
