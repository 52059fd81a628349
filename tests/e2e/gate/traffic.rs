//! What gets out and what does not: tunnels, terminated connections, refusals, and everything that goes around the gate.

use crate::{
    gate::house::{House, has, python_packages},
    gate::roots::Roots,
    gate::site::{Reply, Seen, Site, reply},
    support::Outcome,
};

/// Says back what came: method, path, size.
fn mirror(seen: &Seen) -> Reply {
    reply(200, format!("{} {} {}\n", seen.method, seen.path(), seen.body.len()))
}

#[test]
fn curl_gets_and_posts_through_a_tunnel_that_nobody_looks_into() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    let place = &site.place;
    house.create("box", &[place], &[])?;
    let curl = "curl -sS --max-time 20 --cacert ca.pem";
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let script = format!("{curl} {version} -w '%{{http_version}}' https://{place}/a/path?query");
        assert_eq!(house.well("box", &script)?, format!("GET /a/path 0\n{shown}"));
        // Larger than anything that could be waiting in a buffer.
        let script = format!("head -c 8000000 /dev/zero | {curl} {version} --data-binary @- https://{place}/up");
        assert_eq!(house.well("box", &script)?, "POST /up 8000000\n");
    }
    // The certificate is the server's own.
    let issuer =
        |place: &str| house.well("box", &format!("curl -sSv --max-time 20 https://{place}/ 2>&1 | grep issuer:"));
    assert!(issuer(place)?.contains("the tests' root"), "{}", issuer(place)?);
    house.sandbar(&["net", "deny", "box", &format!("{place} DELETE")])?;
    assert!(issuer(place)?.contains("Sandbar"), "the control: {}", issuer(place)?);
    Ok(())
}

#[test]
fn what_is_terminated_is_decided_by_method_and_path() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    let place = &site.place;
    house.create("box", &[&format!("{place} GET,HEAD /open/**"), &format!("{place} POST /up")], &[])?;
    let curl = "curl -sS --max-time 20 -w '%{http_code} %{http_version}'";
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        // No certificate is named: what the variables name is enough.
        let script = |rest: &str| format!("{curl} {version} {rest}");
        let got = house.well("box", &script(&format!("https://{place}/open/deep/path")))?;
        assert_eq!(got, format!("GET /open/deep/path 0\n200 {shown}"));
        let up = format!("-X POST -H 'Expect:' --data-binary @- https://{place}/up");
        let got = house.well("box", &format!("head -c 8000000 /dev/zero | {}", script(&up)))?;
        assert_eq!(got, format!("POST /up 8000000\n200 {shown}"));
        let before = site.seen().len();
        for rest in ["/closed", "/open/../closed", "/open/%2e%2e/closed"] {
            let got = house.well("box", &script(&format!("--path-as-is https://{place}{rest}")))?;
            assert!(
                got.contains(&format!("{place} is refused")) && got.ends_with(&format!("403 {shown}")),
                "{rest}: {got}"
            );
        }
        // Often: whether a refusal is read may depend on how much of the request it overtakes.
        for size in [1, 1000, 100_000] {
            let refused = script(&format!("-H 'Expect:' --data-binary @- https://{place}/open/"));
            let got = house.well("box", &format!("for n in 1 2 3; do head -c {size} /dev/zero | {refused}; done"))?;
            assert_eq!(got.matches(&format!("403 {shown}")).count(), 3, "{size}: {got}");
            assert!(got.contains("sandbar net allow"), "{got}");
        }
        assert_eq!(site.seen().len(), before, "something refused arrived");
    }
    Ok(())
}

