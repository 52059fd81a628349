//! Requests that two parsers end at different places: the second one, which the rules forbid, must never reach the server,
//! through the plain proxy or through a terminated connection. The server's own reading counts, and so does what another
//! server could read: no request with two lengths, two hosts or a folded line gets out.

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    names::RULES,
    stage::{Stage, Target, recipe},
    support::Outcome,
    wire::{SILENCE, Step, h2, status, tunnel, tunnel_until},
};

const ONE: &[&str] = &["standard"];
const ANYTHING: &str = "[network]\nallow = [\"judged.out.test:* GET,POST,PUT /**\"]\n";

pub(crate) fn all() -> Vec<Attack> {
    let gate = |name, act, place, control| {
        Attack::act(Class::Gate, name, act, Control::Act(place, control)).on(ONE).with(RULES)
    };
    let allowed = "where the rules allow the second";
    vec![
        gate("second_request_hidden_in_a_plain_one", act!(plain), allowed, act!(plain_allowed)),
        gate("second_request_hidden_in_a_terminated_one", act!(terminated), allowed, act!(terminated_allowed)),
        gate("second_request_in_clear_sight", act!(pipelined), allowed, act!(pipelined_allowed)),
        gate("lines_hidden_in_connect", act!(connect_lines), "as it should be", act!(connect_good)),
        gate("path_written_otherwise", act!(paths), "a path that is allowed", act!(paths_good)),
        gate("method_written_otherwise", act!(methods), "a method that is allowed", act!(methods_good)),
        gate("fields_of_http2_that_become_lines", act!(downgrade), "fields as they should be", act!(downgrade_good)),
        gate("upgrade_to_unjudged_http", act!(upgrades), "a request without it", act!(upgrade_good)),
    ]
}

/// Heads and bodies whose end is a matter of opinion; `SECOND` is the request to hide, `LENGTH` its length.
const HIDING: &[(&str, &str)] = &[
    ("Content-Length: LENGTH\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\nSECOND"),
    ("Content-Length: 0\r\nContent-Length: LENGTH\r\n", "SECOND"),
    ("Content-Length: LENGTH\r\nContent-Length: 0\r\n", "SECOND"),
    ("Content-Length: 0, LENGTH\r\n", "SECOND"),
    ("Content-Length: +0\r\n", "SECOND"),
    ("Content-Length: 0x0\r\n", "SECOND"),
    ("Content-Length: -1\r\n", "SECOND"),
    ("Content-Length: 18446744073709551616\r\n", "SECOND"),
    ("Content-Length : 0\r\n", "SECOND"),
    ("Transfer-Encoding : chunked\r\nContent-Length: LENGTH\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n", "SECOND"),
    ("Transfer-Encoding: chunked, identity\r\nContent-Length: 0\r\n", "SECOND"),
    ("Transfer-Encoding: identity, chunked\r\nContent-Length: 0\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding:\x0bchunked\r\nContent-Length: 0\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding:\r\n chunked\r\nContent-Length: 0\r\n", "0\r\n\r\nSECOND"),
    ("X: y\r\n Content-Length: LENGTH\r\nContent-Length: 0\r\n", "SECOND"),
    ("X: y\nTransfer-Encoding: chunked\r\nContent-Length: LENGTH\r\n", "0\r\n\r\nSECOND"),
    ("X: y\rTransfer-Encoding: chunked\r\nContent-Length: LENGTH\r\n", "0\r\n\r\nSECOND"),
    ("\0Transfer-Encoding: chunked\r\nContent-Length: LENGTH\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "0;x=\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "0\nX\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "0\r\nX: y\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "1;\n0\r\nx\r\n0\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "0000000000000000000000\r\n\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "fffffffffffffff1\r\nSECOND"),
    ("Transfer-Encoding: chunked\r\n", "0x0\r\n\r\nSECOND"),
    ("Connection: close, Content-Length\r\nContent-Length: LENGTH\r\n", "SECOND"),
    ("Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nSECOND"),
    ("Expect: 100-continue\r\nContent-Length: LENGTH\r\n", "SECOND"),
];

/// What arrived of the hidden request, and in what dress the first one went out.
fn judged(stage: &Stage, mark: &str, second: &str) -> Option<String> {
    for connection in stage.outside.with(mark) {
        for head in &connection.heads {
            let line = head.lines().next().unwrap_or_default();
            if line.contains(second) && !line.contains("/open/") {
                return Some(format!("the server was asked {line}"));
            }
            let lower = head.to_ascii_lowercase();
            let count = |name: &str| lower.matches(&format!("\r\n{name}:")).count();
            if count("content-length") + count("transfer-encoding") > 1 || count("host") != 1 {
                return Some(format!("a head of two minds got out: {}", head.escape_debug()));
            }
            if lower.contains("\r\n ") || lower.contains("\r\n\t") || lower.contains('\0') {
                return Some(format!("a folded line got out: {}", head.escape_debug()));
            }
        }
    }
    None
}

