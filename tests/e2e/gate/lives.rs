//! The gate through a sandbox's life: kinds of sandboxes, warm ones, forks, stops and pauses.

use std::{fs, path::Path, process::Command};

use crate::{
    gate::house::{House, Said, until},
    gate::secrets::expect_nowhere_inside,
    gate::site::{Reply, Seen, Site, reply},
    support::{Outcome, expect_clean, program},
};

const KEY: &str = "a-key-for-all-of-a-life-8";

fn fine(seen: &Seen) -> Reply {
    reply(200, format!("{}\n", seen.path()))
}

/// A terminated request with a secret in it: needs rules, certificates and placeholder to be right.
fn expect_through(house: &House, site: &Site, sandbox: &str) -> Outcome {
    let curl = "curl -sS --max-time 20 -w '%{http_code}' -H \"X-Key: $KEY\"";
    let path = format!("/{sandbox}");
    let said = house.well(sandbox, &format!("{curl} https://{}{path}", site.place))?;
    assert_eq!(said, format!("{path}\n200"));
    let seen = site.seen();
    let last = seen.iter().rfind(|seen| seen.path() == path).ok_or("it did not arrive")?;
    assert_eq!(last.header("x-key"), KEY, "{sandbox}");
    let refused = house.well(sandbox, &format!("{curl} -X DELETE https://{}{path}", site.place))?;
    assert!(refused.ends_with("403"), "{sandbox}: {refused}");
    expect_nowhere_inside(house, sandbox, "KEY", KEY)
}

#[test]
fn every_kind_of_sandbox_has_the_same_gate() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.secret("KEY", "web.test", "header:X-Key", KEY)?;
    let network = format!("secrets = [\"KEY\"]\n[network]\nallow = [\"{} GET\"]\n", site.place);
    for (name, kind) in [
        ("plain", ""),
        ("hardened", "profile = \"hardened\"\n"),
        ("open", "profile = \"open\"\n"),
        ("root", "user = \"root\"\n"),
    ] {
        fs::write(house.server.home.path().join(format!("templates/{name}.toml")), format!("{kind}{network}"))?;
        let test = "every_kind_of_sandbox_has_the_same_gate";
        if house.if_enforceable(test, &["create", "--name", name, "--template", name])? {
            expect_through(&house, &site, name)?;
        }
    }
    // A warm one was made before anybody knew whose it would be.
    house.sandbar(&["pool", "set", "plain", "1"])?;
    until("one is warm", || Ok(house.json(&["pool", "ls"])?["pools"][0]["warm"] == 1))?;
    house.sandbar(&["create", "--name", "warm", "--template", "plain"])?;
    expect_through(&house, &site, "warm")
}

#[test]
fn the_gate_comes_back_with_the_sandbox_and_goes_to_its_forks() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.secret("KEY", "web.test", "header:X-Key", KEY)?;
    house.create("box", &[&format!("{} GET", site.place)], &["--secret", "KEY"])?;
    let placeholder = |name: &str| house.well(name, "printf %s \"$KEY\"");
    let own = placeholder("box")?;
    house.sandbar(&["stop", "box"])?;
    house.sandbar(&["start", "box"])?;
    expect_through(&house, &site, "box")?;
    if house.if_enforceable("the_gate_comes_back_with_the_sandbox_and_goes_to_its_forks", &["pause", "box"])? {
        house.sandbar(&["resume", "box"])?;
        expect_through(&house, &site, "box")?;
    }
    assert_eq!(placeholder("box")?, own, "it stays the same");

    house.sandbar(&["stop", "box"])?;
    house.sandbar(&["fork", "box", "--name", "fork"])?;
    expect_through(&house, &site, "fork-1")?;
    assert_ne!(placeholder("fork-1")?, own, "each has its own");
    // Another's placeholder is just a word.
    let curl = "curl -sS --max-time 20";
    house.well("fork-1", &format!("{curl} -H 'X-Key: {own}' https://{}/borrowed", site.place))?;
    let seen = site.seen();
    assert_eq!(seen.last().map(|seen| seen.header("x-key")), Some(own.as_str()));

    house.sandbar(&["snapshot", "box", "--name", "kept"])?;
    house.sandbar(&["create", "--name", "again", "--from", "kept"])?;
    let said = house.well("again", &format!("{curl} -w '%{{http_code}}' http://web.test/ | tail -n 1"))?;
    assert!(said.ends_with("403"), "rules are a sandbox's, not its files': {said}");
    Ok(())
}

