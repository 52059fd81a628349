"""Drives sandboxd's process service with stubs made from the contract's own file: the path of process.proto, and host:port."""

import os
import sys
import tempfile

import grpc
from grpc_tools import protoc

proto, target = sys.argv[1:]
stubs = tempfile.mkdtemp()
place = os.path.dirname(proto)
include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
made = protoc.main(["", f"-I{place}", f"-I{include}", f"--python_out={stubs}", f"--grpc_python_out={stubs}", proto])
assert made == 0, made
sys.path.insert(0, stubs)
import process_pb2 as wire
import process_pb2_grpc as service
from google.protobuf.empty_pb2 import Empty

channel = grpc.insecure_channel(target)
stub = service.ProcessServiceStub(channel)


def config(*command, **rest):
    return wire.ProcessConfig(command=command, **rest)


def refused(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"not refused with {code}")


ran = stub.Execute(wire.ExecuteRequest(config=config("sh", "-c", "printf '\\377x'; echo err >&2; exit 7")))
assert (ran.exit_code, ran.stdout, ran.stderr) == (7, b"\xffx", b"err\n"), ran

events = stub.Start(wire.StartRequest(config=config("cat")))
first = next(events)
assert first.WhichOneof("event") == "init" and first.init.process_id > 0, first
process = first.init.process_id
stub.WriteStdin(wire.WriteStdinRequest(process_id=process, input=b"through and back\n"))
assert next(events).stdout == b"through and back\n"
stub.WriteStdin(wire.WriteStdinRequest(process_id=process, eof=Empty()))
last = list(events)
assert [event.WhichOneof("event") for event in last] == ["exit"] and last[0].exit.exit_code == 0, last

terminal = stub.Start(wire.StartRequest(config=config("sh", "-c", "stty size; read line; stty size"), pty=wire.PTY(cols=100, rows=30)))
process = next(terminal).init.process_id
shown = next(terminal).stdout
assert b"30 100" in shown, shown
stub.ResizeTTY(wire.ResizeTTYRequest(process_id=process, cols=120, rows=40))
stub.WriteStdin(wire.WriteStdinRequest(process_id=process, input=b"\n"))
shown = b"".join(event.stdout for event in terminal)
assert b"40 120" in shown, shown

sleeper = stub.Start(wire.StartRequest(config=config("sleep", "60")))
process = next(sleeper).init.process_id
stub.SendSignal(wire.SendSignalRequest(process_id=process, signal=wire.SIGNAL_SIGTERM))
assert list(sleeper)[-1].exit.exit_code == 143

Code = grpc.StatusCode
assert refused(Code.INVALID_ARGUMENT, lambda: stub.Execute(wire.ExecuteRequest())) == "command is required"
refused(Code.NOT_FOUND, lambda: stub.Execute(wire.ExecuteRequest(config=config("no-such-program"))))
refused(Code.PERMISSION_DENIED, lambda: stub.Execute(wire.ExecuteRequest(config=config("true", cwd="../.."))))
refused(Code.DEADLINE_EXCEEDED, lambda: stub.Execute(wire.ExecuteRequest(config=config("sleep", "60")), timeout=1))
assert refused(Code.NOT_FOUND, lambda: stub.SendSignal(wire.SendSignalRequest(process_id=9999, signal=wire.SIGNAL_SIGINT))) == "process 9999 not found"
print("done")
