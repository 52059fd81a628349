//! Accepting connections on a runtime's port, not too many at once, and none for ever that asks for nothing.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};

#[derive(Clone, Copy)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// To each port; more wait in the kernel.
const CONNECTIONS: usize = 64;
/// Calls at once on one connection.
const STREAMS: u32 = 64;
/// Of what a connection sends, as much is held that nobody has asked for yet, or of a request's head.
const UNREAD: u32 = 64 * 1024;
/// From the first byte, or the end of the request before, to the end of a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// How often a silent connection is asked whether it is there, and how long it has to answer.
const ASK: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);
/// Running out of descriptors passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn serve(listener: TcpListener, protocol: Protocol, app: Router) {
    tokio::spawn(async move {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let app = app.clone();
            tokio::spawn(async move {
                carry(stream, protocol, app).await;
                drop(permit);
            });
        }
    });
}

async fn carry(stream: TcpStream, protocol: Protocol, app: Router) {
    // Answers are small and each is waited for; only speed depends on it.
    let _sooner = stream.set_nodelay(true);
    let (io, app) = (TokioIo::new(stream), TowerToHyperService::new(app));
    // How a connection ended matters to nobody: whatever it asked for was ended with it.
    let _ended = match protocol {
        Protocol::Http => {
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(UNREAD as usize)
                .serve_connection(io, app)
                .await
        }
        Protocol::Grpc => {
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .initial_stream_window_size(UNREAD)
                .initial_connection_window_size(2 * UNREAD)
                .keep_alive_interval(ASK)
                .keep_alive_timeout(ANSWER)
                .serve_connection(io, app)
                .await
        }
    };
}
