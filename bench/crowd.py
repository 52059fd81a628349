"""Many at once: a burst of creations, and a thousand idle sandboxes alive together."""
import statistics, threading, time

from measure import descendants, field, p90, private, timed
from peers import TRUE
from server import Connection, Refused, Server


def burst(path, total, at_once=20):
    """How long it took, what was made, and what went wrong."""
    done, failed, lock = [], [], threading.Lock()
    left = iter(range(total))

    def work():
        connection = Connection(path)
        while True:
            with lock:
                if next(left, None) is None:
                    return
            try:
                done.append(connection.create())
            except Refused as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    took = timed(lambda: ([thread.start() for thread in threads], [thread.join() for thread in threads]))
    return took, done, failed


def guests(server, sandboxes):
    """Kilobytes and processes of each; no kilobytes where only root may see them."""
    families = [descendants(server.guest(sandbox)) for sandbox in sandboxes]
    try:
        memory = [sum(private(pid) for pid in family) for family in families]
    except PermissionError:
        print("not run: memory of guests: it is hidden from an ordinary user")
        memory = []
    return memory, [len(family) for family in families]


def idle(binary, count):
    """A server of its own, so that nothing before it is counted."""
    before = available()
    with Server(binary) as server:
        took, sandboxes, failed = burst(server.path, count)
        time.sleep(2)
        used = before - available()
        memory, _ = guests(server, sandboxes)
        # Guests may be its children, so each process is counted once.
        others = {pid for sandbox in sandboxes for pid in descendants(server.guest(sandbox))} | set(descendants(server.process.pid))
        total = memory and server.resident() + sum(private(pid) for pid in others - {server.process.pid})
        connection = Connection(server.path)
        listing = [timed(lambda: connection.call("GET", "/v1/sandboxes?limit=100")) for _ in range(50)]
        executing = [timed(lambda sandbox=sandbox: connection.run(sandbox, TRUE)) for sandbox in sandboxes[:50]]
        removing = timed(lambda: [connection.delete(sandbox) for sandbox in sandboxes])
    print(f"\n| {count:,} idle sandboxes alive at once | seen | aim |\n| --- | ---: | --- |")
    print(f"| created, 20 at once | {len(sandboxes)} in {took / 1000:.1f} s | 100 % |")
    if memory:
        print(f"| memory of server, launcher and guests | {total / 1048576:.2f} GiB | ≤ 1.5 GiB |")
        print(f"| of each guest, median | {statistics.median(memory):.0f} KiB | |")
    print(f"| less memory available on the host, the kernel's own included | {used / 1048576:.2f} GiB | |")
    print(f"| list of 100 while all live, median (p90) | {statistics.median(listing):.2f} ({p90(listing):.2f}) ms | |")
    print(f"| exec while all live, median (p90) | {statistics.median(executing):.2f} ({p90(executing):.2f}) ms | |")
    print(f"| deleted one after the other | {removing / 1000:.1f} s | |", flush=True)
    return failed


def available():
    return field("/proc/meminfo", "MemAvailable:")
