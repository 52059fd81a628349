"""Drives `sandbar mcp` with the official client, in one era of the protocol; the last line is `done`."""

import sys

import anyio
from mcp import Client, StdioServerParameters

MODE, COMMAND, *ARGUMENTS = sys.argv[1:]


def client():
    return Client(StdioServerParameters(command=COMMAND, args=ARGUMENTS), mode=MODE)


async def call(to, tool, **arguments):
    result = await to.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def run(to, command):
    return await call(to, "exec", command=command)


async def tools(to):
    assert {"exec", "read_file", "write_file"} <= {tool.name for tool in (await to.list_tools()).tools}


async def calls(to):
    assert await run(to, "echo out; echo grüß >&2; exit 3") == {"stdout": "out\n", "stderr": "grüß\n", "exit_code": 3}
    await call(to, "write_file", path="large", content="x" * 3_000_000)
    assert (await run(to, "wc -c < large; rm large"))["stdout"] == "3000000\n"
    assert (await to.call_tool("read_file", {"path": "none"})).is_error


async def beside_each_other(to):
    """Each waits for the other's file, so one after the other would not end."""
    meet = "touch {0}; for i in $(seq 600); do [ -e {1} ] && echo met && exit; sleep 0.05; done"
    met = []

    async def one(here, there):
        met.append((await run(to, meet.format(here, there)))["stdout"])

    async with anyio.create_task_group() as group:
        group.start_soon(one, "a", "b")
        group.start_soon(one, "b", "a")
    assert met == ["met\n"] * 2, met
    await run(to, "rm a b")


async def cancelling(to):
    alive = "kill -0 $(cat pid)"
    async with anyio.create_task_group() as group:
        group.start_soon(run, to, "setsid sleep 1000 & echo $! > part; mv part pid; wait")
        with anyio.fail_after(60):
            while (await run(to, "test -e pid"))["exit_code"]:
                await anyio.sleep(0.02)
        assert (await run(to, alive))["exit_code"] == 0
        group.cancel_scope.cancel()
    with anyio.fail_after(60):
        while (await run(to, alive))["exit_code"] == 0:
            await anyio.sleep(0.02)
    await run(to, "rm pid")


async def main():
    async with client() as to:
        for part in [tools, calls, beside_each_other, cancelling]:
            await part(to)
            print(part.__name__)
        async with client() as another:
            await run(another, "echo kept > kept")
            assert (await run(to, "cat kept; rm kept"))["stdout"] == "kept\n"
    print("done")


anyio.run(main)
