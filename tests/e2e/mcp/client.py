"""Drives a session's tools with the official client, in one era of the protocol; the last line is `done`."""

import json
import sys

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

URL, FOREIGN, TOKEN, MODE = sys.argv[1:]


heard = []


async def hear(message):
    heard.append(getattr(message, "method", None) or getattr(getattr(message, "root", None), "method", None))


def client(url, token=TOKEN):
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60)
    return Client(streamable_http_client(url, http_client=http), mode=MODE, message_handler=hear)


async def call(to, tool, **arguments):
    result = await to.call_tool(tool, arguments)
    return bool(result.is_error), result.content[0].text, result.structured_content


async def run(to, command, **more):
    failed, text, value = await call(to, "exec", command=command, **more)
    assert not failed and json.loads(text) == value, text
    return value


async def fails(to, tool, says, **arguments):
    failed, text, _ = await call(to, tool, **arguments)
    assert failed and says in text, (tool, arguments, text)


async def listing(to, **how):
    """By name. A sandbox that stood still does not tell its skills at once."""
    with anyio.fail_after(60):
        while True:
            listed = {tool.name: tool for tool in (await to.list_tools(**how)).tools}
            if "cannot be listed now" not in listed["get_skill"].description:
                return listed
            how = {"cache_mode": "refresh"}


async def tools(to):
    listed = await listing(to)
    names = "exec read_file write_file edit_file list_dir glob grep start output input stop processes get_skill"
    assert list(listed) == names.split(), listed
    assert listed["get_skill"].description == "Load the full content of a skill by name.", listed["get_skill"]


async def commands(to):
    assert await run(to, "echo out; echo err >&2; exit 42") == {"stdout": "out\n", "stderr": "err\n", "exit_code": 42}
    assert (await run(to, "pwd"))["stdout"] == "/workspace\n"
    await run(to, "mkdir -p below")
    assert (await run(to, "pwd", working_dir="below"))["stdout"] == "/workspace/below\n"
    assert (await run(to, "id -u"))["stdout"] not in ("", "0\n")
    # The time begins before the command does, which may be late.
    for timeout in [500, 5000, 30000]:
        slow = await run(to, "echo begun; sleep 600", timeout_ms=timeout)
        assert slow["exit_code"] == -1 and slow["reason"] == "timeout", slow
        if slow["stdout"]:
            break
    assert slow["stdout"] == "begun\n", slow
    await fails(to, "exec", "command must not be empty", command="")


async def files(to):
    assert (await call(to, "write_file", path="a/b/c.txt", content="grüß\n"))[1] == '{"ok":true}'
    assert (await call(to, "read_file", path="/workspace/a/b/c.txt"))[1] == "grüß\n"
    assert (await run(to, "cat a/b/c.txt; stat -c %a a/b/c.txt a/b"))["stdout"] == "grüß\n644\n755\n"
    assert (await call(to, "edit_file", path="a/b/c.txt", old_string="ü", new_string="u"))[2]["replaced"] == 1
    listed = (await call(to, "list_dir", path="a/b"))[2]
    assert listed == {"entries": [{"name": "c.txt", "type": "file", "size": 6}]}, listed
    assert {"name": "a", "type": "dir"}.items() <= (await call(to, "list_dir"))[2]["entries"][0].items()
    await fails(to, "read_file", "failed to read file none: ", path="none")
    await fails(to, "read_file", "path must not be empty", path="")
    # The host's own are not there, whatever the path.
    await run(to, "ln -sf ../../../../../../proc/1/root/etc/machine-id link; rm -rf a below")
    await fails(to, "read_file", "failed to read file link: ", path="link")
    await fails(to, "read_file", "failed to read file ../../../etc/shadow: ", path="../../../etc/shadow")
    await fails(to, "write_file", "failed to write file /etc/passwd: ", path="/etc/passwd", content="x")
    await run(to, "rm link")


async def binary(to):
    await run(to, r"printf '\211PNG\r\n\032\n\377' > a.png; printf '\377\376x' > data")
    image = (await to.call_tool("read_file", {"path": "a.png"})).content[0]
    assert (image.type, image.mime_type) == ("image", "image/png"), image
    await fails(to, "read_file", "it is binary", path="data")
    blob = (await to.call_tool("read_file", {"path": "data", "encoding": "base64"})).content[0].resource
    assert (blob.blob, str(blob.uri)) == ("//54", "file:///workspace/data"), blob
    await run(to, "rm a.png data")


