"""Images made here, because none can be pulled: one layer, one tar, imported into the cluster's containerd."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import needs
from parts import CONTAINERD_SOCKET
from place import PAUSE_IMAGE, Failed

BUSYBOX = "sandbar.test/busybox:latest"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\nuser:x:1000:1000:user:/workspace:/bin/sh\n"
GROUPS = "root:x:0:\nnogroup:x:65534:\nuser:x:1000:\n"


class Layer:
    """A layer being made. Times and owners are fixed, so that equal content is an equal image."""

    def __init__(self, file):
        self.tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)
        self.made = set()

    def entry(self, path, kind, mode, owner=0):
        self.parents(path)
        info = tarfile.TarInfo(path.strip("/"))
        info.type, info.mode, info.uid, info.gid = kind, mode, owner, owner
        return info

    def parents(self, path):
        for parent in reversed(Path(path.strip("/")).parents):
            if str(parent) != ".":
                self.directory(str(parent))

    def directory(self, path, mode=0o755, owner=0):
        if path.strip("/") not in self.made:
            info = self.entry(path, tarfile.DIRTYPE, mode, owner)
            self.made.add(path.strip("/"))
            self.tar.addfile(info)

    def text(self, path, content):
        info = self.entry(path, tarfile.REGTYPE, 0o644)
        info.size = len(content.encode())
        self.tar.addfile(info, io.BytesIO(content.encode()))

    def link(self, path, target):
        info = self.entry(path, tarfile.SYMTYPE, 0o777)
        info.linkname = target
        self.tar.addfile(info)

    def file(self, source, path):
        source = Path(source)
        if source.is_dir() and not source.is_symlink():
            self.directory(path, source.stat().st_mode & 0o7777)
            for child in sorted(source.iterdir()):
                self.file(child, f"{path.rstrip('/')}/{child.name}")
        elif source.is_symlink():
            self.link(path, str(source.readlink()))
        else:
            info = self.entry(path, tarfile.REGTYPE, source.stat().st_mode & 0o7777)
            info.size = source.stat().st_size
            with source.open("rb") as content:
                self.tar.addfile(info, content)


def busybox_layer(layer):
    """A small system: every applet, a user that is not root, and where it may write."""
    layer.file("/bin/busybox", "/bin/busybox")
    applets = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            layer.link(f"/bin/{applet}", "busybox")
    layer.directory("/usr/bin")
    layer.link("/usr/bin/env", "/bin/busybox")
    layer.text("/etc/passwd", USERS)
    layer.text("/etc/group", GROUPS)
    layer.directory("/root", 0o700)
    layer.directory("/tmp", 0o1777)
    layer.directory("/workspace", 0o755, 1000)


def write(out, name, fill, config):
    """Writes an OCI layout that also names its image, as `ctr images import` reads it."""
    with tempfile.TemporaryFile() as layer_file, tarfile.open(out, "w") as tar:
        layer = Layer(layer_file)
        fill(layer)
        layer.tar.close()
        layer_file.seek(0)
        digest = hashlib.file_digest(layer_file, "sha256").hexdigest()
        size = layer_file.tell()
        layer_file.seek(0)

        def blob(kind, content):
            found = hashlib.sha256(content).hexdigest()
            add(f"blobs/sha256/{found}", content)
            return {"mediaType": f"application/vnd.oci.image.{kind}+json", "digest": f"sha256:{found}", "size": len(content)}

        def add(path, content):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        info = tarfile.TarInfo(f"blobs/sha256/{digest}")
        info.size = size
        tar.addfile(info, layer_file)
        architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
        image = {
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("config.v1", json.dumps(image).encode()),
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}],
        }
        entry = blob("manifest.v1", json.dumps(manifest).encode())
        entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        entry["platform"] = {"architecture": architecture, "os": "linux"}
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')


def make(place, name, fill, config):
    """Makes an image's tar. Outside, where the files it is made of are."""
    if ":" not in name.rpartition("/")[2] or "/" not in name:
        raise Failed(f"{name} is no image's name: write it like sandbar.test/guest:latest")
    out = place.path("images", name.replace("/", "_").replace(":", "_") + ".tar")
    out.parent.mkdir(exist_ok=True)
    write(out, name, fill, config)
    return out


def give(image):
    """To be called inside: gives an image to containerd."""
    command = ["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", "images", "import", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, env=needs.environment())
    image.unlink()
    if done.returncode != 0:
        raise Failed(f"import of {image.name} failed:\n{done.stdout}{done.stderr}")


def first(place):
    """The images that every cluster has."""
    environment = {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/workspace"}
    return [
        make(place, PAUSE_IMAGE, lambda layer: layer.file(place.bin("pause"), "/pause"), {"Entrypoint": ["/pause"]}),
        make(place, BUSYBOX, busybox_layer, environment),
    ]
