"""Drives a server with stubs generated from the proto, over TCP and the owner's socket; the last line is `done`."""

import queue
import sys
import threading
import time

import grpc
from google.protobuf.duration_pb2 import Duration
from sandbar.v1 import sandbar_pb2 as pb
from sandbar.v1 import sandbar_pb2_grpc as rpc

ADDRESS, SOCKET, TOKEN = sys.argv[1:]
SOON = 60


class Sandbar:
    def __init__(self, address, token=None):
        self.metadata = [("authorization", f"Bearer {token}")] if token else []
        # The library would put the socket's path there, which is no authority.
        options = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else []
        channel = grpc.insecure_channel(address, options)
        self.sandboxes = rpc.SandboxesStub(channel)
        self.processes = rpc.ProcessesStub(channel)
        self.terminals = rpc.TerminalsStub(channel)
        self.files = rpc.FilesStub(channel)
        self.sessions = rpc.SessionsStub(channel)

    def call(self, method, request, **more):
        return method(request, metadata=self.metadata, timeout=SOON, **more)

    def exec(self, script, **more):
        return self.call(self.processes.Exec, pb.ExecRequest(sandbox="py", argv=["sh", "-c", script], **more))

    def run(self, script, **more):
        out = {pb.STREAM_STDOUT: b"", pb.STREAM_STDERR: b""}
        kinds = []
        for event in self.exec(script, **more):
            kinds.append(event.WhichOneof("event"))
            if kinds[-1] == "output":
                out[event.output.stream] += event.output.data
            elif kinds[-1] == "exit":
                code = event.exit.exit.code
        assert kinds[0] == "started" and kinds[-1] == "exit", kinds
        return code, out[pb.STREAM_STDOUT], out[pb.STREAM_STDERR]


def refused(call, status, code):
    try:
        result = call()
        list(result) if hasattr(result, "__next__") else None
    except grpc.RpcError as error:
        told = dict(error.trailing_metadata() or ()).get("sandbar-code")
        assert error.code() == status and told == code, (error.code(), told, error.details())
        return error.details()
    raise AssertionError(f"{code} was not told")


def until(what, look):
    deadline = time.monotonic() + SOON
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def lives(api):
    made = api.call(api.sandboxes.Create, pb.CreateSandboxRequest(name="py", labels={"a": "b"}, ttl=Duration(seconds=3600)))
    assert made.state == pb.SANDBOX_STATE_READY and made.name == "py", made
    listed = api.call(api.sandboxes.List, pb.ListSandboxesRequest(labels={"a": "b"}))
    assert [found.id for found in listed.sandboxes] == [made.id], listed
    session = api.call(api.sessions.Get, pb.GetSessionRequest(session=made.session))
    assert session.state == pb.SESSION_STATE_ACTIVE and session.owner.startswith("token:"), session
    for method, request, state in [
        (api.sandboxes.Pause, pb.PauseSandboxRequest, pb.SANDBOX_STATE_PAUSED),
        (api.sandboxes.Resume, pb.ResumeSandboxRequest, pb.SANDBOX_STATE_READY),
        (api.sandboxes.Stop, pb.StopSandboxRequest, pb.SANDBOX_STATE_STOPPED),
        (api.sandboxes.Start, pb.StartSandboxRequest, pb.SANDBOX_STATE_READY),
    ]:
        try:
            assert api.call(method, request(sandbox="py")).state == state
        except grpc.RpcError as error:
            # Not every host can hold processes still.
            told = dict(error.trailing_metadata())["sandbar-code"]
            assert told in ("not_enforceable", "declined") and request is pb.PauseSandboxRequest, error
            print("not run: pausing over gRPC:", error.details())
    forked = api.call(api.sandboxes.Fork, pb.ForkSandboxRequest(sandbox="py", count=2))
    assert len({fork.id for fork in forked.sandboxes} | {made.id}) == 3
    for fork in forked.sandboxes:
        api.call(api.sandboxes.Delete, pb.DeleteSandboxRequest(sandbox=fork.id))


def commands(api):
    assert api.run("echo out; echo err >&2; exit 42") == (42, b"out\n", b"err\n")
    assert api.run("pwd") == (0, b"/workspace\n", b"")
    assert api.run("cat", stdin=b"\0\xff") == (0, b"\0\xff", b"")
    code, out, _ = api.run("head -c 8388608 /dev/zero")
    assert code == 0 and len(out) == 8 << 20
    started = time.monotonic()
    assert api.run("sleep 100", timeout=Duration(nanos=300_000_000))[0] == 137
    assert time.monotonic() - started < 30


