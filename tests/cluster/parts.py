"""The processes of a cluster: how each is started, and how it is known to serve."""

import json
import socket
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from pathlib import Path

from place import API, LEASE_SECONDS, NODE, NODE_ADDRESS, POD_ADDRESSES, SERVICE_ADDRESSES

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
COMMON = ["--v=1"]
# Hundreds of claims are the cluster's work here, not its clients' politeness.
UNTHROTTLED = ["--kube-api-qps=1000", "--kube-api-burst=2000"]


def serving(place):
    """The node's own certificate, without which a part makes one that nobody can check."""
    return [f"--tls-cert-file={place.path('pki/node.crt')}", f"--tls-private-key-file={place.path('pki/node.key')}"]


def get(place, url, timeout=2):
    """The body of a page of the cluster, or None while it does not answer with 200."""
    context = ssl.create_default_context(cafile=str(place.path("pki/ca.crt")))
    context.load_cert_chain(place.path("pki/admin.crt"), place.path("pki/admin.key"))
    try:
        with urllib.request.urlopen(url, timeout=timeout, context=context if url.startswith("https") else None) as answer:
            return answer.read()
    except (OSError, urllib.error.URLError):
        return None


def api_ready(place):
    return get(place, f"{API}/readyz") is not None


def node_ready(place):
    body = get(place, f"{API}/api/v1/nodes/{NODE}")
    conditions = json.loads(body).get("status", {}).get("conditions", []) if body else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def account_exists(place):
    return get(place, f"{API}/api/v1/namespaces/default/serviceaccounts/default") is not None


def containerd_ready(place):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(CONTAINERD_SOCKET)
        except OSError:
            return False
    return True


def etcd(place):
    return [
        "etcd", "--name=node", "--data-dir=/var/lib/etcd",
        "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=node=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn",
    ]  # fmt: skip


def apiserver(place):
    pki = place.path("pki")
    return [
        place.bin("kube-apiserver"), *COMMON, f"--advertise-address={NODE_ADDRESS}", f"--bind-address={NODE_ADDRESS}",
        "--secure-port=6443", "--etcd-servers=http://127.0.0.1:2379", "--authorization-mode=Node,RBAC", "--anonymous-auth=true",
        "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
        f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt", f"--kubelet-client-certificate={pki}/apiserver-client.crt",
        f"--kubelet-client-key={pki}/apiserver-client.key", "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/accounts.pub", f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local", f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
        # Nothing is aggregated, but the parts that ask this API about their callers refuse to start without an answer.
        f"--requestheader-client-ca-file={pki}/ca.crt", "--requestheader-allowed-names=nobody",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        # A list as a stream needs a newer etcd than Debian's: refused, clients list and watch; tried, they see old objects.
        "--feature-gates=WatchList=false", "--endpoint-reconciler-type=master-count", "--profiling=false",
        *(audit(place) if place.options().get("audit") else []),
    ]  # fmt: skip


def audit(place):
    """Who asked what, with microseconds; not what was said."""
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}
    place.text("etc/audit.json", json.dumps(policy))
    return [f"--audit-policy-file={place.path('etc/audit.json')}", f"--audit-log-path={place.path('log/audit.log')}"]


def controller_manager(place):
    pki, kubeconfig = place.path("pki"), place.path("kubeconfigs/controller-manager")
    return [
        place.bin("kube-controller-manager"), *COMMON, *UNTHROTTLED, *serving(place), f"--kubeconfig={kubeconfig}", "--bind-address=127.0.0.1", "--leader-elect=false",
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={pki}/accounts.key", f"--root-ca-file={pki}/ca.crt", "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
        # A node that is stopped is noticed within a test's patience, and one that is only slow is not.
        "--node-monitor-period=1s", f"--node-monitor-grace-period={3 * LEASE_SECONDS // 2}s", "--profiling=false",
    ]  # fmt: skip


def scheduler(place):
    kubeconfig = place.path("kubeconfigs/scheduler")
    return [
        place.bin("kube-scheduler"), *COMMON, *UNTHROTTLED, *serving(place), f"--kubeconfig={kubeconfig}", "--bind-address=127.0.0.1", "--leader-elect=false",
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}", "--profiling=false",
    ]  # fmt: skip


def containerd(place):
    return ["containerd", "--config", str(place.path("etc/containerd.toml"))]


def kubelet(place):
    return [
        place.bin("kubelet"), *COMMON, f"--config={place.path('etc/kubelet.yaml')}", f"--kubeconfig={place.path('kubeconfigs/kubelet')}",
        f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}", f"--cert-dir={place.path('pki')}",
    ]  # fmt: skip


def proxy(place):
    return [place.bin("kube-proxy"), *COMMON, f"--config={place.path('etc/proxy.yaml')}", f"--hostname-override={NODE}"]


def enforcer(place):
    return [place.bin("enforcer"), f"--kubeconfig={place.path('kubeconfigs/enforcer')}", f"--node={NODE}", f"--pods={POD_ADDRESSES}"]


def controller(place):
    return [
        place.bin("agent-sandbox-controller"), f"--kubeconfig={place.path('kubeconfigs/controller')}", "--extensions",
        # One that leads gives up, and ends, when its lease is not renewed in time; there is nobody to lead.
        "--leader-elect=false",
        "--metrics-bind-address=127.0.0.1:8080", "--health-probe-bind-address=127.0.0.1:8081",
    ]  # fmt: skip


def kwok(place):
    stages = Path(place.options()["bin"]).parent / "stages"
    # Without stages it plays nothing: a node becomes ready and lives, a pod becomes ready at once.
    kinds = ("node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml")
    files = [file for kind in kinds for file in sorted(stages.glob(kind))]
    return [
        place.bin("kwok"), f"--kubeconfig={place.path('kubeconfigs/kwok')}", "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--cidr=10.245.0.0/16", f"--node-ip={NODE_ADDRESS}",
        f"--node-lease-duration-seconds={LEASE_SECONDS}", "--server-address=127.0.0.1:10247", *(f"--config={file}" for file in files),
    ]  # fmt: skip


def volumes(place):
    program = Path(__file__).with_name("volumes.py")
    return [sys.executable, program, place.dir]


# In the order of starting; each is the command and what must hold before it counts as started.
PARTS = {
    "etcd": (etcd, lambda place: get(place, "http://127.0.0.1:2379/health") is not None),
    "containerd": (containerd, containerd_ready),
    "apiserver": (apiserver, api_ready),
    "controller-manager": (controller_manager, lambda place: get(place, "https://127.0.0.1:10257/healthz") is not None),
    "scheduler": (scheduler, lambda place: get(place, "https://127.0.0.1:10259/healthz") is not None),
    "kubelet": (kubelet, lambda place: get(place, "http://127.0.0.1:10248/healthz") is not None),
    "proxy": (proxy, lambda place: get(place, "http://127.0.0.1:10256/healthz") is not None),
    "enforcer": (enforcer, lambda place: b"in force" in place.path("log/enforcer.log").read_bytes()),
    "volumes": (volumes, lambda place: b"in force" in place.path("log/volumes.log").read_bytes()),
    "controller": (controller, lambda place: get(place, "http://127.0.0.1:8081/readyz") is not None),
    "kwok": (kwok, lambda place: get(place, "http://127.0.0.1:10247/healthz") is not None),
}
