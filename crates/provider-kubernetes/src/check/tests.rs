//! What the report says of clusters that are not as they should be, with a stand-in that answers like an API server. What a
//! real cluster answers is tried in `tests/check.rs`, and what one without the CRDs does in `tests/bare.rs` of the program.

mod rights;

use std::{io, path::PathBuf, sync::Arc};

use sandbar_api::{ClusterCheck, ClusterReport, Verdict};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::Settings;

type Answers = dyn Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync;

struct StandIn {
    place: TempDir,
    address: String,
}

impl StandIn {
    async fn start(answers: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let answers: Arc<Answers> = Arc::new(answers);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answers)));
            }
        });
        Ok(Self { place: tempfile::tempdir()?, address })
    }

    fn kubeconfig(&self) -> io::Result<PathBuf> {
        kubeconfig(&self.place, &self.address)
    }
}

fn kubeconfig(place: &TempDir, address: &str) -> io::Result<PathBuf> {
    let path = place.path().join("config");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{ "name": "here", "cluster": { "server": address } }],
        "users": [{ "name": "somebody", "user": { "token": "expired-or-not" } }],
        "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "somebody" } }],
    });
    std::fs::write(&path, text.to_string())?;
    Ok(path)
}

/// One request after the other on a connection, each with its whole body.
async fn serve(stream: TcpStream, answers: Arc<Answers>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (status, answer) = answers(method, path, &serde_json::from_slice(&body).unwrap_or(Value::Null));
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        // At once: the second of two small writes would wait for an acknowledgement of the first.
        stream.write_all((head + &answer).as_bytes()).await?;
        stream.flush().await?;
    }
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, body)
}

/// A cluster in which everything that can be looked at is as it should be.
fn good(method: &str, path: &str, body: &Value) -> (u16, Value) {
    let path = path.split('?').next().unwrap_or(path);
    let list = |group: &str, version: &str, kind: &str, items: Value| json!({ "apiVersion": format!("{group}{version}"), "kind": format!("{kind}List"), "metadata": {}, "items": items });
    let resources = |group: &str, names: &[&str]| {
        let resources: Vec<_> = names
            .iter()
            .map(|name| json!({ "name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": ["get"] }))
            .collect();
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1beta1"), "resources": resources })
    };
    let answer = match (method, path) {
        ("GET", "/version") => json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "", "buildDate": "",
            "goVersion": "", "compiler": "", "platform": "",
        }),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews") => json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": { "userInfo": { "username": "somebody" } },
        }),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
            "spec": body["spec"], "status": { "allowed": true },
        }),
        ("GET", "/apis") => groups(),
        ("GET", "/apis/agents.x-k8s.io/v1beta1") => resources("agents.x-k8s.io", &["sandboxes"]),
        ("GET", "/apis/extensions.agents.x-k8s.io/v1beta1") => {
            resources("extensions.agents.x-k8s.io", &["sandboxclaims", "sandboxtemplates", "sandboxwarmpools"])
        }
        ("GET", "/api/v1/namespaces/sandbar-sandboxes") => json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "sandbar-sandboxes", "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
        }),
        ("GET", "/apis/storage.k8s.io/v1/storageclasses") => list(
            "storage.k8s.io/",
            "v1",
            "StorageClass",
            json!([{
                "metadata": { "name": "disk", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
                "provisioner": "disk.example",
            }]),
        ),
        ("GET", "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/sandbar-sandboxes/sandboxwarmpools") => list(
            "extensions.agents.x-k8s.io/",
            "v1beta1",
            "SandboxWarmPool",
            json!([{
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
                "metadata": { "name": "sandbar-python-1" },
                "spec": { "replicas": 2, "sandboxTemplateRef": { "name": "sandbar-python-1" } },
                "status": { "replicas": 2, "readyReplicas": 1 },
            }]),
        ),
        _ => return status(404, "NotFound", &format!("{method} {path} is not here")),
    };
    (200, answer)
}

