//! A page in the operator's browser, or anybody else on this machine, against the local server. Every control is the
//! same request with the one thing right.

use sandbar_api::Role;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target, token},
    support::Outcome,
};

const ONE: &[&str] = &["standard"];

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, control| Attack::act(Class::Web, name, act, Control::Act("as it should be", control)).on(ONE);
    vec![
        doing("no_token", act!(no_token), act!(good)),
        doing("wrong_token", act!(wrong_token), act!(good)),
        doing("token_in_the_url", act!(token_in_url), act!(good)),
        doing("token_in_a_form", act!(token_in_form), act!(good)),
        doing("revoked_token", act!(revoked), act!(good)),
        doing("cross_site_post", act!(foreign_origin), act!(own_origin)),
        doing("cross_site_form", act!(form), act!(own_origin)),
        doing("opaque_origin", act!(null_origin), act!(own_origin)),
        doing("origin_of_another_port", act!(other_port), act!(own_origin)),
        doing("two_origins", act!(two_origins), act!(own_origin)),
        doing("rebinding_of_the_host", act!(rebinding), act!(good)),
        doing("host_with_our_name_in_it", act!(suffix), act!(good)),
        doing("two_hosts", act!(two_hosts), act!(good)),
        doing("absolute_target", act!(absolute), act!(good)),
        doing("preflight", act!(preflight), act!(own_origin)),
        doing("events_from_a_foreign_page", act!(events), act!(good)),
        doing("websocket_from_a_foreign_page", act!(websocket), act!(good)),
        doing("cookie_across_sites", act!(cookie_cross_site), act!(cookie)),
        doing("cookie_without_an_origin", act!(cookie_silent), act!(cookie)),
        doing("cookie_as_a_token", act!(cookie_as_bearer), act!(good)),
        doing("cookie_under_another_name_of_ours", act!(cookie_elsewhere), act!(cookie)),
        doing("token_as_a_cookie", act!(token_as_cookie), act!(cookie)),
        doing("cookie_of_who_signed_out", act!(signed_out), act!(cookie)),
        doing("sign_in_where_sandboxes_are_forwarded", act!(sign_in_elsewhere), act!(cookie)),
        doing("link_without_the_socket", act!(link_by_token), act!(good)),
        doing("code_used_twice", act!(code_twice), act!(cookie)),
        doing("viewer_runs_a_command", act!(viewer_exec), act!(operator_exec)),
        doing("viewer_uploads", act!(viewer_upload), act!(operator_exec)),
        doing("operator_makes_a_token", act!(operator_token), act!(admin_token)),
        doing("operator_binds_a_directory", act!(operator_binds), act!(admin_binds)),
        doing("smuggled_request", act!(smuggled), act!(pipelined)),
        doing("framing_and_sniffing", act!(headers), act!(other_headers)),
    ]
}

/// A request of these lines and this body, and its status.
pub(crate) fn ask(stage: &Stage, first: &str, headers: &[String], body: &str) -> Outcome<(u16, String)> {
    let mut text = format!("{first} HTTP/1.1\r\nConnection: close\r\n");
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let answer = stage.send(&format!("{text}\r\n{body}"))?;
    let status = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| format!("no status: {answer}"))?, answer))
}

pub(crate) fn host(stage: &Stage) -> Outcome<String> {
    Ok(format!("Host: {}", stage.address()?))
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

/// Anything but success is a refusal; which one is said.
fn judged(wanted: &[u16], (status, answer): &(u16, String)) -> Finding {
    let code = answer.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    match status {
        200..=399 | 101 => Finding::escaped(format!("{status}")),
        status if wanted.contains(status) => Finding::contained(format!("{status} {code}")),
        status => Finding::escaped(format!("refused for another reason: {status} {code}")),
    }
}

/// A harmless change: an operator's page would ask for the same.
const CREATE: &str = "POST /v1/sandboxes";
const BODY: &str = "{\"name\":\"Not a name\"}";
pub(crate) const JSON: &str = "Content-Type: application/json";

/// Refused for its body alone, so it got through everything else.
fn through(answer: (u16, String)) -> Finding {
    if answer.1.contains("bad_name") { Finding::escaped("it reached the engine") } else { judged(&[], &answer) }
}

async fn good(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[401, 403], &ask(stage, "GET /v1/sandboxes", &[host(stage)?, bearer(&stage.token)], "")?))
}

async fn no_token(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[401], &ask(stage, "GET /v1/sandboxes", &[host(stage)?], "")?))
}

