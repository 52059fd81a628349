"""A cluster to measure on, and two witnesses: a watch of its own that stamps what it sees, and the API server's record of requests."""
import collections, datetime, json, os, shutil, subprocess, sys, tempfile, threading

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.path.join(HERE, "..", "tests", "cluster", "cluster")
EXTENSIONS = "/apis/extensions.agents.x-k8s.io/v1beta1"
# Whatever a sandbox may leave behind.
KINDS = ["sandboxclaims", "sandboxes", "pods", "persistentvolumeclaims", "services", "networkpolicies"]
READY_AT = "agents.x-k8s.io/claim-first-ready-at"
# The controller's word for a claim that was ready before it looked.
UNKNOWN = "unknown"
# A process that does nothing else, so that a busy reader does not make the controller look slow.
STAMP = "import sys, time\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(b'%d ' % time.time_ns() + line); sys.stdout.buffer.flush()"


class Cluster:
    """Made for this and removed afterwards, unless a directory names one that is there (with `--kwok` and `--audit`)."""

    def __init__(self, binary, directory=None):
        self.binary, self.own = binary, directory is None
        self.scratch = tempfile.mkdtemp(prefix="sandbar-bench-")
        self.dir = directory or os.path.join(self.scratch, "c")

    def __enter__(self):
        try:
            if self.own:
                self.tool("needs")
                self.tool("up", self.dir, "--kwok", "--audit")
            machine = subprocess.run([os.path.join(os.path.dirname(TOOL), "machine")], check=True, capture_output=True, text=True).stdout.strip()
            self.tool("image", self.dir, "sandbar.test/machine:1", "--rootfs", machine, "--user", "1000", "--entrypoint", "/bin/bash")
            self.tool("image", self.dir, "sandbar.test/sandbar:1", "--file", f"{self.binary}:/sandbar", "--user", "1000", "--entrypoint", "/sandbar")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.own:
            self.tool("down", self.dir)
        shutil.rmtree(self.scratch, ignore_errors=True)

    @staticmethod
    def tool(*arguments):
        subprocess.run([TOOL, *arguments], check=True, stdout=subprocess.DEVNULL)

    def inside(self, *command):
        return [TOOL, "run", self.dir, "--", *command]

    def kubectl(self, *arguments, stdin=None):
        done = subprocess.run(self.inside("kubectl", *arguments), input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def counts(self, namespace):
        """Without what belongs to a template, which stays for an hour after it was last used."""
        listed = json.loads(self.kubectl("get", ",".join(KINDS), "-n", namespace, "-o", "json"))["items"]
        found = collections.Counter(one["kind"] for one in listed if not any(
            owner["kind"] == "SandboxTemplate" for owner in one["metadata"].get("ownerReferences", [])))
        return dict(sorted(found.items()))

    def account(self):
        """What `kubernetes manifests` gives a server elsewhere, and a kubeconfig of that account and no other."""
        values = os.path.join(self.scratch, "values.toml")
        with open(values, "w") as file:
            file.write("[server]\noutside = true\n")
        self.kubectl("apply", "-f", "-", stdin=subprocess.run(
            [self.binary, "kubernetes", "manifests", "--values", values], check=True, capture_output=True, text=True).stdout)
        token = self.kubectl("-n", "sandbar", "create", "token", "sandbar", "--duration", "24h").strip()
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
        kubeconfig = os.path.join(self.scratch, "kubeconfig")
        with open(kubeconfig, "w") as file:
            json.dump(config, file)
        return kubeconfig, "system:serviceaccount:sandbar:sandbar"

    def requests(self, user, spans):
        """What a user asked for, each request once, by the span of time it came in: `{name: (from, to)}` in seconds."""
        found, seen = {name: collections.Counter() for name in spans}, set()
        with open(os.path.join(self.dir, "log", "audit.log")) as lines:
            for line in lines:
                if user not in line:
                    continue
                event = json.loads(line)
                if event["user"]["username"] != user or event["auditID"] in seen:
                    continue
                seen.add(event["auditID"])
                at = when(event["requestReceivedTimestamp"])
                about = event.get("objectRef", {})
                what = "/".join(filter(None, [about.get("resource", event["requestURI"]), about.get("subresource")]))
                for name, (start, end) in spans.items():
                    if start <= at < end:
                        found[name][f"{event['verb']} {what}"] += 1
        return found


class Watch:
    """The objects of a kind, as somebody sees them who has no part in it."""

    def __init__(self, cluster, namespace, kind):
        self.cluster, self.path = cluster, f"{EXTENSIONS}/namespaces/{namespace}/{kind}"
        # When it was seen to be ready, and when the controller says that it was; missed is whose moment nobody saw.
        self.objects, self.ready, self.stamped, self.missed, self.changed = {}, {}, {}, set(), threading.Condition()
        self.processes, self.over = [], False
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.changed:
            self.over = True
            for process in self.processes:
                process.terminate()
        self.reader.join()

    def read(self):
        """An API server that is busy ends watches whose readers are slow: they are begun anew."""
        while self.begin():
            for line in self.processes[1].stdout:
                stamp, _, text = line.partition(b" ")
                try:
                    event = json.loads(text)
                except ValueError:
                    break
                if event["type"] == "ERROR":
                    break
                self.take(int(stamp) / 1e9, event["type"], event["object"])
            for process in self.processes:
                process.terminate()
                process.wait()

    def begin(self):
        """With what there is, and then what changes."""
        listed = json.loads(self.cluster.kubectl("get", "--raw", self.path))
        command = self.cluster.inside("kubectl", "get", "--raw", f"{self.path}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")
        with self.changed:
            if self.over:
                return False
            self.objects.clear()
            for one in listed["items"]:
                self.take(None, "LISTED", one)
            asking = subprocess.Popen(command, stdout=subprocess.PIPE)
            stamping = subprocess.Popen([sys.executable, "-c", STAMP], stdin=asking.stdout, stdout=subprocess.PIPE)
            asking.stdout.close()
            self.processes = [asking, stamping]
            return True

    def take(self, at, kind, found):
        name = found["metadata"]["name"]
        with self.changed:
            if kind == "DELETED":
                self.objects.pop(name, None)
            else:
                self.objects[name] = found
            conditions = found.get("status", {}).get("conditions", [])
            if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions) and name not in self.ready:
                if at is None:
                    self.missed.add(name)
                elif name not in self.missed:
                    self.ready[name] = at
            said = found["metadata"].get("annotations", {}).get(READY_AT, UNKNOWN)
            if said != UNKNOWN:
                self.stamped.setdefault(name, when(said))
            self.changed.notify_all()

    def until(self, what, condition, seconds=600):
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self.objects), seconds):
                raise RuntimeError(f"waited {seconds} s for {what}")

    def until_full(self, size):
        def full(pools):
            return any(pool.get("status", {}).get("readyReplicas", 0) >= size for pool in pools.values())
        self.until(f"a pool of {size}", full)


def when(text):
    return datetime.datetime.fromisoformat(text).timestamp()