fn groups() -> Value {
    let group = |name: &str| {
        let served = json!({ "groupVersion": format!("{name}/v1beta1"), "version": "v1beta1" });
        json!({ "name": name, "versions": [served], "preferredVersion": served })
    };
    let groups = [group("agents.x-k8s.io"), group("extensions.agents.x-k8s.io")];
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

async fn looked(kubeconfig: PathBuf, context: Option<&str>, asked: ClusterCheck) -> ClusterReport {
    let settings = Settings {
        kubeconfig: Some(kubeconfig),
        context: context.map(Into::into),
        ..Settings::new("instance", vec!["key".into()])
    };
    super::run(&settings, &asked, &CancellationToken::new()).await
}

fn look_only() -> ClusterCheck {
    ClusterCheck { look_only: true, ..ClusterCheck::default() }
}

#[track_caller]
fn says(report: &ClusterReport, check: &str, verdict: Verdict, words: &str) {
    let found = report.findings.iter().find(|finding| finding.check == check);
    let Some(finding) = found else { panic!("nothing is said of {check}: {report:#?}") };
    assert_eq!(finding.verdict, verdict, "{finding:?}");
    assert!(finding.evidence.contains(words), "{finding:?}");
    assert!(verdict != Verdict::Red || finding.fix.is_some(), "there is no fix: {finding:?}");
}

#[tokio::test]
async fn a_cluster_that_is_as_it_should_be_is_usable_and_what_was_not_seen_is_grey() -> io::Result<()> {
    let cluster = StandIn::start(good).await?;
    let report = looked(cluster.kubeconfig()?, None, look_only()).await;
    assert!(report.usable(), "{report:#?}");
    says(&report, "API server", Verdict::Green, "1.36.3");
    says(&report, "credentials", Verdict::Green, "somebody");
    says(&report, "permissions: sandboxclaims", Verdict::Green, "create, get, list, watch, patch, delete");
    says(&report, "permissions: pods/portforward", Verdict::Green, "create");
    says(&report, "agent-sandbox", Verdict::Green, "v1beta1");
    says(&report, "pod security", Verdict::Green, "restricted");
    says(&report, "storage class", Verdict::Green, "disk is the default");
    says(&report, "pools", Verdict::Red, "sandbar-python-1 1/2");
    for check in ["controller", "guest image", "sandbox image", "pods", "network policy"] {
        says(&report, check, Verdict::Grey, "not observed");
    }
    Ok(())
}

#[tokio::test]
async fn pools_of_another_server_are_not_ours() -> io::Result<()> {
    let cluster = StandIn::start(|method, path, body| {
        let (code, mut answer) = good(method, path, body);
        // What `good` has is somebody else's.
        if path.contains("/sandboxwarmpools?") && path.contains("instance") {
            assert!(path.contains("sandbar.dev%2Finstance%3Down"), "{path}");
            answer["items"] = json!([]);
        }
        (code, answer)
    })
    .await?;
    let kubeconfig = cluster.kubeconfig()?;
    let looked = async |instance: &str| {
        let settings = Settings { kubeconfig: Some(kubeconfig.clone()), ..Settings::new(instance, Vec::new()) };
        super::run(&settings, &look_only(), &CancellationToken::new()).await
    };
    says(&looked("own").await, "pools", Verdict::Grey, "nothing is kept warm");
    let evidence = "not all are ready (of every Sandbar in the namespace): sandbar-python-1 1/2";
    says(&looked("").await, "pools", Verdict::Red, evidence);
    Ok(())
}

#[tokio::test]
async fn no_cluster_is_told_with_the_way_to_one() -> io::Result<()> {
    let place = tempfile::tempdir()?;
    let missing = looked(place.path().join("nothing"), None, look_only()).await;
    says(&missing, "API server", Verdict::Red, "nothing");
    says(&missing, "credentials", Verdict::Grey, "not observed");
    says(&missing, "network policy", Verdict::Grey, "not observed");
    assert!(!missing.usable());

    let cluster = StandIn::start(good).await?;
    let elsewhere = looked(cluster.kubeconfig()?, Some("there"), look_only()).await;
    says(&elsewhere, "API server", Verdict::Red, "there");

    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let refused = looked(kubeconfig(&place, &format!("http://{free}"))?, None, look_only()).await;
    says(&refused, "API server", Verdict::Red, "refused");

    std::fs::write(place.path().join("config"), "clusters: [")?;
    let torn = looked(place.path().join("config"), None, look_only()).await;
    says(&torn, "API server", Verdict::Red, "");
    Ok(())
}

#[tokio::test]
async fn expired_credentials_are_told_from_a_cluster_that_is_away() -> io::Result<()> {
    let cluster = StandIn::start(|_, _, _| status(401, "Unauthorized", "Unauthorized")).await?;
    let report = looked(cluster.kubeconfig()?, None, ClusterCheck::default()).await;
    says(&report, "API server", Verdict::Green, "answers");
    says(&report, "credentials", Verdict::Red, "Unauthorized");
    says(&report, "controller", Verdict::Grey, "does not let us in");
    assert!(!report.usable());
    Ok(())
}

#[tokio::test]
async fn one_verb_that_is_missing_is_named_and_nothing_is_made() -> io::Result<()> {
    let cluster = StandIn::start(|method, path, body| {
        assert!(!path.contains("/namespaces/") || method == "GET", "{method} {path}");
        let asked = &body["spec"]["resourceAttributes"];
        let (code, mut answer) = good(method, path, body);
        if asked["resource"] == "sandboxclaims" && asked["verb"] == "patch" {
            answer["status"]["allowed"] = json!(false);
        }
        (code, answer)
    })
    .await?;
    let report = looked(cluster.kubeconfig()?, None, ClusterCheck::default()).await;
    says(&report, "permissions: sandboxclaims", Verdict::Red, "may not patch");
    says(&report, "permissions: sandboxtemplates", Verdict::Green, "patch");
    says(&report, "controller", Verdict::Grey, "a permission is missing");
    assert!(!report.usable());
    Ok(())
}

#[tokio::test]
async fn what_a_template_would_use_has_to_be_there() -> io::Result<()> {
    let cluster = StandIn::start(|method, path, body| match path.split('?').next() {
        Some("/api/v1/namespaces/sandbar-sandboxes") => status(404, "NotFound", "no such namespace"),
        Some("/apis/storage.k8s.io/v1/storageclasses") => status(403, "Forbidden", "you may not list these"),
        _ => good(method, path, body),
    })
    .await?;
    let asked = ClusterCheck { runtime_class: Some("gvisor".into()), ..ClusterCheck::default() };
    let report = looked(cluster.kubeconfig()?, None, asked).await;
    says(&report, "namespace", Verdict::Red, "sandbar-sandboxes");
    says(&report, "storage class", Verdict::Grey, "you may not list these");
    says(&report, "runtime class", Verdict::Red, "gvisor");
    says(&report, "network policy", Verdict::Grey, "RuntimeClass");
    Ok(())
}
