"""The volumes of a cluster: each claim of the class `local` gets a directory of its own, which goes when the claim does.

Usage: volumes.py DIRECTORY, which is the cluster's
"""

import http.client
import json
import shutil
import ssl
import sys
import time
from pathlib import Path

from place import NODE_ADDRESS

CLASS = "local"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"


class Api:
    """Requests of one kind of caller over one connection at a time."""

    def __init__(self, place):
        self.context = ssl.create_default_context(cafile=str(place / "pki/ca.crt"))
        self.context.load_cert_chain(place / "pki/admin.crt", place / "pki/admin.key")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPSConnection(NODE_ADDRESS, 6443, context=self.context)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        return connection.getresponse()

    def list(self, path):
        """What there is, and as of when."""
        answer = self.ask("GET", path)
        if answer.status != 200:
            raise OSError(f"the list is answered with {answer.status}")
        listed = json.loads(answer.read())
        return listed["items"], listed["metadata"]["resourceVersion"]

    def watch(self, path, since):
        """What has become of it since then, a line each, until the server ends it."""
        answer = self.ask("GET", f"{path}?watch=1&resourceVersion={since}")
        if answer.status != 200:
            raise OSError(f"the watch is answered with {answer.status}")
        while line := answer.readline():
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise OSError(f"the watch ended: {event['object']}")
            yield event["type"], event["object"]


def volume(claim, path):
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{metadata['uid']}"},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": CLASS,
            # Removed here: no plugin of the cluster knows how.
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
            "hostPath": {"path": str(path), "type": "Directory"},
        },
    }


def remove(api, path):
    status = api.ask("DELETE", f"{VOLUMES}/local-{path.name}").status
    # With its directory it is tried again by the next sweep.
    if status == 429 or status >= 500:
        raise OSError(f"a deletion is answered with {status}")
    shutil.rmtree(path, ignore_errors=True)


def settle(api, root, kind, claim):
    uid = claim["metadata"]["uid"]
    if claim["spec"].get("storageClassName") != CLASS:
        return
    path = root / uid
    if kind == "DELETED":
        remove(api, path)
    elif not claim["spec"].get("volumeName") and not path.exists():
        path.mkdir()
        # Whoever a pod runs as: a directory of the host takes no group of a pod's.
        path.chmod(0o777)
        status = 503
        try:
            status = api.ask("POST", VOLUMES, volume(claim, path)).status
            print(claim["metadata"]["name"], status, flush=True)
        finally:
            # Without its directory it is tried again by the next sweep.
            if status == 429 or status >= 500:
                path.rmdir()
        if status == 429 or status >= 500:
            raise OSError(f"a volume is answered with {status}")


def sweep(api, root):
    """What was made and deleted while nobody watched; returns as of when."""
    claims, since = api.list(CLAIMS)
    wanted = {claim["metadata"]["uid"] for claim in claims}
    for path in root.iterdir():
        if path.name not in wanted:
            remove(api, path)
    for claim in claims:
        settle(api, root, "ADDED", claim)
    return since


def main():
    place = Path(sys.argv[1])
    root, api = place / "volumes", Api(place)
    root.mkdir(parents=True, exist_ok=True)
    print("in force", flush=True)
    while True:
        try:
            since = sweep(api, root)
            for kind, claim in api.watch(CLAIMS, since):
                settle(api, root, kind, claim)
        except (OSError, ValueError, http.client.HTTPException) as error:
            # The API server is restarted by some tests.
            print(error, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
