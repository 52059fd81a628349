"""Sandbar's own contenders: cold, warm, live, paused."""
import os, time

from measure import Contender, p90, timed, wait_until
from peers import BWRAP, RAW, TRUE
from server import Refused

WARM = "warm"
POOL = 2
# A template of its own, so that cold sandboxes never come out of the pool.
TEMPLATES = {WARM: 'description = "Kept warm."\n'}


def contenders(server, connection):
    live = connection.create()
    found = [
        Contender("sandbar cold: create, exec", lambda: cold(connection), connection.delete, BWRAP, "≤ 1.5 × bwrap"),
        Contender("sandbar cold: create, exec, delete", lambda: connection.delete(cold(connection)), None, BWRAP),
        Contender("sandbar exec on a live sandbox", lambda: connection.run(live, TRUE), None, RAW, "≤ 3 × raw"),
    ]
    try:
        connection.call("PUT", f"/v1/pools/{WARM}", {"size": POOL})
    except Refused as refused:
        print(f"not run: warm claim: {refused}")
        return found
    fill(connection)
    claim = lambda: claimed(connection)
    return [*found, Contender("sandbar warm: claim, exec", claim, lambda made: check(server, connection, *made), BWRAP, "≤ 0.5 × bwrap")]


def cold(connection):
    sandbox = connection.create()
    connection.run(sandbox, TRUE)
    return sandbox


def claimed(connection):
    asked = time.clock_gettime(time.CLOCK_BOOTTIME)
    sandbox = connection.create(template=WARM)
    connection.run(sandbox, TRUE)
    return sandbox, asked


def check(server, connection, sandbox, asked):
    """A claim is warm if the guest was alive before anybody asked for it."""
    with open(f"/proc/{server.guest(sandbox)}/stat") as stat:
        born = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    if born >= asked:
        raise RuntimeError(f"{sandbox} was claimed cold: made {born - asked:.3f} s after the request")
    connection.delete(sandbox)
    fill(connection)


def fill(connection):
    """Until the pool is full again, so that its refill disturbs nobody's turn."""
    warm = lambda: next(pool for pool in connection.call("GET", "/v1/pools")["pools"] if pool["template"] == WARM)["warm"]
    wait_until("the pool", lambda: warm() >= POOL)
    # Births are told in hundredths of a second.
    time.sleep(0.02)


def end_pool(connection):
    if connection.get_or("/v1/pools", {"pools": []})["pools"]:
        connection.call("DELETE", f"/v1/pools/{WARM}")


def pause_and_resume(connection, rounds):
    """With one busy process inside."""
    sandbox = connection.create()
    connection.call("POST", f"/v1/sandboxes/{sandbox}/processes", {"argv": ["sh", "-c", "while :; do :; done"]})
    verbs = {verb: [] for verb in ("pause", "resume")}
    try:
        for _ in range(rounds):
            for verb, samples in verbs.items():
                samples.append(timed(lambda: connection.call("POST", f"/v1/sandboxes/{sandbox}/{verb}")))
    except Refused as refused:
        print(f"not run: pause and resume: {refused}")
        return
    finally:
        connection.delete(sandbox)
    print("\n| with a busy process inside | median ms | p90 ms | aim |\n| --- | ---: | ---: | --- |")
    for verb, samples in verbs.items():
        print(f"| {verb} | {sorted(samples)[len(samples) // 2]:.2f} | {p90(samples):.2f} | ≤ 5 ms |")
