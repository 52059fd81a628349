//! `sandbar mcp`: the official client over its standard input and output, and what clients do wrong there.

mod talk;

use std::{fs, process::Command, time::Duration};

use serde_json::{Value, json};
use talk::{Talk, exec, stateless};

use crate::support::{Outcome, Server, done, installed, until};

fn with_sandbox() -> Outcome<Server> {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "own"]))?;
    Ok(server)
}

/// What runs in the sandbox besides its first process.
fn running(server: &Server) -> Outcome<String> {
    done(&mut server.command(&["exec", "own", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]))
}

#[test]
fn the_official_client_works_over_stdio_in_every_era() -> Outcome {
    let Some(package) = installed("the_official_client_works_over_stdio_in_every_era", "mcp") else { return Ok(()) };
    let server = with_sandbox()?;
    let home = server.home.path().display().to_string();
    for era in ["legacy", "2026-07-28", "auto"] {
        let mut client = Command::new("/usr/bin/python3");
        client
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/mcp/stdio.py"))
            .arg(era)
            .arg(crate::support::program());
        client.args(["mcp", "own", "--home", &home]);
        let said = done(client.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1"))?;
        assert!(said.ends_with("done\n"), "{era}: {said}");
    }
    Ok(())
}

#[test]
fn lines_that_are_no_messages_are_answered_and_harm_nothing() -> Outcome {
    let server = with_sandbox()?;
    let mut talk = Talk::start(&server, &["own"])?;
    for (garbage, code) in [
        (&b"garbage"[..], -32700),
        (b"\xff\xfe", -32700),
        (b"{\"jsonrpc\":\"2.0\"", -32700),
        (b"[]", -32600),
        (b"17", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", -32600),
    ] {
        talk.line(garbage)?;
        let told = talk.next()?;
        assert_eq!((&told["id"], &told["error"]["code"]), (&Value::Null, &json!(code)), "{told}");
    }
    // Too long for the server; the request is known all the same.
    let large =
        stateless(7, "tools/call", json!({"name": "write_file", "arguments": {"content": "x".repeat(5 << 20)}}));
    talk.send(&large)?;
    let told = talk.next()?;
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(7), &json!(-32600)), "{told}");
    talk.line(&vec![b'x'; 20 << 20])?;
    assert!(talk.next()?["id"].is_null());

    talk.send(&stateless(8, "no/such/method", json!({})))?;
    assert_eq!(talk.answer(8)?["error"]["code"], -32601);
    talk.send(&stateless(9, "tools/call", json!({"name": "grüß", "arguments": {}})))?;
    assert_eq!(talk.answer(9)?["error"]["code"], -32602, "the name reached the server as it is");
    talk.send(&json!({"jsonrpc": "2.0", "id": 10, "method": "tools/list"}))?;
    assert!(talk.answer(10)?["error"].is_object(), "a client that did not introduce itself");
    talk.send(&exec("e", "echo still here"))?;
    assert_eq!(talk.answer("e")?["result"]["structuredContent"]["stdout"], "still here\n");
    talk.end()
}

#[tokio::test]
async fn a_cancelled_call_takes_its_processes_along_and_is_not_answered() -> Outcome {
    let server = with_sandbox()?;
    for handshake in [true, false] {
        let mut talk = Talk::start(&server, &["own"])?;
        if handshake {
            talk.introduce()?;
        }
        let call = |id: i32, command: &str| if handshake { talk::plain_exec(id, command) } else { exec(id, command) };
        talk.send(&call(1, "setsid sleep 4321 & sleep 4321"))?;
        until("it runs", async || Ok(running(&server)?.matches("sleep 4321 ").count() > 1)).await?;
        talk.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))?;
        until("it is killed", async || Ok(!running(&server)?.contains("sleep 4321 "))).await?;
        talk.send(&call(2, "echo after"))?;
        let next = talk.next()?;
        assert_eq!(next["id"], 2, "{next}");
        talk.end()?;
    }
    Ok(())
}

