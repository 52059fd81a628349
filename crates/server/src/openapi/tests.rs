use std::collections::BTreeSet;

use sandbar_api::Code;
use serde_json::Value;

use super::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What no operation answers, and who says it instead.
const ELSEWHERE: [(Code, &str); 6] = [
    (Code::UnknownRoute, "where there is no operation"),
    (Code::MethodNotAllowed, "where there is no operation"),
    (Code::NotController, "frames of an attached terminal"),
    (Code::BadLimit, "nobody now"),
    (Code::BadGatewayConfig, "nobody now"),
    (Code::UnknownPool, "nobody now"),
];

#[test]
fn the_checked_in_document_is_current() -> Outcome {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json");
    let current = text()?;
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(path, &current)?;
    }
    let checked_in = std::fs::read_to_string(path)?;
    let hint = "openapi.json is stale: run `UPDATE_OPENAPI=1 cargo test -p sandbar-server openapi`";
    assert!(checked_in == current, "{hint}");
    Ok(())
}

/// What the page shows must be a request that works.
#[test]
fn examples_of_requests_are_requests() -> Outcome {
    let document = serde_json::to_value(openapi())?;
    let example = |name: &str| document["components"]["schemas"][name]["example"].clone();
    serde_json::from_value::<sandbar_api::CreateSandbox>(example("CreateSandbox"))?;
    serde_json::from_value::<sandbar_api::CreateSession>(example("CreateSession"))?;
    serde_json::from_value::<sandbar_api::StartProcess>(example("StartProcess"))?;
    serde_json::from_value::<sandbar_api::ExecRequest>(example("ExecRequest"))?;
    serde_json::from_value::<sandbar_api::CreateToken>(example("CreateToken"))?;
    serde_json::from_value::<sandbar_api::TerminalSize>(example("TerminalSize"))?;
    serde_json::from_value::<sandbar_api::AddRules>(example("AddRules"))?;
    serde_json::from_value::<sandbar_api::SetSecret>(example("SetSecret"))?;
    serde_json::from_value::<sandbar_api::AnswerApproval>(example("AnswerApproval"))?;
    serde_json::from_value::<sandbar_api::SetBudget>(example("SetBudget"))?;
    Ok(())
}

#[test]
fn operations_are_complete_and_uniquely_named() {
    let mut document = openapi();
    let mut seen = BTreeSet::new();
    for (path, item) in &mut document.paths.paths {
        for (_, operation) in operations(item) {
            let id = operation.operation_id.clone().unwrap_or_default();
            assert!(operation.summary.as_ref().is_some_and(|summary| !summary.is_empty()), "{path} {id}: summary");
            assert!(operation.tags.as_ref().is_some_and(|tags| tags.len() == 1), "{path} {id}: one tag");
            for tag in operation.tags.iter().flatten() {
                assert!(TAGS.iter().any(|(name, _)| name == tag), "{path} {id}: {tag} is described");
            }
            assert!(seen.insert(id.clone()), "{path}: {id} twice");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() -> Outcome {
    let document = serde_json::to_value(openapi())?;
    let mut references = BTreeSet::new();
    collect(&document, &mut references);
    assert!(references.len() > 50, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').ok_or("outside")?;
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    Ok(())
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| collect(value, references));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

#[test]
fn codes_are_those_of_the_wire() -> Outcome {
    let document = serde_json::to_value(openapi())?;
    let stated: Vec<String> = serde_json::from_value(document["components"]["schemas"]["Code"]["enum"].clone())?;
    let sent: Vec<String> = serde_json::from_value(serde_json::to_value(Code::ALL)?)?;
    assert_eq!(stated, sent);
    Ok(())
}

/// Also catches a code that a handler answers and nobody stated, for as long as it is new.
#[test]
fn codes_stand_at_their_status_and_each_stands_somewhere() {
    let mut document = openapi();
    let mut stated = BTreeSet::new();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            for (status, response) in &operation.responses.responses {
                let RefOr::T(response) = response else { continue };
                for word in response.description.split('`').skip(1).step_by(2) {
                    let Some(code) = Code::ALL.iter().find(|code| code.as_str() == word) else { continue };
                    assert_eq!(status, &code.status().to_string(), "{method} {path}: {word}");
                    stated.insert(word.to_owned());
                }
            }
        }
    }
    for code in Code::ALL {
        let elsewhere = ELSEWHERE.iter().any(|(other, _)| other == code);
        assert!(stated.contains(code.as_str()) != elsewhere, "{}: stated or not?", code.as_str());
    }
}
