"""A cluster's life: parts are started, waited for and stopped, and in the end nothing is left."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import images
import needs
import node
import objects
import pki
from parts import PARTS, account_exists, node_ready
from place import Failed

START_SECONDS = 120
# An API server waits for whoever watches, longer than any test wants it to be away.
STOP_SECONDS = 20
GONE_SECONDS = 60


def until(condition, seconds, otherwise):
    """Polls until something holds; `otherwise` makes the error's text."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(otherwise())
        time.sleep(0.05)


def tail(place, part, lines=25):
    try:
        text = place.path("log", f"{part}.log").read_text(errors="replace")
    except OSError:
        return f"{part} wrote no log"
    return "\n".join(text.splitlines()[-lines:])


def spawn(place, part):
    if part not in PARTS:
        raise Failed(f"no part is named {part}: it is one of {', '.join(PARTS)}")
    if place.pid(part):
        return
    log = place.path("log", f"{part}.log")
    # Readiness may be read from the log, so what an earlier process wrote is set aside.
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    # containerd looks for gVisor in PATH.
    environment = needs.environment()
    environment["PATH"] = f"{place.options()['bin']}:{environment['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            PARTS[part][0](place), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    place.remember(part, process.pid)


def await_part(place, part):
    def ready():
        if place.pid(part) is None:
            raise Failed(f"{part} ended:\n{tail(place, part)}")
        return PARTS[part][1](place)

    until(ready, START_SECONDS, lambda: f"{part} did not become ready in {START_SECONDS} s:\n{tail(place, part)}")


def start(place, part):
    spawn(place, part)
    await_part(place, part)
    # Whoever watched an API server that was away asks again ever later, but policies must hold for the very next pod.
    if part == "apiserver" and place.pid("enforcer"):
        end(place, "enforcer")
        start(place, "enforcer")


def end(place, part):
    """Stops one process by the pid that was remembered for it."""
    pid = place.pid(part)
    if pid is None:
        return
    deadline = time.monotonic() + STOP_SECONDS
    # It may end by itself meanwhile.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while place.pid(part) is not None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def up(place, options):
    if place.path("options.json").exists():
        raise Failed(f"{place.dir} holds a cluster already: `cluster down {place.dir}` removes it")
    place.dir.mkdir(parents=True, exist_ok=True)
    place.dir.chmod(0o755)
    programs = needs.programs([name for name in needs.EXTRA if options[name]])
    place.text("options.json", objects.dump({**options, "bin": str(programs)}))
    pki.make(place)
    if not options["bare"]:
        node.files(place)
    environment(place)
    place.hold(str(programs / "pause"))
    until(place.path("held").exists, START_SECONDS, lambda: f"the namespaces were not made:\n{tail(place, 'holder')}")
    place.enter()
    node.network()
    if options["bare"]:
        bare(place, options["bare"])
    else:
        whole(place, options)


def bare(place, release):
    """An API and nobody who acts on what is in it."""
    start(place, "etcd")
    start(place, "apiserver")
    if release != "none":
        objects.install_old(place, release)


def whole(place, options):
    # What does not wait for another starts at once; the machine has few processors but much is waiting.
    for part in ("etcd", "containerd"):
        spawn(place, part)
    await_part(place, "etcd")
    spawn(place, "apiserver")
    await_part(place, "containerd")
    for image in images.first(place):
        images.give(image)
    await_part(place, "apiserver")
    later = ["controller-manager", "scheduler", "kubelet", "proxy", "enforcer", "volumes"]
    for part in later:
        spawn(place, part)
    objects.install(place)
    # The controller ends where it looks for a kind that is not served yet.
    objects.await_served(place)
    if options["controller"]:
        later.append("controller")
        spawn(place, "controller")
    if options["kwok"]:
        later.append("kwok")
        spawn(place, "kwok")
    for part in later:
        await_part(place, part)
    until(lambda: node_ready(place), START_SECONDS, lambda: f"the node did not become ready:\n{tail(place, 'kubelet')}")
    # Without it the first pod is refused.
    until(lambda: account_exists(place), START_SECONDS, lambda: f"no ServiceAccount was made:\n{tail(place, 'controller-manager')}")


def environment(place):
    options = place.options()
    lines = {
        "KUBECONFIG": place.path("kubeconfig"),
        "NETNS": place.name,
        "CLUSTER_DIR": place.dir,
        "CONTAINERD_ADDRESS": place.path("run/containerd/containerd.sock"),
        "CONTAINERD_NAMESPACE": "k8s.io",
        "BUSYBOX_IMAGE": images.BUSYBOX,
    }
    text = "".join(f"export {name}='{value}'\n" for name, value in lines.items())
    place.text("env", text + f"export PATH='{options['bin']}':\"$PATH\":/usr/sbin:/sbin\n", 0o644)


def down(place):
    """Works on whatever an `up` left, however far it came."""
    holder = place.pid("holder")
    if holder is not None:
        # The kernel ends everything in a pid namespace with its first process, containers and shims too.
        os.kill(holder, signal.SIGKILL)
        until(lambda: place.pid("holder") is None, GONE_SECONDS, lambda: f"process {holder} does not end")
    if place.netns.exists():
        subprocess.run(["ip", "netns", "delete", place.name], check=True)
    for hierarchy in node.hierarchies():
        remove_cgroup(hierarchy / place.name)
    if place.dir.exists() and (place.path("options.json").exists() or place.path("pki").exists()):
        shutil.rmtree(place.dir)


def remove_cgroup(root):
    if not root.exists():
        return
    for path, _, _ in os.walk(root, topdown=False):
        # A group is busy until the kernel has buried the last of its processes.
        def gone(path=path):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True

        until(gone, GONE_SECONDS, lambda path=path: f"processes are left in {path}: {open(f'{path}/cgroup.procs').read().split()}")
