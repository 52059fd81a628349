"""`sandbar up` on a home of its own, and a bare connection to it: what is timed is Sandbar, not an HTTP library."""
import json, os, shutil, socket, subprocess, sys, tempfile, threading, time

from measure import field

START_SECONDS = 60
STOP_SECONDS = 60


class Refused(RuntimeError):
    """An answer that is an error."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Server:
    """A server whose home is below `place`, reached over its Unix socket."""

    def __init__(self, binary, place=None, templates={}, files={}, inside=[], more=[], log=None):
        """`inside` is what its command line begins with, `more` what it ends with."""
        self.home = tempfile.mkdtemp(prefix="sandbar-bench-", dir=place)
        os.mkdir(os.path.join(self.home, "templates"))
        for name, text in {**{f"templates/{name}.toml": text for name, text in templates.items()}, **files}.items():
            with open(os.path.join(self.home, name), "w") as file:
                file.write(text)
        self.process = subprocess.Popen(
            [*inside, binary, "--home", self.home, "up", "--listen", "127.0.0.1:0", *more],
            stdout=subprocess.PIPE, stderr=open(log, "wb") if log else subprocess.DEVNULL)
        self.path = os.path.join(self.home, "sandbar.sock")
        deadline = time.monotonic() + START_SECONDS
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("the server did not start")
            time.sleep(0.01)
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            connection = Connection(self.path)
            for template in [pool["template"] for pool in connection.get_or("/v1/pools", {"pools": []})["pools"]]:
                connection.call("DELETE", f"/v1/pools/{template}")
            for sandbox in connection.everything():
                connection.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")
        finally:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)
            shutil.rmtree(self.home, ignore_errors=True)

    def resident(self):
        """Kilobytes."""
        return field(f"/proc/{self.process.pid}/status", "VmRSS:")

    def guest(self, sandbox):
        with open(os.path.join(self.home, "local", sandbox, "guest.pid")) as file:
            return int(file.read().split()[0])


class Connection:
    """One keep-alive connection."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.buffer = b""

    def call(self, method, path, body=None):
        answer = self.ask(method, path, body)
        return json.loads(answer) if answer else None

    def ask(self, method, path, body=None, **headers):
        """The bytes of the answer."""
        payload = json.dumps(body).encode() if body is not None else b""
        fields = {"host": "localhost", "content-type": "application/json", "content-length": len(payload), **headers}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        self.socket.sendall(head.encode() + b"\r\n" + payload)
        lines = self.until(b"\r\n\r\n").decode().lower().split("\r\n")
        status = int(lines[0].split()[1])
        if "transfer-encoding: chunked" in lines:
            body = b""
            while length := int(self.until(b"\r\n"), 16):
                body += self.exactly(length)
                self.exactly(2)
            self.exactly(2)
        else:
            body = self.exactly(next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0))
        if status >= 400:
            raise Refused(status, f"{method} {path}: {json.loads(body or b'{}').get('detail', status)}")
        return body

    def until(self, mark):
        while mark not in self.buffer:
            self.more()
        found, self.buffer = self.buffer.split(mark, 1)
        return found

    def exactly(self, length):
        while len(self.buffer) < length:
            self.more()
        found, self.buffer = self.buffer[:length], self.buffer[length:]
        return found

    def more(self):
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the server closed the connection")
        self.buffer += data

    def get_or(self, path, otherwise):
        """For what a server may not have."""
        try:
            return self.call("GET", path)
        except Refused as refused:
            if refused.status != 404:
                raise
            return otherwise

    def create(self, **body):
        return self.call("POST", "/v1/sandboxes", body)["id"]

    def delete(self, sandbox):
        self.call("DELETE", f"/v1/sandboxes/{sandbox}")

    def run(self, sandbox, *argv):
        """Runs a command to its end and gives its output."""
        result = self.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": argv, "timeout": "10m"})
        if result["exit"]["code"] != 0:
            raise RuntimeError(f"{argv}: {result}")
        return result["stdout"]

    def everything(self):
        """All sandboxes, page by page."""
        found, cursor = [], ""
        while cursor is not None:
            page = self.call("GET", f"/v1/sandboxes?limit=100{cursor and f'&cursor={cursor}'}")
            found += page["sandboxes"]
            cursor = page.get("next_cursor")
        return found
