# A WebSocket through the gate, which the library finds by the environment.
import sys
from websockets.sync.client import connect
with connect("wss://" + sys.argv[1] + "/socket", open_timeout=20, close_timeout=20) as socket:
    for word in ["hello", "again"]:
        socket.send("echo: " + word)
        print(socket.recv(timeout=20))