async fn wrong_token(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let mut last = Finding::not_run("nothing was tried");
    let nearly = stage.token[..stage.token.len() - 1].to_owned();
    for token in ["sbt_0", "", &nearly, "\u{0}", "null"] {
        last = judged(&[400, 401], &ask(stage, "GET /v1/sandboxes", &[host(stage)?, bearer(token)], "")?);
        if matches!(last, Finding::Escaped(_)) {
            break;
        }
    }
    Ok(last)
}

async fn token_in_url(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let mut last = Finding::not_run("nothing was tried");
    for key in ["token", "access_token", "authorization", "bearer"] {
        last = judged(&[401], &ask(stage, &format!("GET /v1/sandboxes?{key}={}", stage.token), &[host(stage)?], "")?);
        if matches!(last, Finding::Escaped(_)) {
            break;
        }
    }
    Ok(last)
}

async fn token_in_form(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers = [host(stage)?, "Content-Type: application/x-www-form-urlencoded".into()];
    Ok(judged(&[401], &ask(stage, CREATE, &headers, &format!("token={}", stage.token))?))
}

async fn revoked(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let request = sandbar_api::CreateToken { name: "revoked".into(), role: Role::Admin, session: None, ttl: None };
    let made = stage.client.create_token(&request).await?;
    stage.client.revoke_token(made.token.id.as_str()).await?;
    Ok(judged(&[401], &ask(stage, "GET /v1/sandboxes", &[host(stage)?, bearer(&made.secret)], "")?))
}

/// The page's request carries a good token: even that does not make it ours.
fn from_origin(stage: &Stage, origins: &[&str]) -> Outcome<(u16, String)> {
    let mut headers = vec![host(stage)?, bearer(&stage.token), JSON.to_owned()];
    headers.extend(origins.iter().map(|origin| format!("Origin: {origin}")));
    ask(stage, CREATE, &headers, BODY)
}

async fn own_origin(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(through(from_origin(stage, &[&stage.server.base()?])?))
}

async fn foreign_origin(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &from_origin(stage, &["http://evil.example"])?))
}

/// What a page can send without asking first.
async fn form(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers = [
        host(stage)?,
        "Origin: http://evil.example".into(),
        "Content-Type: text/plain".into(),
        "Sec-Fetch-Site: cross-site".into(),
    ];
    Ok(judged(&[403], &ask(stage, CREATE, &headers, BODY)?))
}

async fn null_origin(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &from_origin(stage, &["null"])?))
}

async fn other_port(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &from_origin(stage, &["http://127.0.0.1:1"])?))
}

async fn two_origins(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &from_origin(stage, &[&stage.server.base()?, "http://evil.example"])?))
}

fn by_host(stage: &Stage, first: &str, hosts: &[String]) -> Outcome<Finding> {
    let mut headers = vec![bearer(&stage.token)];
    headers.extend(hosts.iter().map(|host| format!("Host: {host}")));
    Ok(judged(&[400, 403], &ask(stage, first, &headers, "")?))
}

fn port(stage: &Stage) -> Outcome<String> {
    Ok(stage.address()?.rsplit(':').next().unwrap_or_default().to_owned())
}

async fn rebinding(stage: &Stage, _: &Target) -> Outcome<Finding> {
    by_host(stage, "GET /v1/sandboxes", &[format!("evil.example:{}", port(stage)?)])
}

