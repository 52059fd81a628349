"""What is in the API of a cluster from the beginning: agent-sandbox's own manifests, runtime classes, fake nodes."""

import json
import subprocess
import time
from pathlib import Path

import needs
from place import Failed

FAKE_NODES = 2
FAKE_PODS = 500
ESTABLISH_SECONDS = 60


def dump(value):
    return json.dumps(value, indent=1)


def kubectl(place, *arguments, stdin=None):
    done = subprocess.run(
        [place.bin("kubectl"), f"--kubeconfig={place.path('kubeconfig')}", *arguments], input=stdin, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Failed(f"kubectl {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def manifests(place):
    return Path(place.options()["bin"]).parent / "agent-sandbox"


def without_deployment(text):
    """The controller is a process beside the cluster: its Deployment would ask for an image that nobody has."""
    return "\n---\n".join(document for document in text.split("\n---") if "\nkind: Deployment" not in "\n" + document)


def install(place):
    options = place.options()
    source = manifests(place)
    kubectl(place, "apply", "--server-side", "-f", str(source / "crds"))
    files = ["controller.yaml", "rbac.generated.yaml", "extensions.yaml", "extensions-rbac.generated.yaml"]
    text = "\n---\n".join((source / file).read_text() for file in files)
    kubectl(place, "apply", "--server-side", "-f", "-", stdin=without_deployment(text))
    more = [storage_class()] + ([runtime_class()] if options["gvisor"] else [])
    if options["kwok"]:
        more += [fake_node(number) for number in range(FAKE_NODES)]
    kubectl(place, "apply", "--server-side", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": more}))


def install_old(place, release):
    """The CRDs that an agent-sandbox had before 1.0, with the schemas that it had."""
    kubectl(place, "apply", "--server-side", "-f", str(needs.old_crds(release)))
    await_served(place)


def await_served(place):
    """By looking, since `kubectl wait` fails on a CRD that has no status yet."""
    deadline = time.monotonic() + ESTABLISH_SECONDS
    while not served(place):
        if time.monotonic() > deadline:
            raise Failed(f"the API does not serve the kinds of agent-sandbox in {ESTABLISH_SECONDS} s")
        time.sleep(0.1)


def served(place):
    """Whether the API knows the kinds of all CRDs by their addresses, which it does a moment after they are established."""
    try:
        for definition in json.loads(kubectl(place, "get", "crd", "-o", "json"))["items"]:
            spec = definition["spec"]
            for version in (version["name"] for version in spec["versions"] if version["served"]):
                known = json.loads(kubectl(place, "get", "--raw", f"/apis/{spec['group']}/{version}"))["resources"]
                if spec["names"]["plural"] not in (resource["name"] for resource in known):
                    return False
    except Failed:
        return False
    return True


def storage_class():
    """Of volumes that `volumes.py` makes."""
    usual = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": "local", "annotations": usual}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata, "provisioner": "sandbar.test/volumes"}


def runtime_class():
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}


def fake_node(number):
    """A node that only kwok plays. Its taint keeps pods away that do not ask for it."""
    name = f"kwok-{number}"
    room = {"cpu": "1000", "memory": "1Ti", "pods": str(FAKE_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }
