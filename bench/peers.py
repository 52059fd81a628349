"""The peers: each runs one command in its own kind of fence, with a view as much alike as they allow. Those of the Rust
registry are built once into the user's cache. One that is missing, does not build or does not run is named, not counted.
"""
import itertools, json, os, shutil, signal, subprocess, tempfile

from measure import Contender, spawn

TRUE = shutil.which("true")
RAW, BWRAP = "raw fork+exec", "bwrap --unshare-all"
LINKS = ["bin", "lib", "lib64", "sbin"]
REGISTRY = {"nono": "nono-cli", "zerobox": "zerobox"}


def light(contenders):
    """The few that take a few milliseconds, to take turns once more."""
    return [Contender(one.name, one.work, one.after, one.against, one.aim) for one in contenders if one.name in (RAW, BWRAP)]


def contenders(scratch, minutes):
    """The peers that run here; what does not is printed."""
    ids = (f"sandbar-bench-{os.getpid()}-{number}" for number in itertools.count())
    bundle = make_bundle(os.path.join(scratch, "bundle"))
    state = os.path.join(scratch, "state")
    # Apart: some deny much of a home, whatever else is allowed.
    home, work = os.path.join(scratch, "home"), os.path.join(scratch, "work")
    os.makedirs(home), os.makedirs(work)
    built = {name: build(name, crate, minutes) for name, crate in REGISTRY.items()}
    bwrap = ["--unshare-all", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    bwrap += [word for link in LINKS for word in ("--symlink", f"usr/{link}", f"/{link}")]
    unshare = "--user --map-root-user --mount --pid --fork --net --ipc --uts --cgroup --mount-proc".split()
    runsc = ["--root", state, "--network=none", "--ignore-cgroups", *([] if os.getuid() == 0 else ["--rootless"])]
    commands = {
        RAW: lambda: [TRUE],
        "unshare (all namespaces)": lambda: [shutil.which("unshare"), *unshare, TRUE],
        BWRAP: lambda: [shutil.which("bwrap"), *bwrap, TRUE],
        "runc run": lambda: [which("runc"), "--root", state, "run", "--bundle", bundle, next(ids)],
        "runsc run (gVisor)": lambda: [which("runsc"), *runsc, "run", "--bundle", bundle, next(ids)],
        "nono run": lambda: [
            "/usr/bin/env", f"HOME={home}", built["nono"], "--silent", "run", "--allow-cwd", "--workdir", work,
            "--read", "/usr", "--block-net", "--", TRUE],
        "zerobox": lambda: ["/usr/bin/env", f"HOME={home}", built["zerobox"], "--strict-sandbox", "--", TRUE],
    }
    return [Contender(name, lambda command=command: spawn(*command()), against=BWRAP if name != RAW else None)
            for name, command in commands.items() if runs(name, command)]


def which(name):
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def runs(name, command):
    """Tried once, with its complaints shown."""
    argv = command()
    if None in argv:
        print(f"not run: {name}: it is not installed")
        return False
    tried = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if tried.returncode != 0:
        said = (tried.stderr or tried.stdout).strip().splitlines() or [f"status {tried.returncode}"]
        print(f"not run: {name}: {said[-1]}")
    return tried.returncode == 0


def make_bundle(path):
    """An OCI bundle with the host's /usr and nothing else of it."""
    root = os.path.join(path, "rootfs")
    for name in ["usr", "proc", "dev", "tmp"]:
        os.makedirs(os.path.join(root, name))
    for link in LINKS:
        os.symlink(f"usr/{link}", os.path.join(root, link))
    namespaces = ["pid", "network", "ipc", "uts", "mount"]
    linux = {}
    if os.getuid() != 0:
        namespaces.append("user")
        linux = {f"{kind}Mappings": [{"containerID": 0, "hostID": own, "size": 1}]
                 for kind, own in (("uid", os.getuid()), ("gid", os.getgid()))}
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "args": [TRUE], "env": ["PATH=/usr/bin"], "cwd": "/",
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted")}, "noNewPrivileges": True},
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "peer",
        "mounts": [
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"]},
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
        "linux": {"namespaces": [{"type": kind} for kind in namespaces], **linux},
    }
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file)
    return path


def build(name, crate, minutes):
    """The program, from the cache or built into it; nothing if that does not work."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sandbar-bench")
    program = os.path.join(cache, "bin", name)
    if os.path.exists(program):
        return program
    if minutes <= 0 or not shutil.which("cargo"):
        return None
    # Away from this workspace, whose settings are not theirs.
    ours = {"CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"}
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    with tempfile.TemporaryDirectory() as elsewhere:
        for locked in (["--locked"], []):
            print(f"building {crate} {'as locked ' if locked else ''}(at most {minutes} min)", flush=True)
            install = ["cargo", "install", "--quiet", *locked, "--root", cache, crate]
            done = subprocess.Popen(install, cwd=elsewhere, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
            try:
                _, stderr = done.communicate(timeout=60 * minutes)
            except subprocess.TimeoutExpired:
                # Its compilers too.
                os.killpg(done.pid, signal.SIGKILL)
                done.wait()
                print(f"{crate} was not built in {minutes} minutes")
                return None
            if done.returncode == 0:
                return program
            said = [line for line in stderr.splitlines() if line.startswith("error")]
            print(f"{crate} does not build{' as locked' if locked else ''}: {(said or ['?'])[0]}")
    return None
