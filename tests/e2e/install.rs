//! An installation as an operator makes it, on a real cluster: what `sandbar kubernetes manifests` prints, the Secrets that
//! its first lines ask for, two servers on one PostgreSQL behind a Service, and nothing left when it is taken away.

use std::{
    fs,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::support::{Outcome, cluster::Cluster, database::Database, done, program, text};

const PATIENCE: Duration = Duration::from_secs(300);

/// What an operator says of a vendor.
const GATEWAY: &str = "[upstream.vendor]\nformat = \"openai\"\nurl = \"https://llm.example\"\nsecret = \"VENDOR_KEY\"\n\n\
    [model.tiny]\nupstream = \"vendor\"\nmax_output = 1000\ninput_usd = 1\noutput_usd = 2\n";

/// Two namespaces, which go with everything in them.
struct Installation {
    cluster: Cluster,
    server: String,
    sandboxes: String,
    /// What was applied.
    manifests: String,
    place: tempfile::TempDir,
    url: String,
    token: String,
}

fn until<T>(what: &str, mut found: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn fed(command: &mut Command, input: &str) -> Outcome<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}{}", text(&output.stdout), text(&output.stderr)).into());
    }
    Ok(text(&output.stdout))
}

impl Installation {
    fn new(cluster: Cluster, database: &Database) -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let (server, sandboxes) =
            (format!("i-{}-server", std::process::id()), format!("i-{}-sandboxes", std::process::id()));
        let Cluster { image, guest_image, .. } = &cluster;
        let values = format!(
            "image_pull_policy = \"IfNotPresent\"\n[server]\nnamespace = {server:?}\nimage = {guest_image:?}\n\
             [store]\nkind = \"postgresql\"\n\
             [sandboxes]\nnamespace = {sandboxes:?}\nimage = {image:?}\nguest_image = {guest_image:?}\n"
        );
        let file = place.path().join("values.toml");
        fs::write(&file, values)?;
        let gateway = place.path().join("gateway.toml");
        fs::write(&gateway, GATEWAY)?;
        let mut printing = Command::new(program());
        printing.args(["kubernetes", "manifests", "--values"]).arg(&file).arg("--config").arg(&gateway);
        let manifests = done(printing.env("HOME", "/"))?;
        let (url, token) = Default::default();
        let mut new = Self { cluster, server, sandboxes, manifests, place, url, token };
        fed(&mut new.cluster.kubectl(&["apply", "-f", "-"]), &new.manifests)?;
        new.secrets(database)?;
        new.kubectl(&["-n", &new.server, "rollout", "status", "deployment/sandbar", "--timeout=180s"])?;
        new.token = new.leader()?.1;
        new.served()?;
        Ok(new)
    }

    /// Nodes hear a moment later of who stands behind a Service; one answer may be by luck.
    fn served(&self) -> Outcome {
        let mut answers = 0;
        until("the Service answers", || {
            answers = if self.command(&["ls"]).output()?.status.success() { answers + 1 } else { 0 };
            Ok((answers == 5).then_some(()))
        })
    }

    /// By the very commands that the first lines of the manifests tell.
    fn secrets(&mut self, database: &Database) -> Outcome {
        let address =
            self.kubectl(&["-n", &self.server, "get", "service", "sandbar", "-o", "jsonpath={.spec.clusterIP}"])?;
        self.url = format!("https://{address}:7227");
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([address])?.self_signed(&key)?;
        fs::write(self.file("cert.pem"), certificate.pem())?;
        fs::write(self.file("key.pem"), key.serialize_pem())?;
        fs::write(self.file("secret.key"), [7; 32])?;
        let told = self.manifests.lines().filter_map(|line| line.strip_prefix("#   kubectl "));
        let told: Vec<String> = told.filter_map(|line| Some(line.split('#').next()?.trim().to_owned())).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        for line in told {
            let line = line.replace("postgresql://…", &database.url());
            done(self.cluster.kubectl(&line.split(' ').collect::<Vec<_>>()).current_dir(self.place.path()))?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.place.path().join(name)
    }

    fn kubectl(&self, arguments: &[&str]) -> Outcome<String> {
        done(&mut self.cluster.kubectl(arguments))
    }

    /// The pod that leads, known by the socket that answers in it, and a token made there.
    fn leader(&self) -> Outcome<(String, String)> {
        let create = ["--", "/sandbar", "token", "create", "--name", "operator", "--role", "admin"];
        until("a server leads", || {
            for pod in self.kubectl(&["-n", &self.server, "get", "pods", "-o", "name"])?.lines() {
                let exec = ["-n", &self.server, "exec", "-c", "server", pod];
                let made = self.cluster.kubectl(&[&exec[..], &create].concat()).output()?;
                if made.status.success() {
                    return Ok(Some((pod.to_owned(), text(&made.stdout).trim().to_owned())));
                }
            }
            Ok(None)
        })
    }

    /// Through the Service, over TLS.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(["--server", &self.url]).args(arguments).env("SANDBAR_TOKEN", &self.token);
        command.env("SSL_CERT_FILE", self.file("cert.pem"));
        command
    }

    fn sandbar(&self, arguments: &[&str]) -> Outcome<String> {
        done(&mut self.command(arguments))
    }

    fn pod_address(&self, claim: &str) -> Outcome<String> {
        let pod = self.kubectl(&[
            "-n",
            &self.sandboxes,
            "get",
            "sandboxclaim",
            claim,
            "-o",
            "jsonpath={.status.sandbox.name}",
        ])?;
        self.kubectl(&["-n", &self.sandboxes, "get", "pod", &pod, "-o", "jsonpath={.status.podIP}"])
    }

    fn role(&self) -> String {
        format!("sandbar-{}", self.server)
    }

    fn rules(&self) -> Outcome<Vec<Value>> {
        let role = self.kubectl(&["-n", &self.sandboxes, "get", "role", &self.role(), "-o", "json"])?;
        let role: Value = serde_json::from_str(&role)?;
        Ok(role["rules"].as_array().ok_or("no rules")?.clone())
    }

    fn set_rules(&self, rules: &[Value]) -> Outcome {
        let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
        self.kubectl(&["-n", &self.sandboxes, "patch", "role", &self.role(), "--type=json", "-p", &patch])?;
        Ok(())
    }

    /// Without one verb of the Role this fails, and says who refused; with it again it works.
    fn expect_needed(&self, resource: &str, verb: &str, arguments: &[&str]) -> Outcome {
        let rules = self.rules()?;
        let mut fewer = rules.clone();
        let rule = fewer.iter_mut().find(|rule| rule["resources"][0] == resource).ok_or("no such rule")?;
        rule["verbs"].as_array_mut().ok_or("no verbs")?.retain(|one| one != verb);
        assert_ne!(fewer, rules, "{verb} {resource} is not granted");
        // A rule that grants nothing is none.
        fewer.retain(|rule| rule["verbs"].as_array().is_some_and(|verbs| !verbs.is_empty()));
        self.set_rules(&fewer)?;
        // The API server hears of a changed Role a moment later.
        let account = format!("--as=system:serviceaccount:{}:sandbar", self.server);
        until("the right is gone", || {
            let asked = ["-n", &self.sandboxes, "auth", "can-i", verb, resource, &account];
            Ok((!self.cluster.kubectl(&asked).output()?.status.success()).then_some(()))
        })?;
        let tried = self.command(arguments).output()?;
        let said = text(&tried.stderr);
        self.set_rules(&rules)?;
        assert!(!tried.status.success(), "{verb} {resource} is not needed for {arguments:?}");
        assert!(said.contains(&format!("not permitted to {verb} {resource}")), "{said}");
        until("the right is back", || {
            let asked = ["-n", &self.sandboxes, "auth", "can-i", verb, resource, &account];
            Ok(self.cluster.kubectl(&asked).output()?.status.success().then_some(()))
        })
    }

    fn remove(&self) -> Outcome {
        fed(&mut self.cluster.kubectl(&["delete", "--timeout=180s", "-f", "-"]), &self.manifests).map(drop)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = ["-n", &self.server, "logs", "-l", "app.kubernetes.io/component=server", "--all-containers"];
            let _told = self.cluster.kubectl(&logs).stdout(std::io::stderr()).status();
        }
        for kind in ["clusterrole", "clusterrolebinding"] {
            let name = format!("sandbar-{}", self.server);
            let _gone = self.cluster.kubectl(&["delete", kind, &name, "--ignore-not-found"]).output();
        }
        let gone = ["delete", "namespace", &self.server, &self.sandboxes, "--ignore-not-found", "--wait=false"];
        let _gone = self.cluster.kubectl(&gone).output();
    }
}

