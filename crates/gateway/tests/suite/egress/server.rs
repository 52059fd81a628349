//! Servers on loopback: what they saw, and answers of every shape.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Version,
    body::{Frame, Incoming},
    header::HeaderValue,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;

pub(crate) type Body = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

/// The one that the gateway is told to trust.
pub(crate) fn authority() -> &'static CertifiedIssuer<'static, KeyPair> {
    static AUTHORITY: OnceLock<CertifiedIssuer<'static, KeyPair>> = OnceLock::new();
    AUTHORITY.get_or_init(|| issuer("the tests' authority"))
}

pub(crate) fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// What a server shows: by default names of `example.test`, valid now, by the trusted authority.
pub(crate) struct Shown {
    pub(crate) names: Vec<String>,
    pub(crate) expired: bool,
    pub(crate) issuer: Option<CertifiedIssuer<'static, KeyPair>>,
    pub(crate) protocols: Vec<&'static str>,
}

impl Default for Shown {
    fn default() -> Self {
        let names = vec!["*.example.test".into(), "127.0.0.1".into()];
        Self { names, expired: false, issuer: None, protocols: vec!["h2", "http/1.1"] }
    }
}

impl Shown {
    fn config(self) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(self.names).expect("names");
        if self.expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let issuer = self.issuer.as_ref().unwrap_or_else(|| authority());
        let leaf = params.signed_by(&key, issuer).expect("a certificate");
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .expect("a certificate");
        config.alpn_protocols = self.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    pub(crate) connections: Arc<std::sync::atomic::AtomicUsize>,
    /// Lets `/steps` go on.
    pub(crate) step: Arc<Notify>,
}

impl Server {
    pub(crate) async fn plain() -> Self {
        Self::start(TcpListener::bind("127.0.0.1:0").await.expect("a listener"), None)
    }

    pub(crate) async fn tls() -> Self {
        Self::shows(Shown::default()).await
    }

    pub(crate) async fn shows(shown: Shown) -> Self {
        Self::start(TcpListener::bind("127.0.0.1:0").await.expect("a listener"), Some(shown.config()))
    }

    /// On port 443 of a loopback address, where the host lets us.
    pub(crate) async fn on_443(test: &str, address: &str) -> Option<Self> {
        match TcpListener::bind((address, 443)).await {
            Ok(listener) => Some(Self::start(listener, Some(Shown::default().config()))),
            Err(error) => {
                sandbar_test_harness::not_run(test, &format!("port 443 of {address} cannot be had: {error}"));
                None
            }
        }
    }

    fn start(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Self {
        let address = listener.local_addr().expect("an address");
        let server = Self { address, seen: Arc::default(), connections: Arc::default(), step: Arc::new(Notify::new()) };
        let (seen, step, count) = (Arc::clone(&server.seen), Arc::clone(&server.step), Arc::clone(&server.connections));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (seen, step, tls) = (Arc::clone(&seen), Arc::clone(&step), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let (seen, step) = (Arc::clone(&seen), Arc::clone(&step));
                        async move { Ok::<_, Infallible>(answer(request, &seen, step).await) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    match tls {
                        Some(config) => {
                            if let Ok(stream) = TlsAcceptor::from(config).accept(client).await {
                                drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
                            }
                        }
                        None => drop(builder.serve_connection_with_upgrades(TokioIo::new(client), service).await),
                    }
                });
            }
        });
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("lock").clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request")
    }
}

pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Body {
    let bytes = bytes.into();
    StreamBody::new(Box::pin(stream::iter([Ok(Frame::data(bytes))])))
}

async fn answer(mut request: Request<Incoming>, seen: &Mutex<Vec<Seen>>, step: Arc<Notify>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let body = if path == "/sink" {
        let mut body = body;
        let mut count = 0_usize;
        while let Some(Ok(frame)) = body.frame().await {
            count += frame.data_ref().map_or(0, Bytes::len);
        }
        Bytes::from(count.to_string())
    } else if path == "/ws" {
        Bytes::new()
    } else {
        match body.collect().await {
            Ok(collected) => {
                let trailers = collected.trailers().cloned();
                let mut all = collected.to_bytes().to_vec();
                if let Some(trailers) = trailers {
                    all.extend_from_slice(format!("{trailers:?}").as_bytes());
                }
                all.into()
            }
            Err(error) => format!("broken: {error}").into(),
        }
    };
    seen.lock().expect("lock").push(Seen {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        version: parts.version,
        headers: parts.headers,
        body: body.clone(),
    });
    if let Some(count) = path.strip_prefix("/source/") {
        let chunks = count.parse::<usize>().expect("a count") / 65_536;
        let chunk = Bytes::from(vec![b'x'; 65_536]);
        let body = stream::iter((0..chunks).map(move |_| Ok(Frame::data(chunk.clone()))));
        return Response::new(StreamBody::new(Box::pin(body)));
    }
    match path.as_str() {
        "/steps" => {
            let body = stream::iter(0..3).then(move |number| {
                let step = Arc::clone(&step);
                async move {
                    if number > 0 {
                        step.notified().await;
                    }
                    Ok(Frame::data(Bytes::from(format!("data: {number}\n\n"))))
                }
            });
            let mut response = Response::new(StreamBody::new(Box::pin(body) as Pin<Box<_>>));
            response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
            response
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            trailers.insert("sandbar-refusal", HeaderValue::from_static("network_denied"));
            let frames = [Frame::data(Bytes::from_static(b"data")), Frame::trailers(trailers)].map(Ok);
            let mut response = Response::new(StreamBody::new(Box::pin(stream::iter(frames)) as Pin<Box<_>>));
            response.headers_mut().insert("trailer", HeaderValue::from_static("grpc-status, sandbar-refusal"));
            response
        }
        "/ws" => {
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let mut io = TokioIo::new(upgraded);
                let mut buffer = [0; 1024];
                while let Ok(count) = io.read(&mut buffer).await {
                    if count == 0 || io.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
            let mut response = Response::new(bytes(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
            response.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
            response.headers_mut().insert("sandbar-refusal", HeaderValue::from_static("network_denied"));
            response
        }
        "/back" => {
            let mut response = Response::new(bytes(""));
            *response.status_mut() = StatusCode::FOUND;
            let query = parts.uri.query().unwrap_or_default();
            let location = format!("https://elsewhere.test/next?{query}");
            response.headers_mut().insert("location", location.parse().expect("a header"));
            for name in ["authorization", "x-key"] {
                if let Some(value) = seen.lock().expect("lock").last().and_then(|seen| seen.headers.get(name).cloned())
                {
                    response.headers_mut().insert(name, value);
                }
            }
            response
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Response::new(bytes("slow"))
        }
        _ => {
            let mut response = Response::new(bytes(body));
            response.headers_mut().insert("x-server", HeaderValue::from_static("here"));
            response.headers_mut().insert("sandbar-refusal", HeaderValue::from_static("network_denied"));
            response
        }
    }
}
