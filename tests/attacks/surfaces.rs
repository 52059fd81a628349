//! The ways in for programs: what an agent's token, somebody else's conversation and a scoped token do not open. Every control
//! is the same by the one who may.

use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbar_api::Role;
use serde_json::{Value, json};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    room::{ONE, RUNTIMES, Room, SOON, head, refused, status, with_two},
    stage::{Stage, Target, token},
    support::Outcome,
    web::{JSON, ask, bearer, host},
};

const API: &str = include_str!("../../openapi.json");
const PROTO: &str = include_str!("../../crates/server/proto/sandbar/v1/sandbar.proto");

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, place, control| {
        Attack::act(Class::Surfaces, name, act, Control::Act(place, control)).on(ONE).with(RUNTIMES)
    };
    let operator = "with an operator's token";
    vec![
        doing("agent_on_every_route", act!(routes_agent), operator, act!(routes_operator)),
        doing("agent_on_every_method_of_grpc", act!(grpc_agent), operator, act!(grpc_operator)),
        doing("agent_at_another_sandbox_by_the_router", act!(router_agent), operator, act!(router_operator)),
        doing("agent_at_its_gate_by_the_router", act!(router_gate), "at a port of its own", act!(router_own)),
        doing("headers_of_the_router_elsewhere", act!(headers_elsewhere), "at the router", act!(router_operator)),
        doing("agent_at_a_preview", act!(preview_agent), operator, act!(preview_operator)),
        doing("tools_of_another_session", act!(tools_other), "of its own", act!(tools_own)),
        doing("mcp_session_of_another_token", act!(stolen), "by its own", act!(not_stolen)),
        doing("conversation_of_another_user", act!(user_other), "by its user", act!(user_own)),
    ]
}

/// Method and path of each route, as the API describes itself, and whether a session or a sandbox is named in it.
fn routes(sandbox: &str, session: &str) -> Outcome<Vec<(String, String, bool)>> {
    let api: Value = serde_json::from_str(API)?;
    let mut found = vec![];
    for (path, methods) in api["paths"].as_object().ok_or("no paths")? {
        let mut filled =
            path.replace("{session}", session).replace("{session_id}", session).replace("{sandbox}", sandbox);
        filled = filled.replace("{port}", "8888").replace("{path}", "workspace/x");
        while let (Some(begin), Some(end)) = (filled.find('{'), filled.find('}')) {
            filled.replace_range(begin..=end, "none");
        }
        let names_one = path.contains("{session") || path.contains("{sandbox}");
        for method in methods.as_object().ok_or("no methods")?.keys().filter(|method| *method != "parameters") {
            found.push((format!("{} {filled}", method.to_uppercase()), path.clone(), names_one));
        }
    }
    Ok(found)
}

/// What an agent's token is for, of its own session; the rest is everybody's.
const AGENTS: [&str; 11] = [
    "GET /v1/approvals",
    "GET /v1/sessions",
    "GET /v1/usage",
    "GET /internal/usage/",
    "GET /healthz",
    "GET /readyz",
    "POST /v1/login",
    "/mcp",
    "/budget",
    "/sandbox",
    "GET /v1/sessions/",
];

fn is_agents(route: &str) -> bool {
    let reads = route.starts_with("GET ") || route.ends_with("/mcp") || route == "POST /v1/login";
    reads
        && !route.contains("/api/")
        && !route.starts_with("GET /v1/sandboxes")
        && AGENTS.iter().any(|known| route.starts_with(known) || (known.starts_with('/') && route.ends_with(known)))
}

async fn routes_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let headers = [host(stage)?, bearer(&own.token), JSON.to_owned()];
        let mut tried = vec![];
        for (room, is_own) in [(own, true), (other, false)] {
            for (route, _, names_one) in routes(&room.sandbox, &room.session)? {
                if is_agents(&route) && (is_own || !names_one) {
                    continue;
                }
                let answered = status(&head(stage, &route, &headers, "{}")?);
                tried.push((route, answered));
            }
        }
        Ok(refused(&[403, 404], tried))
    })
    .await
}

/// Of sandboxes that are not there, so that nothing happens.
async fn routes_operator(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let headers = [host(stage)?, bearer(&token(&stage.client, Role::Operator).await?), JSON.to_owned()];
    let mut through = 0;
    for (route, _, _) in routes("none", "none")? {
        through += u32::from(![401, 403].contains(&status(&head(stage, &route, &headers, "{")?)));
    }
    Ok(if through > 45 {
        Finding::escaped(format!("{through} reached"))
    } else {
        Finding::contained(format!("{through}"))
    })
}