async fn suffix(stage: &Stage, _: &Target) -> Outcome<Finding> {
    for name in ["localhost.evil.example", "127.0.0.1.evil.example", "x@localhost", "localhost."] {
        let found = by_host(stage, "GET /v1/sandboxes", &[format!("{name}:{}", port(stage)?)])?;
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    Ok(Finding::contained("403"))
}

async fn two_hosts(stage: &Stage, _: &Target) -> Outcome<Finding> {
    by_host(stage, "GET /v1/sandboxes", &[stage.address()?, format!("evil.example:{}", port(stage)?)])
}

async fn absolute(stage: &Stage, _: &Target) -> Outcome<Finding> {
    by_host(stage, "GET http://evil.example/v1/sandboxes", &[stage.address()?])
}

/// A browser lets a page read an answer only with such headers.
async fn preflight(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers = [host(stage)?, "Origin: http://evil.example".into(), "Access-Control-Request-Method: POST".into()];
    let (status, answer) = ask(stage, "OPTIONS /v1/sandboxes", &headers, "")?;
    let allowed = answer.to_ascii_lowercase().contains("access-control-");
    Ok(if allowed || status < 400 {
        Finding::escaped(status.to_string())
    } else {
        Finding::contained(format!("{status}, no CORS header"))
    })
}

async fn events(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers =
        [host(stage)?, bearer(&stage.token), "Origin: http://evil.example".into(), "Accept: text/event-stream".into()];
    Ok(judged(&[403], &ask(stage, "GET /v1/events?follow=true", &headers, "")?))
}

async fn websocket(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers = [
        host(stage)?,
        bearer(&stage.token),
        "Origin: http://evil.example".into(),
        "Upgrade: websocket".into(),
        "Sec-WebSocket-Version: 13".into(),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==".into(),
    ];
    Ok(judged(&[403], &ask(stage, "GET /v1/events", &headers, "")?))
}

/// The host name under which browsers are signed in, with the port.
pub(crate) fn sign_in_host(stage: &Stage) -> Outcome<String> {
    Ok(format!("sandbar.localhost:{}", port(stage)?))
}

/// A link's code, changed for a cookie.
pub(crate) fn signed_in(stage: &Stage) -> Outcome<String> {
    if let Some(cookie) = stage.cookie.borrow().clone() {
        return Ok(cookie);
    }
    let cookie = sign_in(stage)?;
    stage.cookie.replace(Some(cookie.clone()));
    Ok(cookie)
}

/// Of another browser.
fn sign_in(stage: &Stage) -> Outcome<String> {
    let (status, answer) = exchange(stage, &sign_in_host(stage)?, &stage.server.sign_in()?.1)?;
    let cookie = answer
        .lines()
        .find_map(|line| line.to_ascii_lowercase().starts_with("set-cookie:").then(|| line[11..].trim().to_owned()));
    let cookie = cookie.ok_or_else(|| format!("no cookie: {status} {answer}"))?;
    Ok(cookie.split(';').next().unwrap_or_default().to_owned())
}

fn exchange(stage: &Stage, host: &str, code: &str) -> Outcome<(u16, String)> {
    let headers = [format!("Host: {host}"), JSON.to_owned(), format!("Origin: http://{host}")];
    ask(stage, "POST /v1/login", &headers, &format!("{{\"code\":\"{code}\"}}"))
}

/// To this host, with the headers of a page there.
fn by_page(stage: &Stage, host: &str, cookie: &str, request: &str) -> Outcome<(u16, String)> {
    let headers = [
        format!("Host: {host}"),
        JSON.to_owned(),
        format!("Cookie: {cookie}"),
        format!("Origin: http://{host}"),
        "Sec-Fetch-Site: same-origin".to_owned(),
    ];
    ask(stage, request, &headers, if request == CREATE { BODY } else { "" })
}

fn with_cookie(stage: &Stage, more: &[String]) -> Outcome<(u16, String)> {
    let here = format!("Host: {}", sign_in_host(stage)?);
    let mut headers = vec![here, JSON.to_owned(), format!("Cookie: {}", signed_in(stage)?)];
    headers.extend_from_slice(more);
    ask(stage, CREATE, &headers, BODY)
}

async fn cookie(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(through(by_page(stage, &sign_in_host(stage)?, &signed_in(stage)?, CREATE)?))
}

/// Whoever came by a browser's cookie, on whatever port, sends it as a program would.
async fn cookie_as_bearer(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let cookie = signed_in(stage)?;
    let value = cookie.split_once('=').map(|(_, value)| value).unwrap_or_default();
    for host in [stage.address()?, sign_in_host(stage)?] {
        let answer = ask(stage, "GET /v1/sandboxes", &[format!("Host: {host}"), bearer(value)], "")?;
        let found = judged(&[401], &answer);
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    Ok(Finding::contained("401"))
}

async fn cookie_elsewhere(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (cookie, port) = (signed_in(stage)?, port(stage)?);
    for name in ["127.0.0.1", "localhost", "[::1]"] {
        let found = judged(&[401], &by_page(stage, &format!("{name}:{port}"), &cookie, CREATE)?);
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    Ok(Finding::contained("401"))
}

async fn token_as_cookie(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[401], &by_page(stage, &sign_in_host(stage)?, &format!("sandbar={}", stage.token), CREATE)?))
}

async fn signed_out(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (here, cookie) = (sign_in_host(stage)?, sign_in(stage)?);
    let (status, answer) = by_page(stage, &here, &cookie, "POST /v1/logout")?;
    if status != 204 {
        return Err(format!("it was not signed out: {answer}").into());
    }
    Ok(judged(&[401], &by_page(stage, &here, &cookie, CREATE)?))
}

/// A cookie of these names would go to every server there is on the machine.
async fn sign_in_elsewhere(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let ((_, code), port) = (stage.server.sign_in()?, port(stage)?);
    for name in ["127.0.0.1", "localhost", "[::1]"] {
        let found = judged(&[403], &exchange(stage, &format!("{name}:{port}"), &code)?);
        if matches!(found, Finding::Escaped(_)) {
            return Ok(found);
        }
    }
    Ok(Finding::contained("403"))
}

/// An admin's token makes tokens that are listed with a name; a link is for who owns the server.
async fn link_by_token(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &ask(stage, "POST /v1/sign-in-links", &[host(stage)?, bearer(&stage.token)], "")?))
}

