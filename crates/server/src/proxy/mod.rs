//! One HTTP exchange with a server inside, over one connection to its port. What both sides say is parsed here and written
//! anew, so that they cannot disagree about where a message ends; bodies pass as they come, at the pace of who reads them.

mod body;
mod headers;
mod upgrade;

use std::{pin::Pin, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{Method, StatusCode, Uri, Version, request::Parts, uri::PathAndQuery},
    response::Response,
};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sandbar_engine::{Caller, Dialled};
use tokio::time::sleep;

use crate::App;
use body::{Line, Passed, Told};
pub(crate) use headers::{cookies, strip_cookies, strip_prefixed, strip_reach};
use upgrade::Wanted;
pub(crate) use upgrade::asks_for;

/// Bounds the head of an answer, and what waits in memory for a slow reader.
const BUFFER: usize = 64 * 1024;
/// Until a token is looked at again for an answer that lasts; most are over by then.
const SETTLED: Duration = Duration::from_secs(1);

/// When it is over, so is the exchange, whatever is still under way.
pub(crate) type Until = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The server inside did not answer in time.
    Slow,
    /// It answered what is no HTTP, or broke off.
    Broken,
}

/// A request on its way inside, without what concerns the connection it came over.
pub(crate) struct Inward {
    pub(crate) head: Parts,
    body: Body,
    wanted: Option<Wanted>,
}

impl Inward {
    /// `None` for what cannot be passed on.
    pub(crate) fn new(request: Request) -> Option<Self> {
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return None;
        }
        let wanted = Wanted::of(&mut head);
        headers::to_server(&mut head, &body, wanted.is_some());
        Some(Self { head, body, wanted })
    }

    pub(crate) fn is_upgrade(&self) -> bool {
        self.wanted.is_some()
    }

    /// As the server inside sees it: the path and query as they were sent, undecoded.
    pub(crate) fn aim(&mut self, path: &str) -> Option<()> {
        let path: PathAndQuery = path.parse().ok()?;
        self.head.uri = Uri::from(path);
        Some(())
    }
}

/// Ends with the server, and with what the caller was let in for.
pub(crate) fn until(app: &App, caller: Option<Caller>) -> Until {
    let (closing, engine) = (app.closing.clone(), app.engine.clone());
    Box::pin(async move {
        let turned_away = async {
            let Some(caller) = caller else { return std::future::pending().await };
            sleep(SETTLED).await;
            // A token that cannot be looked up any more holds nothing open either.
            let _ended = engine.turned_away(&caller).await;
        };
        tokio::select! {
            () = closing.cancelled() => {}
            () = turned_away => {}
        }
    })
}

/// `patience` is for the head of the answer, from the end of the request on: uploads take the time they take.
pub(crate) async fn exchange(
    app: &App,
    dialled: Dialled,
    inward: Inward,
    patience: Duration,
    mut until: Until,
) -> Result<Response, Failed> {
    let Inward { mut head, body, wanted } = inward;
    head.version = Version::HTTP_11;
    let (told, sent) = Told::new(body);
    let handshake = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(dialled)).await;
    let (mut sender, connection) = handshake.map_err(|_| Failed::Broken)?;
    let mut line = Line::new(connection.with_upgrades());
    let is_head = head.method == Method::HEAD;
    let answer = sender.send_request(hyper::Request::from_parts(head, told));
    let answer = tokio::select! {
        answer = answer => answer,
        () = &mut until => return Err(Failed::Slow),
        () = async { sent.await; sleep(patience).await } => return Err(Failed::Slow),
    };
    let mut answer = answer.map_err(|error| {
        tracing::debug!(%error, "a server inside gave no answer");
        Failed::Broken
    })?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let wanted = wanted.filter(|_| upgrade::is_websocket(answer.headers())).ok_or(Failed::Broken)?;
        line.keep();
        let inside = hyper::upgrade::on(&mut answer);
        wanted.carry(app, inside, until);
        headers::to_client(&mut answer, is_head, true);
        return Ok(answer.map(|_| Body::empty()));
    }
    headers::to_client(&mut answer, is_head, false);
    Ok(answer.map(|body| Body::new(Passed::new(body, line, until))))
}
