#!/usr/bin/env python3
"""Checks bans, licences and sources after deny.toml where cargo-deny is not installed (it takes long to build).

Reads the same file and refuses what cargo-deny would refuse for the fields that file uses.
"""
import re, subprocess, sys, tomllib

policy = tomllib.load(open("deny.toml", "rb"))
allowed = set(policy["licenses"]["allow"])
banned = {entry["name"] for entry in policy["bans"]["deny"]}
tree = ["cargo", "tree", "--locked", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}\t{l}"]
packages = sorted(set(subprocess.check_output(tree, text=True).replace(" (*)", "").splitlines()) - {""})
problems = []


def permitted(expression):
    """Evaluates an SPDX expression, with each licence replaced by whether it is allowed."""
    tokens = re.findall(r"\(|\)|[\w.+-]+(?: WITH [\w.-]+)?", expression.replace("/", " OR "))
    words = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return eval(" ".join(words.get(token, str(token in allowed)) for token in tokens) or "False")


for package, licence in (line.split("\t") for line in packages):
    if package.split()[0] in banned:
        problems.append(f"{package} is banned")
    if "://" in package:
        problems.append(f"{package} does not come from the registry")
    if not permitted(licence):
        problems.append(f"{package} is under {licence or 'no licence'}")
for manifest in subprocess.check_output(["git", "ls-files", "*Cargo.toml"], text=True).split():
    if re.search(r'^[\w-]+ = (\{.*version = )?"\*"', open(manifest).read(), re.M):
        problems.append(f"{manifest} takes any version of something")

print("\n".join(f"error: {problem}" for problem in problems) or f"bans, licences, sources: {len(packages)} packages ok")
sys.exit(bool(problems))