async fn cookie_cross_site(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(
        &[403],
        &with_cookie(stage, &["Sec-Fetch-Site: cross-site".into(), "Origin: http://evil.example".into()])?,
    ))
}

async fn cookie_silent(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &with_cookie(stage, &[])?))
}

async fn code_twice(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let (here, (_, code)) = (sign_in_host(stage)?, stage.server.sign_in()?);
    let (status, answer) = exchange(stage, &here, &code)?;
    if status != 204 {
        return Err(format!("it did not work once: {answer}").into());
    }
    Ok(judged(&[401], &exchange(stage, &here, &code)?))
}

async fn as_role(stage: &Stage, role: Role, first: &str, body: &str) -> Outcome<(u16, String)> {
    let token = token(&stage.client, role).await?;
    ask(stage, first, &[host(stage)?, bearer(&token), JSON.to_owned()], body)
}

const RUN: &str = "{\"argv\":[\"true\"]}";

async fn viewer_exec(stage: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Viewer, &format!("POST /v1/sandboxes/{}/exec", target.id), RUN).await?))
}

async fn operator_exec(stage: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Operator, &format!("POST /v1/sandboxes/{}/exec", target.id), RUN).await?))
}

async fn viewer_upload(stage: &Stage, target: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Viewer, &format!("PUT /v1/sandboxes/{}/files/x", target.id), "x").await?))
}

const TOKEN: &str = "{\"name\":\"more\",\"role\":\"admin\"}";

async fn operator_token(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Operator, "POST /v1/tokens", TOKEN).await?))
}

async fn admin_token(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Admin, "POST /v1/tokens", TOKEN).await?))
}

fn binding(stage: &Stage) -> Outcome<String> {
    Ok(format!("{{\"workspace\":{{\"kind\":\"bind\",\"path\":\"{}\"}}}}", stage.directory("bound")?.display()))
}

async fn operator_binds(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Operator, CREATE, &binding(stage)?).await?))
}

async fn admin_binds(stage: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(judged(&[403], &as_role(stage, Role::Admin, CREATE, &binding(stage)?).await?))
}

/// Two requests in one write, the first with these lines about its length.
fn two(stage: &Stage, lengths: &str) -> Outcome<Finding> {
    let host = host(stage)?;
    let second =
        format!("GET /v1/sandboxes HTTP/1.1\r\n{host}\r\n{}\r\nConnection: close\r\n\r\n", bearer(&stage.token));
    let answer = stage.send(&format!("GET /healthz HTTP/1.1\r\n{host}\r\n{lengths}\r\n{second}"))?;
    let hidden = answer.contains("\"sandboxes\"");
    let first = answer.lines().next().unwrap_or_default();
    Ok(if hidden { Finding::escaped("the second was answered") } else { Finding::contained(first) })
}

/// Two lengths, of which a proxy and we could believe different ones.
async fn smuggled(stage: &Stage, _: &Target) -> Outcome<Finding> {
    two(stage, "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n")
}

async fn pipelined(stage: &Stage, _: &Target) -> Outcome<Finding> {
    two(stage, "")
}

fn lacking(stage: &Stage, every: &[&str]) -> Outcome<Finding> {
    for path in ["/", "/v1/sandboxes", "/none"] {
        let (_, answer) = ask(stage, &format!("GET {path}"), &[host(stage)?], "")?;
        let answer = answer.to_ascii_lowercase();
        if let Some(lacks) = every.iter().find(|wanted| !answer.contains(**wanted)) {
            return Ok(Finding::escaped(format!("{path} lacks {lacks}")));
        }
    }
    Ok(Finding::contained("every answer forbids it"))
}

async fn headers(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let every = ["x-frame-options: deny", "x-content-type-options: nosniff", "frame-ancestors 'none'", "no-referrer"];
    lacking(stage, &every)
}

/// What no answer has is missed, so the look can fail.
async fn other_headers(stage: &Stage, _: &Target) -> Outcome<Finding> {
    lacking(stage, &["x-frame-options: allow"])
}
