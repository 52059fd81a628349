"""Terminals against a bare PTY: what passes to one viewer, what a keystroke pays, how soon a screen is there after much
output, and a crowd of viewers of which one does not read."""
import os, pty, signal, statistics, threading, time

from measure import Calm
from server import Connection, Server
from viewer import Viewer

LINES = "yes 'a line of output as compilers and tests print them, seventy-nine letters long..' 2>/dev/null | head -c {bytes}"
# The terminal makes two bytes of each newline.
THROUGHPUT = 64 << 20
HISTORY = 100 << 20
KEYS = 2000
ATTACHES = 30
VIEWERS, RATE, SECONDS = 50, 20, 5
# Twenty megabytes a second, in steps of a hundredth.
STEADY = ("import os, time\n"
          "line = b'x' * 79 + b'\\n'\n"
          "piece = line * ({rate} * 10000 // len(line))\n"
          "start = time.monotonic()\n"
          "for step in range({seconds} * 100):\n"
          "    rest = piece\n"
          "    while rest: rest = rest[os.write(1, rest):]\n"
          "    time.sleep(max(0, start + step / 100 - time.monotonic()))\n")
PATIENCE_SECONDS = 60


def report(binary, rounds):
    calm = Calm(PATIENCE_SECONDS)
    with Server(binary) as server:
        connection = Connection(server.path)
        sandbox = connection.create()
        print("\n| terminals | seen | aim |\n| --- | ---: | --- |")
        throughput(server, connection, sandbox, rounds, calm)
        echo(server, connection, sandbox, calm)
        attach(server, connection, sandbox, calm)
        return crowd(server, connection, sandbox, calm)


def start(connection, sandbox, *argv):
    body = {"argv": argv, "terminal": {"cols": 80, "rows": 24}}
    return connection.call("POST", f"/v1/sandboxes/{sandbox}/processes", body)["id"]


def end(connection, sandbox, process):
    connection.call("POST", f"/v1/sandboxes/{sandbox}/processes/{process}/signal", {"signal": "KILL"})


def fork(*argv):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    return pid, terminal


def bare(script):
    """Bytes a second from a PTY that nobody but us reads."""
    began, count = time.perf_counter(), 0
    pid, terminal = fork("sh", "-c", script)
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            data = b""
        if not data:
            break
        count += len(data)
    took = time.perf_counter() - began
    os.close(terminal)
    os.waitpid(pid, 0)
    return count, count / took


def viewed(server, connection, sandbox, script, raw):
    began = time.perf_counter()
    process = start(connection, sandbox, "sh", "-c", script)
    viewer, count = Viewer(server, sandbox, process, **{"raw": raw, "from": 0}), 0
    while (data := viewer.output()) is not None:
        count += len(data)
    took = time.perf_counter() - began
    viewer.close()
    return count, count / took


def throughput(server, connection, sandbox, rounds, calm):
    script = LINES.format(bytes=THROUGHPUT)
    pairs = {"true": [], "false": []}
    for _ in range(rounds):
        for raw, found in pairs.items():
            calm.wait()
            (sent, alone), (seen, through) = bare(script), viewed(server, connection, sandbox, script, raw)
            if raw == "true" and sent != seen:
                raise RuntimeError(f"{seen} of {sent} bytes came")
            found.append((alone, through))
    for raw, name in [("true", "raw"), ("false", "neutralised")]:
        ratio = statistics.median(through / alone for alone, through in pairs[raw])
        alone, through = (statistics.median(values) / 1e6 for values in zip(*pairs[raw]))
        print(f"| throughput to one viewer, {name}: {through:.0f} MB/s, bare PTY {alone:.0f} MB/s | {ratio:.2f} × | {'≥ 0.7 ×' if raw == 'true' else ''} |", flush=True)


