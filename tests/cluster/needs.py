"""What a cluster is made of: packages by name, and Go programs built once into a cache."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from place import HERE, Failed

# A program that shows the package is there, and the package.
PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "openssl": "openssl",
    "/bin/busybox": "busybox-static",
}
MODULES = {
    ".": ["tool", "./enforcer", "./pause"],
    "controller": ["tool"],
    "kwok": ["tool"],
    "gvisor": ["tool", "./containerd-shim-runsc-v1"],
}
# Built for clusters that ask for them.
EXTRA = ("kwok", "gvisor")
# What is kept of a module's source besides its programs: module, directory in it, name in the cache.
KEPT = {
    "controller": ("sigs.k8s.io/agent-sandbox", "k8s", "agent-sandbox"),
    "kwok": ("sigs.k8s.io/kwok", "kustomize/stage", "stages"),
}
# Releases of agent-sandbox that serve v1alpha1 alone, of which only the CRDs are wanted, and what Go says of their content.
OLD = {
    "v0.2.1": "h1:BRrZzBkmoXjzSyCLnv7a2F804uSPQbbinOKtRbKe/94=",
    "v0.4.6": "h1:dUUvQ+rlv4kT3CB9p2MgnPcNSMAQg6eTBrWyCiYgxYs=",
}
# The shim gives up where it may not make itself safe from a machine without memory, which needs CAP_SYS_RESOURCE.
SHIM_SOURCE = ("gvisor.dev/gvisor", "pkg/shim/v1/manager.go", "oomScoreMax = -999", "oomScoreMax = 0")
POLICY = Path("/usr/sbin/policy-rc.d")


def environment():
    return {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"}


def have(program):
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=environment()["PATH"]) is not None


def cache():
    digest = hashlib.sha256(repr((MODULES, KEPT, SHIM_SOURCE, link_flags())).encode())
    for module in MODULES:
        for file in sorted((HERE / module).glob("go.*")):
            digest.update(file.read_bytes())
    for source in sorted(HERE.rglob("*.go")):
        digest.update(source.read_bytes())
    return caches() / digest.hexdigest()[:16]


def caches():
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sandbar-tests" / "cluster"


def link_flags():
    """Kubernetes is told its version when it is linked, and clients read it."""
    version = re.search(r"k8s\.io/kubernetes v([0-9.]+)", (HERE / "go.mod").read_text())[1]
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(["-s", "-w", *(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())])


def packages():
    missing = [package for program, package in PACKAGES.items() if not have(program)]
    if not missing:
        return
    # A package must not start its service: a policy that says no is there while they are installed.
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        quiet = {**environment(), "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True, env=quiet)
    finally:
        if ours:
            POLICY.unlink()


def programs(extra=()):
    """The directory with the Go programs and the manifests of agent-sandbox; what is not there is built."""
    done = cache()
    wanted = [module for module in MODULES if module not in EXTRA or module in extra]
    if all(made(done, module).exists() for module in wanted):
        return done / "bin"
    if not have("go"):
        raise Failed("Go is missing: install golang-go, or put a newer Go in PATH")
    (done / "bin").mkdir(parents=True, exist_ok=True)
    # Two who need it at once would build it twice; the second waits, and finds it made.
    with (done.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for module in wanted:
            if not made(done, module).exists():
                make(done, module)
    return done / "bin"


def made(done, module):
    return done / f"made-{'cluster' if module == '.' else module}"


def make(done, module):
    part = done / f"part.{os.getpid()}"
    try:
        (part / "bin").mkdir(parents=True)
        build = {**environment(), "CGO_ENABLED": "0"}
        # Each module has its own Kubernetes libraries, of which only the first are the cluster's.
        flags = link_flags() if module == "." else "-s -w"
        changed = [f"-modfile={changed_gvisor(part, build)}"] if module == "gvisor" else []
        command = ["go", "build", "-trimpath", "-buildvcs=false", *changed, "-ldflags", flags, "-o", f"{part}/bin/", *MODULES[module]]
        subprocess.run(["nice", *command], check=True, cwd=HERE / module, env=build)
        if module in KEPT:
            name, directory, kept = KEPT[module]
            shutil.rmtree(done / kept, ignore_errors=True)
            copy(module_source(module, name, build) / directory, done / kept)
        for program in (part / "bin").iterdir():
            program.replace(done / "bin" / program.name)
        # Said last, so that half is nothing.
        made(done, module).touch()
    finally:
        shutil.rmtree(part, ignore_errors=True)


def old_crds(release):
    """The directory with the CRDs of an old agent-sandbox; downloaded where it is not there."""
    done = caches() / f"agent-sandbox-{release}"
    if done.exists():
        return done
    if not have("go"):
        raise Failed("Go is missing: install golang-go, or put a newer Go in PATH")
    caches().mkdir(parents=True, exist_ok=True)
    part = caches() / f"part.{os.getpid()}"
    try:
        command = ["go", "mod", "download", "-json", f"sigs.k8s.io/agent-sandbox@{release}"]
        got = subprocess.run(command, cwd=caches(), env=environment(), capture_output=True, text=True)
        told = json.loads(got.stdout or "{}")
        if told.get("Sum") != OLD[release]:
            raise Failed(f"agent-sandbox {release} was not downloaded: {told.get('Error') or told.get('Sum') or got.stderr}")
        copy(Path(told["Dir"]) / "k8s" / "crds", part)
        # Renamed last, so that half is nothing.
        part.rename(done)
    except OSError:
        # Another was faster.
        if not done.exists():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return done


def changed_gvisor(part, build):
    """A go.mod that takes gVisor from a copy with one line changed; Go lets nobody change a module in its cache."""
    name, file, before, after = SHIM_SOURCE
    copy(module_source("gvisor", name, build), part / "gvisor")
    source = part / "gvisor" / file
    text = source.read_text()
    if before not in text:
        raise Failed(f"{name}/{file} does not say {before!r} any more: look at SHIM_SOURCE in needs.py")
    source.write_text(text.replace(before, after))
    for ending in ("mod", "sum"):
        shutil.copyfile(HERE / "gvisor" / f"go.{ending}", part / f"gvisor.{ending}")
    modfile = part / "gvisor.mod"
    subprocess.run(["go", "mod", "edit", f"-replace={name}={part / 'gvisor'}", str(modfile)], check=True, env=build)
    return modfile


def module_source(module, name, build):
    """Where Go keeps it; brought there if it is not, which `go list` would say nothing of."""
    command = ["go", "mod", "download", "-json", name]
    got = subprocess.run(command, cwd=HERE / module, env=build, capture_output=True, text=True)
    told = json.loads(got.stdout or "{}")
    if not told.get("Dir"):
        raise Failed(f"{name} was not downloaded: {told.get('Error') or got.stderr}")
    return Path(told["Dir"])


def copy(source, target):
    """Copies content without modes: Go's cache is read-only, and a copy of it could not be removed."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path, _, _ in os.walk(target):
        os.chmod(path, 0o755)
