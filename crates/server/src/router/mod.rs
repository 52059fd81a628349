//! The router of agent-sandbox under `/router`: headers name a sandbox and a port, and the rest of the path goes there as it
//! is. Whoever calls is known first, by a bearer token alone: a browser's cookie counts for nothing here.

mod access;
mod answer;
mod ask;
mod scoped;

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::Response,
    routing::{any, get},
};
use sandbar_api::Code;
use sandbar_engine::{Dialled, Engine};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    App,
    access::Channel,
    preview,
    proxy::{self, Failed, Inward, Until},
};
use answer::Refusal;
use ask::Ask;
pub(crate) use scoped::Key;

const PREFIX: &str = "/router";
/// For all of an exchange that is no WebSocket.
const LONGEST: Duration = Duration::from_secs(180);
/// For the head of an answer, when the caller has not said how long it waits.
const HEAD: Duration = Duration::from_secs(30);
/// Between attempts to connect to a port that is not open yet; only connecting is repeated, never a request.
const PAUSES: [u64; 3] = [200, 400, 800];

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/router/healthz", get(alive))
        .route("/router/readyz", get(ready))
        .route("/router", any(pass))
        .route("/router/", any(pass))
        .route("/router/{*path}", any(pass))
}

async fn alive() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn ready(State(app): State<App>) -> Result<Json<Value>, Refusal> {
    match app.engine.ready().await {
        Ok(()) => Ok(alive().await),
        Err(problem) => Err(Refusal::NotReady(problem.detail)),
    }
}

async fn pass(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let caller = access::identify(&app, Channel::of(&request), request.headers()).await?;
    let ask = Ask::of(request.headers())?;
    access::count(&caller, request.extensions())?;
    let sandbox = access::admit(&app, &caller, &ask).await?;

    let mut inward = Inward::new(request).ok_or(Refusal::Method)?;
    let over = until(&app, caller, &ask, inward.is_upgrade());
    let path = inward.head.uri.path_and_query().map_or("", |path| path.as_str());
    let path = path.strip_prefix(PREFIX).unwrap_or_default().to_owned();
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    inward.aim(&path).ok_or_else(|| ask.unreachable())?;
    clean(&mut inward, ask.port);

    let dialled = dial(&app.engine, &sandbox, ask.port).await.ok_or_else(|| ask.unreachable())?;
    let patience = ask.timeout.unwrap_or(HEAD);
    let exchanged = proxy::exchange(&app, dialled, inward, patience, over).await;
    exchanged.map(|answer| answer::confine(answer, ask.port)).map_err(|failed| match failed {
        Failed::Slow => Refusal::Slow(ask.id),
        Failed::Broken => ask.unreachable(),
    })
}

/// What is said to us stays with us.
fn clean(inward: &mut Inward, port: u16) {
    let upgrades = inward.is_upgrade();
    let headers = &mut inward.head.headers;
    proxy::strip_prefixed(headers, "x-sandbox-");
    proxy::strip_cookies(headers, &preview::OURS);
    headers.remove(header::AUTHORIZATION);
    if upgrades {
        headers.remove(header::ORIGIN);
    }
    if let Ok(host) = HeaderValue::from_str(&format!("127.0.0.1:{port}")) {
        headers.insert(header::HOST, host);
    }
}

fn until(app: &App, caller: access::Identity, ask: &Ask, lasts: bool) -> Until {
    let deadline = Instant::now() + ask.timeout.unwrap_or(LONGEST);
    let (caller, expires) = match caller {
        access::Identity::Known(caller) => (Some(caller), None),
        access::Identity::Scoped(claims) => (None, Some(claims.left())),
    };
    let ended = proxy::until(app, caller);
    Box::pin(async move {
        let expired = async {
            match expires {
                Some(left) => sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            () = expired => {}
            () = sleep_until(deadline), if !lasts => {}
        }
    })
}

/// `None` when it cannot be; why, the server's log tells and not the caller, who may not be of this host.
async fn dial(engine: &Engine, sandbox: &str, port: u16) -> Option<Dialled> {
    let mut pauses = PAUSES.into_iter();
    loop {
        match engine.dial(sandbox, port).await {
            Ok(dialled) => return Some(dialled),
            Err(problem) => {
                tracing::debug!(code = problem.code.as_str(), detail = problem.detail, "no connection for the router");
                let pause = pauses.next().filter(|_| problem.code == Code::PortClosed)?;
                sleep(Duration::from_millis(pause)).await;
            }
        }
    }
}
