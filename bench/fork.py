"""Forks of a sandbox with a large workspace, with the home on a filesystem that can snapshot, one that can share blocks and
one that can only copy. Each is made on a loop device of its own and removed again, whatever happens.
"""
import contextlib, os, statistics, subprocess, tempfile

from measure import timed
from peers import which
from server import Connection, Refused, Server

DIRECTORIES, EACH = 20, 1000
FILE_SIZE = (1 << 30) // (DIRECTORIES * EACH)
CHANGED = DIRECTORIES * EACH // 100
IMAGE_SIZE = 12 << 30
FILESYSTEMS = {
    "btrfs": (["mkfs.btrfs", "-q"], "≤ 50 ms"),
    "xfs": (["mkfs.xfs", "-q", "-m", "reflink=1"], ""),
    "ext4": (["mkfs.ext4", "-q"], ""),
}
FILL = f"""
for d in $(seq {DIRECTORIES}); do
  mkdir d$d && head -c {EACH * FILE_SIZE} /dev/urandom | split -b {FILE_SIZE} -d -a 3 - d$d/f || exit 1
done"""
CHANGE = f"find . -type f | sort | head -n {CHANGED} | while read -r file; do echo changed >> $file; done"
COUNT = "find . -type f | wc -l; find . -type f | sort | head -n 1 | xargs tail -c 8"


def report(binary, rounds):
    if os.getuid() != 0:
        print("not run: fork on btrfs, XFS and ext4: only root can mount them")
        return
    print(f"\nFork of a sandbox with a workspace of 1 GiB in {DIRECTORIES * EACH:,} files ({rounds} rounds each)\n")
    print("| home on | whole workspace, median ms | worst | 1 % changed, median ms | worst | aim |\n| --- | ---: | ---: | ---: | ---: | --- |")
    for name, (make, aim) in FILESYSTEMS.items():
        if not which(make[0]):
            print(f"not run: fork on {name}: there is no {make[0]}")
            continue
        try:
            with mounted(make) as place, Server(binary, place) as server:
                whole, part = measure(Connection(server.path), place, rounds)
        except Refused as refused:
            print(f"not run: fork on {name}: {refused}")
            continue
        figures = " | ".join(f"{statistics.median(values):.1f} | {max(values):.1f}" for values in (whole, part))
        print(f"| {name} | {figures} | {aim} |", flush=True)


def measure(connection, place, rounds):
    origin = connection.create()
    shell = lambda sandbox, script: connection.run(sandbox, "sh", "-ec", f"cd /workspace; {script}")
    shell(origin, FILL)
    whole, kept = fork(connection, place, origin, rounds)
    expect(shell(kept, COUNT), f"{DIRECTORIES * EACH}\n")
    shell(kept, CHANGE)
    part, last = fork(connection, place, kept, rounds)
    expect(shell(last, COUNT), f"{DIRECTORIES * EACH}\nchanged\n")
    for sandbox in (origin, kept, last):
        connection.delete(sandbox)
    return whole, part


def fork(connection, place, origin, rounds):
    """What each took, and the last one, alive."""
    samples, made = [], None
    for _ in range(rounds):
        if made:
            connection.delete(made)
        # What was written long ago is on the disk; its writing back is not the fork's.
        subprocess.run(["sync", "-f", place], check=True)
        answer = []
        samples.append(timed(lambda: answer.append(connection.call("POST", f"/v1/sandboxes/{origin}/fork", {"count": 1}))))
        made = answer[0]["sandboxes"][0]["id"]
    return samples, made


def expect(seen, start):
    if not seen.startswith(start):
        raise RuntimeError(f"the fork's workspace is not the origin's: {seen!r}")


@contextlib.contextmanager
def mounted(make):
    with tempfile.TemporaryDirectory(prefix="sandbar-bench-") as directory:
        image, place = os.path.join(directory, "image"), os.path.join(directory, "mount")
        os.mkdir(place)
        with open(image, "wb") as file:
            file.truncate(IMAGE_SIZE)
        subprocess.run([which(make[0]), *make[1:], image], check=True, stdout=subprocess.DEVNULL)
        # The loop device goes with the mount.
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=False).returncode == 0 or subprocess.run(["umount", "--lazy", place], check=True)