#[test]
fn many_connections_at_once_are_all_served() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.create("box", &[&format!("{} GET", site.place)], &[])?;
    let script =
        format!("seq 200 | xargs -P 40 -I N curl -sS --max-time 40 https://{}/N | sort -u | wc -l", site.place);
    assert_eq!(house.well("box", &script)?.trim(), "200");
    assert_eq!(site.seen().len(), 200);
    Ok(())
}

/// With the user's own configuration, whose files are named beside it.
#[test]
fn a_run_without_a_server_has_a_gate_too() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    let place = tempfile::tempdir()?;
    let run = |home: &Path, arguments: &[&str], script: &str| -> Outcome<Said> {
        let mut command = Command::new(program());
        command.arg("run").args(arguments).args(["--", "sh", "-c", script]);
        Ok(command.env("TMPDIR", place.path()).env("SANDBAR_HOME", home).output()?.into())
    };
    let home = house.server.home.path();
    let curl = "curl -sS --max-time 20 -w '%{http_code}'";
    let rule = format!("{} GET", site.place);
    let said = run(home, &["--allow", &rule], &format!("{curl} https://{}/run", site.place))?;
    assert_eq!(said.out, "/run\n200", "{said:?}");
    let said = run(home, &[], &format!("{curl} http://denied.test/"))?;
    assert!(said.out.contains("denied.test") && said.out.ends_with("403"), "{said:?}");
    assert!(said.out.contains("--allow denied.test"), "there is no server to tell: {said:?}");
    // Where nobody said otherwise, no rule leads to what is private.
    let plain = Site::plain("127.0.0.1", fine)?;
    let script = format!("{curl} -x $http_proxy --noproxy '' http://{}/", plain.place);
    let said = run(place.path(), &["--allow", &plain.place], &script)?;
    assert!(said.out.ends_with("403") && plain.seen().is_empty(), "{said:?}");
    let said = run(home, &["--allow", &plain.place], &script)?;
    assert_eq!(said.out, "/\n200", "the control: {said:?}");
    Ok(())
}

#[test]
fn a_sandbox_that_is_removed_takes_its_connections_along() -> Outcome {
    let mut house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.create("box", &[&format!("{} GET", site.place)], &[])?;
    let script = format!("exec python3 -c '{}' {}", include_str!("alive.py"), site.place);
    let mut client = house.begin("box", &script)?;
    client.tell("/one")?;
    assert_eq!(client.line()?, "200 /one");
    house.sandbar(&["rm", "box"])?;
    assert_ne!(client.end()?.code, Some(0));
    house.server.kill()?;
    expect_clean(house.server.home.path())
}

/// The files of the home are read again when they change, no more than once a second.
#[test]
fn a_named_set_is_what_its_file_says_now() -> Outcome {
    let house = House::open()?;
    let (web, other) = (Site::plain("web.test", fine)?, Site::plain("other.test", fine)?);
    let sets = house.server.home.path().join("sets.toml");
    let unknown = house.tried(&["create", "--name", "box", "--allow", "@mine"])?;
    assert!(unknown.code == Some(2) && unknown.err.contains("@mine"), "{unknown:?}");
    fs::write(&sets, format!("mine = [\"{}\"]\n", web.place))?;
    until("the set is known", || Ok(house.tried(&["create", "--name", "box", "--allow", "@mine"])?.code == Some(0)))?;
    let reaches = |site: &Site| -> Outcome<bool> {
        let curl = "curl -sS --max-time 20 -o /dev/null -w '%{http_code}'";
        Ok(house.well("box", &format!("{curl} http://{}/", site.place))? == "200")
    };
    assert!(reaches(&web)? && !reaches(&other)?);
    fs::write(&sets, format!("mine = [\"{}\"]\n", other.place))?;
    until("the set has changed", || reaches(&other))?;
    assert!(!reaches(&web)?);
    // What cannot be read changes nothing, and is told.
    fs::write(&sets, "mine = [\"no rule at all!\"]\n")?;
    until("the mistake is told", || Ok(house.tried(&["net", "sets"])?.err.contains("sets.toml")))?;
    assert!(reaches(&other)? && !reaches(&web)?);
    Ok(())
}
