#!/usr/bin/env python3
"""Writes a software bill of materials (CycloneDX 1.5) of the program: what is linked into it, by package.

    .ci/sbom.py PROGRAM > FILE
"""
import hashlib
import json
import subprocess
import sys
import tomllib
import uuid

program = open(sys.argv[1], "rb").read()
tree = ["cargo", "tree", "--locked", "-p", "sandbar", "--edges", "normal", "--prefix", "none", "--format", "{p}\t{l}"]
lines = subprocess.check_output(tree, text=True).replace(" (*)", "").splitlines()
lock = tomllib.load(open("Cargo.lock", "rb"))["package"]
checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}


def component(line):
    package, licence = line.split("\t")
    name, version = package.split()[:2]
    version = version.removeprefix("v")
    purl = f"pkg:cargo/{name}@{version}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        found["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    if checksums.get((name, version)):
        found["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    return found


components = {found["bom-ref"]: found for found in map(component, filter(None, lines))}
own = next(reference for reference in components if reference.startswith("pkg:cargo/sandbar@"))
application = components.pop(own) | {
    "type": "application",
    "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program).hexdigest()}],
}
document = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    # The same program has the same document.
    "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(program).hexdigest())}",
    "version": 1,
    "metadata": {"component": application},
    "components": [components[reference] for reference in sorted(components)],
}
json.dump(document, sys.stdout, indent=1)
print()
