"""The gate against a direct connection and against proxies: what it adds to a request, what passes through it, what LLM
calls pay, and whether ten thousand connections leave anything behind.

The same program (`crates/gateway/examples/load`) is both ends. Through the gate it runs inside a sandbox, with all that a
sandbox's fence costs it; for everybody else on the host, on the same loopback as the origin and the proxies.
"""
import contextlib, json, os, shutil, statistics, subprocess, tempfile, time

import proxies
from measure import Calm
from server import Connection, Server

GATE = "127.0.0.1:7228"
# Inside: the sandbox's own authority, and that of the origin in the workspace.
INSIDE_ROOTS = "/run/sandbar/ca.pem,/workspace/origin.pem"
DIRECT, TUNNEL, TERMINATED, TERMINATED_H2 = "direct", "sandbar tunnel", "sandbar terminated", "sandbar terminated, HTTP/2 to the origin"

# Of both halves each, for a busy machine to become quiet.
PATIENCE_SECONDS = 60

CONFIG = """
[network]
private = ["127.0.0.0/8"]
roots = "{roots}"

[network.hosts]
"tunnel.test" = ["127.0.0.1"]
"terminated.test" = ["127.0.0.1"]
"llm.test" = ["127.0.0.1"]

[upstream.vendor]
format = "openai"
url = "https://llm.test:{port}/v1"
secret = "VENDOR_KEY"

[model.bench]
upstream = "vendor"
max_output = 4096
input_usd = 1
output_usd = 2
"""


class Failed(RuntimeError):
    """A run of the load program that is no measurement."""


