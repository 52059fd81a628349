//! What goes over the wire for rules, secrets, approvals and budgets: method, path, query and body, as the server takes
//! them.

use std::{path::Path, time::Duration};

use sandbar_api::{
    AddRules, AnswerApproval, ApprovalState, CreateSession, Effect, RestartSession, SetBudget, SetSecret, UsageBy,
};
use sandbar_client::{ApprovalQuery, Client, EventFilter, SessionQuery, UsageQuery};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const NETWORK: &str = r#"{"rules":[],"secrets":[]}"#;
const SECRET: &str =
    r#"{"name":"A","hosts":["h"],"as":"body","created_at":"2026-01-01T00:00:00Z","changed_at":"2026-01-01T00:00:00Z"}"#;
const BUDGET: &str = r#"{"session":"ses-00000000000000000000000000","limits":{},"tokens_used":0,"tokens_reserved":0,"usd_used":0,"usd_reserved":0}"#;
const SESSION: &str = r#"{"id":"ses-00000000000000000000000000","owner":"socket","state":"active","labels":{},"created_at":"2026-01-01T00:00:00Z","sandboxes":[],"open_approvals":0,"budget":{"tokens_used":0,"usd_used":0,"limits":{}},"terminals":[]}"#;
const PROCESS: &str = r#"{"id":"prc-00000000000000000000000000","sandbox":"sbx-00000000000000000000000000","argv":["sh"],"cwd":"/","terminal":true,"state":"running","started_at":"2026-01-01T00:00:00Z","output":{"start":0,"end":0}}"#;
const APPROVAL: &str = r#"{"id":"apr-00000000000000000000000000","kind":"network","state":"open","session":"ses-00000000000000000000000000","question":"?","choices":[],"context":{},"answerable_by":"operator","created_at":"2026-01-01T00:00:00Z","deadline":"2026-01-01T00:00:00Z","on_deadline":"deny"}"#;

/// Answers one request with `body`, and returns its first line and its body.
async fn answer_one(socket: &Path, body: &str) -> std::io::Result<String> {
    let listener = UnixListener::bind(socket)?;
    let (mut stream, _) = listener.accept().await?;
    let (mut read, mut whole) = (Vec::new(), None);
    while whole.is_none_or(|whole| read.len() < whole) {
        if stream.read_buf(&mut read).await? == 0 {
            break;
        }
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        whole = head.map(|head| {
            let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            head + 4 + length.unwrap_or(0)
        });
    }
    let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).await?;
    std::fs::remove_file(socket)?;
    let text = String::from_utf8_lossy(&read).into_owned();
    let (head, sent) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let first = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
    Ok(format!("{first} {sent}").trim_end().to_owned())
}

