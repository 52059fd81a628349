//! The server behind everything: small answers, endless ones, and an LLM vendor's, over TLS and in plain, HTTP/1.1 and
//! HTTP/2. Its authority is made anew each time.

use std::{
    convert::Infallible,
    io::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::MissedTickBehavior};
use tokio_rustls::TlsAcceptor;

use crate::Outcome;

/// What stands before the moment a token was written, in nanoseconds since 1970.
pub(crate) const TOKEN: &str = "\"content\":\"";
/// A fast model's.
pub(crate) const BETWEEN_TOKENS: Duration = Duration::from_millis(50);
const PLACES: u32 = 200;
static STREAMS: AtomicU32 = AtomicU32::new(0);
const CHUNK: &[u8] = &[b'x'; 64 * 1024];
const NAMES: [&str; 5] = ["tunnel.test", "terminated.test", "llm.test", "localhost", "127.0.0.1"];

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Writes `DIR/origin.pem`, then tells its ports in one line, and serves until it is killed.
pub(crate) fn serve(directory: &str) -> Outcome {
    let (both, certificate) = identity()?;
    let mut only_http1 = both.clone();
    only_http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    std::fs::write(Path::new(directory).join("origin.pem"), certificate)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let plain = TcpListener::bind("127.0.0.1:0").await?;
        let http1 = TcpListener::bind("127.0.0.1:0").await?;
        let tls = TcpListener::bind("127.0.0.1:0").await?;
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        let ports = json!({"plain": port(&plain)?, "http1": port(&http1)?, "http2": port(&tls)?});
        writeln!(std::io::stdout(), "{ports}")?;
        tokio::try_join!(
            accept(plain, None),
            accept(http1, Some(Arc::new(only_http1).into())),
            accept(tls, Some(Arc::new(both).into())),
        )?;
        Ok(())
    })
}

fn identity() -> Outcome<(rustls::ServerConfig, String)> {
    let made = rcgen::generate_simple_self_signed(NAMES.map(str::to_owned))?;
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, made.cert.pem()))
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>) -> Outcome {
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let service = service_fn(answer);
            // whoever goes in the middle of an answer has had enough of it
            drop(stream.set_nodelay(true));
            match acceptor {
                None => drop(server.serve_connection(TokioIo::new(stream), service).await),
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        drop(server.serve_connection(TokioIo::new(stream), service).await);
                    }
                }
            }
        });
    }
}

async fn answer(request: Request<Incoming>) -> Outcome<Response<Body>> {
    if let Some(count) = request.uri().path().strip_prefix("/bytes/") {
        return Ok(endless(count.parse()?));
    }
    if request.uri().path().ends_with("/chat/completions") {
        let body = request.into_body().collect().await?.to_bytes();
        let call: Value = serde_json::from_slice(&body)?;
        return Ok(if call["stream"] == true { stream(call["max_tokens"].as_u64().unwrap_or(1)) } else { whole() });
    }
    Ok(Response::new(
        Full::from("A small answer, as a service's health or a cache's \"not modified\" is.").boxed_unsync(),
    ))
}

fn endless(count: u64) -> Response<Body> {
    let chunks = futures_util::stream::unfold(count, |left| async move {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK.len());
        (size > 0).then(|| (Ok(Frame::data(Bytes::from_static(&CHUNK[..size]))), left - size as u64))
    });
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(count));
    response
}

fn whole() -> Response<Body> {
    let answer = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "An answer of a few words."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 80, "completion_tokens": 6, "total_tokens": 86},
    });
    let mut response = Response::new(Full::from(answer.to_string()).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn stream(tokens: u64) -> Response<Body> {
    // streams that begin together do not write together: each has its place in the interval
    let number = STREAMS.fetch_add(1, Ordering::Relaxed) % PLACES;
    let place = BETWEEN_TOKENS * (number * 123 % PLACES) / PLACES;
    let mut clock = tokio::time::interval_at(tokio::time::Instant::now() + place, BETWEEN_TOKENS);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\",\"choices\":[";
    let written = futures_util::stream::unfold((clock, tokens), move |(mut clock, left)| async move {
        let left = left.checked_sub(1)?;
        clock.tick().await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let choice = format!("{{\"index\":0,\"delta\":{{{TOKEN}{now}\"}},\"finish_reason\":null}}],\"usage\":null");
        Some((format!("{begin}{choice}}}\n\n"), (clock, left)))
    });
    let usage = json!({"prompt_tokens": 2, "completion_tokens": tokens, "total_tokens": tokens + 2});
    let end = format!("{begin}],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
    let events = written.chain(futures_util::stream::once(async { end }));
    let frames = events.map(|event| Ok(Frame::data(Bytes::from(event))));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}
