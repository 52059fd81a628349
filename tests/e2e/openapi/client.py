"""Drives a server with a client generated from openapi.json, and compares what its schemas refuse with what the server
refuses; the last line is `done`."""

import json
import sys

import httpx
from jsonschema import Draft202012Validator
from sandbar_client import AuthenticatedClient
from sandbar_client.api.processes import exec_
from sandbar_client.api.sandboxes import create_sandbox, delete_sandbox, get_sandbox, list_sandboxes
from sandbar_client.models import Code, CreateSandbox, ExecRequest, ExecResult, Problem, Sandbox, SandboxState

BASE, TOKEN, DOCUMENT = sys.argv[1:]
SOON = httpx.Timeout(60)

client = AuthenticatedClient(base_url=BASE, token=TOKEN, timeout=SOON)


def asked(operation, *path, **more):
    """What was answered, as the generated client understood it."""
    answer = operation.sync_detailed(*path, client=client, **more)
    assert answer.parsed is not None, (answer.status_code, answer.content)
    return answer.parsed


def refused(problem, code, status):
    assert isinstance(problem, Problem), problem
    assert (problem.code, problem.status) == (code, status), problem
    assert problem.fix, problem


def calls():
    made = asked(create_sandbox, body=CreateSandbox.from_dict({"name": "py", "labels": {"team": "a"}}))
    assert isinstance(made, Sandbox) and made.state == SandboxState.READY, made
    ran = asked(exec_, "py", body=ExecRequest(argv=["sh", "-c", "echo $((6*7)); exit 3"]))
    assert isinstance(ran, ExecResult) and (ran.stdout, ran.exit_.code) == ("42\n", 3), ran
    assert [sandbox.name for sandbox in asked(list_sandboxes).sandboxes] == ["py"]
    refused(asked(get_sandbox, "nobody"), Code.UNKNOWN_SANDBOX, 404)
    refused(asked(create_sandbox, body=CreateSandbox.from_dict({"name": "py"})), Code.NAME_TAKEN, 409)
    refused(asked(exec_, "py", body=ExecRequest(argv=["/nothing"])), Code.COMMAND_NOT_FOUND, 422)
    # As much as the kernel takes, and what it does not: here the pointers are too many.
    ran = asked(exec_, "py", body=ExecRequest(argv=["sh", "-c", "echo $#"] + ["x" * (128 * 1024 - 1)] * 14))
    assert isinstance(ran, ExecResult) and ran.stdout == "13\n", ran
    many = asked(exec_, "py", body=ExecRequest(argv=["true"] + ["x"] * 700_000))
    refused(many, Code.BAD_COMMAND, 400)
    assert "2 MiB" in many.fix, many
    stranger = AuthenticatedClient(base_url=BASE, token="sbt_wrong", timeout=SOON)
    refused(get_sandbox.sync(client=stranger, sandbox="py"), Code.UNAUTHENTICATED, 401)
    assert delete_sandbox.sync_detailed("py", client=client).status_code == 204
    refused(asked(get_sandbox, "py"), Code.SANDBOX_GONE, 410)


# Path, schema, a body that both refuse.
REFUSED = [
    ("/v1/sandboxes", "CreateSandbox", body)
    for body in [
        {"name": ""},
        {"name": "-a"},
        {"name": "a-"},
        {"name": "A"},
        {"name": "a" * 64},
        {"labels": {"": "x"}},
        {"labels": {"-a": "x"}},
        {"labels": {"a" * 64: "x"}},
        {"labels": {"a": "x" * 257}},
        {"labels": {"a": "\u001b"}},
        {"labels": {f"a{n}": "" for n in range(65)}},
        {"env": {"1A": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "\0"}},
        {"env": {"A": "x" * 128 * 1024}},
        {"ttl": "soon"},
        {"ttl": ""},
        {"secrets": ["lower"]},
        {"session": "ses-1"},
        {"network": {"allow": ["a.example"] * 501}},
        {"colour": 1},
    ]
] + [
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": []}),
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": ["a\0"]}),
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": ["a", "x" * 128 * 1024]}),
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": ["a"], "cwd": "\0"}),
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": ["a"], "max_output": 67108865}),
    ("/v1/sandboxes/box/fork", "Fork", {"count": 0}),
    ("/v1/sandboxes/box/fork", "Fork", {"name": "a" * 62}),
    ("/v1/sandboxes/box/snapshots", "CreateSnapshot", {"name": "a/b"}),
    ("/v1/sandboxes/box/network/rules", "AddRules", {"effect": "allow", "rules": []}),
    ("/v1/sessions", "CreateSession", {"command": []}),
    ("/v1/tokens", "CreateToken", {"name": "", "role": "viewer"}),
    ("/v1/tokens", "CreateToken", {"name": "x" * 65, "role": "viewer"}),
    ("/v1/tokens", "CreateToken", {"name": "a", "role": "king"}),
    ("/v1/webhooks", "CreateWebhook", {"url": "https://a.example/", "name": "A"}),
    ("/v1/webhooks", "CreateWebhook", {"url": "https://a.example/", "kinds": ["approval"]}),
]

# Bodies that both take.
TAKEN = [
    ("/v1/sandboxes", "CreateSandbox", {"name": "a", "labels": {"A.b/c-d_0": "é" * 128}, "ttl": "1h30m"}),
    ("/v1/sandboxes", "CreateSandbox", {"name": "0" + "-" * 61 + "9", "env": {"_A1": "x\n" * 1000}}),
    ("/v1/sandboxes/box/exec", "ExecRequest", {"argv": ["true", "x" * (128 * 1024 - 1), ""], "cwd": "/tmp/../tmp"}),
    ("/v1/tokens", "CreateToken", {"name": "é" * 32, "role": "viewer", "ttl": "7d"}),
]


def schemas():
    with open(DOCUMENT, encoding="utf-8") as file:
        document = json.load(file)
    server = httpx.Client(base_url=BASE, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=SOON)
    assert server.post("/v1/sandboxes", json={"name": "box"}).status_code == 201
    for path, schema, body in REFUSED + TAKEN:
        validator = Draft202012Validator({**document, "$ref": f"#/components/schemas/{schema}"})
        fits = validator.is_valid(body)
        answer = server.post(path, json=body)
        takes = answer.status_code < 300
        text = str(body)[:100]
        assert fits == takes == ((path, schema, body) in TAKEN), (schema, text, fits, answer.status_code, answer.text)
        if not takes:
            assert 400 <= answer.status_code < 500, (schema, text, answer.text)


calls()
schemas()
print("done")
