//! One host for the gate, another for the server: CONNECT, the TLS greeting and every request's host have to agree, on every
//! kind of connection and for every request of it.

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    names::RULES,
    stage::{Stage, Target, recipe},
    support::Outcome,
    wire::{SILENCE, Step, get, h2, tunnel},
};

const ONE: &[&str] = &["standard"];
/// What `RULES` allow to one host, and more.
const OPTIONS: &str = "[network]\nallow = [\"open.out.test:* ech,raw\"]\n";

pub(crate) fn all() -> Vec<Attack> {
    let gate = |name, act, control| {
        Attack::act(Class::Gate, name, act, Control::Act("where all agree", control)).on(ONE).with(RULES)
    };
    let option = |name, act, control| {
        let control = Control::Act("where a rule allows it", control);
        Attack::act(Class::Gate, name, act, control).on(ONE).with(RULES)
    };
    vec![
        option("greeting_with_an_encrypted_part", act!(encrypted), act!(encrypted_allowed)),
        option("request_behind_junk", act!(behind_junk), act!(behind_junk_allowed)),
        gate("greeting_for_another_host_in_a_tunnel", act!(tunnel_sni), act!(tunnel_good)),
        gate("greeting_for_another_host_in_single_bytes", act!(tunnel_shredded), act!(tunnel_good)),
        gate("greeting_for_nobody_at_443", act!(https_nobody), act!(https_good)),
        gate("no_greeting_at_443", act!(https_plain), act!(https_good)),
        gate("greeting_for_another_host_where_tls_ends", act!(terminated_sni), act!(terminated_good)),
        gate("greeting_for_nobody_where_tls_ends", act!(terminated_nobody), act!(terminated_good)),
        gate("host_header_of_another", act!(host_header), act!(terminated_good)),
        gate("authority_of_another_in_http2", act!(authority), act!(authority_good)),
        gate("connection_used_for_another_host", act!(reuse), act!(terminated_good)),
        gate("host_header_of_another_in_plain", act!(plain_host), act!(plain_good)),
    ]
}

/// Through CONNECT to `host` at the TLS port, with this greeting and these bytes; whether they arrived.
async fn through(
    stage: &Stage,
    target: &Target,
    host: &str,
    greeting: Option<Step>,
    bytes: Vec<u8>,
    mark: &str,
) -> Outcome<Finding> {
    let mut then: Vec<Step> = greeting.into_iter().collect();
    then.push(Step::Send(bytes));
    let heard = stage.wire(target, &tunnel(format!("{host}:{}", stage.outside.tls), then)).await?;
    if stage.outside.saw(mark) {
        return Ok(Finding::escaped("it arrived"));
    }
    // The client's own word for what it met, or the last status.
    let word = heard.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    let status = heard.rsplit("HTTP/1.1 ").next().and_then(|rest| rest.split("\\r").next());
    Ok(Finding::contained(word.or(status).unwrap_or("closed")))
}

fn host(stage: &Stage, name: &str) -> String {
    format!("{name}:{}", stage.outside.tls)
}

macro_rules! greeted {
    ($($name:ident $host:expr, $named:expr, $greeting:expr;)*) => {
        $(
            async fn $name(stage: &Stage, target: &Target) -> Outcome<Finding> {
                let mark = stage.mark();
                let request = get(&format!("/open/{mark}"), &host(stage, $named));
                through(stage, target, $host, $greeting, request.into_bytes(), &mark).await
            }
        )*
    };
}

greeted! {
    tunnel_good "open.out.test", "open.out.test", Some(Step::Tls("open.out.test", ""));
    tunnel_sni "open.out.test", "open.out.test", Some(Step::Tls("denied.out.test", ""));
    tunnel_shredded "open.out.test", "open.out.test", Some(Step::Shredded("denied.out.test"));
    terminated_good "judged.out.test", "judged.out.test", Some(Step::Tls("judged.out.test", ""));
    terminated_sni "judged.out.test", "denied.out.test", Some(Step::Tls("denied.out.test", ""));
    terminated_nobody "judged.out.test", "judged.out.test", Some(Step::Tls("", ""));
}

