//! Webhooks end to end: a real server, a receiver on loopback that the operator listed, and a verifier that is not ours.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Outcome, Server, done, installed, program, quiet_port, text};

#[derive(Debug, Clone)]
struct Got {
    headers: BTreeMap<String, String>,
    body: String,
}

impl Got {
    fn id(&self) -> &str {
        self.headers.get("webhook-id").map_or("", String::as_str)
    }

    fn told(&self) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.body)?)
    }
}

/// Answers each request with the next of its answers, the last one for ever; an empty one is never given.
struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

const OK: &str = "HTTP/1.1 204 No Content\r\n\r\n";

impl Receiver {
    fn start(answers: &[&str]) -> Outcome<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0")?, answers)
    }

    fn on(listener: TcpListener, answers: &[&str]) -> Outcome<Self> {
        let (address, got) = (listener.local_addr()?, Arc::<Mutex<Vec<Got>>>::default());
        let (seen, answers) = (got.clone(), answers.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for (turn, client) in listener.incoming().enumerate() {
                let Ok(mut client) = client else { return };
                let Ok(request) = read(&mut client) else { continue };
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                let answer = &answers[turn.min(answers.len() - 1)];
                // Whoever has gone meanwhile misses its answer.
                let _ = client.write_all(answer.as_bytes());
                if answer.is_empty() {
                    held.push(client);
                }
            }
        });
        Ok(Self { address, got })
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait(&self, count: usize) -> Outcome<Vec<Got>> {
        until("deliveries", || Ok(Some(self.got()).filter(|got| got.len() >= count)))
    }
}

