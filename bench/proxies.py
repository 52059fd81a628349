"""The gate's peers: proxies on this host's loopback, each with as little to do as its configuration allows. One that is
missing or does not start is named, not counted.
"""
import contextlib, os, shutil, socket, subprocess, time

START_SECONDS = 20

TINYPROXY = """
Port {port}
Listen 127.0.0.1
Timeout 600
MaxClients 600
LogLevel Critical
LogFile "{place}/tinyproxy.log"
PidFile "{place}/tinyproxy.pid"
"""

SQUID = """
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
access_log none
cache_log {place}/squid.log
cache_store_log none
pid_filename {place}/squid.pid
coredump_dir {place}
shutdown_lifetime 0 seconds
pinger_enable off
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def started(place, roots):
    """Ports by name. `place` is theirs; `roots` is whom those who look inside trust."""
    # Some of them drop what privilege they have.
    os.chmod(place, 0o777)
    mitmproxy = ["--quiet", "--listen-host", "127.0.0.1", "--set", f"confdir={place}/mitmproxy",
                 "--set", f"ssl_verify_upstream_trusted_ca={roots}", "--set", "stream_large_bodies=1m"]
    commands = {
        "tinyproxy": ("tinyproxy", lambda port: ["-d", "-c", written(place, "tinyproxy", TINYPROXY, port)]),
        "squid": ("squid", lambda port: ["-N", "-f", written(place, "squid", SQUID, port)]),
        "mitmproxy, passing through": ("mitmdump", lambda port: [*mitmproxy, "--ignore-hosts", ".*", "--listen-port", str(port)]),
        "mitmproxy": ("mitmdump", lambda port: [*mitmproxy, "--listen-port", str(port)]),
    }
    with contextlib.ExitStack() as running:
        ports = {}
        for name, (program, words) in commands.items():
            found, port = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"), free_port()
            if not found:
                print(f"not run: {name}: {program} is not installed")
                continue
            process = subprocess.Popen([found, *words(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running.callback(end, process)
            if listens(process, port):
                ports[name] = port
            else:
                print(f"not run: {name}: it did not start")
        yield ports


def written(place, name, text, port):
    path = os.path.join(place, f"{name}.conf")
    with open(path, "w") as file:
        file.write(text.format(place=place, port=port))
    return path


def listens(process, port):
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
