//! A sandbox's entrance: a bounded number of connections at a time, the rest waits where it came from; each is one task that
//! owns everything it opens. One more may be accepted and wait for a socket's place, so that idle gates hold none.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Entrance,
    client::Client,
    gate::{Felt, Gate, Pulse},
    proxy::{After, Proxy},
    sockets::Socket,
};

/// Of one request's head, in bytes and in lines.
pub(crate) const HEAD: usize = 64 * 1024;
pub(crate) const HEADERS: usize = 100;
/// When descriptors have run out, trying again at once would only burn a processor.
const BREATH: Duration = Duration::from_millis(50);

pub(crate) async fn serve(gate: Arc<Gate>, mut entrance: Entrance, stop: CancellationToken) {
    let mut open = JoinSet::new();
    let mut next: Option<Client> = None;
    loop {
        let room = open.len() < gate.gateway.reach().settings.connections.max(1);
        let place = OptionFuture::from(next.as_ref().map(|client| client.place(&gate.share)));
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = open.join_next(), if !open.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            Some(place) = place, if next.is_some() => {
                if let (Ok(place), Some(client)) = (place, next.take()) {
                    open.spawn(connection(Arc::clone(&gate), client, place));
                }
            }
            accepted = entrance.accept(), if room && next.is_none() => match accepted {
                Ok(client) => next = Some(client),
                Err(error) => {
                    tracing::warn!(%error, "a sandbox's connection cannot be accepted");
                    tokio::time::sleep(BREATH).await;
                }
            },
        }
    }
    drop(entrance);
    open.shutdown().await;
}

async fn connection(gate: Arc<Gate>, client: Client, _place: Socket) {
    let reach = gate.gateway.reach();
    let pulse = Arc::new(Pulse::default());
    let idle = reach.settings.idle_timeout;
    let own = match client.accepted_at() {
        Ok(own) => own,
        Err(error) => return tracing::debug!(%error, "a client was gone before its first request"),
    };
    let proxy = Arc::new(Proxy::new(gate, reach, Arc::clone(&pulse), own));
    // each part has its own place in memory, which is given back when it is over: tunnels stay open long
    let life = async {
        let after = Box::pin(speak(&proxy, client)).await;
        match after {
            Some(After::Passage(passage)) => Box::pin(passage.run(&proxy.gate, &proxy.reach, &proxy.pulse)).await,
            Some(After::Bridge(bridge)) => Box::pin(bridge.run(&proxy.pulse)).await,
            None => {}
        }
    };
    tokio::select! {
        () = pulse.stopped(idle) => {}
        () = life => {}
    }
}

/// HTTP, until it is over or becomes something else.
async fn speak(proxy: &Arc<Proxy>, client: Client) -> Option<After> {
    let service = service_fn(|request| {
        let proxy = Arc::clone(proxy);
        async move { Ok::<_, Infallible>(proxy.answer(request).await) }
    });
    let io = TokioIo::new(Felt { inner: client, pulse: Arc::clone(&proxy.pulse) });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(proxy.reach.settings.head_timeout)
        .preserve_header_case(true)
        .max_headers(HEADERS)
        .max_buf_size(HEAD)
        .serve_connection(io, service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a client's connection ended");
    }
    proxy.take_after()
}