async fn hide(stage: &Stage, target: &Target, in_tls: bool, forms: &[(&str, &str)]) -> Outcome<Finding> {
    let mut statuses = vec![];
    // Some are never whole to whoever reads them, who then says nothing.
    let end = || if forms.len() > 1 { Step::Rest(SILENCE) } else { Step::Answer(SILENCE * 10) };
    for (head, body) in forms {
        let mark = stage.mark();
        let port = if in_tls { stage.outside.tls } else { stage.outside.plain };
        let second = format!("{mark}second");
        let origin = if in_tls { String::new() } else { format!("http://judged.out.test:{port}") };
        let hidden = format!(
            "GET {origin}/closed/{second} HTTP/1.1\r\nHost: judged.out.test:{port}\r\nConnection: close\r\n\r\n"
        );
        let fill = |text: &str| text.replace("LENGTH", &(hidden.len() + 5).to_string()).replace("SECOND", &hidden);
        let first = format!(
            "POST {origin}/open/{mark} HTTP/1.1\r\nHost: judged.out.test:{port}\r\n{}\r\n{}",
            fill(head),
            fill(body)
        );
        let steps = if in_tls {
            let then = vec![Step::Tls("judged.out.test", "http/1.1"), Step::send(&first)];
            tunnel_until(format!("judged.out.test:{port}"), then, end())
        } else {
            vec![Step::send(&first), end()]
        };
        let heard = stage.wire(target, &steps).await?;
        if let Some(what) = judged(stage, &mark, &second) {
            return Ok(Finding::escaped(format!("{}: {what}", head.escape_debug())));
        }
        let answer =
            heard.split_once("\\r\\n\\r\\n").map_or(heard.as_str(), |(_, rest)| if in_tls { rest } else { &heard });
        statuses.push(status(answer).to_owned());
    }
    statuses.sort();
    statuses.dedup();
    Ok(Finding::contained(format!("{} forms: {}", forms.len(), statuses.join(", "))))
}

async fn plain(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hide(stage, target, false, HIDING).await
}

async fn terminated(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hide(stage, target, true, HIDING).await
}

/// One that everybody reads alike, so that the second is a request of its own.
const CLEAR: &[(&str, &str)] = &[("Content-Length: 0\r\n", "SECOND")];

async fn pipelined(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for in_tls in [false, true] {
        let found = hide(stage, target, in_tls, CLEAR).await?;
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    Ok(Finding::contained("each is judged by itself"))
}

async fn pipelined_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    plain_allowed(stage, target).await
}

async fn plain_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hide(stage, &*stage.target(target.profile, &recipe(target.profile, ANYTHING, &[])).await?, false, CLEAR).await
}

async fn terminated_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hide(stage, &*stage.target(target.profile, &recipe(target.profile, ANYTHING, &[])).await?, true, CLEAR).await
}

/// A CONNECT that a sloppy reader takes for one to somebody who is allowed; `PORT` is the server's.
const CONNECTS: &[&str] = &[
    "CONNECT denied.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "CONNECT denied.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\nHost: open.out.test:PORT\r\n\r\n",
    "CONNECT http://denied.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "CONNECT http://open.out.test:PORT@denied.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test\r\n\r\n",
    "CONNECT denied.out.test:PORT\rHost: open.out.test:PORT HTTP/1.1\r\n\r\n",
    "CONNECT denied.out.test:PORT\nHost: open.out.test:PORT HTTP/1.1\r\n\r\n",
    "CONNECT  denied.out.test:PORT open.out.test:PORT HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT\tdenied.out.test:PORT HTTP/1.1\r\nHost: open.out.test\r\n\r\n",
    "CONNECT denied.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\nX-Forwarded-Host: open.out.test\r\nForwarded: host=open.out.test\r\n\r\n",
    "CONNECT denied.out.test:PORT HTTP/1.0\r\nHost: open.out.test:PORT\r\n\r\n",
    "CONNECT denied.out.test:PORT HTTP/2.0\r\nHost: open.out.test:PORT\r\n\r\n",
    "CONNECT denied.out.test:PORT\r\n\r\n",
    "connect denied.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "GET denied.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "GET //denied.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: denied.out.test:PORT\r\n\r\n",
    "GET https://denied.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "GET http://denied.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "GET ftp://open.out.test:PORT/ HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: denied.out.test:PORT\r\n\r\n",
    "POST open.out.test:PORT HTTP/1.1\r\nHost: x\r\n\r\n",
];

