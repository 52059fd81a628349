"""A page that tries what it may and tells its own server, which has a WebSocket and shows what requests bring along."""

import base64
import hashlib
import http.server
import pathlib
import sys

PAGE = """<!doctype html><title>app</title><script>
const fetched = (url) =>
  fetch(url, { credentials: "include" }).then((answer) => answer.text()).catch(() => "refused");
const greeted = () => new Promise((resolve) => {
  const socket = new WebSocket(`ws://${location.host}/socket`);
  socket.onopen = () => socket.send("hello");
  socket.onmessage = (event) => resolve(event.data);
  socket.onerror = () => resolve("refused");
});
(async () => {
  const told = [
    `script sees: ${document.cookie}`,
    `server sees: ${await fetched("/cookies")}`,
    `the API: ${await fetched("SERVER/v1/sandboxes")}`,
    `the socket: ${await greeted()}`,
    `address: ${location.pathname}${location.hash}`,
  ];
  await fetch("/told", { method: "POST", body: told.join("\\n") });
})();
</script>"""
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/socket":
            return self.echo()
        body = self.headers.get("Cookie", "nothing") if self.path == "/cookies" else PAGE.replace("SERVER", sys.argv[1])
        self.answer(body)

    def do_POST(self):
        """Half a file is not to be read."""
        told = pathlib.Path("told.part")
        told.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        told.rename("told")
        self.answer("thanks")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "app=1")
        self.end_headers()
        self.wfile.write(body.encode())

    def echo(self):
        """Of one short frame."""
        accept = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + GUID).encode()).digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept).decode())
        self.end_headers()
        length = self.rfile.read(2)[1] & 127
        mask = self.rfile.read(4)
        said = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length)))
        self.wfile.write(bytes([0x81, length + 5]) + b"echo " + said)
        self.close_connection = True


http.server.ThreadingHTTPServer(("127.0.0.1", 8080), App).serve_forever()