#[test]
fn what_the_server_says_on_the_way_comes_before_the_answer() -> Outcome {
    let server = with_sandbox()?;
    for handshake in [true, false] {
        let mut talk = Talk::start(&server, &["own"])?;
        let command = "i=0; until [ -e told ]; do i=$((i+1)); echo $i; sleep 0.1; done; rm told";
        let mut call = if handshake { talk::plain_exec(1, command) } else { exec(1, command) };
        if handshake {
            talk.introduce()?;
        }
        call["params"]["_meta"]["progressToken"] = json!("p");
        talk.send(&call)?;
        let mut progress = vec![];
        loop {
            let message = talk.next()?;
            if message["id"] == 1 {
                let shown = message["result"]["structuredContent"]["stdout"].as_str().ok_or("no stdout")?;
                assert!(shown.lines().zip(1u64..).all(|(line, number)| line == number.to_string()), "{shown}");
                break;
            }
            assert_eq!(
                (&message["method"], &message["params"]["progressToken"]),
                (&json!("notifications/progress"), &json!("p"))
            );
            progress.push(message["params"]["progress"].as_f64().ok_or("no progress")?);
            // It runs until it was heard of twice, whenever that is.
            if progress.len() == 2 {
                done(&mut server.command(&["exec", "own", "touch", "told"]))?;
            }
        }
        assert!(progress.len() > 1 && progress.is_sorted_by(|one, next| one < next), "{progress:?}");
        talk.end()?;
    }
    // Unasked, too: skills come and go.
    let mut talk = Talk::start(&server, &["own"])?;
    talk.introduce()?;
    talk.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))?;
    talk.answer(1)?;
    talk.send(&talk::plain_exec(2, "mkdir -p .claude/skills/pdf; echo read > .claude/skills/pdf/SKILL.md"))?;
    let said = [talk.next()?, talk.next()?];
    assert!(said.iter().any(|message| message["method"] == "notifications/tools/list_changed"), "{said:?}");
    talk.end()
}

/// Has a client leave while its command sleeps for that long. What the server was told of is killed; whether it was, and
/// before clients use force.
async fn leaves(server: &Server, handshake: bool, seconds: u32) -> Outcome<bool> {
    let (command, sleeping) = (format!("setsid sleep {seconds} & sleep {seconds}"), format!("sleep {seconds} "));
    let mut talk = Talk::start(server, &["own"])?;
    if handshake {
        talk.introduce()?;
        talk.send(&talk::plain_exec(1, &command))?;
    } else {
        talk.send(&exec(1, &command))?;
    }
    until("it runs", async || Ok(running(server)?.matches(&sleeping).count() > 1)).await?;
    let took = talk.close()?;
    let told = talk.told_the_server();
    if told {
        until("it is killed", async || Ok(!running(server)?.contains(&sleeping))).await?;
    }
    eprintln!("left in {took:?}, told: {told}");
    Ok(told && took < Duration::from_secs(2))
}

/// Each of its times is short, as those of clients are: a machine that stood still is given another try.
#[tokio::test]
async fn the_end_of_input_leaves_nothing_running() -> Outcome {
    let server = with_sandbox()?;
    for (handshake, mut tries) in [(true, 43220..43225), (false, 43225..43230)] {
        while !leaves(&server, handshake, tries.next().ok_or("clients use force after two seconds")?).await? {}
    }
    // What only takes a moment is still answered: scripts pipe a few lines in.
    let (mut answer, mut tries) = (None, 0..5);
    while answer.is_none() {
        tries.next().ok_or("what was piped in is never answered")?;
        let mut talk = Talk::start(&server, &["own"])?;
        talk.send(&talk::HELLO.clone())?;
        talk.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        talk.send(&talk::plain_exec(2, "echo piped"))?;
        talk.close_input();
        answer = talk.answer(2).ok();
        talk.end()?;
    }
    assert_eq!(answer.unwrap_or_default()["result"]["structuredContent"]["stdout"], "piped\n");
    Ok(())
}

