//! The server is killed: what was decided still holds, what comes meanwhile waits, and nothing gets out undecided.

use std::{fs, time::Duration};

use crate::{
    gate::house::{House, until},
    gate::secrets::expect_nowhere,
    gate::site::{Reply, Seen, Site, reply},
    support::{Outcome, guests},
};

const KEY: &str = "a-key-that-outlives-the-server-3";

fn fine(seen: &Seen) -> Reply {
    reply(200, format!("fine {}\n", seen.path()))
}

/// Established connections inside, both ends of each, seen without the server.
fn connections(house: &House) -> usize {
    let tables =
        guests(house.server.home.path()).into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/net/tcp")));
    tables
        .flatten()
        .map(|table| table.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count())
        .sum()
}

#[test]
fn rules_secrets_budgets_and_questions_outlive_the_server() -> Outcome {
    let mut house = House::open()?;
    let (web, other) = (Site::start(&house.roots, "web.test", fine)?, Site::start(&house.roots, "other.test", fine)?);
    house.secret("KEY", "web.test", "header:X-Key", KEY)?;
    house.create("box", &[&format!("{} GET /open", web.place)], &["--secret", "KEY"])?;
    house.sandbar(&["net", "ask", "box", &other.place])?;
    house.sandbar(&["budget", "set", "box", "--tokens", "1234", "--usd", "2.5"])?;
    let budget = house.json(&["budget", "show", "box"])?;
    let ask = format!("curl -sS --max-time 50 --cacert ca.pem https://{}/", other.place);
    let waiting = house.begin("box", &ask)?;
    let asked = house.asked()?;

    house.server.kill()?;
    house.server.restart()?;
    let said = waiting.end()?;
    assert_ne!(said.code, Some(0), "what waited is not let through: {said:?}");
    assert_eq!(other.seen().len(), 0);

    assert_eq!(house.json(&["budget", "show", "box"])?, budget);
    let curl = "curl -sS --max-time 20 -w '%{http_code}' -H \"X-Key: $KEY\"";
    assert_eq!(house.well("box", &format!("{curl} https://{}/open", web.place))?, "fine /open\n200");
    let closed = house.well("box", &format!("{curl} https://{}/closed", web.place))?;
    assert!(closed.ends_with("403"), "{closed}");
    let seen = web.seen();
    assert_eq!(seen.iter().map(|seen| (seen.path(), seen.header("x-key"))).collect::<Vec<_>>(), [("/open", KEY)]);

    let still = house.asked()?;
    assert_eq!((&still["id"], &still["deadline"]), (&asked["id"], &asked["deadline"]));
    house.sandbar(&["approve", "--for-sandbox", asked["id"].as_str().ok_or("no id")?])?;
    assert_eq!(house.well("box", &ask)?, "fine /\n");
    expect_nowhere(&house, KEY)
}

#[test]
fn connections_made_while_the_server_is_away_wait_for_the_next() -> Outcome {
    let mut house = House::open()?;
    let (web, other) = (Site::start(&house.roots, "web.test", fine)?, Site::start(&house.roots, "other.test", fine)?);
    let workspace = house.directory("shared")?;
    let bound = format!("{}:rw", workspace.display());
    house.create("box", &[&format!("{} GET", web.place)], &["--workspace", &bound])?;
    let curl = "curl -sS --max-time 50";
    let script = format!(
        "until [ -e go ]; do sleep 0.02; done
        {curl} https://{}/late > allowed 2>&1 &
        {curl} --cacert ca.pem https://{}/ > denied 2>&1; echo $? >> denied; wait; touch over",
        web.place, other.place
    );
    house.sandbar(&["exec", "-d", "box", "--", "sh", "-c", &script])?;
    house.server.kill()?;
    let before = connections(&house);
    fs::write(workspace.join("go"), "")?;
    until("both are connected to what nobody serves", || Ok(connections(&house) >= before + 2))?;
    // They would have been through long ago.
    std::thread::sleep(Duration::from_millis(200));
    assert!(web.seen().is_empty() && other.seen().is_empty() && !workspace.join("over").exists());
    house.server.restart()?;
    until("both ended", || Ok(workspace.join("over").exists()))?;
    assert_eq!(fs::read_to_string(workspace.join("allowed"))?, "fine /late\n");
    let denied = fs::read_to_string(workspace.join("denied"))?;
    assert!(denied.contains("403") && denied.ends_with("56\n"), "{denied}");
    assert_eq!(other.seen().len(), 0);
    Ok(())
}
