# The answer to CONNECT, with its body, which curl does not show.
import http.client, os, sys, urllib.parse
gate = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
connection = http.client.HTTPConnection(gate.hostname, gate.port, timeout=20)
connection.request("CONNECT", sys.argv[1])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