class Host:
    """Runs the load program here."""

    def __init__(self, load):
        self.load = load

    def run(self, verb, **words):
        done = subprocess.run([self.load, verb, *spelt(words)], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise Failed(f"{verb} {words}: {done.stderr.strip()}")
        return json.loads(done.stdout)


class Inside:
    """Runs it in a sandbox."""

    def __init__(self, path, sandbox):
        self.path, self.sandbox = path, sandbox

    def run(self, verb, **words):
        # A connection for each: the server closes one that nobody uses.
        said = Connection(self.path).call("POST", f"/v1/sandboxes/{self.sandbox}/exec", {
            "argv": ["/workspace/load", verb, *spelt(words)], "timeout": "2m"})
        if said["exit"]["code"] != 0:
            raise Failed(f"{verb} {words}: {said['stderr'].strip() or said['exit']}")
        return json.loads(said["stdout"])


def spelt(words):
    return [f"{name}={value}" for name, value in words.items()]


class Way:
    """A way to the origin, and what was seen of it, round by round."""

    def __init__(self, name, runner, /, **target):
        self.name, self.runner, self.target, self.seen = name, runner, target, {}

    def measure(self, verb, **words):
        self.seen.setdefault(verb, []).append(self.runner.run(verb, **self.target, **words))

    def each(self, verb, *fields):
        """A number of each round."""
        values = self.seen[verb]
        for field in fields:
            values = [value[field] for value in values]
        return values

    def median(self, verb, *fields):
        return statistics.median(self.each(verb, *fields))

    def added(self, other, verb, *fields):
        """Microseconds beyond another way's of the same round, in the middle."""
        pairs = zip(self.each(verb, *fields), other.each(verb, *fields))
        return statistics.median(own - others for own, others in pairs)


@contextlib.contextmanager
def stage(binary, load):
    """The ways to the origin, the two ways of an LLM call, and the server; all of it ends with the block."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="sandbar-bench-gate-"))
        workspace, place = os.path.join(scratch, "workspace"), os.path.join(scratch, "proxies")
        os.makedirs(workspace), os.makedirs(place)
        for directory in (scratch, workspace):
            os.chmod(directory, 0o755)
        shutil.copy(load, os.path.join(workspace, "load"))
        origin = subprocess.Popen([load, "origin", workspace], stdout=subprocess.PIPE, text=True)
        stack.callback(proxies.end, origin)
        ports = json.loads(origin.stdout.readline())
        roots = os.path.join(workspace, "origin.pem")
        peers = stack.enter_context(proxies.started(place, roots))
        config = CONFIG.format(roots=roots, port=ports["http2"])
        server = stack.enter_context(Server(binary, files={"gateway.toml": config}))
        inside, host = Inside(server.path, prepare(server, workspace)), Host(load)

        def gate(name, to, port):
            return Way(name, inside, dial=GATE, connect=f"{to}:{port}", name=to, roots=INSIDE_ROOTS)

        def peer(name):
            trusted = f"{roots},{place}/mitmproxy/mitmproxy-ca-cert.pem" if name == "mitmproxy" else roots
            return Way(name, host, dial=f"127.0.0.1:{peers[name]}", connect=f"127.0.0.1:{ports['http1']}", name="localhost", roots=trusted)

        ways = [Way(DIRECT, host, dial=f"127.0.0.1:{ports['http1']}", name="localhost", roots=roots),
                gate(TUNNEL, "tunnel.test", ports["http1"]),
                *(peer(name) for name in peers if name != "mitmproxy"),
                gate(TERMINATED, "terminated.test", ports["http1"]),
                gate(TERMINATED_H2, "terminated.test", ports["http2"]),
                *(peer(name) for name in peers if name == "mitmproxy")]
        calls = [Way(DIRECT, host, dial=f"127.0.0.1:{ports['http2']}", name="localhost", roots=roots, base="/v1"),
                 Way("sandbar", inside, dial=GATE, base="/llm/openai/v1")]
        yield ways, calls, server


def prepare(server, workspace):
    """A sandbox with rules, a key it never sees, and a budget that does not run out."""
    connection = Connection(server.path)
    connection.call("PUT", "/v1/secrets/VENDOR_KEY", {"hosts": ["llm.test"], "as": "header:Authorization:Bearer {}", "value": "sk-bench"})
    sandbox = connection.create(
        workspace={"kind": "bind", "path": workspace},
        network={"allow": ["tunnel.test:*", "terminated.test:* GET /**"]})
    connection.call("PUT", f"/v1/sessions/{sandbox}/budget", {"tokens": 10**12, "usd": 1e6, "per_minute": 10**11})
    return sandbox


def report(binary, rounds=5, milliseconds=800):
    """Prints it all; gives what failed."""
    load = os.path.join(os.path.dirname(binary), "examples", "load")
    if not os.path.exists(load):
        print(f"not run: the gate: there is no {load}; `make bench` builds it")
        return []
    failed = []
    with stage(binary, load) as (ways, calls, server):
        ways = take_rounds(ways, rounds, failed, lambda way: [
            way.measure(verb, ms=milliseconds) for verb in ("fresh", "kept", "download")])
        requests(ways, rounds)
        calls = take_rounds(calls, max(rounds - 2, 1), failed, lambda way: [
            way.measure("rate", rate=1000, ms=4000), way.measure("streams", streams=200, rate=100, ms=4000)])
        if len(calls) == 2:
            llm(*calls)
        memory([way for way in ways if way.name in (TUNNEL, TERMINATED)], server)
    return failed


def take_rounds(ways, rounds, failed, work):
    """Turn by turn; gives those that held out."""
    left, calm = list(ways), Calm(PATIENCE_SECONDS)
    for _ in range(rounds):
        for way in list(left):
            calm.wait()
            try:
                work(way)
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"not run: {way.name}: {error}")
                failed.append(error)
                left.remove(way)
    return left


def requests(ways, rounds):
    direct = next((way for way in ways if way.name == DIRECT), None)
    if direct is None:
        return
    tinyproxy = next((way for way in ways if way.name == "tinyproxy"), None)
    print(f"\n| to an origin over TLS, {rounds} rounds | new connection: p50, p99 ms | added | request on an open one: p50, p99 ms | added | MiB/s | ratio | aim |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |")
    for way in ways:
        cells = []
        for verb in ("fresh", "kept"):
            cells.append(", ".join(shown(way.median(verb, share)) for share in ("p50", "p99")))
            cells.append("" if way is direct else ", ".join(f"{way.added(direct, verb, share) / 1000:+.2f}" for share in ("p50", "p99")))
        speed = way.median("download", "mib_per_second")
        ratio = f"{speed / direct.median('download', 'mib_per_second'):.2f} × direct" if way is not direct else ""
        if tinyproxy and way.name == TUNNEL:
            ratio += f", {speed / tinyproxy.median('download', 'mib_per_second'):.2f} × tinyproxy"
        aim = "p99 ≤ 1 ms added, ≥ 1 × tinyproxy" if way.name == TUNNEL else ""
        print(f"| {way.name} | {' | '.join(cells)} | {speed:.0f} | {ratio} | {aim} |", flush=True)


def llm(direct, gate):
    print("\n| LLM calls, reserved and settled | direct: p50, p99 ms | sandbar: p50, p99 ms | added p50, p99 ms | aim |\n| --- | ---: | ---: | ---: | --- |")
    for name, fields in (("1,000 calls a second, answered at once", ["rate"]),
                         ("100 calls a second beside 200 open streams", ["streams", "calls"]),
                         ("a token of 200 open streams, 4,000 a second, on its way", ["streams", "tokens"])):
        times = [", ".join(shown(way.median(*fields, share)) for share in ("p50", "p99")) for way in (direct, gate)]
        added = ", ".join(f"{gate.added(direct, *fields, share) / 1000:+.2f}" for share in ("p50", "p99"))
        print(f"| {name} | {' | '.join(times)} | {added} | p99 ≤ 1 ms added |", flush=True)


def memory(ways, server, count=10_000, warm_up=1_000):
    print("\n| memory of the server | resident before | after | seconds | aim |\n| --- | ---: | ---: | ---: | --- |")
    for way in ways:
        way.runner.run("flood", **way.target, count=warm_up, at_once=8)
        before = settled(server)
        took = way.runner.run("flood", **way.target, count=count, at_once=8)["seconds"]
        print(f"| {count:,} connections, {way.name} | {before / 1024:.1f} MiB | {settled(server) / 1024:.1f} MiB | {took:.1f} | flat |", flush=True)


def settled(server):
    """Once what was to be written down is."""
    time.sleep(2)
    return server.resident()


def shown(microseconds):
    return f"{microseconds / 1000:.2f}"