#[tokio::test]
async fn requests_are_as_the_server_takes_them() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let client = Client::unix(&socket)?;
    macro_rules! sends {
        ($call:expr, $answer:expr, $want:expr) => {{
            let call = async {
                while !socket.exists() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                $call.await
            };
            let (sent, outcome) = tokio::join!(answer_one(&socket, $answer), call);
            assert_eq!(sent?, $want);
            outcome?
        }};
    }

    let rules = AddRules { effect: Effect::Ask, rules: vec!["a.b GET /x".into()] };
    let path = "/v1/sandboxes/box/network";
    sends!(client.network("box"), NETWORK, format!("GET {path}"));
    let body = r#"{"effect":"ask","rules":["a.b GET /x"]}"#;
    sends!(client.add_rules("box", &rules), NETWORK, format!("POST {path}/rules {body}"));
    sends!(client.remove_rule("box", "a.b GET /x&y"), NETWORK, format!("DELETE {path}/rules?rule=a.b+GET+%2Fx%26y"));
    sends!(client.grant_secret("box", "../A"), NETWORK, "PUT /v1/sandboxes/box/secrets/..%2FA");
    sends!(client.revoke_secret("box", "A"), NETWORK, "DELETE /v1/sandboxes/box/secrets/A");

    let secret = SetSecret { hosts: vec!["h".into()], placement: "body".into(), value: None };
    sends!(client.set_secret("A", &secret), SECRET, r#"PUT /v1/secrets/A {"hosts":["h"],"as":"body"}"#);
    assert_eq!(sends!(client.secrets(), r#"{"secrets":[]}"#, "GET /v1/secrets"), []);
    sends!(client.remove_secret("A"), "", "DELETE /v1/secrets/A");

    let query =
        ApprovalQuery { states: vec![ApprovalState::Open, ApprovalState::Expired], sandbox: None, limit: Some(3) };
    sends!(client.approvals(&query), r#"{"approvals":[]}"#, "GET /v1/approvals?state=open&state=expired&limit=3");
    let wait = Some(Duration::from_secs(30));
    sends!(client.approval("apr-x", wait), APPROVAL, "GET /v1/approvals/apr-x?wait=30s");
    let answer = AnswerApproval { choice: "once".into(), text: None };
    let want = r#"POST /v1/approvals/apr-x/answer {"choice":"once"}"#;
    sends!(client.answer_approval("apr-x", &answer), APPROVAL, want);

    let limits = SetBudget { tokens: Some(5), usd: None, per_minute: None };
    sends!(client.budget("box"), BUDGET, "GET /v1/sessions/box/budget");
    sends!(client.set_budget("box", &limits), BUDGET, r#"PUT /v1/sessions/box/budget {"tokens":5}"#);
    sends!(client.switch_model("box", Some("m")), BUDGET, r#"PUT /v1/sessions/box/model {"model":"m"}"#);
    sends!(client.switch_model("box", None), BUDGET, "PUT /v1/sessions/box/model {}");
    let request =
        CreateSession { name: Some("a".into()), command: Some(vec!["sh".into()]), ..CreateSession::default() };
    sends!(client.create_session(&request, Some("k")), SESSION, r#"POST /v1/sessions {"name":"a","command":["sh"]}"#);
    let labels = [("task".to_owned(), "4 2".to_owned())].into();
    let query = SessionQuery { labels, ended: true, limit: Some(3), cursor: Some("ses-x".into()) };
    let want = "GET /v1/sessions?label=task%3D4+2&ended=true&limit=3&cursor=ses-x";
    sends!(client.session_page(&query), r#"{"sessions":[]}"#, want);
    let again = RestartSession { process: Some("prc-00000000000000000000000001".parse()?) };
    let want = r#"POST /v1/sessions/a/restart {"process":"prc-00000000000000000000000001"}"#;
    sends!(client.restart_session("a", &again), PROCESS, want);
    sends!(client.session("a/b"), SESSION, "GET /v1/sessions/a%2Fb");
    sends!(client.delete_session("a"), "", "DELETE /v1/sessions/a");
    let from = Some("2026-11-01T00:00:00Z".parse()?);
    let query = UsageQuery { by: UsageBy::Day, of: Some("box".into()), from, ..UsageQuery::default() };
    let report = r#"{"by":"day","from":"2026-11-01T00:00:00Z","to":"2026-11-02T00:00:00Z","rows":[],"total":{"calls":0,"estimated":0,"input_tokens":0,"cached_input_tokens":0,"output_tokens":0,"total_tokens":0,"usd":0}}"#;
    let want = "GET /v1/usage?by=day&of=box&from=2026-11-01T00%3A00%3A00.000Z";
    sends!(client.usage(&query), report, want);

    let filter = EventFilter { sandbox: Some("box".into()), kinds: vec!["net.".into(), "llm.".into()] };
    let want = "GET /v1/events?from=3&sandbox=box&type=net.%2Cllm.&limit=9";
    sends!(client.event_page_matching(3, Some(9), &filter), r#"{"events":[]}"#, want);
    Ok(())
}
