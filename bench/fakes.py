"""Hundreds of claims at once on nodes that exist in the API alone: the claim's own way, without guests, images and kernels."""
import json, os, statistics, subprocess, sys, time

from cluster import Watch

NAMESPACE, POOL = "fakes", "fakes"
# Of the peer, which is compared one claim at a time.
SINGLE = 10
PACKAGES = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sandbar-tests", "agent-sandbox")
PEER = """
import json, sys, time
from k8s_agent_sandbox import SandboxClient
client = SandboxClient()
took = []
for _ in range(int(sys.argv[3])):
    start = time.time()
    sandbox = client.create_sandbox(warmpool=sys.argv[1], namespace=sys.argv[2])
    took.append((time.time() - start) * 1000)
    client.delete_sandbox(sandbox.claim_name, namespace=sys.argv[2])
    time.sleep(0.5)
print(json.dumps(took))
"""


def report(cluster, claims, count, rounds):
    """Gives what failed."""
    if not os.path.exists(claims):
        print(f"not run: claims on fake nodes: {claims} is missing: cargo build --release -p agent-sandbox --example claims")
        return []
    furnish(cluster, count)
    before, failed = None, []
    with Watch(cluster, NAMESPACE, "sandboxclaims") as seen, Watch(cluster, NAMESPACE, "sandboxwarmpools") as pools:
        print("| claims at once, fake nodes | ready, by our client, p50, p90, p99 ms | seen by another | each claim, p50, p90, p99 × |\n| --- | --- | --- | --- |")
        for how in ["one watch for all", "a watch each"] * rounds:
            pools.until_full(count)
            before = before or cluster.counts(NAMESPACE)
            took = run(cluster, claims, count, how)["claims"]
            row(how, took, seen)
            seen.until("the claims to be gone", lambda claims: not claims)
        pools.until_full(count)
        after = settled(cluster, before)
        print(f"\nobjects with the pool full, before and after: {before}; {after}\n", flush=True)
        failed += [f"left: {after}"] if after != before else []
        alone(cluster, claims, pools, count)
    cluster.kubectl("delete", "namespace", NAMESPACE)
    return failed


def furnish(cluster, count):
    pod = {"nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
           "containers": [{"name": "sandbox", "image": "sandbar.test/fake:1"}]}
    api = "extensions.agents.x-k8s.io/v1beta1"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.apply(
        {"apiVersion": api, "kind": "SandboxTemplate", "metadata": {"name": POOL, "namespace": NAMESPACE}, "spec": {"podTemplate": {"spec": pod}}},
        {"apiVersion": api, "kind": "SandboxWarmPool", "metadata": {"name": POOL, "namespace": NAMESPACE},
         "spec": {"replicas": count, "sandboxTemplateRef": {"name": POOL}}})


def environment(cluster):
    """The context's namespace is what both clients go by."""
    path = os.path.join(cluster.scratch, "fakes.kubeconfig")
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    for context in config["contexts"]:
        context["context"]["namespace"] = NAMESPACE
    with open(path, "w") as file:
        json.dump(config, file)
    return f"KUBECONFIG={path}"


def run(cluster, claims, count, how):
    more = {"a watch each": ["each"], "in turns": ["turns"]}.get(how, [])
    command = cluster.inside("env", environment(cluster), claims, POOL, str(count), *more)
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row(how, took, seen):
    names = [one["name"] for one in took]
    seen.until("the claims to be seen", lambda _: all(name in seen.ready or name in seen.missed for name in names), 60)
    took = [one for one in took if one["name"] in seen.ready]
    ours = [one["ready_ms"] for one in took]
    theirs = [(seen.ready[one["name"]] - one["began"]) * 1000 for one in took]
    print(f"| {len(took)}, {how} | {shares(ours)} | {shares(theirs)} | {shares([a / b for a, b in zip(ours, theirs)], 3)} |", flush=True)


def alone(cluster, claims, pools, count):
    """One claim at a time beside the Python package, in turns of the whole."""
    if not os.path.isdir(os.path.join(PACKAGES, "k8s_agent_sandbox")):
        print("not run: the Python package: it is not in the cache of the tests")
        return
    command = cluster.inside("env", environment(cluster), f"PYTHONPATH={PACKAGES}", sys.executable, "-c", PEER, POOL, NAMESPACE, str(SINGLE))
    ours, theirs = [], []
    for _ in range(2):
        pools.until_full(count)
        # Not here, where a file is called like one of its packages.
        theirs += json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=cluster.scratch).stdout.splitlines()[-1])
        pools.until_full(count)
        ours += [one["ready_ms"] for one in run(cluster, claims, SINGLE, "in turns")["claims"]]
    print("| one claim at a time, fake nodes | of | p50, p90, p99 ms |\n| --- | ---: | --- |")
    print(f"| agent-sandbox (Rust) | {len(ours)} | {shares(ours)} |\n| k8s-agent-sandbox (Python) | {len(theirs)} | {shares(theirs)} |\n", flush=True)


def shares(values, digits=0):
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return ", ".join(f"{cuts[share - 1]:.{digits}f}" for share in (50, 90, 99))


def settled(cluster, wanted):
    deadline = time.monotonic() + 60
    while (found := cluster.counts(NAMESPACE)) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    return found
