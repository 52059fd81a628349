//! Questions: a connection waits while a person decides, and nobody inside can answer.

use std::process::Command;

use serde_json::Value;

use crate::{
    gate::house::{House, Said, host},
    gate::site::{Reply, Seen, Site, reply},
    support::{Outcome, program},
};

fn fine(_: &Seen) -> Reply {
    reply(200, "fine\n")
}

fn house_that_asks() -> Outcome<(House, Site, String)> {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.create("box", &[], &[])?;
    house.sandbar(&["net", "ask", "box", &site.place])?;
    let curl = format!("curl -sS --max-time 50 --cacert ca.pem https://{}/", site.place);
    Ok((house, site, curl))
}

#[test]
fn a_connection_waits_for_its_answer() -> Outcome {
    let (house, site, curl) = house_that_asks()?;
    let mut client = house.begin("box", &curl)?;
    let asked = house.asked()?;
    let id = asked["id"].as_str().ok_or("no id")?;
    let question = asked["question"].as_str().ok_or("no question")?;
    assert!(question.contains(&site.place), "{question}");
    assert_eq!((&asked["kind"], &asked["context"]["host"]), (&"network".into(), &"web.test".into()), "{asked}");
    assert!(!client.is_over()? && site.seen().is_empty(), "it did not wait");
    house.sandbar(&["approve", id])?;
    let said = client.end()?;
    assert_eq!((said.code, said.out.as_str()), (Some(0), "fine\n"), "{said:?}");
    let again = house.tried(&["approve", id])?;
    assert_eq!(again.code, Some(5), "{again:?}");

    // Once was once.
    let client = house.begin("box", &curl)?;
    let asked = house.asked()?;
    house.sandbar(&["deny", asked["id"].as_str().ok_or("no id")?])?;
    let said = client.end()?;
    assert!(said.code == Some(56) && said.err.contains("403"), "{said:?}");
    assert_eq!(site.seen().len(), 1);

    let client = house.begin("box", &curl)?;
    let asked = house.asked()?;
    house.sandbar(&["approve", "--for-sandbox", asked["id"].as_str().ok_or("no id")?])?;
    assert_eq!(client.end()?.code, Some(0));
    assert_eq!(house.well("box", &curl)?, "fine\n", "it was for the sandbox");
    let rules = house.sandbar(&["net", "show", "box"])?;
    assert!(rules.contains("approval"), "{rules}");
    Ok(())
}

#[test]
fn one_question_for_all_who_wait_for_the_same() -> Outcome {
    let (house, site, curl) = house_that_asks()?;
    let clients: Vec<_> = (0..3).map(|_| house.begin("box", &curl)).collect::<Outcome<_>>()?;
    let asked = house.asked()?;
    // Both ends of a connection to the gate are in the sandbox.
    crate::gate::house::until("they wait", || {
        let waiting = house.well("box", "grep -c ' 01 ' /proc/net/tcp || true")?;
        Ok(waiting.trim().parse::<u32>()? >= 6)
    })?;
    let listed = house.json(&["approvals"])?;
    assert_eq!(listed["approvals"].as_array().map(Vec::len), Some(1), "{listed}");
    house.sandbar(&["approve", asked["id"].as_str().ok_or("no id")?])?;
    for client in clients {
        assert_eq!(client.end()?.code, Some(0));
    }
    assert_eq!(site.seen().len(), 3);
    Ok(())
}

#[test]
fn a_request_is_asked_about_by_itself() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    let place = &site.place;
    house.create("box", &[&format!("{place} GET")], &["--ask", &format!("{place} GET /two")])?;
    let mut client = house.begin("box", &format!("exec python3 -c '{}' {place}", include_str!("alive.py")))?;
    client.tell("/one")?;
    assert_eq!(client.line()?, "200 fine");
    for (answer, begins) in [(&["approve"][..], "200 "), (&["deny"], "403 "), (&["approve", "--for-sandbox"], "200 ")] {
        client.tell("/two")?;
        let asked = house.asked()?;
        let context = &asked["context"];
        assert_eq!((&context["method"], &context["path"]), (&"GET".into(), &"/two".into()), "{asked}");
        house.sandbar(&[answer, &[asked["id"].as_str().ok_or("no id")?]].concat())?;
        let said = client.line()?;
        assert!(said.starts_with(begins), "{answer:?}: {said}");
    }
    client.tell("/two")?;
    assert_eq!(client.line()?, "200 fine", "it was for the sandbox");
    client.end()?;
    assert_eq!(site.seen().len(), 4);
    Ok(())
}

