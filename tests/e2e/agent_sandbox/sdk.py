"""Drives a sandbox with the released Python package of agent-sandbox, unmodified. Kubernetes itself is the one thing that is
not here: `Helper` stands in for it and knows where the sandbox's pod would be."""

import io
import sys

from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig, SandboxdInClusterConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox


class Helper:
    injected_api_client = None

    def __init__(self, *addresses):
        self.addresses = list(addresses)

    def get_sandbox(self, name, namespace):
        return {"metadata": {"name": name}, "status": {"podIPs": self.addresses, "conditions": []}}


def refused(status, call):
    try:
        call()
    except SandboxRequestError as error:
        assert error.status_code == status, f"{error.status_code} instead of {status}"
        return error.response.json()
    raise AssertionError(f"not refused with {status}")


def files(sandbox):
    blob = bytes(range(256)) * 5000
    sandbox.files.write("data/deep/blob.bin", blob)
    assert sandbox.files.read("data/deep/blob.bin") == blob
    sandbox.files.write("data/streamed.bin", io.BytesIO(blob))
    taken = io.BytesIO()
    assert sandbox.files.read_to("data/streamed.bin", taken) == len(blob) and taken.getvalue() == blob
    sandbox.files.write("data/with space ü.txt", "text")
    names = {entry.name: (entry.type, entry.size) for entry in sandbox.files.list("data")}
    assert names == {
        "deep": ("directory", names["deep"][1]),
        "streamed.bin": ("file", len(blob)),
        "with space ü.txt": ("file", 4),
    }, names
    assert sandbox.files.exists("data/with space ü.txt") and not sandbox.files.exists("data/none")
    refused(404, lambda: sandbox.files.read("data/none"))
    refused(404, lambda: sandbox.files.list("data/none"))
    refused(403, lambda: sandbox.files.read("../etc/passwd", allow_unsafe_paths=True))


def legacy(base, scoped, operator, name):
    def open(token=scoped, name=name, helper=Helper()):
        config = SandboxDirectConnectionConfig(api_url=base, extra_headers={"Authorization": f"Bearer {token}"})
        return Sandbox("claim", name, connection_config=config, k8s_helper=helper)

    sandbox = open()
    ran = sandbox.commands.run("echo 'two  words' $HOME; true")
    assert (ran.stdout, ran.exit_code) == ("two  words $HOME; true\n", 0), ran
    ran = sandbox.commands.run("sh -c 'echo out; echo err >&2; exit 42'")
    assert (ran.stdout, ran.stderr, ran.exit_code, ran.timed_out) == ("out\n", "err\n", 42, False), ran
    ran = sandbox.commands.run("no-such-program")
    assert ran.exit_code == 1 and ran.stderr.startswith("Failed to execute command: "), ran
    ran = sandbox.commands.run("sleep 60", command_timeout=1)
    assert ran.timed_out, ran
    files(sandbox)
    # The address that Kubernetes would name is sent along, and is not where anything goes.
    addressed = Helper("10.1.2.3")
    assert open(operator, helper=addressed).commands.run("echo still").stdout == "still\n"
    assert refused(403, lambda: open(helper=addressed).commands.run("true")) == {"detail": "forbidden"}
    assert refused(401, lambda: open(token="sbt_wrong").commands.run("true")) == {"detail": "unauthenticated"}
    assert refused(403, lambda: open(name="other").commands.run("true")) == {"detail": "forbidden"}


def sandboxd(rest, grpc, name):
    config = SandboxdInClusterConnectionConfig(mode="in-cluster-pod-ip", rest_port=rest, grpc_port=grpc)
    sandbox = Sandbox("claim", name, connection_config=config, k8s_helper=Helper("127.0.0.1"))
    ran = sandbox.commands.run("echo $WORD; pwd; exit 3", env={"WORD": "sea"}, cwd="data")
    assert (ran.stdout, ran.exit_code) == ("sea\n/workspace/data\n", 3), ran
    ran = sandbox.commands.run("kill -9 $$")
    assert ran.exit_code == 137, ran
    ran = sandbox.commands.run("sleep 60", command_timeout=1)
    assert ran.timed_out and ran.exit_code == 124, ran
    files(sandbox)
    refused(409, lambda: sandbox.files.delete("data"))
    sandbox.files.delete("data", recursive=True)
    assert not sandbox.files.exists("data")


match sys.argv[1:]:
    case ["legacy", base, scoped, operator, name]:
        legacy(base, scoped, operator, name)
    case ["sandboxd", rest, grpc, name]:
        sandboxd(int(rest), int(grpc), name)
print("done")