/// Hosts that a server behind the same address could listen to.
async fn host_header(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let own = host(stage, "judged.out.test");
    let heads = [
        "Host: denied.out.test".to_owned(),
        "Host: key.out.test".to_owned(),
        format!("Host: {}", host(stage, "key.out.test")),
        "Host: judged.out.test:1".to_owned(),
        format!("Host: {own}\r\nHost: denied.out.test"),
        format!("Host: denied.out.test\r\nHost: {own}"),
        format!("Host: {own}, denied.out.test"),
        format!("Host: denied.out.test#{own}"),
        format!("Host: x@{own}"),
        format!("Host: {own}."),
        "Host:".to_owned(),
        "X: y".to_owned(),
    ];
    let mut last = Finding::not_run("nothing was tried");
    for head in heads {
        let mark = stage.mark();
        let request = format!("GET /open/{mark} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n");
        let greeting = Some(Step::Tls("judged.out.test", ""));
        last = through(stage, target, "judged.out.test", greeting, request.into_bytes(), &mark).await?;
        if matches!(last, Finding::Escaped(_)) {
            return Ok(Finding::escaped(format!("{}: it arrived", head.escape_debug())));
        }
    }
    Ok(last)
}

async fn in_http2(stage: &Stage, target: &Target, fields: &[(&[u8], &[u8])]) -> Outcome<Finding> {
    let mark = stage.mark();
    let path = format!("/open/{mark}");
    let own: [(&[u8], &[u8]); 3] = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", path.as_bytes())];
    let bytes = h2(&[&own[..], fields].concat(), None);
    through(stage, target, "judged.out.test", Some(Step::Tls("judged.out.test", "h2")), bytes, &mark).await
}

async fn authority(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (own, other) = (host(stage, "judged.out.test"), host(stage, "key.out.test"));
    let (own, other) = (own.as_bytes(), other.as_bytes());
    let forms: [&[(&[u8], &[u8])]; 6] = [
        &[(b":authority", other)],
        &[(b":authority", b"denied.out.test")],
        &[(b":authority", own), (b"host", other)],
        &[(b":authority", other), (b"host", own)],
        &[(b"host", other)],
        &[],
    ];
    for form in forms {
        if let Finding::Escaped(what) = in_http2(stage, target, form).await? {
            let shown: Vec<String> = form.iter().map(|(_, value)| value.escape_ascii().to_string()).collect();
            return Ok(Finding::escaped(format!("{}: {what}", shown.join(", "))));
        }
    }
    Ok(Finding::contained(format!("{} forms", forms.len())))
}

async fn authority_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    in_http2(stage, target, &[(b":authority", host(stage, "judged.out.test").as_bytes())]).await
}

/// A good request first, so that a connection to the server stands.
async fn reuse(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (first, mark) = (stage.mark(), stage.mark());
    let good = format!("GET /open/{first} HTTP/1.1\r\nHost: {}\r\n\r\n", host(stage, "judged.out.test"));
    let other = get(&format!("/open/{mark}"), &host(stage, "open.out.test"));
    let greeting = Some(Step::Tls("judged.out.test", ""));
    let found = through(stage, target, "judged.out.test", greeting, (good + &other).into_bytes(), &mark).await?;
    if !stage.outside.saw(&first) {
        return Err("not even the first request arrived".into());
    }
    Ok(found)
}

/// In plain the URL is what is judged: the header that goes out says the same.
async fn plain_host(stage: &Stage, target: &Target) -> Outcome<Finding> {
    plain(stage, target, "Host: denied.out.test\r\nHost: key.out.test").await
}

async fn plain_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    plain(stage, target, &format!("Host: open.out.test:{}", stage.outside.plain)).await
}