#[test]
fn a_refusal_says_host_cause_and_how_to_ask() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    let plain = Site::plain("other.test", mirror)?;
    house.create("box", &[&plain.place], &[])?;
    assert_eq!(house.well("box", &format!("curl -sS --max-time 20 http://{}/plain", plain.place))?, "GET /plain 0\n");
    let refused = house.well("box", "curl -sS --max-time 20 -w '%{http_code}' http://denied.test/")?;
    for word in ["denied.test", "no rule allows it", "`sandbar net allow ", "403"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    // curl tells the status of a refused CONNECT and keeps its body to itself.
    let failed = house.inside("box", &format!("curl -sS --max-time 20 --cacert ca.pem https://{}/", site.place))?;
    assert!(failed.code == Some(56) && failed.err.contains("403"), "{failed:?}");
    let refused = house.well("box", &format!("python3 -c '{}' {}", include_str!("connect.py"), site.place))?;
    for word in ["403", &site.place, "no rule allows it", "`sandbar net allow "] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    // The hint is what an operator can type.
    let hint = refused.split('`').nth(1).ok_or("no hint")?;
    let words: Vec<_> = hint.split(' ').skip(1).collect();
    house.sandbar(&words)?;
    house.well("box", &format!("curl -sS --max-time 20 --cacert ca.pem https://{}/", site.place))?;
    let log = house.sandbar(&["net", "log", "box"])?;
    assert!(log.contains("denied.test") && log.contains("web.test"), "{log}");
    let mut follower = house.follow(&["net", "log", "-f", "box"])?;
    house.inside("box", "curl -sS --max-time 20 http://afterwards.test/")?;
    let mut line = follower.line()?;
    while !line.is_empty() && !line.contains("afterwards.test") {
        line = follower.line()?;
    }
    assert!(line.contains("deny") && line.contains("afterwards.test"), "{line}");
    follower.stop()
}

#[test]
fn around_the_gate_there_is_no_route() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    house.create("box", &[&site.place], &[])?;
    let curl = "curl -sS --max-time 20 --cacert ca.pem";
    assert_eq!(house.well("box", &format!("{curl} https://{}/", site.place))?, "GET / 0\n", "the control");
    let unknown = house.inside("box", &format!("{curl} --noproxy '*' https://{}/", site.place))?;
    assert_eq!(unknown.code, Some(6), "{unknown:?}");
    let port = site.address.port();
    let direct = house.inside("box", &format!("{curl} -k --noproxy '*' https://127.0.0.1:{port}/"))?;
    assert_eq!(direct.code, Some(7), "{direct:?}");
    let tried = house.well("box", &format!("python3 -c '{}' {port}", include_str!("raw.py")))?;
    assert_eq!(tried, "tcp refused\ntcp unreachable\nudp unreachable\nudp6 unreachable\nicmp no\nraw no\n");
    assert_eq!(site.seen().len(), 1);
    Ok(())
}

#[test]
fn rules_change_between_two_requests_of_one_connection() -> Outcome {
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    let place = &site.place;
    house.create("box", &[&format!("{place} GET")], &[])?;
    let mut client = house.begin("box", &format!("exec python3 -c '{}' {place}", include_str!("alive.py")))?;
    client.tell("/one")?;
    assert_eq!(client.line()?, "200 GET /one 0");
    house.sandbar(&["net", "deny", "box", &format!("{place} GET /two")])?;
    client.tell("/two")?;
    let refused = client.line()?;
    assert!(refused.starts_with("403 ") && refused.contains("/two"), "{refused}");
    client.tell("/one")?;
    assert_eq!(client.line()?, "200 GET /one 0");
    house.sandbar(&["net", "rm", "box", &format!("{place} GET /two")])?;
    client.tell("/two")?;
    assert_eq!(client.line()?, "200 GET /two 0");
    client.end()?;
    let seen = site.seen();
    assert_eq!(seen.iter().map(Seen::path).collect::<Vec<_>>(), ["/one", "/one", "/two"]);
    Ok(())
}

