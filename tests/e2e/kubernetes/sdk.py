"""Claims a sandbox from a pool with the released Python package of agent-sandbox, drives it, and deletes it."""

import sys

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig, SandboxInClusterConnectionConfig

runtime, pool, namespace = sys.argv[1:]
configs = {
    "sandboxd": lambda: SandboxdInClusterConnectionConfig(mode="in-cluster-pod-ip"),
    "legacy": lambda: SandboxInClusterConnectionConfig(),
}
client = SandboxClient(connection_config=configs[runtime]())
sandbox = client.create_sandbox(pool, namespace, sandbox_ready_timeout=60)
try:
    ran = sandbox.commands.run("sh -c 'id -u; pwd; echo err >&2; exit 3'")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("1000\n/workspace\n", "err\n", 3), ran
    blob = bytes(range(256)) * 4000
    sandbox.files.write("blob.bin", blob)
    assert sandbox.files.read("blob.bin") == blob
    assert [(entry.name, entry.size) for entry in sandbox.files.list(".")] == [("blob.bin", len(blob))]
    ran = sandbox.commands.run("wc -c blob.bin")
    assert (ran.stdout, ran.exit_code) == (f"{len(blob)} blob.bin\n", 0), ran
finally:
    sandbox.terminate()
print("done")