fn methods() -> Vec<String> {
    let mut service = "";
    let mut found = vec![];
    for line in PROTO.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("service ") {
            service = name.trim_end_matches(['{', ' ']);
        } else if let Some(rest) = line.strip_prefix("rpc ") {
            found.push(format!("/sandbar.v1.{service}/{}", rest.split('(').next().unwrap_or_default()));
        }
    }
    found
}

/// The status of a call with an empty message.
async fn grpc(stage: &Stage, token: &str, method: &str) -> Outcome<u16> {
    let stream = tokio::net::TcpStream::connect(stage.address()?).await?;
    let opened = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let (mut sender, connection) = opened;
    let driving = tokio::spawn(connection);
    let request = hyper::Request::post(format!("{}{method}", stage.server.base()?))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(hyper::body::Bytes::from_static(&[0; 5])))?;
    let answer = tokio::time::timeout(SOON, async {
        let answer = sender.send_request(request).await?;
        let told = answer.headers().get("grpc-status").cloned();
        let trailers = answer.into_body().collect().await?.trailers().cloned();
        Ok::<_, hyper::Error>(told.or_else(|| trailers?.get("grpc-status").cloned()))
    });
    let told = answer.await??.ok_or("no status")?;
    driving.abort();
    Ok(told.to_str()?.parse()?)
}

const PERMISSION_DENIED: u16 = 7;

async fn grpc_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| {
        let mut tried = vec![];
        for method in methods() {
            if !["/sandbar.v1.Sessions/Get", "/sandbar.v1.Sessions/List"].contains(&method.as_str()) {
                tried.push((method.clone(), grpc(stage, &own.token, &method).await?));
            }
        }
        Ok(refused(&[PERMISSION_DENIED], tried))
    })
    .await
}

async fn grpc_operator(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let mut through = 0;
    for method in methods().iter().filter(|method| method.contains("Processes") || method.contains("Files")) {
        through += u32::from(grpc(stage, &token, method).await? != PERMISSION_DENIED);
    }
    Ok(if through >= 12 {
        Finding::escaped(format!("{through} reached"))
    } else {
        Finding::contained(format!("{through}"))
    })
}

pub(crate) fn at_router(stage: &Stage, token: &str, sandbox: &str, more: &[&str]) -> Outcome<(u16, String)> {
    let mut headers = vec![host(stage)?, bearer(token), format!("X-Sandbox-ID: {sandbox}")];
    headers.extend(more.iter().map(|&line| line.to_owned()));
    ask(stage, "GET /router/", &headers, "")
}

pub(crate) fn reached((status, answer): (u16, String)) -> Finding {
    if answer.contains("Runtime is active") {
        Finding::escaped("its runtime answers")
    } else {
        Finding::contained(status.to_string())
    }
}

async fn router_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let name = stage.client.sandbox(&other.sandbox).await?.name;
        let mut tried = vec![];
        for id in [other.sandbox.as_str(), &name, "none"] {
            for more in
                [&[][..], &["X-Sandbox-Port: 8888"], &["X-Sandbox-Pod-IP: 10.0.0.1"], &["X-Sandbox-Namespace: other"]]
            {
                tried.push((format!("{id} {more:?}"), at_router(stage, &own.token, id, more)?.0));
            }
        }
        let twice = format!("X-Sandbox-ID: {}", own.sandbox);
        tried.push(("two ids".to_owned(), at_router(stage, &own.token, &other.sandbox, &[&twice])?.0));
        Ok(refused(&[400, 403], tried))
    })
    .await
}

async fn router_operator(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    with_two(stage, target, async |_, other| Ok(reached(at_router(stage, &token, &other.sandbox, &[])?))).await
}

async fn router_own(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| Ok(reached(at_router(stage, &own.token, &own.sandbox, &[])?))).await
}

async fn router_gate(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| {
        let ports = ["7228", "07228", " 7228"].map(|port| format!("X-Sandbox-Port: {port}"));
        let tried = ports.iter().map(|port| Ok((port.clone(), at_router(stage, &own.token, &own.sandbox, &[port])?.0)));
        Ok(refused(&[400, 502], tried.collect::<Outcome<Vec<_>>>()?))
    })
    .await
}

/// What is elsewhere asked for stays what it is, whatever the router's headers name.
async fn headers_elsewhere(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let more = [format!("X-Sandbox-ID: {}", other.sandbox), "X-Sandbox-Port: 8888".to_owned()];
        let command = json!({"command": "cat /proc/sys/kernel/hostname"});
        let (_, plain) = own.call(stage, &own.token, "exec", command.clone(), &[])?;
        let (_, marked) = own.call(stage, &own.token, "exec", command, &more)?;
        let body = |answer: &str| answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
        let headers = [vec![host(stage)?, bearer(&own.token)], more.to_vec()].concat();
        let (_, looked) = ask(stage, &format!("GET /v1/sessions/{}", own.session), &headers, "")?;
        let same = body(&plain) == body(&marked)
            && body(&plain).contains("exit_code\\\":0")
            && !looked.contains(&other.sandbox);
        Ok(if same { Finding::contained("its own host name, its own session") } else { Finding::escaped(marked) })
    })
    .await
}