def echo(server, connection, sandbox, calm):
    script = "stty raw -echo; echo ready; exec cat"
    pid, terminal = fork("sh", "-c", script)
    while b"ready" not in os.read(terminal, 100):
        pass
    process = start(connection, sandbox, "sh", "-c", script)
    viewer = Viewer(server, sandbox, process, raw="true", control="take", writer="bench", cols=80, rows=24)
    viewer.told("screen")
    while "ready" not in screen(connection, sandbox, process):
        time.sleep(0.01)
    while viewer.ready(0.3):
        viewer.frame()
    direct, attached = [], []
    calm.wait()
    for number in range(KEYS):
        key = bytes([97 + number % 26])
        began = time.perf_counter()
        os.write(terminal, key)
        os.read(terminal, 100)
        direct.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        viewer.type(key)
        if viewer.output() != key:
            raise RuntimeError("another key came back")
        attached.append((time.perf_counter() - began) * 1000)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    viewer.close()
    end(connection, sandbox, process)
    p99 = lambda values: statistics.quantiles(values, n=100)[-1]
    added = p99(attached) - p99(direct)
    print(f"| keystroke echo, added p99 ({p99(attached):.2f} ms, bare PTY {p99(direct):.2f}; median {statistics.median(attached):.2f} and {statistics.median(direct):.2f}) | {added:.2f} ms | ≤ 2 ms |", flush=True)


def screen(connection, sandbox, process):
    return "\n".join(connection.call("GET", f"/v1/sandboxes/{sandbox}/processes/{process}/screen")["lines"])


def attach(server, connection, sandbox, calm):
    process = start(connection, sandbox, "sh", "-c", f"{LINES.format(bytes=HISTORY)}; echo; echo the end; exec cat")
    while "the end" not in screen(connection, sandbox, process):
        time.sleep(0.1)
    took = []
    calm.wait()
    for _ in range(ATTACHES):
        began = time.perf_counter()
        viewer = Viewer(server, sandbox, process)
        if "the end" not in viewer.told("screen")["data"]:
            raise RuntimeError("the screen is another")
        took.append((time.perf_counter() - began) * 1000)
        viewer.close()
    end(connection, sandbox, process)
    print(f"| attach to first full screen after {HISTORY >> 20} MiB: median {statistics.median(took):.1f} ms, worst of {ATTACHES} | {max(took):.1f} ms | ≤ 50 ms |", flush=True)


def crowd(server, connection, sandbox, calm):
    """All viewers but one count what they get; one connects and never reads."""
    calm.wait()
    # Waits for its viewers: what it writes is for all of them.
    go = f"read go; exec python3 -c \"{STEADY.format(rate=RATE, seconds=SECONDS)}\""
    process = start(connection, sandbox, "sh", "-c", f"stty -echo; {go}")
    before = server.resident()
    viewers = [Viewer(server, sandbox, process, **{"raw": "true", "from": 0}) for _ in range(VIEWERS)]
    counts, failed = [0] * VIEWERS, []

    def count(number):
        try:
            while (data := viewers[number].output()) is not None:
                counts[number] += len(data)
        except Exception as error:
            failed.append(f"viewer {number}: {error}")

    threads = [threading.Thread(target=count, args=[number]) for number in range(1, VIEWERS)]
    for thread in threads:
        thread.start()
    peak, began = [before], time.perf_counter()
    keyboard = Viewer(server, sandbox, process, raw="true", control="take", writer="crowd")
    keyboard.told("screen")
    keyboard.type(b"\n")
    keyboard.close()
    while any(thread.is_alive() for thread in threads):
        peak.append(server.resident())
        threads[0].join(0.1)
    took = time.perf_counter() - began
    written = connection.call("GET", f"/v1/sandboxes/{sandbox}/processes/{process}")["output"]["end"]
    short = [number for number, count in enumerate(counts) if number > 0 and count != written]
    for viewer in viewers:
        viewer.close()
    if short:
        failed.append(f"viewers {short} got {[counts[number] for number in short]} of {written} bytes")
    print(f"| {VIEWERS} viewers, one stalled, {written / 1e6:.0f} MB at {RATE} MB/s: complete for | {VIEWERS - 1 - len(short)} of {VIEWERS - 1} | all others |")
    print(f"| … all had it after {took:.1f} s ({written * (VIEWERS - 1) / took / 1e6:.0f} MB/s in all); server's memory {before / 1024:.0f} → {max(peak) / 1024:.0f} MiB | +{(max(peak) - before) / 1024:.0f} MiB | bounded |", flush=True)
    return failed