async fn connects(stage: &Stage, target: &Target, lines: &[&str]) -> Outcome<Finding> {
    let mut statuses = vec![];
    for line in lines {
        let (mark, asked) = (stage.mark(), stage.outside.asked().len());
        let line = line.replace("PORT", &stage.outside.plain.to_string());
        let request = format!("GET /{mark} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let heard = stage.wire(target, &[Step::send(line.clone() + &request), Step::Answer(SILENCE)]).await?;
        let names = stage.outside.asked().split_off(asked);
        if stage.outside.saw(&mark) || !names.is_empty() {
            return Ok(Finding::escaped(format!("{}: {} {}", line.escape_debug(), status(&heard), names.join(" "))));
        }
        statuses.push(status(&heard).to_owned());
    }
    statuses.sort();
    statuses.dedup();
    Ok(Finding::contained(format!("{} forms: {}", lines.len(), statuses.join(", "))))
}

async fn connect_lines(stage: &Stage, target: &Target) -> Outcome<Finding> {
    connects(stage, target, CONNECTS).await
}

async fn connect_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    connects(stage, target, &["CONNECT open.out.test:PORT HTTP/1.1\r\nHost: open.out.test:PORT\r\n\r\n"]).await
}

/// A request line on a terminated connection and in plain; the server must not be asked.
async fn lines(stage: &Stage, target: &Target, lines: &[(&str, &str)]) -> Outcome<Finding> {
    let mut statuses = vec![];
    for (method, path) in lines {
        for in_tls in [false, true] {
            let mark = stage.mark();
            let port = if in_tls { stage.outside.tls } else { stage.outside.plain };
            let origin = if in_tls { String::new() } else { format!("http://judged.out.test:{port}") };
            let request = format!(
                "{method} {origin}{path}?{mark} HTTP/1.1\r\nHost: judged.out.test:{port}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            );
            let steps = if in_tls {
                let then = vec![Step::Tls("judged.out.test", "http/1.1"), Step::send(request)];
                tunnel(format!("judged.out.test:{port}"), then)
            } else {
                vec![Step::send(request), Step::Answer(SILENCE)]
            };
            let heard = stage.wire(target, &steps).await?;
            if stage.outside.saw(&mark) {
                return Ok(Finding::escaped(format!("{method} {} arrived", path.escape_debug())));
            }
            statuses
                .push(heard.rsplit("HTTP/1.1 ").next().and_then(|rest| rest.get(..3)).unwrap_or("nothing").to_owned());
        }
    }
    statuses.sort();
    statuses.dedup();
    Ok(Finding::contained(format!("{} forms: {}", lines.len(), statuses.join(", "))))
}

async fn paths(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let forms = [
        "/open/../closed",
        "/open/%2e%2e/closed",
        "/open/.%2e/closed",
        "/open/%252e%252e/closed",
        "/open//../closed",
        "/open/..%2fclosed",
        "/open/..;/closed",
        "/open/..\\closed",
        "/open/%5c..%5cclosed",
        "/open/x/../../closed",
        "/open%2f..%2fclosed",
        "/open%00/closed",
        "/OPEN/x",
        "//open/x",
        "/./open/../closed",
        "/closed/open/x",
        "/op%65n/../closed",
        "/open/\u{2025}/closed",
        "/open/%c0%ae%c0%ae/closed",
        "/closed#/open/x",
        "/closed",
        "*",
    ];
    lines(stage, target, &forms.map(|path| ("GET", path))).await
}

async fn paths_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    lines(stage, target, &[("GET", "/open/x")]).await
}

async fn methods(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let forms = ["PUT", "get", "Get", "DELETE", "GETX", "G\0ET", "TRACE", "PRI", "M-SEARCH", " GET", "GET\t"];
    lines(stage, target, &forms.map(|method| (method, "/open/x"))).await
}

async fn methods_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    lines(stage, target, &[("POST", "/open/x")]).await
}