pub(crate) fn at_preview(stage: &Stage, token: &str, sandbox: &str) -> Outcome<(u16, String)> {
    let port = stage.address()?.rsplit(':').next().unwrap_or_default().to_owned();
    ask(stage, "GET /", &[format!("Host: {sandbox}-8888.localhost:{port}"), bearer(token)], "")
}

async fn preview_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let mut tried = vec![];
        for (room, what) in [(own, "its own"), (other, "another")] {
            tried.push((what.to_owned(), at_preview(stage, &own.token, &room.sandbox)?.0));
        }
        Ok(refused(&[403], tried))
    })
    .await
}

async fn preview_operator(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    with_two(stage, target, async |own, _| Ok(reached(at_preview(stage, &token, &own.sandbox)?))).await
}

async fn tools_other(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let there = other.call(stage, &own.token, "exec", json!({"command": "true"}), &[])?;
        let none = Room { session: "none".into(), sandbox: String::new(), token: String::new() };
        let absent = none.call(stage, &own.token, "exec", json!({"command": "true"}), &[])?;
        Ok(refused(&[404], [("another".to_owned(), there.0), ("none".to_owned(), absent.0)]))
    })
    .await
}

async fn tools_own(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| {
        let (status, answer) = own.call(stage, &own.token, "exec", json!({"command": "echo it runs"}), &[])?;
        Ok(if answer.contains("it runs") {
            Finding::escaped("it runs")
        } else {
            Finding::contained(status.to_string())
        })
    })
    .await
}

/// A look at an MCP session by each of its methods.
fn used(stage: &Stage, room: &Room, token: &str, id: &str) -> Outcome<Vec<(String, u16)>> {
    let mut headers = room.headers(stage, token)?;
    headers.push(format!("Mcp-Session-Id: {id}"));
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let path = format!("/v1/sessions/{}/mcp", room.session);
    let one = |method: &str, body: &str| {
        let head = head(stage, &format!("{method} {path}"), &headers, body)?;
        Outcome::Ok((format!("{method} {path}"), status(&head)))
    };
    Ok(vec![one("POST", &list)?, one("GET", "")?, one("DELETE", "")?])
}

async fn stolen(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let operator = token(&stage.client, Role::Operator).await?;
    with_two(stage, target, async |own, other| {
        let id = own.shake_hands(stage)?;
        let mut tried = used(stage, other, &other.token, &id)?;
        for (room, token) in [(own, &operator), (other, &operator), (own, &other.token)] {
            tried.extend(used(stage, room, token, &id)?);
        }
        Ok(refused(&[404], tried))
    })
    .await
}

async fn not_stolen(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| {
        let id = own.shake_hands(stage)?;
        Ok(refused(&[404], used(stage, own, &own.token, &id)?))
    })
    .await
}

/// The answers for another user's conversation, and for one that is not there.
async fn user_other(stage: &Stage, target: &Target) -> Outcome<Finding> {
    as_user(stage, target, "bob").await
}

async fn user_own(stage: &Stage, target: &Target) -> Outcome<Finding> {
    as_user(stage, target, "ann").await
}

async fn as_user(stage: &Stage, target: &Target, user: &str) -> Outcome<Finding> {
    // By its configuration the conversation's sandbox is made of the target's template.
    Room::open(stage, target).await?.close(stage).await?;
    let headers = [host(stage)?, bearer(&token(&stage.client, Role::Operator).await?)];
    let id = format!("thread-{}", stage.number());
    let made = ask(stage, &format!("POST /api/sessions/{id}/sandbox?create=true&agent=a/b&user_id=ann"), &headers, "")?;
    if made.0 != 200 {
        return Err(format!("no conversation: {}", made.1).into());
    }
    let mut differ = vec![];
    for (method, path) in
        [("GET", ""), ("GET", "/sandbox"), ("POST", "/sandbox"), ("DELETE", "/sandbox"), ("DELETE", "")]
    {
        let asked = |id: &str| {
            let (status, answer) =
                ask(stage, &format!("{method} /api/sessions/{id}{path}?user_id={user}"), &headers, "")?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
                status,
                answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned(),
            ))
        };
        if asked(&id)? != asked("thread-none")? {
            differ.push(format!("{method} {path}"));
        }
    }
    let still = ask(stage, &format!("DELETE /api/sessions/{id}?user_id=ann"), &headers, "")?.0;
    Ok(match differ.is_empty() && still == 200 {
        true => Finding::contained("as one that is not there"),
        false => Finding::escaped(format!("told apart by {differ:?}, then {still}")),
    })
}
