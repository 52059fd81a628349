//! Stands in for an LLM vendor and speaks its wire format: OpenAI Chat Completions, Responses and Embeddings below `/v1/`,
//! Anthropic Messages at `/v1/messages`, streaming and not. What it does is directed by words in the prompt
//! (`script.rs`); it keeps its own exact count of what each request used. Shared with other crates' tests by `#[path]`.

mod anthropic;
mod openai;
mod script;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::Value;
use tokio::net::TcpListener;

use script::{Script, Wire};

/// Before a connection is cut, so that what was written before has left: HTTP/2 takes back what has not.
const FLUSH: Duration = Duration::from_millis(5);

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

/// One request, and what a vendor would charge for it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// What was used: nothing of what was refused, and what was written so far of what was cut off.
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// It was told to the client, completely.
    pub(crate) reported: bool,
    /// Which of the connections, counted from 0, it came on.
    pub(crate) connection: usize,
}

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// In PEM, when it speaks TLS.
    pub(crate) certificate: Option<String>,
    seen: Arc<Mutex<Vec<Seen>>>,
    orders: tokio::sync::mpsc::Sender<(Order, tokio::sync::oneshot::Sender<()>)>,
}

enum Order {
    HangUp,
    Stop,
}

impl Upstream {
    /// Speaks TLS, HTTP/1.1 and HTTP/2, when a name is given for its certificate; else plain HTTP/1.1.
    pub(crate) async fn start(name: Option<&str>) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (acceptor, certificate) = match name {
            Some(name) => {
                let (acceptor, certificate) = identity(name)?;
                (Some(acceptor), Some(certificate))
            }
            None => (None, None),
        };
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (orders, given) = tokio::sync::mpsc::channel(1);
        tokio::spawn(accept(listener, acceptor, Arc::clone(&seen), given));
        Ok(Self { address, certificate, seen, orders })
    }

    /// Closes every connection.
    pub(crate) async fn hang_up(&self) {
        self.order(Order::HangUp).await;
    }

    /// Closes every connection and the port.
    pub(crate) async fn stop(&self) {
        self.order(Order::Stop).await;
    }

    async fn order(&self, order: Order) {
        let (done, carried_out) = tokio::sync::oneshot::channel();
        if self.orders.send((order, done)).await.is_ok() {
            let _ = carried_out.await;
        }
    }

    /// All requests so far, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }
}

fn lock(seen: &Mutex<Vec<Seen>>) -> MutexGuard<'_, Vec<Seen>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(name: &str) -> Result<(tokio_rustls::TlsAcceptor, String), Error> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((tokio_rustls::TlsAcceptor::from(Arc::new(config)), made.cert.pem()))
}