/// Where pods reach a database beside the cluster: the node's own address.
fn node(cluster: &Cluster) -> Outcome<Ipv4Addr> {
    let path = "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}";
    Ok(done(&mut cluster.kubectl(&["get", "nodes", "-o", path]))?.parse()?)
}

#[test]
fn an_installation_serves_survives_and_goes_without_a_trace() -> Outcome {
    let test = "an_installation_serves_survives_and_goes_without_a_trace";
    let Some(cluster) = Cluster::or_not_run(test) else { return Ok(()) };
    let Some(database) = Database::or_not_run(test, node(&cluster)?)? else { return Ok(()) };
    let there = Installation::new(cluster, &database)?;

    let id = there.sandbar(&["create", "--name", "a"])?.trim().to_owned();
    assert_eq!(there.sandbar(&["exec", "a", "--", "sh", "-c", "echo kept >/workspace/k; id -u"])?.trim(), "1000");
    there.sandbar(&["stop", "a"])?;
    there.sandbar(&["start", "a"])?;
    assert_eq!(there.sandbar(&["exec", "a", "--", "cat", "/workspace/k"])?.trim(), "kept");

    expect_sealed(&there, &id, &database)?;
    expect_configured(&there)?;

    let leader = there.leader()?.0;
    let exec = ["-n", &there.server, "exec", "-c", "server", &leader, "--", "/sandbar", "kubernetes", "check"];
    // On a busy machine the cluster may once take longer than the check waits.
    let mut report = there.kubectl(&exec);
    if report.as_ref().map_or(true, |report| report.contains('✗')) {
        report = there.kubectl(&exec);
    }
    let report = report?;
    assert!(report.contains("this cluster can hold sandboxes") && !report.contains('✗'), "{report}");
    assert!(report.contains(&format!("namespace {}", there.sandboxes)), "{report}");

    there.expect_needed("sandboxclaims", "create", &["create", "--name", "b"])?;
    // One of its own: a stop that was asked for is done as soon as it can be, also by the next server.
    there.sandbar(&["create", "--name", "c"])?;
    there.expect_needed("sandboxes", "patch", &["stop", "c"])?;

    there.kubectl(&["-n", &there.server, "delete", &leader, "--grace-period=0", "--force"])?;
    let next = until("another leads", || {
        let (next, _) = there.leader()?;
        Ok((next != leader).then_some(next))
    })?;
    assert_ne!(next, leader);
    there.served()?;
    assert_eq!(there.sandbar(&["exec", "a", "--", "cat", "/workspace/k"])?.trim(), "kept");

    there.sandbar(&["rm", "a", "c"])?;
    until("no claim is left", || {
        let left = there.kubectl(&["-n", &there.sandboxes, "get", "sandboxclaims", "-o", "name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    there.remove()?;
    for kind in ["namespaces", "clusterroles", "clusterrolebindings", "persistentvolumes"] {
        let shown = "jsonpath={range .items[*]}{.metadata.name} {.spec.claimRef.namespace}{\"\\n\"}{end}";
        let ours = |line: &str| line.contains(&there.server) || line.contains(&there.sandboxes);
        // Volumes go after the claims on them.
        until(&format!("none of our {kind} is left"), || {
            Ok((!there.kubectl(&["get", kind, "-o", shown])?.lines().any(ours)).then_some(()))
        })?;
    }
    Ok(())
}

/// What was brought along is read, and the image has certificate authorities to judge vendors by.
fn expect_configured(there: &Installation) -> Outcome {
    let shown = there.sandbar(&["model", "ls"])?;
    assert!(shown.contains("tiny") && shown.contains("https://llm.example"), "{shown}");
    let logs = ["-n", &there.server, "logs", "-l", "app.kubernetes.io/component=server", "-c", "server", "--tail=-1"];
    let logs = there.kubectl(&logs)?;
    // Who may read it would be an admin.
    assert!(!logs.contains("#code="), "a sign-in link is in a pod's log: {logs}");
    assert!(logs.contains("7227") && !logs.contains("no certificate authority is trusted"), "{logs}");
    Ok(())
}

/// Nobody but the server comes in, and nothing goes out: also not to what the node itself offers.
fn expect_sealed(there: &Installation, id: &str, database: &Database) -> Outcome {
    let guest = there.pod_address(id)?;
    let at = database.url();
    let (_, place) = at.rsplit_once('@').ok_or("no address")?;
    let place = place.trim_end_matches("/postgres").replace(':', "/");
    let reach = format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{place}' && echo reached || echo refused");
    assert_eq!(there.sandbar(&["exec", "a", "--", "bash", "-c", &reach])?.trim(), "refused");

    // A stranger in the cluster, who can reach what is open to strangers.
    let stranger = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger", "namespace": there.server},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "stranger", "image": there.cluster.image, "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "600"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    fed(&mut there.cluster.kubectl(&["apply", "-f", "-"]), &stranger.to_string())?;
    there.kubectl(&["-n", &there.server, "wait", "--for=condition=Ready", "pod/stranger", "--timeout=180s"])?;
    let knock = |place: &str| -> Outcome<String> {
        let script = format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{place}' && echo reached || echo refused");
        let exec = ["-n", &there.server, "exec", "stranger", "--", "bash", "-c", &script];
        Ok(there.kubectl(&exec)?.lines().last().unwrap_or_default().to_owned())
    };
    // Who enforces policies learns of a pod a moment after it is ready.
    until("the stranger reaches something", || Ok((knock(&place)? == "reached").then_some(())))?;
    let port = format!("{guest}/7229");
    assert_eq!(knock(&port)?, "refused");
    // With a policy that admits everybody it is reached: policies are what refused. Deleting them would show nothing, since
    // the controller makes the template's anew.
    let open = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "open", "namespace": there.sandboxes},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 7229}]}]},
    });
    fed(&mut there.cluster.kubectl(&["apply", "-f", "-"]), &open.to_string())?;
    until("the guest is reached", || Ok((knock(&port)? == "reached").then_some(())))?;
    there.kubectl(&["-n", &there.sandboxes, "delete", "networkpolicy", "open"])?;
    until("the guest is sealed again", || Ok((knock(&port)? == "refused").then_some(())))?;
    there.kubectl(&["-n", &there.server, "delete", "pod", "stranger", "--grace-period=0", "--force"])?;
    Ok(())
}
