//! Secrets: where they go, where they do not, and that they are nowhere else.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{Command, Stdio},
};

use crate::{
    gate::house::{House, Said, host},
    gate::site::{Reply, Seen, Site, reply},
    support::{Outcome, program},
};

fn fine(seen: &Seen) -> Reply {
    reply(200, format!("{}\n", seen.path()))
}

/// Looks for a word in every file and every process of a sandbox. It is told on standard input, lest the search find
/// itself.
fn found_inside(house: &House, name: &str, word: &str) -> Outcome<String> {
    let script = "read -r word
        printf '%s\\n' \"$word\" | grep -rlsF -f /dev/stdin /workspace /home /root /tmp /run /var /etc /dev/shm
        for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
            printf '%s\\n' \"$word\" | grep -qsaF -f /dev/stdin $file && echo $file
        done; true";
    let mut command = house.server.command(&["exec", "-i", "--timeout", "60s", name, "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    writeln!(child.stdin.take().ok_or("no stdin")?, "{word}")?;
    let said = Said::from(child.wait_with_output()?);
    assert_eq!(said.code, Some(0), "{said:?}");
    Ok(said.out)
}

/// The value is nowhere in the sandbox, whose environment has a placeholder instead.
pub(crate) fn expect_nowhere_inside(house: &House, sandbox: &str, name: &str, value: &str) -> Outcome {
    let placeholder = house.well(sandbox, &format!("printf %s \"${name}\""))?;
    assert!(placeholder.starts_with("sbp_") && placeholder.len() == 44, "{placeholder}");
    let control = found_inside(house, sandbox, &placeholder)?;
    assert!(control.contains("/environ"), "the control: {control}");
    for word in [value.to_owned(), sandbar_api::bytes::encode(value.as_bytes())] {
        assert_eq!(found_inside(house, sandbox, &word)?, "");
    }
    Ok(())
}

/// The value is in no file of the server's but sealed, in no event, in no answer, in no argument and no environment.
pub(crate) fn expect_nowhere(house: &House, value: &str) -> Outcome {
    let words = [value.to_owned(), sandbar_api::bytes::encode(value.as_bytes())];
    let holds =
        |bytes: &[u8]| words.iter().any(|word| bytes.windows(word.len()).any(|window| window == word.as_bytes()));
    assert!(holds(format!("x{value}").as_bytes()), "the control");
    let home = house.server.home.path();
    for entry in fs::read_dir(home)?.flatten().filter(|entry| entry.path().is_file()) {
        assert!(!holds(&fs::read(entry.path())?), "it is in {:?}", entry.path());
    }
    for arguments in
        [&["events"][..], &["secret", "ls"], &["net", "log", "box"], &["net", "show", "box"], &["inspect", "box"]]
    {
        let said = house.tried(&[&["--json"], arguments].concat())?;
        assert!(!holds(said.out.as_bytes()) && !holds(said.err.as_bytes()), "{arguments:?} shows it");
    }
    for entry in fs::read_dir("/proc")?.flatten() {
        for file in ["cmdline", "environ"] {
            // What ended meanwhile shows nothing.
            let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
            assert!(!holds(&bytes), "it is in {:?}", entry.path().join(file));
        }
    }
    Ok(())
}

#[test]
fn a_secret_goes_to_its_host_in_its_place_over_tls_and_nowhere_else() -> Outcome {
    const VALUE: &str = "a-token-of-great-value-17";
    let house = House::talkative()?;
    let own = Site::start(&house.roots, "web.test", fine)?;
    let other = Site::start(&house.roots, "other.test", fine)?;
    let plain = Site::plain("web.test", fine)?;
    house.secret("API_TOKEN", "web.test", "header:Authorization:Bearer {}", VALUE)?;
    let rules = [own.place.as_str(), &format!("{} GET", other.place), &plain.place];
    house.create("box", &rules, &["--secret", "API_TOKEN"])?;
    let curl = |rest: &str| house.well("box", &format!("curl -sS --max-time 20 -w '%{{http_code}}' {rest}"));
    let bearer = "-H \"Authorization: Bearer $API_TOKEN\"";
    assert_eq!(curl(&format!("{bearer} https://{}/own", own.place))?, "/own\n200");
    assert_eq!(own.seen()[0].header("authorization"), format!("Bearer {VALUE}"));

    curl(&format!("{bearer} https://{}/other", other.place))?;
    curl(&format!("-H \"X-Other: Bearer $API_TOKEN\" https://{}/header", own.place))?;
    curl(&format!("-H \"X-Api-Key: $API_TOKEN\" -d \"$API_TOKEN\" \"https://{}/query?key=$API_TOKEN\"", own.place))?;
    let refused = curl(&format!("{bearer} http://{}/plain", plain.place))?;
    assert!(refused.contains("API_TOKEN") && refused.ends_with("403"), "{refused}");
    assert_eq!(plain.seen().len(), 0);
    assert!(!other.saw(VALUE));
    let elsewhere: Vec<_> = own.seen().into_iter().skip(1).collect();
    assert_eq!(elsewhere.len(), 2);
    assert!(!format!("{elsewhere:?}").contains(VALUE), "{elsewhere:?}");
    assert!(format!("{elsewhere:?}").contains("sbp_"), "placeholders are words elsewhere");

    // A host whose name is another's with a tail, or another's in Host, gets nothing.
    let fronted = curl(&format!("{bearer} -H 'Host: web.test' https://{}/fronted", other.place))?;
    assert!(!fronted.ends_with("200"), "{fronted}");
    assert!(!other.saw(VALUE));
    expect_nowhere_inside(&house, "box", "API_TOKEN", VALUE)?;
    expect_nowhere(&house, VALUE)?;
    let log = house.sandbar(&["--json", "net", "log", "box"])?;
    assert!(log.contains("API_TOKEN"), "the name is told: {log}");
    Ok(())
}

#[test]
fn rotation_and_removal_count_for_the_next_request_of_an_open_connection() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.secret("KEY", "web.test", "header:X-Key", "the-first-value-1")?;
    house.create("box", &[&site.place], &["--secret", "KEY"])?;
    let mut client = house.begin("box", &format!("exec python3 -c '{}' {}", include_str!("alive.py"), site.place))?;
    let mut ask = |path: &str| {
        client.tell(path)?;
        client.line()
    };
    assert_eq!(ask("/one")?, "200 /one");
    house.secret("KEY", "web.test", "header:X-Key", "the-second-value-2")?;
    assert_eq!(ask("/two")?, "200 /two");
    house.sandbar(&["secret", "revoke", "KEY", "box"])?;
    ask("/three")?;
    house.sandbar(&["secret", "grant", "KEY", "box"])?;
    assert_eq!(ask("/four")?, "200 /four");
    house.sandbar(&["secret", "rm", "KEY"])?;
    ask("/five")?;
    client.end()?;
    let seen = site.seen();
    let keys: Vec<_> = seen.iter().map(|seen| (seen.path(), seen.header("x-key"))).collect();
    let with = |path: &str| keys.iter().find(|(seen, _)| *seen == path).map(|(_, key)| *key);
    assert_eq!(with("/one"), Some("the-first-value-1"));
    assert_eq!(with("/two"), Some("the-second-value-2"));
    assert_eq!(with("/four"), Some("the-second-value-2"));
    for path in ["/three", "/five"] {
        assert!(with(path).is_none_or(|key| !key.contains("value")), "{path}: {keys:?}");
    }
    Ok(())
}

#[test]
fn a_secret_may_stand_in_a_query_or_a_body() -> Outcome {
    let house = House::talkative()?;
    let site = Site::start(&house.roots, "web.test", fine)?;
    house.secret("QUERY_KEY", "web.test", "query:key", "query value/&+1")?;
    house.secret("BODY_KEY", "web.test", "body", "body-value-2")?;
    house.create("box", &[&site.place], &["--secret", "QUERY_KEY", "--secret", "BODY_KEY"])?;
    let script = format!(
        "for version in --http1.1 --http2; do
            curl -sS --max-time 20 -g $version -d \"{{\\\"a\\\": \\\"$BODY_KEY\\\", \\\"b\\\": \\\"$QUERY_KEY\\\"}}\" \"https://{}/both?a=$QUERY_KEY&key=$QUERY_KEY\"
        done; printf %s \"$QUERY_KEY\"",
        site.place
    );
    let said = house.well("box", &script)?;
    let placeholder = said.strip_prefix("/both\n/both\n").ok_or(said.clone())?;
    for seen in site.seen() {
        let query = format!("a={placeholder}&key=query%20value%2F%26%2B1");
        assert_eq!(seen.uri.query(), Some(query.as_str()));
        assert_eq!(seen.body, format!("{{\"a\": \"body-value-2\", \"b\": \"{placeholder}\"}}"));
    }
    assert_eq!(site.seen().len(), 2);
    let log = house.server.log_text();
    assert!(log.contains("FramedWrite::buffer"), "the log says little: {} bytes", log.len());
    ["query value/&+1", "query%20value%2F%26%2B1", "body-value-2"]
        .iter()
        .try_for_each(|value| expect_nowhere(&house, value))
}

#[test]
fn a_server_that_is_made_to_dump_its_memory_does_not() -> Outcome {
    let place = tempfile::tempdir()?;
    let aborted = |script: &str, ready: &str| -> Outcome<bool> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -c unlimited && {script}")]).current_dir(place.path());
        let mut child = command.env("SANDBAR_HOME", place.path().join("home")).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        while !lines.next().ok_or("it ended")??.contains(ready) {}
        host("kill", &["-ABRT", &child.id().to_string()])?;
        Ok(child.wait()?.core_dumped())
    };
    if !aborted("echo ready; exec sleep 60", "ready")? {
        sandbar_test_harness::not_run(
            "a_server_that_is_made_to_dump_its_memory_does_not",
            "nothing dumps its memory on this host",
        );
        return Ok(());
    }
    let up = format!("exec {} up --listen 127.0.0.1:0", program().display());
    assert!(!aborted(&up, "sign in")?, "it dumped its memory");
    Ok(())
}
