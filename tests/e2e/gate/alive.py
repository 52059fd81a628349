# One connection through the gate, a request for each path that is read, and never another connection.
import http.client, os, ssl, sys, urllib.parse
gate = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
host, port = sys.argv[1].split(":")
connection = http.client.HTTPSConnection(gate.hostname, gate.port, timeout=30, context=ssl.create_default_context())
connection.set_tunnel(host, int(port))
connection.connect()
connection.auto_open = 0
for line in sys.stdin:
    connection.request("GET", line.strip(), headers={"X-Key": os.environ.get("KEY", "")})
    answer = connection.getresponse()
    print(answer.status, " ".join(answer.read().decode().split()), flush=True)
