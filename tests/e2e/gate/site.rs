//! A server on loopback, over TLS or plain, that answers by a function and remembers what it was asked.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use crate::{gate::roots::Roots, support::Outcome};

/// A request as it arrived here.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }
}

pub(crate) type Reply = Response<Full<Bytes>>;

pub(crate) fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply
}

type Answer = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

pub(crate) struct Site {
    /// As in a rule or a URL.
    pub(crate) place: String,
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Site {
    /// Over TLS, under this name.
    pub(crate) fn start(
        roots: &Roots,
        name: &str,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Outcome<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), name, Some(roots), Arc::new(answer))
    }

    pub(crate) fn plain(name: &str, answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Outcome<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), name, None, Arc::new(answer))
    }

    pub(crate) fn at(address: SocketAddr, name: &str, roots: Option<&Roots>, answer: Answer) -> Outcome<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let tls = roots.map(|roots| roots.server(name)).transpose()?.map(TlsAcceptor::from);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.spawn(serve(listener, tls, seen.clone(), answer));
        let place = if address.port() == 443 { name.to_owned() } else { format!("{name}:{}", address.port()) };
        Ok(Self { place, address, seen, _runtime: runtime })
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a word stood anywhere in what came.
    pub(crate) fn saw(&self, word: &str) -> bool {
        self.seen().iter().any(|seen| format!("{seen:?}").contains(word))
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, seen: Arc<Mutex<Vec<Seen>>>, answer: Answer) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, seen, answer) = (tls.clone(), seen.clone(), answer.clone());
        tokio::spawn(async move {
            match tls {
                None => converse(stream, seen, answer).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream, seen, answer).await;
                    }
                }
            }
        });
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Answer,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (seen, answer) = (seen.clone(), answer.clone());
        async move { Ok::<_, Infallible>(respond(request, &seen, answer).await) }
    });
    let _ended =
        auto::Builder::new(TokioExecutor::new()).serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

async fn respond(mut request: Request<Incoming>, seen: &Mutex<Vec<Seen>>, answer: Answer) -> Reply {
    let key = request.headers().get(SEC_WEBSOCKET_KEY).cloned();
    let upgrade = key.is_some().then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return reply(400, "the body was cut off") };
    let one = Seen { method: parts.method, uri: parts.uri, headers: parts.headers, body: body.to_bytes() };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(one.clone());
    if let (Some(key), Some(upgrade)) = (key, upgrade) {
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let _closed = echo(TokioIo::new(upgraded)).await;
            }
        });
        return switch(key.as_bytes());
    }
    // It may run a program.
    let answered = tokio::task::spawn_blocking(move || answer(&one)).await;
    answered.unwrap_or_else(|_| reply(500, "the test's server panicked"))
}

/// To a WebSocket, as RFC 6455 has it.
fn switch(key: &[u8]) -> Reply {
    let proof = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    let proof = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &proof);
    let mut reply = reply(101, "");
    let headers = reply.headers_mut();
    headers.insert(UPGRADE, hyper::header::HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, hyper::header::HeaderValue::from_static("Upgrade"));
    if let Ok(proof) = sandbar_api::bytes::encode(proof.as_ref()).parse() {
        headers.insert(SEC_WEBSOCKET_ACCEPT, proof);
    }
    reply
}

/// Sends short text frames back as they came, until a close frame.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    loop {
        let mut head = [0; 6];
        stream.read_exact(&mut head).await?;
        let mask = [head[2], head[3], head[4], head[5]];
        let mut data = vec![0; usize::from(head[1] & 0x7f)];
        stream.read_exact(&mut data).await?;
        for (byte, mask) in data.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        stream.write_all(&[&[head[0], head[1] & 0x7f][..], &data].concat()).await?;
        stream.flush().await?;
        if head[0] & 0x0f == 8 {
            return stream.shutdown().await;
        }
    }
}