async fn plain(stage: &Stage, target: &Target, head: &str) -> Outcome<Finding> {
    let (mark, port) = (stage.mark(), stage.outside.plain);
    let request = format!("GET http://open.out.test:{port}/{mark} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n");
    stage.wire(target, &[Step::send(request), Step::Answer(SILENCE)]).await?;
    let heads: String = stage.outside.with(&mark).iter().flat_map(|one| one.heads.clone()).collect();
    let hosts: Vec<&str> = heads.lines().filter(|line| line.to_ascii_lowercase().starts_with("host:")).collect();
    let asked = head.trim_start_matches("Host: ").split("\r\n").next().unwrap_or_default();
    let passed = hosts.len() != 1 && !heads.is_empty() || hosts.iter().any(|line| line.contains(asked));
    Ok(if passed {
        Finding::escaped(format!("the server heard {hosts:?}"))
    } else {
        Finding::contained(format!("the server heard {hosts:?}"))
    })
}

async fn at_443(stage: &Stage, target: &Target, then: Vec<Step>, mark: &str) -> Outcome<Finding> {
    if !stage.outside.has_https {
        return Ok(Finding::not_run("port 443 is for root"));
    }
    stage.wire(target, &tunnel("https.out.test:443", then)).await?;
    Ok(if stage.outside.saw(mark) { Finding::escaped("it arrived") } else { Finding::contained("closed") })
}

async fn https_nobody(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    at_443(stage, target, vec![Step::Tls("", ""), Step::send(get(&format!("/{mark}"), "https.out.test"))], &mark).await
}

async fn https_plain(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    at_443(stage, target, vec![Step::send(get(&format!("/{mark}"), "https.out.test"))], &mark).await
}

async fn https_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    at_443(
        stage,
        target,
        vec![Step::Tls("https.out.test", ""), Step::send(get(&format!("/{mark}"), "https.out.test"))],
        &mark,
    )
    .await
}

/// A greeting for `open.out.test` as one reads it, with this where another name could be encrypted.
fn greeting(encrypted: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, content: &[u8]| [&kind.to_be_bytes()[..], &sized(content)].concat();
    let name = [&[0][..], &sized(b"open.out.test")].concat();
    let extensions = [extension(0, &sized(&name)), extension(0xfe0d, encrypted)].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &sized(&extensions)].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

async fn encrypted(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mark = stage.mark();
    through(stage, target, "open.out.test", None, greeting(mark.as_bytes()), &mark).await
}

async fn encrypted_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    encrypted(stage, &*stage.target(target.profile, &recipe(target.profile, OPTIONS, &[])).await?).await
}

/// What a server, or a front before it, skips before it reads a request.
const JUNK: &[&[u8]] = &[
    b"junk\r\n",
    b"\0\x01\x02\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\0\x50\0\x50",
    b"SSH-2.0-x\r\n\r\n",
    b"GET key\r\n",
];

async fn hidden(stage: &Stage, target: &Target, junk: &[&[u8]]) -> Outcome<Finding> {
    for junk in junk {
        let (mark, port) = (stage.mark(), stage.outside.plain);
        let request = get(&format!("/{mark}"), "denied.out.test");
        let bytes = [junk, request.as_bytes()].concat();
        stage.wire(target, &tunnel(format!("open.out.test:{port}"), vec![Step::Send(bytes)])).await?;
        if stage.outside.saw(&format!("{mark} HTTP/1.1\r\nHost: denied")) {
            return Ok(Finding::escaped(format!("{}: a request for another host arrived", junk.escape_ascii())));
        }
    }
    Ok(Finding::contained(format!("{} forms", junk.len())))
}

async fn behind_junk(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hidden(stage, target, JUNK).await
}

async fn behind_junk_allowed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    hidden(stage, &*stage.target(target.profile, &recipe(target.profile, OPTIONS, &[])).await?, &JUNK[..1]).await
}