fn read(client: &mut TcpStream) -> Outcome<Got> {
    client.set_read_timeout(Some(Duration::from_secs(300)))?;
    let mut lines = BufReader::new(client);
    let (mut headers, mut line) = (BTreeMap::new(), String::new());
    lines.read_line(&mut line)?;
    assert_eq!(line, "POST /hook HTTP/1.1\r\n");
    loop {
        line.clear();
        lines.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").ok_or("no length")?.parse()?;
    let mut body = vec![0; length];
    lines.read_exact(&mut body)?;
    Ok(Got { headers, body: String::from_utf8(body)? })
}

fn until<T>(what: &str, mut look: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Loopback is listed.
fn server() -> Outcome<Server> {
    Server::start_furnished(program(), |home| {
        Ok(fs::write(home.join("gateway.toml"), "[network]\nprivate = [\"127.0.0.0/8\"]\n")?)
    })
}

fn sandbar(server: &Server, arguments: &[&str]) -> Outcome<String> {
    done(&mut server.command(arguments))
}

/// Adds it, and gives back its secret.
fn add(server: &Server, url: &str) -> Outcome<String> {
    let secret = sandbar(server, &["webhook", "add", url, "--name", "pager", "--kind", "token."])?;
    Ok(secret.trim().to_owned())
}

fn shown(server: &Server) -> Outcome<Value> {
    Ok(serde_json::from_str(&sandbar(server, &["--json", "webhook", "show", "pager"])?)?)
}

/// Something that is told: an event without a sandbox.
fn happen(server: &Server, name: &str) -> Outcome {
    sandbar(server, &["token", "create", "--name", name, "--role", "viewer"])?;
    Ok(())
}

fn verifies(place: &Path, secret: &str, got: &Got) -> Outcome<bool> {
    let script = "import json, sys\nfrom standardwebhooks import Webhook\n\
        told = json.load(sys.stdin)\nWebhook(told['secret']).verify(told['body'], told['headers'])\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).env("PYTHONPATH", place).stdin(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn()?;
    let told = serde_json::json!({ "secret": secret, "headers": got.headers, "body": got.body });
    child.stdin.take().ok_or("no stdin")?.write_all(told.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    let said = text(&output.stderr);
    assert!(output.status.success() || said.contains("WebhookVerificationError"), "{said}");
    Ok(output.status.success())
}

#[test]
fn somebody_elses_verifier_takes_the_signature_and_nothing_else() -> Outcome {
    const NAME: &str = "somebody_elses_verifier_takes_the_signature_and_nothing_else";
    let (server, receiver) = (server()?, Receiver::start(&[OK])?);
    let secret = add(&server, &receiver.url())?;
    assert_eq!(sandbar(&server, &["webhook", "test", "pager"])?, "");
    happen(&server, "ci")?;
    let got = receiver.wait(2)?;
    let kinds: Vec<Value> = got.iter().map(|got| serde_json::from_str(&got.body)).collect::<Result<_, _>>()?;
    assert_eq!((&kinds[0]["type"], &kinds[1]["type"]), (&"webhook.test".into(), &"token.created".into()));
    assert_eq!(kinds[1]["id"], got[1].id());
    assert_eq!(kinds[1]["data"], serde_json::json!({}), "an event's own data stays here");
    assert!(got[1].id().starts_with("msg_whk-") && got[1].headers["content-type"] == "application/json");
    let Some(place) = installed(NAME, "standardwebhooks") else { return Ok(()) };
    let verify = |secret: &str, got: &Got| verifies(&place, secret, got);
    for got in &got {
        assert!(verify(&secret, got)?);
        let changed = Got { body: got.body.replace("token", "Token").replace("test", "Test"), ..got.clone() };
        assert!(!verify(&secret, &changed)?, "a changed body");
        let mut moved = got.clone();
        moved.headers.insert("webhook-id".into(), "msg_another".into());
        assert!(!verify(&secret, &moved)?, "another id");
        assert!(!verify("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", got)?, "another secret");
    }
    Ok(())
}

#[test]
fn a_server_killed_while_delivering_delivers_again_with_the_same_id() -> Outcome {
    let (mut server, receiver) = (server()?, Receiver::start(&["", OK])?);
    add(&server, &receiver.url())?;
    happen(&server, "one")?;
    receiver.wait(1)?;
    happen(&server, "two")?;
    server.kill()?;
    server.restart()?;
    let got = receiver.wait(3)?;
    assert_eq!(got[0].id(), got[1].id());
    assert_ne!(got[1].id(), got[2].id());
    assert_eq!(got[0].body, got[1].body);
    let told =
        until("it is written down", || Ok(Some(shown(&server)?).filter(|told| told["delivered_at"].is_string())))?;
    assert_eq!(told["state"], "ok");
    Ok(())
}

#[test]
fn a_target_that_is_down_is_shown_and_caught_up_with() -> Outcome {
    let server = server()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, quiet_port(Ipv4Addr::LOCALHOST)?));
    add(&server, &format!("http://{address}/hook"))?;
    for name in ["one", "two"] {
        happen(&server, name)?;
    }
    let failing = until("it fails", || Ok(Some(shown(&server)?).filter(|told| told["state"] == "failing")))?;
    let told = failing["last_error"].as_str().unwrap_or_default();
    assert!(told.contains("connection refused") && told.contains(&address.to_string()), "{told}");
    let listed = sandbar(&server, &["webhook", "ls"])?;
    assert!(listed.contains("failing for") && listed.contains("connection refused"), "{listed}");
    let test = server.command(&["webhook", "test", "pager"]).output()?;
    assert_eq!((test.status.code(), text(&test.stderr).contains("connection refused")), (Some(1), true));

    let receiver = Receiver::on(TcpListener::bind(address)?, &[OK])?;
    let got = receiver.wait(2)?;
    assert!(got[0].id() < got[1].id(), "in order: {got:?}");
    until("it is well again", || Ok(Some(()).filter(|()| shown(&server).is_ok_and(|told| told["state"] == "ok"))))
}

#[test]
fn redirects_and_the_servers_own_address_are_refused_and_gone_is_gone() -> Outcome {
    let server = server()?;
    let inner = Receiver::start(&[OK])?;
    let redirect = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", inner.url());
    let receiver = Receiver::start(&[&redirect, "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"])?;
    add(&server, &receiver.url())?;
    happen(&server, "one")?;
    let disabled = until("it is disabled", || Ok(Some(shown(&server)?).filter(|told| told["state"] == "disabled")))?;
    assert!(disabled["last_error"].as_str().is_some_and(|told| told.contains("410")));
    assert_eq!((receiver.got().len(), inner.got().len()), (2, 0));
    let events = sandbar(&server, &["--json", "events"])?;
    assert!(events.contains("webhook.disabled") && !events.contains("/hook"), "{events}");

    let own = format!("{}/v1/tokens", server.base()?);
    sandbar(&server, &["webhook", "add", &own, "--name", "self"])?;
    let test = server.command(&["webhook", "test", "self"]).output()?;
    let said = text(&test.stderr);
    assert!(test.status.code() == Some(1) && said.contains("this server itself"), "{said}");
    sandbar(&server, &["webhook", "rm", "self", "pager"])?;
    assert_eq!(sandbar(&server, &["--json", "webhook", "ls"])?.trim(), "{\"webhooks\":[]}");
    Ok(())
}

#[test]
fn removing_cuts_off_what_hangs() -> Outcome {
    let (server, receiver) = (server()?, Receiver::start(&[""])?);
    add(&server, &receiver.url())?;
    happen(&server, "one")?;
    receiver.wait(1)?;
    let began = Instant::now();
    sandbar(&server, &["webhook", "rm", "pager"])?;
    // By itself a delivery gives up after 30 s.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    let missing = server.command(&["webhook", "show", "pager"]).output()?;
    assert_eq!(missing.status.code(), Some(4), "{}", text(&missing.stderr));
    Ok(())
}

/// The control of all others: without the list the same receiver gets nothing.
#[test]
fn what_is_not_listed_gets_nothing() -> Outcome {
    let (server, receiver) = (Server::start()?, Receiver::start(&[OK])?);
    add(&server, &receiver.url())?;
    let test = server.command(&["webhook", "test", "pager"]).output()?;
    let said = text(&test.stderr);
    assert!(
        test.status.code() == Some(1) && said.contains("private ones only where the operator lists them"),
        "{said}"
    );
    assert!(receiver.got().is_empty());
    let gateway = server.home.path().join("gateway.toml");
    fs::write(gateway, "[network]\nprivate = [\"127.0.0.1/32\"]\n")?;
    until("the list is read", || Ok(sandbar(&server, &["webhook", "test", "pager"]).ok()))?;
    assert!(!receiver.got().is_empty());
    Ok(())
}

/// What one receiver got, by type.
fn kinds(got: &[Got]) -> Outcome<Vec<String>> {
    got.iter().map(|got| Ok(got.told()?["type"].as_str().ok_or("no type")?.to_owned())).collect()
}

/// Whatever else is told, this is not.
fn expect_kept_here(got: &[Got], secrets: &[&str]) {
    for got in got {
        for secret in secrets.iter().chain(&["\"screen\":", "\"keys\":", "\"text\":", "\"argv\":", "\"env\":"]) {
            assert!(!got.body.contains(secret), "{secret}: {}", got.body);
        }
    }
}

#[test]
fn who_is_asked_is_told_and_what_was_answered_stays_here() -> Outcome {
    const NAME: &str = "who_is_asked_is_told_and_what_was_answered_stays_here";
    let (server, all, usual) = (server()?, Receiver::start(&[OK])?, Receiver::start(&[OK])?);
    let secret = sandbar(&server, &["webhook", "add", &all.url(), "--name", "all", "--kind", "approval."])?;
    sandbar(&server, &["webhook", "add", &usual.url(), "--name", "usual"])?;
    let script = "echo painted-before; read -r -p 'Deploy to production? [y/N] ' answer; \
        read -r -p 'Name of the release: ' name; echo \"took <$answer> <$name>\"; exec sleep 1000";
    let begin = ["session", "new", "-d", "--name", "box", "-e", "HUSH=from-the-env", "--", "bash", "-c", script];
    sandbar(&server, &begin)?;

    let opened = all.wait(1)?[0].told()?;
    let session: Value = serde_json::from_str(&sandbar(&server, &["--json", "session", "show", "box"])?)?;
    let (about, asked) = (&opened["data"], &opened["data"]["approval"]);
    assert_eq!((&opened["type"], &about["session"]), (&"approval.opened".into(), &session["id"]));
    assert_eq!(about["process"], session["terminals"][0]["process"]);
    assert_eq!((&asked["kind"], &asked["state"]), (&"terminal".into(), &"open".into()));
    assert_eq!(asked["question"], "Deploy to production? [y/N]");
    assert_eq!(asked["context"], serde_json::json!({ "process": about["process"], "prompt": "yes_no" }));
    let (id, choice) = (asked["id"].as_str().ok_or("no id")?, asked["choices"][0]["id"].as_str().ok_or("no choice")?);
    sandbar(&server, &["answer", id, "--choice", choice])?;

    // The next question is one for words.
    let asked = all.wait(4)?[3].told()?["data"]["approval"].take();
    assert_eq!((&asked["question"], &asked["takes_text"]), (&"Name of the release:".into(), &true.into()));
    sandbar(&server, &["answer", asked["id"].as_str().ok_or("no id")?, "said-in-words"])?;
    let got = all.wait(6)?;
    let steps = ["approval.opened", "approval.answered", "approval.typed"];
    assert_eq!(kinds(&got)?, [steps, steps].concat());
    let answered = got[1].told()?["data"]["approval"].take();
    assert_eq!((&answered["id"], &answered["state"]), (&id.into(), &"answered".into()));
    assert_eq!((&answered["choice"], answered["answered_by"].is_string()), (&choice.into(), true));
    until("it was typed", || {
        Ok(Some(())
            .filter(|()| sandbar(&server, &["screen", "box"]).is_ok_and(|seen| seen.contains("<said-in-words>"))))
    })?;
    let fewer = usual.wait(4)?;
    assert_eq!(kinds(&fewer)?, [&steps[..2], &steps[..2]].concat(), "typing is told to who asks for it");
    for got in [&got, &fewer] {
        expect_kept_here(got, &["painted-before", "said-in-words", "from-the-env", "sleep 1000", "took <"]);
    }
    let Some(place) = installed(NAME, "standardwebhooks") else { return Ok(()) };
    for got in &got {
        assert!(verifies(&place, secret.trim(), got)?);
    }
    Ok(())
}

#[test]
fn what_keeps_dying_is_told_once_without_its_command_and_its_screen() -> Outcome {
    let (server, receiver) = (server()?, Receiver::start(&[OK])?);
    sandbar(&server, &["webhook", "add", &receiver.url(), "--name", "pager"])?;
    let script = "echo painted-before; exit $((1 + 2))";
    let begin = ["session", "new", "-d", "--name", "box", "--restart", "on-failure", "-e", "HUSH=from-the-env"];
    sandbar(&server, &[&begin[..], &["--", "sh", "-c", script]].concat())?;
    let told = receiver.wait(1)?[0].told()?;
    let session: Value = serde_json::from_str(&sandbar(&server, &["--json", "session", "show", "box"])?)?;
    let flagged = &session["crash_loops"][0];
    assert_eq!(told["type"], "process.crash_loop");
    let expected = serde_json::json!({
        "session": session["id"], "sandbox": flagged["sandbox"], "process": flagged["process"], "runs": 5, "exit_code": 3,
    });
    assert_eq!(told["data"], expected);
    // In order: nothing of it comes after what comes later.
    sandbar(&server, &["webhook", "test", "pager"])?;
    let got = receiver.got();
    assert_eq!(kinds(&got)?, ["process.crash_loop", "webhook.test"]);
    expect_kept_here(&got, &["painted-before", "from-the-env", "exit $"]);
    Ok(())
}