#[test]
fn websockets_pass_tunnelled_and_terminated() -> Outcome {
    let test = "websockets_pass_tunnelled_and_terminated";
    let Some(packages) = python_packages(test) else { return Ok(()) };
    let house = House::open()?;
    let tunnelled = Site::start(&house.roots, "web.test", mirror)?;
    let terminated = Site::start(&house.roots, "other.test", mirror)?;
    let workspace = format!("{}:rw", packages.display());
    let rules = [tunnelled.place.clone(), format!("{} GET /socket", terminated.place)];
    let pem = house.server.home.path().join("test-ca.pem");
    let mut arguments = vec!["create", "--name", "box", "--workspace", &workspace];
    arguments.extend(rules.iter().flat_map(|rule| ["--allow", rule]));
    house.sandbar(&arguments)?;
    house.sandbar(&["cp", pem.to_str().ok_or("path")?, "box:/tmp/ca.pem"])?;
    let talk = |variables: &str, place: &str| {
        let script = format!("{variables} PYTHONPATH=. python3 -c '{}' {place}", include_str!("socket.py"));
        house.well("box", &script)
    };
    let words = "echo: hello\necho: again\n";
    assert_eq!(talk("SSL_CERT_FILE=/tmp/ca.pem", &tunnelled.place)?, words);
    assert_eq!(talk("", &terminated.place)?, words);
    assert_eq!(terminated.seen().len(), 1);
    Ok(())
}

#[test]
fn a_server_that_is_down_or_not_who_it_says_is_named() -> Outcome {
    let house = House::open()?;
    let stranger = Roots::new()?;
    let forged = Site::start(&stranger, "web.test", mirror)?;
    let down = {
        let gone = Site::start(&house.roots, "other.test", mirror)?;
        gone.place.clone()
    };
    house.create("box", &[&format!("{} GET", forged.place), &format!("{down} GET")], &[])?;
    let curl = "curl -sS --max-time 20 -w '%{http_code}'";
    for (place, word) in [(&forged.place, "certificate"), (&down, "refused")] {
        let said = house.inside("box", &format!("{curl} https://{place}/"))?;
        let shown = format!("{}{}", said.out, said.err);
        assert!(shown.contains("502"), "{place}: {said:?}");
        // The cause is in the answer where there is one, and in the log in any case.
        let log = house.sandbar(&["net", "log", "box"])?;
        assert!(log.contains(word), "{place}: {log}");
    }
    assert_eq!(forged.seen().len(), 0);
    Ok(())
}

#[test]
fn python_requests_and_node_do_what_the_documentation_says() -> Outcome {
    let test = "python_requests_and_node_do_what_the_documentation_says";
    let house = House::open()?;
    let site = Site::start(&house.roots, "web.test", mirror)?;
    let rule = format!("{} GET", site.place);
    if let Some(packages) = python_packages(test) {
        let workspace = format!("{}:rw", packages.display());
        house.sandbar(&["create", "--name", "python", "--workspace", &workspace, "--allow", &rule])?;
        let script = format!(
            "PYTHONPATH=. python3 -c 'import requests; print(requests.get(\"https://{}/py\").text, end=\"\")'",
            site.place
        );
        assert_eq!(house.well("python", &script)?, "GET /py 0\n");
    }
    if has(test, "node") {
        house.create("node", &[&rule], &[])?;
        let version = house.well("node", "node -p process.versions.node")?;
        let fetch =
            format!("fetch(\"https://{}/node\").then(r => r.text()).then(t => process.stdout.write(t))", site.place);
        let said = house.inside("node", &format!("node -e '{fetch}'"))?;
        let mut parts = version.trim().split('.').map(|part| part.parse().unwrap_or(0));
        let version: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version.0 >= 24 || version >= (22, 21) && version.0 == 22 {
            assert_eq!(said.out, "GET /node 0\n", "{said:?}");
        } else {
            // It knows no proxy, and there is nothing else.
            assert!(said.code == Some(1) && said.err.contains("fetch failed"), "{version:?}: {said:?}");
        }
    }
    Ok(())
}
