#!/usr/bin/env python3
"""Measures sandboxes on a real cluster against the controller's own word, in one run, and prints the tables of RESULTS.md.

A claim is as fast as its controller lets it be: what counts is what comes on top. Both begin with our client's request, and
the controller's end is where a watch that has no part in it sees the claim become ready.
"""
import argparse, collections, os, platform, signal, statistics, sys, threading, time

import fakes
from cluster import Cluster, Watch
from server import Connection, Server

TEMPLATE = '[kubernetes]\nstorage = "ephemeral"\n'
NAMESPACE = "sandbar-sandboxes"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("--waves", type=int, default=10)
    arguments.add_argument("--size", type=int, default=20, help="of a wave, and of the pool")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--fakes", type=int, default=300, help="claims at once on nodes that exist in the API alone; 0 leaves them out")
    arguments.add_argument("--claims", help="the example `claims` of the crate agent-sandbox; beside the binary otherwise")
    arguments.add_argument("--cluster", help="one that is there, made with --kwok and --audit")
    arguments.add_argument("--log", help="where the server's log goes")
    arguments = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    binary = os.path.abspath(arguments.binary)
    claims = arguments.claims or os.path.join(os.path.dirname(binary), "examples", "claims")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}\n", flush=True)
    with Cluster(binary, arguments.cluster) as cluster:
        failed = waves(cluster, arguments) if arguments.waves else []
        if arguments.fakes:
            failed += fakes.report(cluster, claims, arguments.fakes, arguments.rounds)
    for error in failed[:3]:
        print(f"failed: {error}")
    sys.exit(bool(failed))


def waves(cluster, arguments):
    kubeconfig, account = cluster.account()
    settings = {"kubeconfig": kubeconfig, "image": "sandbar.test/machine:1", "guest_image": "sandbar.test/sandbar:1",
                "image_pull_policy": "IfNotPresent", "reach": "pod_ip"}
    files = {"kubernetes.toml": "".join(f'{name} = "{value}"\n' for name, value in settings.items())}
    before = cluster.counts(NAMESPACE)
    with Server(cluster.binary, templates={"bench": TEMPLATE}, files=files, inside=cluster.inside(), more=["--provider", "kubernetes"], log=arguments.log) as server:
        connection = Connection(server.path)
        connection.call("PUT", "/v1/pools/bench", {"size": arguments.size})
        with Watch(cluster, NAMESPACE, "sandboxclaims") as seen, Watch(cluster, NAMESPACE, "sandboxwarmpools") as pools:
            failed = []
            for round in range(arguments.rounds):
                failed += measure(cluster, server, seen, pools, account, arguments, round + 1)
        connection = Connection(server.path)
        connection.call("DELETE", "/v1/pools/bench")
        wait_for(cluster, before)
    after = cluster.counts(NAMESPACE)
    print(f"objects before anything: {told(before)}; after everything and the pool's end: {told(after)}", flush=True)
    return failed + ([f"left: {after}"] if after != before else [])


def measure(cluster, server, seen, pools, account, arguments, round):
    """Ten waves, say, and what they left."""
    pools.until_full(arguments.size)
    # The first claim of a template on a node also sees to it that its network leads nowhere.
    wave(server, 1, [])
    pools.until_full(arguments.size)
    before, load, failed, all, phases = settled(cluster), os.getloadavg()[0], [], [], collections.Counter()
    for _ in range(arguments.waves):
        pools.until_full(arguments.size)
        start = time.time()
        made, creating, deleting = wave(server, arguments.size, failed)
        all += made
        line(made, seen)
        pools.until_full(arguments.size)
        spans = {"create, exec": (start, creating), "delete": (creating, deleting), "until the pool is full again": (deleting, time.time())}
        for name, count in cluster.requests(account, spans).items():
            for what, times in count.items():
                phases[name, what] += times
    after = settled(cluster, before)
    report(all, seen, phases, len(all), round, load)
    print(f"objects with the pool full, before and after: {told(before)}; {told(after)}\n", flush=True)
    return failed + ([f"left: {after}"] if after != before else [])


def wave(server, size, failed):
    """`(id, began, answered, ran, deleted)` of each, and when all of them ran and all of them were gone."""
    begin, ran, done = threading.Barrier(size), threading.Barrier(size), []

    def work():
        connection = Connection(server.path)
        begin.wait()
        began, sandbox = time.time(), None
        try:
            sandbox = connection.create(template="bench")
            answered = time.time()
            connection.run(sandbox, "true")
            times = (began, answered, time.time())
        except RuntimeError as error:
            failed.append(error)
        ran.wait()
        creating = time.time()
        if sandbox:
            connection.delete(sandbox)
            done.append((sandbox, *times, creating, time.time()))

    threads = [threading.Thread(target=work) for _ in range(size)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return done, max((one[4] for one in done), default=0), time.time()


def line(made, seen):
    """One wave, so that a disturbance is seen for what it is."""
    pairs = [(answered - began, seen.ready[sandbox] - began) for sandbox, began, answered, *_ in made if sandbox in seen.ready]
    if pairs:
        ours, theirs = (statistics.median(side) * 1000 for side in zip(*pairs))
        print(f"wave of {len(made)}: ready {theirs:.0f} ms, usable {ours:.0f} ms, {ours / theirs:.2f} ×, load {os.getloadavg()[0]:.0f}", flush=True)


def report(all, seen, phases, count, round, load):
    rows = {"controller: ready, seen by another": [], "controller: ready, by its own annotation": [], "ours: sandbox usable": [], "ours: first command ended": [], "ours: deleted": []}
    for sandbox, began, answered, ran, deleting, deleted in all:
        times = [seen.ready.get(sandbox), seen.stamped.get(sandbox), answered, ran]
        for row, end in zip(rows.values(), times):
            if end:
                row.append((end - began) * 1000)
        rows["ours: deleted"].append((deleted - deleting) * 1000)
    controller = rows["controller: ready, seen by another"]
    ratios = [(answered - began) / (seen.ready[sandbox] - began) for sandbox, began, answered, *_ in all if sandbox in seen.ready]
    print(f"round {round}, {count} claims, load {load:.1f} at its beginning\n")
    print("| milliseconds since the request | of | p50 | p90 | p99 | × controller |\n| --- | ---: | ---: | ---: | ---: | --- |")
    for name, row in rows.items():
        compared = [f"{at(row, share) / at(controller, share):.2f}" for share in (50, 90, 99)] if name.startswith("ours: s") else []
        print(f"| {name} | {len(row)} | {' | '.join(f'{at(row, share):.0f}' for share in (50, 90, 99))} | {', '.join(compared)} |" if row else f"| {name} | 0 | | | | |")
    if ratios:
        print(f"| each claim, usable to ready | {len(ratios)} | {' | '.join(f'{at(ratios, share):.3f} ×' for share in (50, 90, 99))} | aim ≤ 1.1 |")
    print("\n| requests of our server | all | a sandbox |\n| --- | ---: | ---: |")
    for (phase, what), times in sorted(phases.items()):
        print(f"| {phase}: {what} | {times} | {times / count:.2f} |")
    print(flush=True)


def at(values, share):
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1] if len(values) > 1 else values[0]


def settled(cluster, wanted=None):
    """What there is when nothing changes any more, or what was wanted."""
    last = None
    for _ in range(60):
        found = cluster.counts(NAMESPACE)
        if found == (wanted or last):
            break
        last = found
        time.sleep(1)
    return found


def wait_for(cluster, wanted):
    settled(cluster, wanted or {"nothing": 0})


def told(counts):
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


if __name__ == "__main__":
    main()
