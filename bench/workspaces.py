"""A conversation's workspace and its tools over MCP, against the plain REST verbs that do the same, in turns."""
import itertools, json, statistics

from life import POOL, TEMPLATES, WARM, fill
from measure import Calm, p90, timed
from server import Connection, Server

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CONFIGURATION = f'[default]\ntemplate = "{WARM}"\n'
PATIENCE_SECONDS = 60


def report(binary, rounds):
    calm, numbers = Calm(PATIENCE_SECONDS), itertools.count()
    with Server(binary, templates=TEMPLATES, files={"workspaces.toml": CONFIGURATION}) as server:
        connection = Connection(server.path)
        connection.call("PUT", f"/v1/pools/{WARM}", {"size": POOL})
        first = {"plain": [], "mcp": []}
        for _ in range(rounds):
            for way, begin in [("plain", plain), ("mcp", conversation)]:
                fill(connection)
                calm.wait()
                name = f"talk-{next(numbers)}"
                first[way].append(timed(lambda: begin(connection, name)))
                connection.call("DELETE", f"/v1/sessions/{name}")
        live = conversation(connection, "talk-live")
        calls = {"plain": [], "mcp": []}
        calm.wait()
        for _ in range(rounds * 5):
            calls["plain"].append(timed(lambda: connection.run(live, "sh", "-c", "true")))
            calls["mcp"].append(timed(lambda: tool(connection, "talk-live")))
        connection.call("DELETE", f"/v1/pools/{WARM}")
    print("\n| workspaces | plain REST ms | p90 | over MCP ms | p90 | ratio | aim |\n| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    line("warm: from nothing to the first result of a command", first)
    line("one more command", calls)
    return []


def line(what, samples):
    plain, mcp = (statistics.median(samples[way]) for way in ("plain", "mcp"))
    print(f"| {what} | {plain:.2f} | {p90(samples['plain']):.2f} | {mcp:.2f} | {p90(samples['mcp']):.2f} | {mcp / plain:.2f} × | ≤ 2 × |", flush=True)


def plain(connection, name):
    connection.create(name=name, template=WARM)
    connection.run(name, "sh", "-c", "true")


def conversation(connection, name):
    sandbox = connection.call("POST", f"/v1/sessions/{name}/sandbox?create=true")["sandbox_id"]
    tool(connection, name)
    return sandbox


def tool(connection, session):
    params = {"name": "exec", "arguments": {"command": "true"}, "_meta": META}
    answer = connection.ask(
        "POST", f"/v1/sessions/{session}/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        accept="application/json, text/event-stream", mcp_protocol_version="2026-07-28", mcp_method="tools/call", mcp_name="exec")
    # One JSON document, or the last event of a stream.
    text = answer if answer.startswith(b"{") else [part[5:] for part in answer.split(b"\n") if part.startswith(b"data:")][-1]
    result = json.loads(text)["result"]
    if result["structuredContent"]["exit_code"] != 0:
        raise RuntimeError(result)
