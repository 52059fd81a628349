//! Tokens that ended, and scoped tokens away from what they are for: neither opens anything, and what the first had open
//! ends.

use std::{
    io::Read as _,
    net::TcpStream,
    time::{Duration, Instant},
};

use sandbar_api::{HumanDuration, bytes};
use serde_json::json;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    room::{ONE, RUNTIMES, Room, SOON, open, refused, with_two},
    stage::{Stage, Target},
    support::Outcome,
    surfaces::{at_preview, at_router, reached},
    web::{JSON, ask, bearer, host},
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, place, control| {
        Attack::act(Class::Surfaces, name, act, Control::Act(place, control)).on(ONE).with(RUNTIMES)
    };
    vec![
        doing("streams_of_a_revoked_token", act!(revoked), "of one that is not", act!(not_revoked)),
        doing("streams_of_a_deleted_session", act!(deleted), "of one that is not", act!(not_revoked)),
        doing("forged_scoped_tokens", act!(scoped_forged), "as it was made", act!(scoped_good)),
        doing("scoped_token_elsewhere", act!(scoped_elsewhere), "as it was made", act!(scoped_good)),
    ]
}

/// Streams of a token that lasts: what listens, a tool that runs and an exchange with a server inside.
async fn streams(
    stage: &Stage,
    target: &Target,
    patience: Duration,
    end: impl AsyncFnOnce(&Room) -> Outcome,
) -> Outcome<Finding> {
    let room = Room::open(stage, target).await?;
    let id = room.shake_hands(stage)?;
    let mut headers = room.headers(stage, &room.token)?;
    headers.push(format!("Mcp-Session-Id: {id}"));
    let path = format!("/v1/sessions/{}/mcp", room.session);
    let exec = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
        {"name": "exec", "arguments": {"command": "sleep 600"}}});
    let mut inward = vec![host(stage)?, bearer(&room.token), JSON.to_owned()];
    inward.push(format!("X-Sandbox-ID: {}", room.sandbox));
    inward.push("X-Sandbox-Timeout: 120".to_owned());
    let all = [
        ("listening", open(stage, &format!("GET {path}"), &headers, "")?),
        ("a tool", open(stage, &format!("POST {path}"), &headers, &exec.to_string())?),
        ("the router", open(stage, "POST /router/execute", &inward, "{\"command\":\"sleep 600\"}")?),
    ];
    tokio::time::sleep(Duration::from_millis(1500)).await;
    end(&room).await?;
    let begun = Instant::now();
    let mut going = vec![];
    for (what, mut stream) in all {
        if !ends(&mut stream, begun + patience)? {
            going.push(what);
        }
    }
    // Where it was the end it is deleted already, which is fine to repeat.
    stage.client.delete_session(&room.session).await?;
    Ok(match going.is_empty() {
        true => Finding::contained(format!("all ended within {:.1?}", begun.elapsed())),
        false => Finding::escaped(format!("{going:?} went on")),
    })
}

/// Whatever it says until then.
fn ends(stream: &mut TcpStream, by: Instant) -> Outcome<bool> {
    let mut chunk = [0; 4096];
    loop {
        let left = by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(_) => return Ok(false),
        }
    }
}

async fn revoked(stage: &Stage, target: &Target) -> Outcome<Finding> {
    streams(stage, target, SOON, async |room| {
        let all = stage.client.tokens().await?;
        let of_room = |token: &&sandbar_api::Token| {
            token.session.as_ref().is_some_and(|session| session.as_str() == room.session)
        };
        let id = all.iter().find(of_room).ok_or("no token")?.id.to_string();
        Ok(stage.client.revoke_token(&id).await?)
    })
    .await
}

async fn deleted(stage: &Stage, target: &Target) -> Outcome<Finding> {
    streams(stage, target, SOON, async |room| Ok(stage.client.delete_session(&room.session).await?)).await
}

async fn not_revoked(stage: &Stage, target: &Target) -> Outcome<Finding> {
    streams(stage, target, Duration::from_secs(5), async |_| Ok(())).await
}

async fn scoped(stage: &Stage, room: &Room) -> Outcome<String> {
    Ok(stage.client.router_token(&room.sandbox, HumanDuration(Duration::from_secs(60))).await?.token)
}

async fn scoped_good(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, _| {
        Ok(reached(at_router(stage, &scoped(stage, own).await?, &own.sandbox, &[])?))
    })
    .await
}

async fn scoped_forged(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let good = scoped(stage, own).await?;
        let [_, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else {
            return Err("not three parts".into());
        };
        let url = |text: String| bytes::encode(text.as_bytes()).replace('+', "-").replace('/', "_").replace('=', "");
        let said = |ns: &str, name: &str, exp: &str| {
            let claims = url(format!("{{\"ns\":\"{ns}\",\"name\":\"{name}\",\"exp\":{exp}}}"));
            format!("v1.{claims}.{signature}")
        };
        let last = char::from(signature.as_bytes().last().copied().unwrap_or(b'A') ^ 1);
        let forged = [
            said("default", &other.sandbox, "9999999999"),
            said("default", &own.sandbox, "99999999999999999999"),
            said("default", &own.sandbox, "-1"),
            said("default", &own.sandbox, "9999999999.5"),
            said("other", &own.sandbox, "9999999999"),
            format!("v1.{claims}."),
            format!("v1.{claims}.{}{last}", &signature[..signature.len() - 1]),
            format!("v1.{claims}=.{signature}"),
            format!("{good}="),
            format!("v1.{good}"),
            good.replacen("v1", "v0", 1),
            good.replacen("v1", "none", 1),
        ];
        let mut tried = vec![];
        for token in &forged {
            for sandbox in [&own.sandbox, &other.sandbox] {
                tried.push((token.clone(), at_router(stage, token, sandbox, &[])?.0));
            }
        }
        Ok(refused(&[401], tried))
    })
    .await
}

/// Good, but for this sandbox and this place alone.
async fn scoped_elsewhere(stage: &Stage, target: &Target) -> Outcome<Finding> {
    with_two(stage, target, async |own, other| {
        let good = scoped(stage, own).await?;
        let mut tried = vec![
            ("another sandbox".to_owned(), at_router(stage, &good, &other.sandbox, &[])?.0),
            ("none".to_owned(), at_router(stage, &good, "none", &[])?.0),
            ("a namespace".to_owned(), at_router(stage, &good, &own.sandbox, &["X-Sandbox-Namespace: other"])?.0),
            ("an address".to_owned(), at_router(stage, &good, &own.sandbox, &["X-Sandbox-Pod-IP: 10.0.0.1"])?.0),
            ("a preview".to_owned(), at_preview(stage, &good, &own.sandbox)?.0),
            ("tools".to_owned(), own.call(stage, &good, "exec", json!({"command": "true"}), &[])?.0),
        ];
        for path in ["/v1/sandboxes", &format!("/v1/sandboxes/{}", own.sandbox), "/v1/sessions", "/metrics"] {
            tried.push((path.to_owned(), ask(stage, &format!("GET {path}"), &[host(stage)?, bearer(&good)], "")?.0));
        }
        Ok(refused(&[401, 403], tried))
    })
    .await
}
