//! What gets out, and above all what does not.

use chrono::SubsecRound as _;
use sandbar_api::{ApprovalAnswer, ApprovalState, Role, SessionId};
use serde_json::json;

use super::*;
use crate::store::{ApprovalStore as _, GateStore as _, gate::FactRow, sqlite::SqliteStore, suite::new_sandbox};

type Tested = Result<(), Box<dyn std::error::Error>>;

/// In every place that must not be told.
const SECRET: &str = "s3cret";

fn approval(kind: ApprovalKind, sandbox: &SandboxId, question: &str, context: Value) -> Approval {
    let now = Utc::now().trunc_subsecs(6);
    Approval {
        id: ApprovalId::from_parts(7, [7; 10]),
        kind,
        state: ApprovalState::Open,
        session: SessionId::from_parts(1, [1; 10]),
        sandbox: Some(sandbox.clone()),
        question: question.into(),
        choices: vec![Choice::new("yes", "Yes, go on"), Choice::new("text", "x".repeat(500))],
        takes_text: true,
        context,
        answerable_by: Role::Operator,
        created_at: now,
        deadline: now + chrono::TimeDelta::minutes(10),
        on_deadline: "none".into(),
        answer: None,
        delivery: None,
        reason: None,
        closed_at: None,
    }
}

async fn told(store: &SqliteStore) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let mut told = Vec::new();
    for event in store.events(0, 100, None).await? {
        if event.kind.starts_with("approval.") || event.kind.starts_with("process.") {
            told.push(serde_json::to_value(Notice::of(&event, "msg_whk-x", store).await?)?);
        }
    }
    Ok(told)
}

#[tokio::test]
async fn a_terminals_question_is_told_without_screen_command_keys_and_answer() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let store = SqliteStore::open(home.path()).await?;
    let row = new_sandbox("one");
    let sandbox = row.row.sandbox.id.clone();
    store.create_sandbox(row).await?;
    let context = json!({
        "process": "prc-1", "prompt": "password", "command": format!("curl -H {SECRET}"), "screen": SECRET,
        "keys": { "yes": SECRET }, "output": 7, "input": 9, "another": SECRET,
    });
    let asked = approval(ApprovalKind::Terminal, &sandbox, &"Überall? ".repeat(100), context);
    store.open_approval(&asked).await?;
    let text = Some(SECRET.to_owned());
    let answer = ApprovalAnswer { choice: "text".into(), text, masked: false, by: "socket".into(), at: Utc::now() };
    store.answer_approval(&asked.id, answer, None).await?;
    let told = told(&store).await?;
    assert_eq!(told.len(), 2);
    assert!(!serde_json::to_string(&told)?.contains(SECRET), "{told:?}");
    let (opened, answered) = (&told[0], &told[1]);
    assert_eq!(opened["id"], "msg_whk-x_3", "two events of the sandbox came before");
    assert_eq!((&opened["type"], &answered["type"]), (&json!("approval.opened"), &json!("approval.answered")));
    assert_eq!(opened["data"]["sandbox"], sandbox.as_str());
    assert_eq!(opened["data"]["session"], asked.session.as_str());
    let question = &opened["data"]["approval"];
    assert_eq!(question["context"], json!({ "process": "prc-1", "prompt": "password" }));
    assert_eq!(question["question"].as_str().map(|text| text.chars().count()), Some(400));
    assert_eq!(question["choices"][0], json!({ "id": "yes", "label": "Yes, go on" }));
    assert_eq!(question["choices"][1]["label"].as_str().map(|text| text.chars().count()), Some(200));
    assert_eq!(question["deadline"], json!(asked.deadline));
    let expected = json!(["open", true, "none", null]);
    assert_eq!(
        json!([question["state"], question["takes_text"], question["on_deadline"], question["choice"]]),
        expected
    );
    let question = &answered["data"]["approval"];
    let expected = json!(["answered", "socket", "text"]);
    assert_eq!(json!([question["state"], question["answered_by"], question["choice"]]), expected);
    Ok(())
}

#[tokio::test]
async fn a_requests_path_is_not_told_and_a_connections_question_is() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let store = SqliteStore::open(home.path()).await?;
    let row = new_sandbox("one");
    let sandbox = row.row.sandbox.id.clone();
    store.create_sandbox(row).await?;
    let context = json!({ "host": "api.example", "port": 443, "method": "POST", "path": format!("/bot{SECRET}/x"),
        "rule": "api.example", "header": SECRET });
    let question = format!("Allow \"one\" to send POST /bot{SECRET}/x to api.example?");
    let mut asked = approval(ApprovalKind::Network, &sandbox, &question, context);
    store.open_approval(&asked).await?;
    asked.id = ApprovalId::from_parts(8, [8; 10]);
    asked.question = "Allow \"one\" to connect to api.example?".into();
    asked.context = json!({ "host": "api.example", "port": 443, "rule": "api.example" });
    store.open_approval(&asked).await?;
    store.withdraw_approvals(&sandbox).await?;
    let told = told(&store).await?;
    assert!(!serde_json::to_string(&told)?.contains(SECRET), "{told:?}");
    let told: Vec<_> = told.iter().map(|told| &told["data"]["approval"]).collect();
    assert_eq!(told[0]["question"], "Allow \"one\" to send a request to api.example:443?");
    assert_eq!(told[0]["context"], json!({ "host": "api.example", "port": 443 }));
    assert_eq!(told[1]["question"], asked.question);
    assert_eq!((&told[2]["state"], &told[2]["choice"]), (&json!("withdrawn"), &Value::Null));
    Ok(())
}

#[tokio::test]
async fn of_all_else_only_whose_it_is_is_told() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let store = SqliteStore::open(home.path()).await?;
    let row = new_sandbox("one");
    let (sandbox, session) = (row.row.sandbox.id.clone(), row.row.sandbox.session.clone());
    store.create_sandbox(row).await?;
    let data = json!({ "argv": [SECRET], "runs": 5, "exit": { "code": 3, "reason": SECRET }, "approval": SECRET });
    store.append_facts(vec![FactRow { kind: "process.crash_loop", sandbox: sandbox.clone(), data }]).await?;
    let told = told(&store).await?;
    let about = json!({ "session": session.as_str(), "sandbox": sandbox.as_str(), "runs": 5, "exit_code": 3 });
    assert_eq!(told.iter().map(|told| &told["data"]).collect::<Vec<_>>(), [&about]);
    Ok(())
}

#[test]
fn what_is_unknown_is_left_out() {
    let data = json!({ "approval": "apr-x", "kind": "network", "question": "?", "context": { "host": ["a"] } });
    let event = Event { seq: 1, at: Utc::now(), kind: "approval.expired".into(), sandbox: None, process: None, data };
    let asked = Asked::of(&event, None, None);
    assert_eq!((asked.state.as_str(), asked.deadline, asked.context), ("expired", None, json!({})));
    assert!(asked.choices.is_empty());
}