def cancelling(api):
    running = api.exec("setsid sleep 1000 & echo $! > part; mv part pid; wait")
    until("the child", lambda: api.run("test -e pid")[0] == 0)
    assert api.run("kill -0 $(cat pid)")[0] == 0
    running.cancel()
    until("its death", lambda: api.run("kill -0 $(cat pid)")[0] != 0)
    assert api.run("rm pid")[0] == 0


def files(api):
    data = bytes(range(256)) * 32768

    def upload():
        yield pb.WriteRequest(open=pb.WriteOpen(sandbox="py", path="a.bin", mode=0o640))
        for at in range(0, len(data), 1 << 20):
            yield pb.WriteRequest(data=data[at : at + (1 << 20)])
        yield pb.WriteRequest(commit=pb.WriteCommit())

    assert api.call(api.files.Write, upload()).size == len(data)
    replies = list(api.call(api.files.Read, pb.ReadRequest(sandbox="py", path="/workspace/a.bin")))
    assert replies[0].entry.size == len(data) and replies[0].entry.mode == 0o640, replies[0]
    assert b"".join(reply.data for reply in replies[1:]) == data
    part = list(api.call(api.files.Read, pb.ReadRequest(sandbox="py", path="a.bin", offset=254, length=4)))
    assert b"".join(reply.data for reply in part) == b"\xfe\xff\x00\x01"
    names = [entry.name for entry in api.call(api.files.List, pb.ListFilesRequest(sandbox="py", path="/workspace"))]
    assert names == ["a.bin"], names
    api.call(api.files.Remove, pb.RemoveRequest(sandbox="py", path="a.bin"))
    stat = pb.StatRequest(sandbox="py", path="a.bin")
    details = refused(lambda: api.call(api.files.Stat, stat), grpc.StatusCode.NOT_FOUND, "unknown_file")
    assert "a.bin" in details, details
    shadow = pb.ReadRequest(sandbox="py", path="../../../../etc/shadow")
    refused(lambda: api.call(api.files.Read, shadow), grpc.StatusCode.INVALID_ARGUMENT, "path_outside")


class Viewer:
    def __init__(self, api, process, control):
        self.said = queue.Queue()
        self.shown = b""
        self.events = []
        self.typed = 0
        open = pb.AttachOpen(sandbox="py", process=process, raw=True, control=control)
        self.said.put(pb.AttachRequest(open=open))
        told = api.call(api.terminals.Attach, iter(self.said.get, None))
        threading.Thread(target=self.look, args=(told,), daemon=True).start()

    def look(self, told):
        for event in told:
            kind = event.WhichOneof("event")
            self.events.append(kind)
            self.shown += {"output": lambda: event.output.data, "screen": lambda: event.screen.data.encode()}.get(kind, bytes)()

    def keys(self, keys):
        self.said.put(pb.AttachRequest(input=pb.AttachInput(offset=self.typed, data=keys)))
        self.typed += len(keys)


def terminals(api):
    script = "stty -echo; echo ready; while read -r line; do echo \"got <$line>\"; done"
    size = pb.TerminalSize(cols=80, rows=24)
    start = pb.StartProcessRequest(sandbox="py", argv=["sh", "-c", script], terminal=size)
    process = api.call(api.processes.Start, start).id
    one, two = Viewer(api, process, pb.CONTROL_FREE), Viewer(api, process, pb.CONTROL_VIEW)
    until("ready", lambda: b"ready" in one.shown and b"ready" in two.shown)
    one.keys(b"hello\n")
    until("its answer", lambda: all(b"got <hello>" in viewer.shown for viewer in (one, two)))
    two.said.put(pb.AttachRequest(take=pb.AttachTake()))
    until("another controller", lambda: "control" in one.events and "control" in two.events)
    two.keys(b"\x04")
    until("its end", lambda: one.events[-1:] == two.events[-1:] == ["exit"])
    one.said.put(None)
    two.said.put(None)


def strangers():
    for address, token in [(ADDRESS, None), (ADDRESS, "sbt_wrong")]:
        other = Sandbar(address, token)
        list = pb.ListSandboxesRequest()
        refused(lambda: other.call(other.sandboxes.List, list), grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    owner = Sandbar(SOCKET)
    assert [found.name for found in owner.call(owner.sandboxes.List, pb.ListSandboxesRequest()).sandboxes] == ["py"]
    assert owner.run("echo socket") == (0, b"socket\n", b"")


api = Sandbar(ADDRESS, TOKEN)
for part in [lives, commands, cancelling, files, terminals]:
    part(api)
    print(part.__name__)
strangers()
api.call(api.sandboxes.Delete, pb.DeleteSandboxRequest(sandbox="py"))
print("done")
