"""A viewer of a terminal: a bare WebSocket over the server's Unix socket."""
import base64, json, os, select, socket, struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Viewer:
    def __init__(self, server, sandbox, process, **query):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(server.path)
        words = "&".join(f"{name}={value}" for name, value in query.items())
        self.socket.sendall(
            (f"GET /v1/sandboxes/{sandbox}/processes/{process}/attach?{words} HTTP/1.1\r\nhost: localhost\r\n"
             "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
             f"sec-websocket-key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n").encode())
        self.buffer, self.typed = bytearray(), 0
        while b"\r\n\r\n" not in self.buffer:
            self.more()
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"not attached: {head.decode()} {rest.decode(errors='replace')}")
        self.buffer = bytearray(rest)

    def more(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        self.buffer += data

    def frame(self):
        """The next frame: its kind, and its payload."""
        while True:
            while len(self.buffer) < 2:
                self.more()
            length, start = self.buffer[1] & 127, 2
            if length == 126:
                start = 4
            elif length == 127:
                start = 10
            while len(self.buffer) < start:
                self.more()
            if start > 2:
                length = int.from_bytes(self.buffer[2:start], "big")
            while len(self.buffer) < start + length:
                self.more()
            kind, payload = self.buffer[0] & 15, bytes(self.buffer[start:start + length])
            del self.buffer[:start + length]
            if kind == PING:
                self.send(PONG, payload)
            elif kind == CLOSE:
                raise RuntimeError(f"closed: {payload[2:].decode(errors='replace')}")
            elif kind in (TEXT, BINARY):
                return kind, payload

    def told(self, wanted):
        """The next text frame of that type; output before it is passed over."""
        while True:
            kind, payload = self.frame()
            if kind == TEXT:
                told = json.loads(payload)
                if told["type"] == "error":
                    raise RuntimeError(told["problem"]["detail"])
                if told["type"] == wanted:
                    return told

    def output(self):
        """The next piece of output; None after the exit."""
        while True:
            kind, payload = self.frame()
            if kind == BINARY:
                return payload[8:]
            if json.loads(payload)["type"] == "exit":
                return None

    def type(self, data):
        self.send(BINARY, struct.pack(">Q", self.typed) + data)
        self.typed += len(data)

    def send(self, kind, payload):
        head = bytes([0x80 | kind, 0x80 | len(payload)]) if len(payload) < 126 else \
            bytes([0x80 | kind, 0xFE]) + len(payload).to_bytes(2, "big")
        # A mask of zeros is a mask.
        self.socket.sendall(head + bytes(4) + payload)

    def ready(self, seconds):
        return bool(self.buffer) or bool(select.select([self.socket], [], [], seconds)[0])

    def close(self):
        self.socket.close()
