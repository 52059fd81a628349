#!/usr/bin/env python3
"""Measures Sandbar against its peers on this machine, in one run, and prints the tables of RESULTS.md.

Every number is a ratio's half: peers and Sandbar take turns, round by round, so that a noisy machine disturbs all alike.
"""
import argparse, os, platform, signal, statistics, sys, tempfile, time

import crowd, fork, gate, life, peers, terminals, workspaces
from measure import table, take_turns
from server import Connection, Server

PARTS = ["turns", "pause", "burst", "fork", "idle", "gate", "terminals", "workspaces"]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--idle", type=int, default=1000, help="sandboxes alive at once")
    arguments.add_argument("--fork-rounds", type=int, default=5)
    arguments.add_argument("--gate-rounds", type=int, default=5)
    arguments.add_argument("--terminal-rounds", type=int, default=5)
    arguments.add_argument("--build-minutes", type=int, default=30, help="for each peer of the registry; 0 builds none")
    arguments.add_argument("--only", choices=PARTS, action="append", help="a part of it; may be repeated")
    arguments = arguments.parse_args()
    # Mounts and servers are cleared away then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    binary, parts, failed = os.path.abspath(arguments.binary), arguments.only or PARTS, []
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}, {arguments.rounds} rounds, uid {os.getuid()}\n", flush=True)
    if {"turns", "pause", "burst"} & set(parts):
        with tempfile.TemporaryDirectory(prefix="sandbar-bench-") as scratch:
            rivals = peers.contenders(scratch, arguments.build_minutes) if "turns" in parts else []
            with Server(binary, templates=life.TEMPLATES) as server:
                failed += compare(server, rivals, parts, arguments.rounds, binary)
    if "fork" in parts:
        fork.report(binary, arguments.fork_rounds)
    if "idle" in parts:
        failed += crowd.idle(binary, arguments.idle)
    if "gate" in parts:
        failed += gate.report(binary, arguments.gate_rounds)
    if "terminals" in parts:
        failed += terminals.report(binary, arguments.terminal_rounds)
    if "workspaces" in parts:
        failed += workspaces.report(binary, arguments.rounds)
    for error in failed[:3]:
        print(f"failed: {error}")
    sys.exit(bool(failed))


def compare(server, rivals, parts, rounds, binary):
    """What one server on an ordinary home is measured by; gives what failed."""
    fresh = server.resident()
    if "turns" in parts:
        take_turns(rivals, rounds)
        table(rivals)
    # Only now: the server closes a connection that nobody uses.
    connection = Connection(server.path)
    if "turns" in parts:
        # Ours beside the light ones alone: a runtime of a hundred milliseconds leaves nobody's caches as they were.
        contenders = [*peers.light(rivals), *life.contenders(server, connection)]
        take_turns(contenders, rounds)
        print()
        table(contenders)
        life.end_pool(connection)
    if "pause" in parts:
        life.pause_and_resume(connection, rounds)
    return report_burst(server, connection, fresh, binary) if "burst" in parts else []


def report_burst(server, connection, fresh, binary):
    took, sandboxes, failed = crowd.burst(server.path, 100)
    memory, processes = crowd.guests(server, sandboxes)
    busy = server.resident()
    for sandbox in sandboxes:
        connection.delete(sandbox)
    print("\n| what | seen | aim |\n| --- | ---: | --- |")
    print(f"| burst: 100 creates, 20 at once | {len(sandboxes)} of 100 in {took:.0f} ms | 100 % |")
    if memory:
        print(f"| idle sandbox, private memory (median of {len(memory)}, {max(processes)} process) | {statistics.median(memory):.0f} KiB | ≤ 1024 KiB |")
    print(f"| server resident, fresh | {fresh / 1024:.1f} MiB | ≤ 25 MiB |")
    print(f"| server resident, 100 sandboxes alive | {busy / 1024:.1f} MiB | ≤ 40 MiB |")
    print(f"| server resident, after all that | {server.resident() / 1024:.1f} MiB | |")
    print(f"| binary | {os.path.getsize(binary) / 1048576:.1f} MiB | ≤ 40 MiB |", flush=True)
    return failed


main()
