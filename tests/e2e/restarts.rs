//! A command that keeps dying in a real sandbox, as a person meets it: started again, given up, looked at, begun anew.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Outcome, Server, done, text};

fn shown(server: &Server) -> Outcome<Value> {
    Ok(serde_json::from_str(&done(&mut server.command(&["session", "show", "--json", "dying"]))?)?)
}

fn until(server: &Server, what: &str, holds: impl Fn(&Value) -> bool) -> Outcome<Value> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let session = shown(server)?;
        if holds(&session) {
            return Ok(session);
        }
        if Instant::now() > deadline {
            return Err(format!("not {what}: {session}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_keeps_dying_is_given_up_and_flagged_also_over_the_death_of_the_server() -> Outcome {
    let mut server = Server::start()?;
    let script = "echo dying; test -e /workspace/well && exec sleep 1000; exit 3";
    let begin = ["session", "new", "-d", "--name", "dying", "--restart", "on-failure", "--", "sh", "-c", script];
    done(&mut server.command(&begin))?;
    // Two have ended by then, and the next is due in half a second or later. Who looks too late begins anew.
    let waits = |session: &Value| session["restarting"][0]["runs"].as_u64() >= Some(2);
    let is_given_up = |session: &Value| session["crash_loops"][0].is_object();
    let mut rounds = 1;
    while !waits(&until(&server, "waiting", |session| waits(session) || is_given_up(session))?) {
        assert!(rounds < 4, "it is never seen waiting");
        done(&mut server.command(&["session", "restart", "dying"]))?;
        rounds += 1;
    }
    server.kill()?;
    server.restart()?;
    let session = until(&server, "given up", is_given_up)?;
    let flagged = &session["crash_loops"][0];
    assert_eq!((&flagged["runs"], &flagged["exit"]["code"]), (&5.into(), &3.into()), "{flagged}");
    let processes: Value = serde_json::from_str(&done(&mut server.command(&["ps", "--json", "dying"]))?)?;
    assert_eq!(processes["processes"].as_array().map(Vec::len), Some(5 * rounds), "{processes}");

    let list = done(&mut server.command(&["session", "ls"]))?;
    assert!(list.contains("crashing"), "{list}");
    let told = done(&mut server.command(&["session", "show", "dying"]))?;
    let command = |name: &str| -> Outcome<Vec<String>> {
        let line = told.lines().find_map(|line| line.trim().strip_prefix(name)).ok_or_else(|| told.clone())?;
        Ok(line.trim().strip_prefix("sandbar ").ok_or("no command")?.split(' ').map(str::to_owned).collect())
    };
    let run = |words: Vec<String>| done(&mut server.command(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(run(command("look:")?)?.contains("dying"), "the last screen is kept");
    let attach = server.command(&["session", "attach", "dying"]).output()?;
    assert!(text(&attach.stderr).contains("sandbar session restart dying"), "{}", text(&attach.stderr));

    done(&mut server.command(&["exec", "dying", "--", "touch", "/workspace/well"]))?;
    let again = run(command("again:")?)?;
    let session = shown(&server)?;
    assert_eq!(session["terminals"][0]["process"], again.trim());
    assert!(session["crash_loops"].is_null() && session["restarting"].is_null(), "{session}");
    let twice = server.command(&["session", "restart", "dying"]).output()?;
    assert!(!twice.status.success() && text(&twice.stderr).contains("runs already"), "{}", text(&twice.stderr));
    // A person who kills it means it.
    done(&mut server.command(&["kill", "dying", again.trim()]))?;
    let session = until(&server, "ended", |session| session["terminals"] == Value::Array(vec![]))?;
    assert!(session["restarting"].is_null(), "{session}");
    done(&mut server.command(&["session", "rm", "dying"]))?;
    Ok(())
}