/// HTTP/2 has no lines, so its values could hold them; the server is asked in HTTP/1.1.
async fn fields(stage: &Stage, target: &Target, more: &[(&[u8], &[u8])], end: Step) -> Outcome<Finding> {
    let (mark, port) = (stage.mark(), stage.outside.tls);
    let (authority, path) = (format!("judged.out.test:{port}"), format!("/open/{mark}"));
    let second = format!("{mark}second");
    let own: [(&[u8], &[u8]); 4] = [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", authority.as_bytes()),
        (b":path", path.as_bytes()),
    ];
    let filled: Vec<(Vec<u8>, Vec<u8>)> = more
        .iter()
        .map(|(name, value)| (name.to_vec(), String::from_utf8_lossy(value).replace("SECOND", &second).into_bytes()))
        .collect();
    let replaced = |name: &[u8]| filled.iter().any(|(other, _)| other == name && name.starts_with(b":"));
    let mut all: Vec<(&[u8], &[u8])> = own.into_iter().filter(|(name, _)| !replaced(name)).collect();
    let (pseudo, rest): (Vec<_>, Vec<_>) = filled.iter().partition(|(name, _)| name.starts_with(b":"));
    all.extend(pseudo.iter().chain(&rest).map(|(name, value)| (name.as_slice(), value.as_slice())));
    let body = format!("0\r\n\r\nGET /closed/{second} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    let then = vec![Step::Tls("judged.out.test", "h2"), Step::Send(h2(&all, Some(body.as_bytes())))];
    stage.wire(target, &tunnel_until(&authority, then, end)).await?;
    if let Some(what) = judged(stage, &mark, &second) {
        return Ok(Finding::escaped(what));
    }
    let got: Vec<String> = stage.outside.with(&mark).iter().flat_map(|one| one.heads.clone()).collect();
    Ok(Finding::contained(if got.is_empty() { "nothing was sent" } else { "one request was sent" }))
}

async fn downgrade(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let line: &[u8] = b"x\r\n\r\nGET /closed/SECOND HTTP/1.1\r\nHost: judged.out.test\r\n\r\n";
    let forms: &[&[(&[u8], &[u8])]] = &[
        &[(b"x-a", line)],
        &[(b"x-a", b"x\nTransfer-Encoding: chunked")],
        &[(b"x-a\r\ntransfer-encoding", b"chunked")],
        &[(b"x-a: y\r\nx-b", b"z")],
        &[(b"transfer-encoding", b"chunked")],
        &[(b"Transfer-Encoding", b"chunked")],
        &[(b"content-length", b"0")],
        &[(b"content-length", b"0"), (b"content-length", b"90")],
        &[(b"connection", b"content-length")],
        &[(b":path", b"/open/x HTTP/1.1\r\nHost: x\r\n\r\nGET /closed/SECOND")],
        &[(b":path", b"/closed/SECOND")],
        &[(b":path", b"/open/x?\r\nX: y")],
        &[(b":method", b"POST /closed/SECOND HTTP/1.1\r\nX: y\r\n\r\nGET")],
        &[(b":method", b"CONNECT")],
        &[(b":scheme", b"http://denied.out.test/closed/SECOND?")],
        &[(b":authority", b"denied.out.test")],
        &[(b"host", b"denied.out.test")],
        &[(b"x\0y", b"z")],
    ];
    for form in forms {
        let found = fields(stage, target, form, Step::Rest(SILENCE)).await?;
        if let Finding::Escaped(what) = found {
            let (name, value) = form[0];
            return Ok(Finding::escaped(format!("{}={}: {what}", name.escape_ascii(), value.escape_ascii())));
        }
    }
    Ok(Finding::contained(format!("{} forms", forms.len())))
}

/// A path beside the rule, where the rules allow it, so that the same judge calls it an escape.
async fn downgrade_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let open = stage.target(target.profile, &recipe(target.profile, ANYTHING, &[])).await?;
    fields(stage, &open, &[(b":path", b"/closed/SECOND")], Step::Answer(SILENCE)).await
}

/// What an upgrade leads to is no longer judged: HTTP by another name must not be asked for.
async fn upgraded(stage: &Stage, target: &Target, forms: &[&str]) -> Outcome<Finding> {
    for form in forms {
        let (mark, port) = (stage.mark(), stage.outside.plain);
        let request = format!("GET http://judged.out.test:{port}/open/{mark} HTTP/1.1\r\nHost: x\r\n{form}\r\n");
        stage.wire(target, &[Step::send(request), Step::Answer(SILENCE)]).await?;
        let asked =
            stage.outside.with(&mark).iter().flat_map(|one| one.heads.clone()).collect::<String>().to_ascii_lowercase();
        let passed = ["h2c", "http/2", "tls/1", "http2-settings"]
            .iter()
            .any(|word| asked.replace("http/1.1", "").contains(word));
        if passed || forms.len() == 1 && asked.contains(&mark) {
            return Ok(Finding::escaped(format!("{}: arrived", form.escape_debug())));
        }
    }
    Ok(Finding::contained(format!("{} forms: never asked for", forms.len())))
}

async fn upgrades(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let forms = [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        "Connection: upgrade\r\nUpgrade: H2C\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n",
        "Connection: upgrade\r\nUpgrade: TLS/1.2\r\n",
        "Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
    ];
    upgraded(stage, target, &forms).await
}

async fn upgrade_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    upgraded(stage, target, &["Connection: close\r\n"]).await
}