/// Until it is told to stop, or nobody is left to tell it.
async fn accept(
    listener: TcpListener,
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    seen: Arc<Mutex<Vec<Seen>>>,
    mut orders: tokio::sync::mpsc::Receiver<(Order, tokio::sync::oneshot::Sender<()>)>,
) {
    let mut connections = tokio::task::JoinSet::new();
    for number in 0.. {
        let stream = loop {
            tokio::select! {
                Ok((stream, _)) = listener.accept() => break stream,
                order = orders.recv() => {
                    connections.shutdown().await;
                    match order {
                        Some((Order::HangUp, done)) => {
                            let _ = done.send(());
                        }
                        Some((Order::Stop, done)) => {
                            drop(listener);
                            let _ = done.send(());
                            return;
                        }
                        None => return,
                    }
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        };
        let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |request| answer(request, number, Arc::clone(&seen)));
            let server = auto::Builder::new(TokioExecutor::new());
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

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let wire = match head.uri.path() {
        "/v1/chat/completions" => Wire::Chat,
        "/v1/responses" => Wire::Responses,
        "/v1/embeddings" => Wire::Embeddings,
        "/v1/messages" => Wire::Messages,
        "/v1/messages/count_tokens" => Wire::CountTokens,
        _ => return Ok(json(StatusCode::NOT_FOUND, &openai::error(404))),
    };
    let script = Script::read(wire, &serde_json::from_slice(&body).unwrap_or(Value::Null));
    let path = head.uri.path_and_query().map_or(String::new(), |path| path.to_string());
    let headers = head.headers.clone();
    let entry = Seen { path, headers: head.headers, body, input: 0, output: 0, reported: false, connection };
    let index = {
        let mut seen = lock(&seen);
        seen.push(entry);
        seen.len() - 1
    };
    let count = move |input, output, reported| {
        let entry = &mut lock(&seen)[index];
        (entry.input, entry.output, entry.reported) = (input, output, reported);
    };
    rest(script.slow).await;
    if let Some(status) = script.fail {
        let mut error = match wire {
            Wire::Messages | Wire::CountTokens => anthropic::error(status),
            _ => openai::error(status),
        };
        if script.bill {
            error["usage"] = match wire {
                Wire::Messages => anthropic::usage(&script, script.words),
                _ => openai::usage(&script),
            };
            count(script.input, script.output(), true);
        }
        let key = headers.get("authorization").or(headers.get("x-api-key")).cloned();
        if let Some(key) = key.filter(|_| script.echo) {
            error["error"]["message"] = format!("not allowed: {}", key.to_str()?).into();
            let mut response = json(StatusCode::from_u16(status)?, &error);
            response.headers_mut().insert("www-authenticate", key);
            return Ok(response);
        }
        return Ok(json(StatusCode::from_u16(status)?, &error));
    }
    if script.cut == Some(0) {
        count(script.input, script.output(), false);
        return Err("cut off".into());
    }
    if script.stream {
        return Ok(stream(script, count));
    }
    let value = match wire {
        Wire::Chat => openai::chat(&script),
        Wire::Responses => openai::response(&script, true),
        Wire::Embeddings => openai::embeddings(&script),
        Wire::Messages => anthropic::message(&script),
        Wire::CountTokens => return Ok(json(StatusCode::OK, &serde_json::json!({"input_tokens": script.input}))),
    };
    let mut response = json(StatusCode::OK, &value);
    if script.zip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Some(bytes) = script.cut {
        let text = value.to_string().into_bytes();
        let part = Bytes::copy_from_slice(&text[..text.len().min(bytes as usize)]);
        let cut = futures_util::stream::once(async {
            tokio::time::sleep(FLUSH).await;
            Err("cut off".into())
        });
        let chunks = futures_util::stream::iter([Ok(Frame::data(part))]).chain(cut);
        *response.body_mut() = StreamBody::new(chunks).boxed_unsync();
    }
    count(script.input, script.output(), !script.silent && !script.zip && script.cut.is_none());
    Ok(response)
}

/// A timer would round nothing up to a millisecond.
async fn rest(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::from(value.to_string()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert("x-request-id", HeaderValue::from_static("req_1"));
    response.headers_mut().insert("openai-organization", HeaderValue::from_static("org-secret"));
    response.headers_mut().insert("sandbar-refusal", HeaderValue::from_static("network_denied"));
    response
}

fn stream(script: Script, count: impl Fn(u64, u64, bool) + Send + 'static) -> Response<Body> {
    let events = match script.wire {
        Wire::Messages => anthropic::message_events(&script),
        Wire::Responses => openai::response_events(&script),
        _ => openai::chat_events(&script),
    };
    let told = !script.silent && (script.wire != Wire::Chat || script.include_usage);
    // Chat has one more event after its usage
    let telling = events.len() as u64 - u64::from(script.wire == Wire::Chat);
    let chunks = futures_util::stream::iter(events.into_iter().zip(1..)).then(move |((event, tokens), index)| {
        let fresh = index == 1;
        let pause = if fresh { Duration::ZERO } else { script.pause };
        let cut = script.cut.is_some_and(|cut| index > cut);
        let input = script.input;
        async move {
            rest(if cut { pause.max(FLUSH) } else { pause }).await;
            (event, tokens, index, cut, input)
        }
    });
    let mut output = 0;
    let chunks = chunks.map(move |(event, tokens, index, cut, input)| {
        if cut {
            return Err(Error::from("cut off"));
        }
        output += tokens;
        count(input, output, told && index >= telling);
        Ok(Frame::data(Bytes::from(event)))
    });
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response
}
