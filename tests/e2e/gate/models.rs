//! The vendors' own Python packages against a scripted vendor: what they do through the gate, and what they make of a
//! budget that is used up.

#[path = "../../../crates/gateway/tests/suite/support/upstream.rs"]
#[expect(dead_code, reason = "the gateway's own tests use the rest")]
mod upstream;

use serde_json::Value;

use upstream::Upstream;

use crate::{
    gate::house::{House, Running, python_packages, until},
    gate::roots::Roots,
    gate::secrets::{expect_nowhere, expect_nowhere_inside},
    support::Outcome,
};

const OPENAI: &str = "sk-openai-key-that-stays-outside-5";
const ANTHROPIC: &str = "sk-ant-key-that-stays-outside-6";

struct Play {
    house: House,
    /// The packages, as a workspace.
    packages: String,
    upstream: Upstream,
    _runtime: tokio::runtime::Runtime,
}

/// A sandbox with the packages in its workspace, or nothing where they are not installed.
fn play(test: &str) -> Outcome<Option<Play>> {
    let Some(packages) = python_packages(test) else { return Ok(None) };
    let runtime = tokio::runtime::Runtime::new()?;
    let upstream = runtime.block_on(Upstream::start(Some("llm.test")))?;
    let mut roots = Roots::new()?;
    roots.pem += upstream.certificate.as_deref().ok_or("no certificate")?;
    let port = upstream.address.port();
    let config = format!(
        "
[upstream.vendor]
format = \"openai\"
url = \"https://llm.test:{port}/v1\"
secret = \"OPENAI_API_KEY\"
cap_field = \"max_completion_tokens\"

[upstream.other]
format = \"anthropic\"
url = \"https://llm.test:{port}\"
secret = \"ANTHROPIC_API_KEY\"

[model.gpt-tiny]
upstream = \"vendor\"
max_output = 1000
image_tokens = 100
input_usd = 1
output_usd = 2

[model.gpt-other]
upstream = \"vendor\"
max_output = 1000
input_usd = 10
output_usd = 20

[model.embed-tiny]
upstream = \"vendor\"
input_usd = 1
output_usd = 0

[model.claude-tiny]
upstream = \"other\"
max_output = 1000
image_tokens = 100
input_usd = 3
output_usd = 15

[alias]
small = \"gpt-tiny\"
"
    );
    let house = House::with(roots, &[], &config)?;
    house.secret("OPENAI_API_KEY", "llm.test", "header:Authorization:Bearer {}", OPENAI)?;
    house.secret("ANTHROPIC_API_KEY", "llm.test", "header:X-Api-Key", ANTHROPIC)?;
    let packages = format!("{}:rw", packages.display());
    house.sandbar(&["create", "--name", "box", "--workspace", &packages])?;
    Ok(Some(Play { house, packages, upstream, _runtime: runtime }))
}

impl Play {
    fn begin(&self, sandbox: &str, script: &str, argument: &str) -> Outcome<Running> {
        let command = "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/workspace exec python3 - \"$0\"";
        let mut client = self.house.begin_with(sandbox, command, argument)?;
        client.tell(script)?;
        client.hush();
        Ok(client)
    }

    /// What a script printed: one JSON document.
    fn python(&self, script: &str, argument: &str) -> Outcome<Value> {
        self.python_in("box", script, argument)
    }

    fn python_in(&self, sandbox: &str, script: &str, argument: &str) -> Outcome<Value> {
        let said = self.begin(sandbox, script, argument)?.end()?;
        let parsed = serde_json::from_str(&said.out);
        Ok(parsed.map_err(|error| format!("{argument}: {error}: {said:?}"))?)
    }

    /// Input and output as the vendor counted them.
    fn vendors_count(&self) -> (u64, u64) {
        self.upstream.seen().iter().fold((0, 0), |(input, output), one| (input + one.input, output + one.output))
    }

    /// What was counted here is what the vendor counted.
    fn expect_same_count(&self) -> Outcome {
        let usage = self.house.json(&["usage", "box"])?;
        let (input, output) = self.vendors_count();
        let total = &usage["total"];
        assert_eq!((&total["input_tokens"], &total["output_tokens"]), (&input.into(), &output.into()), "{usage}");
        assert_eq!(total["estimated"], 0, "{usage}");
        let budget = self.house.json(&["budget", "show", "box"])?;
        assert_eq!(
            (&budget["tokens_used"], &budget["tokens_reserved"]),
            (&(input + output).into(), &0.into()),
            "{budget}"
        );
        Ok(())
    }

