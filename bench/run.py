#!/usr/bin/env python3
"""Measures Sandbar against its peers on this machine, in one run, and prints a table.

usage: bench/run.py BINARY [--rounds N] [--markdown]

Every number is a ratio's half: peers and Sandbar take turns, round by round, so that a noisy machine disturbs all alike.
The client is a bare socket: what is timed is Sandbar, not an HTTP library.
"""
import argparse, json, os, platform, shutil, socket, statistics, subprocess, sys, tempfile, threading, time

TRUE = shutil.which("true")


class Server:
    """`sandbar up` on a private home, reached over its Unix socket."""

    def __init__(self, binary):
        self.home = tempfile.mkdtemp(prefix="sandbar-bench-")
        self.process = subprocess.Popen(
            [binary, "--home", self.home, "up", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.path = os.path.join(self.home, "sandbar.sock")
        deadline = time.monotonic() + 30
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("the server did not start")
            time.sleep(0.01)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def resident(self):
        return field(f"/proc/{self.process.pid}/status", "VmRSS:")

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.home)


class Connection:
    """One keep-alive connection."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.buffer = b""

    def call(self, method, path, body=None):
        payload = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        self.socket.sendall(head.encode() + payload)
        while b"\r\n\r\n" not in self.buffer:
            self.more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head.decode().lower().split("\r\n")
        status = int(lines[0].split()[1])
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        while len(self.buffer) < length:
            self.more()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {body.decode()}")
        return json.loads(body) if body else None

    def more(self):
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the server closed the connection")
        self.buffer += data


def field(path, name):
    """A number of kilobytes from a /proc file."""
    with open(path) as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(name))


def spawn(*argv):
    pid = os.posix_spawn(argv[0], argv, os.environ)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{argv}: status {status}")


def timed(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def descendants(pid):
    found = [pid]
    for parent in found:
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as children:
                found += [int(child) for child in children.read().split()]
        except FileNotFoundError:
            pass
    return found


def cold(connection):
    sandbox = connection.call("POST", "/v1/sandboxes", {})["id"]
    result = connection.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": [TRUE]})
    if result["exit"]["code"] != 0:
        raise RuntimeError(result)
    connection.call("DELETE", f"/v1/sandboxes/{sandbox}")


def burst(path, total=100, at_once=20):
    done, failed, lock = [], [], threading.Lock()
    left = iter(range(total))

    def work():
        connection = Connection(path)
        while True:
            with lock:
                if next(left, None) is None:
                    return
            try:
                done.append(connection.call("POST", "/v1/sandboxes", {})["id"])
            except RuntimeError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    took = timed(lambda: ([thread.start() for thread in threads], [thread.join() for thread in threads]))
    return took, done, failed


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("--rounds", type=int, default=100)
    arguments = arguments.parse_args()
    unshare, bwrap = shutil.which("unshare"), shutil.which("bwrap")
    server = Server(os.path.abspath(arguments.binary))
    idle_before = server.resident()
    connection = Connection(server.path)
    live = connection.call("POST", "/v1/sandboxes", {})["id"]
    exec_true = lambda: connection.call("POST", f"/v1/sandboxes/{live}/exec", {"argv": [TRUE]})
    contenders = {
        "raw fork+exec": lambda: spawn(TRUE),
        "unshare (all namespaces)": lambda: spawn(
            unshare, "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "--cgroup",
            "--mount-proc", TRUE),
        "bwrap --unshare-all": lambda: spawn(
            bwrap, "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib",
            "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", TRUE),
        "sandbar cold: create, exec, delete": lambda: cold(connection),
        "sandbar exec on a live sandbox": exec_true,
    }
    samples = {name: [] for name in contenders}
    for _ in range(5):
        for work in contenders.values():
            work()
    for _ in range(arguments.rounds):
        for name, work in contenders.items():
            samples[name].append(timed(work))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    raw, peer = medians["raw fork+exec"], medians["bwrap --unshare-all"]

    connection.call("DELETE", f"/v1/sandboxes/{live}")
    took, sandboxes, failed = burst(server.path)
    private, processes = [], []
    for sandbox in sandboxes:
        with open(os.path.join(server.home, "local", sandbox, "guest.pid")) as file:
            family = descendants(int(file.read().split()[0]))
        private.append(sum(field(f"/proc/{pid}/smaps_rollup", "Private_") for pid in family))
        processes.append(len(family))
    busy = server.resident()
    for sandbox in sandboxes:
        connection.call("DELETE", f"/v1/sandboxes/{sandbox}")
    size = os.path.getsize(arguments.binary)
    idle_after = server.resident()
    server.close()

    print(f"{os.cpu_count()} cores, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}, {arguments.rounds} rounds, uid {os.getuid()}\n")
    print(f"| what | median ms | p90 ms | ratio | aim |\n| --- | ---: | ---: | --- | --- |")
    for name, values in samples.items():
        ratio, aim = "", ""
        if "cold" in name:
            ratio, aim = f"{medians[name] / peer:.2f} × bwrap", "≤ 2 × bwrap"
        if "live" in name:
            ratio, aim = f"{medians[name] / raw:.2f} × raw", "≤ 3 × raw"
        p90 = statistics.quantiles(values, n=10)[-1]
        print(f"| {name} | {medians[name]:.2f} | {p90:.2f} | {ratio} | {aim} |")
    print(f"| burst: 100 creates, 20 at once | {took:.0f} | | {len(sandboxes)} of 100 | 100 % |")
    print("\n| what | seen | aim |\n| --- | ---: | --- |")
    print(f"| idle sandbox, private memory (median of {len(private)}, {max(processes)} process) | {statistics.median(private)} KiB | ≤ 1024 KiB |")
    print(f"| server resident, fresh | {idle_before / 1024:.1f} MiB | ≤ 40 MiB |")
    print(f"| server resident, 100 sandboxes alive | {busy / 1024:.1f} MiB | |")
    print(f"| server resident, after all that | {idle_after / 1024:.1f} MiB | |")
    print(f"| binary | {size / 1048576:.1f} MiB | |")
    for error in failed[:3]:
        print(f"failed: {error}")
    sys.exit(bool(failed))


main()