/// People are slower than clients are patient.
#[test]
fn an_answer_waits_for_a_client_that_gave_up() -> Outcome {
    let (house, site, curl) = house_that_asks()?;
    let impatient = curl.replace("--max-time 50", "--max-time 2");
    assert_eq!(house.inside("box", &impatient)?.code, Some(28));
    let asked = house.asked()?;
    house.sandbar(&["approve", asked["id"].as_str().ok_or("no id")?])?;
    assert_eq!(house.well("box", &curl)?, "fine\n", "it was allowed once, and is used once");
    assert_eq!(house.inside("box", &impatient)?.code, Some(28));
    assert_ne!(house.asked()?["id"], asked["id"]);
    assert_eq!(site.seen().len(), 1);
    Ok(())
}

/// Ten minutes are long for a test: while the server is away, its clock is put forward where it keeps the deadline.
#[test]
fn what_nobody_answers_in_time_is_refused() -> Outcome {
    let (mut house, site, curl) = house_that_asks()?;
    let client = house.begin("box", &curl)?;
    let asked = house.asked()?;
    let id = asked["id"].as_str().ok_or("no id")?;
    house.server.kill()?;
    let script = "import sqlite3, sys, time
with sqlite3.connect(sys.argv[1]) as database:
    deadline = int((time.time() + 4) * 1e6)
    changed = database.execute('UPDATE approvals SET deadline = ? WHERE id = ?', (deadline, sys.argv[2]))
sys.exit(changed.rowcount != 1)";
    let database = house.server.home.path().join("sandbar.db");
    host("python3", &["-c", script, &database.to_string_lossy(), id])?;
    house.server.restart()?;
    assert_ne!(client.end()?.code, Some(0));
    // It asks the same, and waits with the question that is open already.
    let said = house.well("box", &format!("python3 -c '{}' {}", include_str!("connect.py"), site.place))?;
    assert!(said.contains("403") && said.contains("nobody answered in time"), "{said}");
    assert_eq!(site.seen().len(), 0);
    let all = house.json(&["approvals", "--all"])?;
    let one = &all["approvals"][0];
    assert_eq!((&one["id"], &one["state"], &one["answer"]), (&id.into(), &"expired".into(), &Value::Null), "{all}");
    let late = house.tried(&["approve", id])?;
    assert_eq!(late.code, Some(5), "{late:?}");
    Ok(())
}

/// What an agent could do with the server if it had a way to it: look at its own, and nothing else.
#[test]
fn an_agents_token_sees_its_own_questions_and_answers_none() -> Outcome {
    let (house, site, curl) = house_that_asks()?;
    house.sandbar(&["create", "--name", "stranger"])?;
    let session = |name: &str| -> Outcome<String> {
        Ok(house.json(&["inspect", name])?["session"].as_str().ok_or("no session")?.to_owned())
    };
    let token = |session: &str| -> Outcome<String> {
        let arguments = ["token", "create", "--name", "agent", "--role", "agent", "--session", session];
        Ok(house.json(&arguments)?["secret"].as_str().ok_or("no secret")?.to_owned())
    };
    let (own, stranger) = (token(&session("box")?)?, token(&session("stranger")?)?);
    let base = house.server.base()?;
    let agent = |token: &str, arguments: &[&str]| -> Outcome<Said> {
        let mut command = Command::new(program());
        command.args(arguments).env("SANDBAR_SERVER", &base).env("SANDBAR_TOKEN", token);
        Ok(command.output()?.into())
    };
    let client = house.begin("box", &curl)?;
    let asked = house.asked()?;
    let id = asked["id"].as_str().ok_or("no id")?;
    assert!(agent(&own, &["approvals"])?.out.contains(id));
    let others = agent(&stranger, &["approvals"])?;
    assert!(others.code == Some(0) && !others.out.contains(id), "{others:?}");
    for arguments in [
        &["approve", id][..],
        &["approve", "--for-sandbox", id],
        &["deny", id],
        &["net", "allow", "box", &site.place],
        &["budget", "set", "box", "--tokens", "1M"],
        &["secret", "ls"],
        &["exec", "stranger", "--", "true"],
        &["ls"],
    ] {
        for token in [&own, &stranger] {
            let refused = agent(token, arguments)?;
            assert!(matches!(refused.code, Some(6 | 125)), "{arguments:?}: {refused:?}");
        }
    }
    assert_eq!(house.asked()?["id"], asked["id"], "it is open still");
    house.sandbar(&["deny", id])?;
    assert_eq!(client.end()?.code, Some(56));
    assert_eq!(site.seen().len(), 0);
    Ok(())
}