    fn expect_keys_outside(&self) -> Outcome {
        for (name, value) in [("OPENAI_API_KEY", OPENAI), ("ANTHROPIC_API_KEY", ANTHROPIC)] {
            expect_nowhere_inside(&self.house, "box", name, value)?;
            expect_nowhere(&self.house, value)?;
        }
        Ok(())
    }
}

#[test]
fn the_openai_package_works_and_every_token_is_counted() -> Outcome {
    let Some(play) = play("the_openai_package_works_and_every_token_is_counted")? else { return Ok(()) };
    let said = play.python(include_str!("openai_calls.py"), "calls")?;
    assert_eq!(said["chat"], "word0 word1 word2 ");
    assert_eq!(said["stream"], serde_json::json!(["word0 word1 word2 word3 ", "stop", false]));
    assert_eq!(said["stream_usage"], serde_json::json!([2, 4, 6]), "{said}");
    assert_eq!(said["tool"], serde_json::json!(["read_file", "{\"path\":\"/tmp/x\"}", "tool_calls"]));
    assert_eq!(said["tool_stream"], "{\"path\":\"/tmp/x\"}");
    assert_eq!(said["image"], 2 + 85, "{said}");
    assert_eq!(said["embedding"], serde_json::json!([64, 3]), "{said}");
    assert_eq!(said["response"], serde_json::json!(["word0 word1 ", "completed"]));
    assert_eq!(said["response_stream"], serde_json::json!(["word0 word1 ", "response.completed"]));
    assert_eq!(said["models"], serde_json::json!(["embed-tiny", "gpt-other", "gpt-tiny", "small"]), "{said}");
    assert_eq!(said["unknown"][0], serde_json::json!("NotFoundError"), "{said}");
    assert!(said["unknown"][1].as_str().is_some_and(|text| text.contains("no-such-model")), "{said}");
    assert_eq!(said["failed"][0], "InternalServerError", "{said}");
    assert_eq!(said["limited"][0], "RateLimitError", "{said}");
    let seen = play.upstream.seen();
    let key = format!("Bearer {OPENAI}");
    assert!(seen.iter().all(|one| one.headers.get("authorization").is_some_and(|value| value == &*key)), "{seen:?}");
    play.expect_same_count()?;

    // Another model of the same wire format, whatever the client asks for.
    play.house.sandbar(&["model", "set", "box", "gpt-other"])?;
    let said = play.python(include_str!("openai_calls.py"), "one")?;
    assert_eq!(said["model"], "gpt-other", "{said}");
    play.expect_same_count()?;
    play.expect_keys_outside()
}

#[test]
fn the_anthropic_package_works_and_every_token_is_counted() -> Outcome {
    let Some(play) = play("the_anthropic_package_works_and_every_token_is_counted")? else { return Ok(()) };
    let said = play.python(include_str!("anthropic_calls.py"), "calls")?;
    assert_eq!(said["message"], serde_json::json!(["word0 word1 word2 ", "end_turn", 2, 3]));
    assert_eq!(said["stream"], serde_json::json!(["word0 word1 word2 word3 ", "end_turn", 2, 4]), "{said}");
    assert_eq!(said["tool"], serde_json::json!(["read_file", {"path": "/tmp/x"}, "tool_use"]));
    assert_eq!(said["image"], 2 + 85, "{said}");
    assert_eq!(said["count"], 3, "{said}");
    assert_eq!(said["unknown"][0], "NotFoundError", "{said}");
    assert!(said["unknown"][1].as_str().is_some_and(|text| text.contains("no-such-model")), "{said}");
    assert_eq!(said["failed"][0], "ServiceUnavailableError", "{said}");
    assert_eq!(said["limited"][0], "RateLimitError", "{said}");
    let seen = play.upstream.seen();
    assert!(seen.iter().all(|one| one.headers.get("x-api-key").is_some_and(|value| value == ANTHROPIC)), "{seen:?}");
    play.expect_same_count()?;
    play.expect_keys_outside()
}

