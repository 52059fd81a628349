"""The node of a cluster: its network, and what containerd, kubelet and the proxy read."""

import json
import subprocess
from pathlib import Path

from place import LEASE_SECONDS, NODE_ADDRESS, PAUSE_IMAGE, POD_ADDRESSES

CGROUPS = Path("/sys/fs/cgroup")


def hierarchies():
    """Version 1 has a directory for each controller, version 2 is one directory."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()]


def network():
    """To be called inside: an address for the node that no other namespace can reach, and routing between pods."""
    # A bridge without ports stands for the node's interface: not every kernel has the dummy device.
    for command in (
        "ip link set lo up",
        "ip link add node0 type bridge",
        f"ip address add {NODE_ADDRESS}/24 dev node0",
        "ip link set node0 up",
        "ip route add default dev node0",
    ):
        subprocess.run(command.split(), check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def files(place):
    place.text("etc/containerd.toml", containerd(place))
    place.text("etc/kubelet.yaml", json.dumps(kubelet(place), indent=1))
    place.text("etc/proxy.yaml", json.dumps(proxy(place), indent=1))
    place.text("etc/cni/10-pods.conflist", json.dumps(cni(), indent=1))
    for hierarchy in hierarchies():
        root = hierarchy / place.name
        root.mkdir(exist_ok=True)
        # Without processors and memory of its own a cpuset takes nobody.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / setting).exists() and not (root / setting).read_text().strip():
                (root / setting).write_text((hierarchy / setting).read_text())


def containerd(place):
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    gvisor = f"""
[{cri}.containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"
"""
    return f"""version = 2
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]

[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
# Lowering it needs CAP_SYS_RESOURCE, which root of a container often lacks.
restrict_oom_score_adj = true
disable_apparmor = true

[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{place.path("etc/cni")}"

[{cri}.containerd]
default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
{gvisor if place.options()["gvisor"] else ""}"""


def kubelet(place):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(place.path("pki/ca.crt"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(place.path("pki/node.crt")),
        "tlsPrivateKeyFile": str(place.path("pki/node.key")),
        "address": NODE_ADDRESS,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        # A root of its own lets two clusters be on one machine, and lets `down` remove it.
        "cgroupRoot": f"/{place.name}",
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 250,
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        # The disk is the machine's: how full it is says nothing about the test.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    }


def proxy(place):
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(place.path("kubeconfigs/proxy"))},
        "mode": "nftables",
        "clusterCIDR": POD_ADDRESSES,
        "oomScoreAdj": 0,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # The table of connections is the machine's and stays as it is.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def cni():
    # Point to point, so that packets between pods are routed and the forward hook sees them without br_netfilter.
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_ADDRESSES}]], "routes": [{"dst": "0.0.0.0/0"}]},
            }
        ],
    }