async def search(to):
    await run(to, "mkdir -p s/node_modules; echo needle > s/b.py; sleep 0.02; echo Needle > s/a.py; cp s/a.py s/node_modules")
    assert (await call(to, "glob", pattern="**/*.py"))[1] == "s/a.py\ns/b.py\n"
    assert (await call(to, "glob", pattern="/workspace/s/*.py"))[2]["files"] == ["/workspace/s/a.py", "/workspace/s/b.py"]
    assert (await call(to, "grep", pattern="^needle$"))[1] == "s/b.py:1:needle\n"
    assert (await call(to, "grep", pattern="needle", path="s/b.py"))[1] == "s/b.py:1:needle\n"
    found = (await call(to, "grep", pattern="NEEDLE", ignore_case=True, output_mode="files", hidden=True))[2]
    assert found["files"] == ["s/a.py", "s/b.py", "s/node_modules/a.py"], found
    await fails(to, "grep", "regular expression", pattern="a(")
    await fails(to, "grep", "failed to search for `x` in none: ", pattern="x", path="none")
    await run(to, "rm -r s")


async def processes(to):
    started = (await call(to, "start", command="echo up; while read line; do echo got $line; done"))[2]
    process = started["process_id"]
    first = (await call(to, "output", process_id=process, wait_ms=30000))[2]
    assert (first["state"], first["output"]) == ("running", "up\n"), first
    await call(to, "input", process_id=process, text="one\n")
    second = (await call(to, "output", process_id=process, wait_ms=30000, offset=first["next_offset"]))[2]
    assert second["output"] == "got one\n", second
    assert (await call(to, "processes"))[2]["processes"][0]["process_id"] == process
    over = (await call(to, "stop", process_id=process, grace_ms=60000))[2]
    assert (over["state"], over["exit_code"]) == ("exited", 143), over
    await fails(to, "input", "has ended", process_id=process, text="x")
    await fails(to, "output", "There is no process", process_id="prc-00000000000000000000000000")
    cut = await run(to, "seq 100000")
    rest = (await call(to, "output", process_id=cut["truncated"], offset=500000))[2]
    assert rest["output"].endswith("100000\n") or rest["more"], rest


async def progress(to):
    told, stepped = [], anyio.Event()

    async def hear(progress, total, message):
        told.append(progress)
        if message.startswith("step ") and len(told) > 1:
            stepped.set()

    async def end():
        with anyio.fail_after(60):
            await stepped.wait()
        await run(to, "touch told")

    # It runs until a step was heard of, whenever that is.
    command = "i=0; until [ -e told ]; do i=$((i+1)); echo step $i; sleep 0.1; done; rm told"
    async with anyio.create_task_group() as group:
        group.start_soon(end)
        result = await to.call_tool("exec", {"command": command}, progress_callback=hear)
        assert not result.is_error and stepped.is_set(), (result, told)
    assert told == sorted(set(told)), told


async def skills(to):
    text = "---\nname: Another\ndescription: 'Reads: PDFs'\n---\nDo it."
    await call(to, "write_file", path=".claude/skills/pdf/SKILL.md", content=text)
    await run(to, "mkdir -p .claude/skills/empty")
    if MODE == "legacy":

        async def changed():
            return "notifications/tools/list_changed" in heard

        await until("word of the new skill", changed)
    described = (await listing(to, cache_mode="refresh"))["get_skill"].description
    assert described.endswith("\n\nAvailable skills:\n- pdf: Reads: PDFs"), described
    assert (await call(to, "get_skill", name="pdf"))[1] == text
    for name in ["../pdf", "..", "a/b", "/etc/passwd", "a\\b", ""]:
        await fails(to, "get_skill", f"invalid skill name: {name}", name=name)
    for name in ["none", "empty", "Another"]:
        await fails(to, "get_skill", f"failed to read skill {name}: ", name=name)
    await run(to, "rm -r .claude")


async def until(what, look):
    with anyio.fail_after(60):
        while not await look():
            await anyio.sleep(0.02)


async def cancelling(to):
    async with anyio.create_task_group() as group:
        group.start_soon(run, to, "setsid sleep 1000 & echo $! > part; mv part pid; wait")

        async def begun():
            return (await run(to, "test -e pid"))["exit_code"] == 0

        await until("the child", begun)
        assert (await run(to, "kill -0 $(cat pid)"))["exit_code"] == 0
        group.cancel_scope.cancel()

    async def over():
        return (await run(to, "kill -0 $(cat pid)"))["exit_code"] != 0

    await until("its death", over)
    await run(to, "rm pid")


async def refused(url, token, status):
    headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        answer = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert answer.status_code == status, answer.text
    try:
        async with client(url, token) as other:
            await other.list_tools()
    except BaseException as error:
        assert isinstance(error, Exception), error
        return
    raise AssertionError(f"{url} let {token} in")


async def main():
    async with client(URL) as to:
        for part in [tools, commands, files, binary, search, processes, progress, skills, cancelling]:
            await part(to)
            print(part.__name__)
    # Files stay when clients come and go.
    async with client(URL) as to:
        await run(to, "echo kept > kept")
    async with client(URL) as to:
        assert (await call(to, "read_file", path="kept"))[1] == "kept\n"
        await run(to, "rm kept")
    await refused(FOREIGN, TOKEN, 404)
    await refused(URL, "sbt_wrong", 401)
    print("done")


anyio.run(main)