#[test]
fn over_budget_is_an_error_that_the_packages_show() -> Outcome {
    let Some(play) = play("over_budget_is_an_error_that_the_packages_show")? else { return Ok(()) };
    let scripts = [include_str!("openai_calls.py"), include_str!("anthropic_calls.py")];
    let session = play.house.json(&["budget", "show", "box"])?["session"].clone();
    for script in scripts {
        play.python(script, "one")?;
    }
    let used = play.house.json(&["budget", "show", "box"])?["tokens_used"].as_u64().ok_or("no number")?;
    let before = play.upstream.seen().len();
    play.house.sandbar(&["budget", "set", "box", "--tokens", &used.to_string()])?;
    for script in scripts {
        for way in ["one", "streamed"] {
            let said = play.python(script, way)?;
            let error = &said["error"];
            assert_eq!((&error[0], &error[2]), (&"APIStatusError".into(), &402.into()), "{said}");
            let told = error[1].as_str().ok_or("no message")?;
            assert!(told.contains(&format!("Session budget exceeded: {used}/{used} tokens")), "{told}");
            let body = &error[3];
            let body = if body["error"].is_object() { &body["error"] } else { body };
            assert_eq!((&body["code"], &body["session_id"]), (&"budget_exceeded".into(), &session), "{body}");
            assert_eq!((&body["tokens_used"], &body["tokens_budget"]), (&used.into(), &used.into()), "{body}");
        }
    }
    assert_eq!(play.upstream.seen().len(), before, "nothing was sent");

    // A rate is something else: it passes.
    play.house.sandbar(&["budget", "set", "box", "--tokens", "none", "--per-minute", "1100"])?;
    let (mut limited, mut calls) = (Value::Null, 0);
    while limited.is_null() && calls < 4 {
        limited = play.python(scripts[0], "heavy")?["error"].clone();
        calls += 1;
    }
    assert_eq!((&limited[0], &limited[2]), (&"RateLimitError".into(), &429.into()), "{limited}");
    assert!(
        limited[4].as_str().and_then(|text| text.parse::<u32>().ok()).is_some_and(|n| (1..=60).contains(&n)),
        "{limited}"
    );
    Ok(())
}

#[test]
fn a_client_that_goes_away_is_counted_to_the_end() -> Outcome {
    let Some(play) = play("a_client_that_goes_away_is_counted_to_the_end")? else { return Ok(()) };
    for script in [include_str!("openai_calls.py"), include_str!("anthropic_calls.py")] {
        let said = play.begin("box", script, "leave")?.end()?;
        assert_eq!(said.out, "begun\n", "{said:?}");
        assert_eq!(play.upstream.seen().last().map(|one| one.reported), Some(false), "it has hardly begun");
        until("the vendor has told what it used", || Ok(play.upstream.seen().iter().all(|one| one.reported)))?;
        until("it is settled", || Ok(play.house.json(&["budget", "show", "box"])?["tokens_reserved"] == 0))?;
        play.expect_same_count()?;
    }
    Ok(())
}

#[test]
fn what_a_killed_server_had_under_way_stays_counted() -> Outcome {
    let Some(mut play) = play("what_a_killed_server_had_under_way_stays_counted")? else { return Ok(()) };
    play.house.sandbar(&["budget", "set", "box", "--tokens", "5000"])?;
    let mut client = play.begin("box", include_str!("openai_calls.py"), "stay")?;
    assert_eq!(client.line()?, "begun");
    let held = play.house.json(&["budget", "show", "box"])?["tokens_reserved"].as_u64().ok_or("no number")?;
    assert!(held > 0);
    play.house.server.kill()?;
    play.house.server.restart()?;
    assert_ne!(client.end()?.code, Some(0), "its stream was cut off");
    let budget = play.house.json(&["budget", "show", "box"])?;
    assert_eq!((&budget["tokens_used"], &budget["tokens_reserved"]), (&held.into(), &0.into()), "{budget}");
    assert_eq!(budget["limits"]["tokens"], 5000);
    let usage = play.house.json(&["usage", "box"])?;
    assert_eq!((&usage["total"]["calls"], &usage["total"]["estimated"]), (&1.into(), &1.into()), "{usage}");
    let (input, output) = play.vendors_count();
    assert!(held >= input + output, "{held} is below what the vendor counted: {input} + {output}");
    Ok(())
}

#[test]
fn a_child_spends_its_parents_budget() -> Outcome {
    let Some(play) = play("a_child_spends_its_parents_budget")? else { return Ok(()) };
    let script = include_str!("openai_calls.py");
    play.house.sandbar(&["create", "--name", "child", "--parent", "box", "--workspace", &play.packages])?;
    assert_eq!(play.python_in("child", script, "one")?["error"], Value::Null);
    let of = |name: &str| play.house.json(&["budget", "show", name]);
    let (parent, child) = (of("box")?, of("child")?);
    let (input, output) = play.vendors_count();
    assert_eq!((&parent["tokens_used"], &child["tokens_used"]), (&(input + output).into(), &(input + output).into()));
    assert_eq!(child["parent"], parent["session"]);
    play.house.sandbar(&["budget", "set", "box", "--tokens", &(input + output).to_string()])?;
    let said = play.python_in("child", script, "one")?;
    assert_eq!((&said["error"][2], &said["error"][3]["session_id"]), (&402.into(), &parent["session"]), "{said}");
    Ok(())
}
