//! Requests to a runtime: sent along its [`Connection`], repeated where that does no harm, never led elsewhere.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use reqwest::{
    Body, Client, Method, Request, RequestBuilder, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use tokio::time::{sleep, timeout};

use super::{Connection, RuntimeError, Token, answer};
use crate::{AgentSandbox, pods::Target};

const CONNECT: Duration = Duration::from_secs(10);
/// Of a request, unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How often a request that does no harm is repeated, and after how long. Each wait is twice the one before.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Repetitions after the first attempt.
    pub times: u32,
    /// Before the first of them.
    pub wait: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { times: 5, wait: Duration::from_millis(500) }
    }
}

/// One port of a sandbox that speaks HTTP.
#[derive(Clone)]
pub(super) struct Port {
    client: Client,
    base: String,
    headers: HeaderMap,
    forward: Option<(AgentSandbox, Target, u16)>,
    routed: bool,
    pub(super) retry: Retry,
    pub(super) timeout: Duration,
}

impl Port {
    pub(super) fn new(connection: &Connection, port: u16) -> Result<Self, RuntimeError> {
        let client = Client::builder().redirect(Policy::none()).no_proxy().connect_timeout(CONNECT);
        let client = client.build().map_err(RuntimeError::unreachable)?;
        let base = connection.base(port);
        let bad = |why: String| RuntimeError::BadUrl { url: base.clone(), why };
        let url = reqwest::Url::parse(&base).map_err(|error| bad(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it must be http or https, without query or fragment".to_owned()));
        }
        let mut made = Self {
            client,
            base,
            headers: HeaderMap::new(),
            forward: None,
            routed: false,
            retry: Retry::default(),
            timeout: TIMEOUT,
        };
        match connection {
            Connection::Router(router) => {
                made.routed = true;
                made.header("x-sandbox-id", &router.sandbox)?;
                made.header("x-sandbox-namespace", &router.namespace)?;
                made.header("x-sandbox-port", &port.to_string())?;
                if let Some(token) = &router.token {
                    made.bearer(token)?;
                }
            }
            Connection::PortForward { cluster, pod } => {
                made.forward = Some((AgentSandbox::clone(cluster), pod.clone(), port))
            }
            Connection::Direct(_) | Connection::PodIp(_) | Connection::Service(_) => {}
        }
        Ok(made)
    }

    /// Another port of the same sandbox.
    pub(super) fn another(&self, connection: &Connection, port: u16) -> Result<Self, RuntimeError> {
        Ok(Self { retry: self.retry, timeout: self.timeout, ..Self::new(connection, port)? })
    }

    fn header(&mut self, name: &'static str, value: &str) -> Result<(), RuntimeError> {
        let bad = |_| RuntimeError::BadUrl { url: value.to_owned(), why: format!("it cannot be sent as {name}") };
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).map_err(bad)?);
        Ok(())
    }

    fn bearer(&mut self, token: &Token) -> Result<(), RuntimeError> {
        let mut value = HeaderValue::from_str(&token.bearer()).map_err(|_| RuntimeError::BadToken)?;
        value.set_sensitive(true);
        self.headers.insert(AUTHORIZATION, value);
        Ok(())
    }

    /// A token for the runtime itself.
    pub(super) fn authorize(&mut self, token: &Token) -> Result<(), RuntimeError> {
        if self.routed { Err(RuntimeError::TokenNotRouted) } else { self.bearer(token) }
    }

    /// A request for a path that is encoded already.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).headers(self.headers.clone())
    }

    /// Sends it and returns a good answer.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, RuntimeError> {
        self.send_within(request, self.timeout).await
    }

    pub(super) async fn send_within(&self, request: RequestBuilder, limit: Duration) -> Result<Response, RuntimeError> {
        let mut request = request.build().map_err(|error| RuntimeError::Invalid(error.to_string()))?;
        if self.routed {
            request.headers_mut().insert("x-sandbox-timeout", HeaderValue::from(limit.as_secs().max(1)));
        }
        let mut wait = self.retry.wait;
        let mut left = if *request.method() == Method::POST { 0 } else { self.retry.times };
        loop {
            // A body that is streamed cannot be sent again.
            let again = request.try_clone();
            let sent = timeout(limit, self.attempt(request)).await.map_err(|_| RuntimeError::TimedOut(limit))?;
            let passing = match &sent {
                Ok(response) => matches!(
                    response.status(),
                    StatusCode::INTERNAL_SERVER_ERROR
                        | StatusCode::BAD_GATEWAY
                        | StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::GATEWAY_TIMEOUT
                ),
                Err(_) => true,
            };
            match again {
                Some(again) if passing && left > 0 => request = again,
                _ => return answer::good(sent?, self.timeout).await,
            }
            sleep(wait).await;
            (left, wait) = (left - 1, wait * 2);
        }
    }

    async fn attempt(&self, request: Request) -> Result<Response, RuntimeError> {
        let Some((cluster, target, port)) = &self.forward else {
            return self.client.execute(request).await.map_err(|error| RuntimeError::unreachable(error.without_url()));
        };
        let stream = cluster.port_forward(target.clone(), *port).await.map_err(RuntimeError::unreachable)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(RuntimeError::unreachable)?;
        // Ends with the answer's body, or with whoever waits for it.
        tokio::spawn(connection);
        let mut request: hyper::Request<Body> = request.try_into().map_err(RuntimeError::unreachable)?;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(RuntimeError::unreachable)?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let response = sender.send_request(request).await.map_err(RuntimeError::unreachable)?;
        Ok(response.map(Body::wrap).into())
    }
}