#[tokio::test]
async fn signals_end_it_with_what_it_runs() -> Outcome {
    let server = with_sandbox()?;
    for (signal, mut tries) in [("-TERM", 43230..43235), ("-INT", 43235..43240)] {
        let mut told = false;
        while !told {
            let sleeping = format!("sleep {} ", tries.next().ok_or("the server is never told")?);
            let mut talk = Talk::start(&server, &["own"])?;
            talk.introduce()?;
            talk.send(&talk::plain_exec(1, sleeping.trim_end()))?;
            until("it runs", async || Ok(running(&server)?.contains(&sleeping))).await?;
            done(Command::new("kill").args([signal, &talk.pid().to_string()]))?;
            talk.wait()?;
            told = talk.told_the_server();
            if told {
                until("it is killed", async || Ok(!running(&server)?.contains(&sleeping))).await?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_restart_of_the_server_is_survived_but_for_calls_that_ran() -> Outcome {
    let mut server = with_sandbox()?;
    let (mut old, mut new) = (Talk::start(&server, &["own"])?, Talk::start(&server, &["own"])?);
    old.introduce()?;
    old.send(&talk::plain_exec(1, "echo once >> calls; sleep 4324"))?;
    new.send(&exec(1, "echo once >> calls; sleep 4324"))?;
    let calls = || done(&mut server.command(&["exec", "own", "sh", "-c", "cat calls || :"]));
    until("both run", async || Ok(calls()? == "once\nonce\n")).await?;
    server.kill()?;
    for talk in [&mut old, &mut new] {
        let told = talk.answer(1)?;
        assert_eq!(told["error"]["code"], -32000, "{told}");
        assert!(told["error"]["message"].as_str().unwrap_or_default().contains("not known"), "{told}");
    }
    // Sent while it is away, done when it is back.
    old.send(&talk::plain_exec(2, "cat calls"))?;
    new.send(&exec(2, "cat calls"))?;
    server.restart()?;
    for talk in [&mut old, &mut new] {
        assert_eq!(talk.answer(2)?["result"]["structuredContent"]["stdout"], "once\nonce\n");
    }
    // Several at once find the MCP session gone.
    server.kill()?;
    server.restart()?;
    for id in 3..8 {
        old.send(&talk::plain_exec(id, "echo again"))?;
    }
    let mut answered = vec![];
    let mut told_anew = false;
    while answered.len() < 5 {
        let message = old.next()?;
        match message["id"].as_i64() {
            Some(id) => answered.push((id, message["result"]["structuredContent"]["stdout"].clone())),
            None => told_anew |= message["method"] == "notifications/tools/list_changed",
        }
    }
    answered.sort_by_key(|(id, _)| *id);
    assert_eq!(answered, (3..8).map(|id| (id, json!("again\n"))).collect::<Vec<_>>());
    assert!(told_anew, "another server may have other tools");
    old.end()?;
    new.end()
}

#[test]
fn what_is_wrong_at_the_start_is_an_exit_code_and_a_sentence() -> Outcome {
    let mut server = with_sandbox()?;
    let failed = |server: &Server, code: i32, says: &str| -> Outcome {
        let ended = server.command(&["mcp", "none"]).stdin(std::process::Stdio::null()).output()?;
        let told = crate::support::text(&ended.stderr);
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(code), 0), "{told}");
        assert!(told.contains(says), "{told}");
        Ok(())
    };
    failed(&server, 4, "none")?;
    server.kill()?;
    failed(&server, 3, "no server answers")?;
    let ended = server.command(&["mcp"]).output()?;
    assert_eq!(ended.status.code(), Some(2));
    Ok(())
}

#[test]
fn a_session_that_is_not_there_can_be_made() -> Outcome {
    let server = Server::start()?;
    let mut talks = [Talk::start(&server, &["project", "--create"])?, Talk::start(&server, &["project", "--create"])?];
    for talk in &mut talks {
        talk.send(&exec(1, "echo line >> lines; cat lines"))?;
    }
    let mut lines: Vec<i64> = vec![];
    for talk in &mut talks {
        let shown = talk.answer(1)?["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default().to_owned();
        lines.push(i64::try_from(shown.lines().count())?);
    }
    assert!(lines.contains(&2), "they work in one sandbox: {lines:?}");
    done(&mut server.command(&["session", "rm", "project"]))?;
    for talk in &mut talks {
        talk.send(&exec(2, "echo anew"))?;
        assert_eq!(talk.answer(2)?["result"]["structuredContent"]["stdout"], "anew\n");
    }
    for talk in talks {
        talk.end()?;
    }
    Ok(())
}

#[test]
fn what_is_printed_to_paste_starts_the_bridge() -> Outcome {
    let server = with_sandbox()?;
    let printed = done(&mut server.command(&["mcp", "own", "--print-config=json"]))?;
    let entry = serde_json::from_str::<Value>(&printed)?["mcpServers"]["sandbar"].clone();
    let words = entry["args"].as_array().ok_or("no args")?;
    let mut command = Command::new(entry["command"].as_str().ok_or("no command")?);
    command.args(words.iter().filter_map(Value::as_str)).env_remove("SANDBAR_HOME").current_dir("/");
    let mut talk = Talk::spawn(&mut command)?;
    talk.send(&exec(1, "echo pasted"))?;
    assert_eq!(talk.answer(1)?["result"]["structuredContent"]["stdout"], "pasted\n");
    talk.end()?;
    // Agents that connect by HTTP find the port that is in use, which no test's server shares with another.
    let printed = done(&mut server.command(&["mcp", "own", "--print-config=http"]))?;
    let at = printed.find('{').ok_or("no JSON")?;
    let entry = serde_json::from_str::<Value>(&printed[at..])?["mcpServers"]["sandbar"].clone();
    assert_eq!(entry["url"], format!("{}/v1/sessions/own/mcp", server.base()?));
    // All of them, for a session named like the directory; nothing is made, no server is needed.
    let place = server.home.path().join("Some Project");
    fs::create_dir(&place)?;
    let all = done(server.command(&["mcp", "--print-config"]).current_dir(&place))?;
    for part in
        ["claude mcp add sandbar -- ", "[mcp_servers.sandbar]", "\"type\": \"local\"", "some-project", "--create"]
    {
        assert!(all.contains(part), "{part}: {all}");
    }
    Ok(())
}
