//! A stand-in for an apiserver, for what a real one cannot be made to show on demand: it answers each request with what
//! the test says, and can cut a stream wherever the test wants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use agent_sandbox::{AgentSandbox, Version};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: HashMap<String, String>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    pub(crate) fn from(&self) -> &str {
        self.query.get("resourceVersion").map_or("", String::as_str)
    }
}

pub(crate) enum Answer {
    Json(u16, Value),
    /// These pieces, then the connection breaks without an end.
    Cut(Vec<String>),
    /// These pieces, then silence.
    Hold(Vec<String>),
}

pub(crate) struct StandIn {
    pub(crate) client: AgentSandbox,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    /// `answer` gets the request and how many with the same method, path and kind (watch or not) came before.
    pub(crate) async fn start(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (asked.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (log.clone(), answer.clone());
                tokio::spawn(async move { serve(stream, &log, &*answer).await });
            }
        });
        let url = format!("http://{address}").parse().expect("a URL");
        let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
        Self { client: AgentSandbox::with_version(client, "ns", Version::V1Beta1), asked, task }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("the log").clone()
    }

    pub(crate) fn watches(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::is_watch).collect()
    }
}

async fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, answer: &(dyn Fn(&Asked, usize) -> Answer + Send + Sync)) {
    let mut stream = BufReader::new(stream);
    let Some(asked) = read(&mut stream).await else { return };
    let before = {
        let mut log = log.lock().expect("the log");
        let same =
            |one: &&Asked| one.method == asked.method && one.path == asked.path && one.is_watch() == asked.is_watch();
        let before = log.iter().filter(same).count();
        log.push(asked.clone());
        before
    };
    let (pieces, hold) = match answer(&asked, before) {
        Answer::Json(status, body) => {
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + &body).as_bytes()).await;
            let _ = stream.shutdown().await;
            return;
        }
        Answer::Cut(pieces) => (pieces, false),
        Answer::Hold(pieces) => (pieces, true),
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).await;
    for piece in pieces {
        let _ = stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await;
    }
    let _ = stream.flush().await;
    if hold {
        // Until the client goes away.
        let _ = stream.read(&mut [0; 1]).await;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
    Some(Asked {
        method,
        path: path.to_owned(),
        query: query.collect(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}

pub(crate) fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

pub(crate) fn list(version: &str, items: &[Value]) -> Answer {
    Answer::Json(
        200,
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
    )
}

pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

/// A claim `c`, without a condition when `reason` is empty, ready when it is `DependenciesReady`.
pub(crate) fn claim(uid: &str, version: &str, reason: &str) -> Value {
    let mut claim = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": "c", "namespace": "ns", "uid": uid, "resourceVersion": version, "generation": 1},
        "spec": {"warmPoolRef": {"name": "p"}}
    });
    if !reason.is_empty() {
        let ready = reason == "DependenciesReady";
        claim["status"] = json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
            "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]});
        if ready {
            claim["status"]["sandbox"] = json!({"name": "p-x7k2p", "podIPs": ["10.0.0.1"]});
        }
    }
    claim
}
