//! The connection to a server and the one way requests go through it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};
use sandbar_api::Problem;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Patience, Result, patience::Backoff};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An error document larger than this is not one of ours.
const MAX_PROBLEM: usize = 64 * 1024;

/// Cheap to clone; all clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    base: Url,
    /// As people name it.
    server: String,
    token: Option<header::HeaderValue>,
    patience: Patience,
    /// A server that has answered once and then is away is being restarted; one that never did is not there.
    answered: AtomicBool,
    /// Told once, when requests begin to wait for a server that is away.
    on_away: Option<OnAway>,
    away: AtomicBool,
}

type OnAway = Arc<dyn Fn() + Send + Sync>;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Client {
    /// Over the Unix socket of a server on this machine, as its owner.
    pub fn unix(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref();
        // No certificates: they are never needed here, and loading the system's costs more than a request.
        let http = builder().unix_socket(socket).tls_certs_only([]).build().map_err(Error::Setup)?;
        Self::assemble(http, "http://localhost", socket.display().to_string(), None)
    }

    /// Over TCP, with a token. Plain `http` is for loopback addresses only.
    pub fn tcp(address: &str, token: Option<&str>) -> Result<Self> {
        let bad = |cause: String| Error::BadAddress { address: address.to_owned(), cause };
        let url = Url::parse(address).map_err(|error| bad(error.to_string()))?;
        let builder = match url.scheme() {
            "https" => builder(),
            // A proxy would see the token.
            "http" if is_loopback(&url) => builder().no_proxy().tls_certs_only([]),
            "http" => return Err(Error::Insecure { address: address.to_owned() }),
            other => return Err(bad(format!("the scheme is `{other}`"))),
        };
        let token = token
            .map(|token| {
                let mut value = header::HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| bad("the token has characters that no token has".into()))?;
                value.set_sensitive(true);
                Ok::<_, Error>(value)
            })
            .transpose()?;
        let http = builder.connect_timeout(CONNECT_TIMEOUT).build().map_err(Error::Setup)?;
        Self::assemble(http, address, address.to_owned(), token)
    }

    fn assemble(http: reqwest::Client, base: &str, server: String, token: Option<header::HeaderValue>) -> Result<Self> {
        let base = Url::parse(base)
            .map_err(|error| Error::BadAddress { address: base.to_owned(), cause: error.to_string() })?;
        let inner = Inner {
            http,
            base,
            server,
            token,
            patience: Patience::default(),
            answered: AtomicBool::new(false),
            on_away: None,
            away: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same connection with other retries.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        self.changed(|inner| inner.patience = patience)
    }

    /// The same connection that calls `tell` when it begins to wait for a server that is away; once, until an answer
    /// came again.
    #[must_use]
    pub fn on_away(self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        self.changed(|inner| inner.on_away = Some(Arc::new(tell)))
    }

    fn changed(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner {
            http: self.inner.http.clone(),
            base: self.inner.base.clone(),
            server: self.inner.server.clone(),
            token: self.inner.token.clone(),
            patience: self.inner.patience,
            answered: AtomicBool::new(self.inner.answered.load(Ordering::Relaxed)),
            on_away: self.inner.on_away.clone(),
            away: AtomicBool::new(false),
        };
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Waits before the next attempt; `false` when there should be none.
    pub(crate) async fn wait(&self, backoff: &mut Backoff) -> bool {
        if backoff.is_long()
            && let Some(tell) = &self.inner.on_away
            && !self.inner.away.swap(true, Ordering::Relaxed)
        {
            tell();
        }
        backoff.wait().await
    }

    /// Where the server is, as people name it.
    pub fn server(&self) -> &str {
        &self.inner.server
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(if self.inner.answered.load(Ordering::Relaxed) { self.inner.patience } else { Patience::NONE })
    }

    /// Segments are encoded, slashes in them too, so that no id and no path can address another route.
    pub(crate) fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        let mut url = self.inner.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments.iter().map(|segment| unmistakable(segment)));
        }
        let request = self.inner.http.request(method, url);
        match &self.inner.token {
            Some(token) => request.header(header::AUTHORIZATION, token.clone()),
            None => request,
        }
    }

    /// Sends, and turns a problem into an error. Waits for a server that is being restarted, but never sends twice
    /// what may have arrived.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let mut backoff = self.backoff();
        let mut request = request;
        loop {
            let again = request.try_clone();
            match self.send_once(request).await {
                Err(Error::Unreachable { server, source }) => {
                    request = match again {
                        Some(again) if self.wait(&mut backoff).await => again,
                        _ => return Err(Error::Unreachable { server, source }),
                    }
                }
                outcome => return outcome,
            }
        }
    }

    pub(crate) async fn send_once(&self, request: RequestBuilder) -> Result<Response> {
        let response = self.answer(request).await?;
        match response.status() {
            // Only ever the answer to a request that asked for it.
            StatusCode::SWITCHING_PROTOCOLS => Ok(response),
            status if status.is_success() => Ok(response),
            status => {
                let body = self.short_body(response).await?;
                Err(self.problem(status, &body))
            }
        }
    }

    /// Whatever the server says, also no.
    pub(crate) async fn answer(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.transport(error))?;
        self.inner.answered.store(true, Ordering::Relaxed);
        self.inner.away.store(false, Ordering::Relaxed);
        Ok(response)
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        self.decode(response).await
    }

    pub(crate) async fn decode<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(|error| self.transport(error))?;
        serde_json::from_slice(&body).map_err(|error| self.foreign(status, error))
    }

    pub(crate) async fn empty(&self, request: RequestBuilder) -> Result<()> {
        self.send(request).await.map(drop)
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T> {
        self.json(self.request(Method::GET, segments)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Result<T> {
        self.json(self.request(Method::POST, segments).json(body)).await
    }

    pub(crate) fn transport(&self, error: reqwest::Error) -> Error {
        let server = self.inner.server.clone();
        let error = error.without_url();
        match local_cause(&error) {
            Some(cause) => Error::Read(cause),
            None if let Some(cause) = distrust(&error) => Error::Untrusted { server, cause },
            None if error.is_connect() => Error::Unreachable { server, source: error },
            None => Error::Transport { server, source: error },
        }
    }

    pub(crate) fn foreign(&self, status: u16, cause: impl ToString) -> Error {
        Error::Foreign { server: self.inner.server.clone(), status, cause: cause.to_string() }
    }

    /// Of an answer that says no.
    pub(crate) async fn short_body(&self, mut response: Response) -> Result<Vec<u8>> {
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.transport(error))? {
            if body.len() + chunk.len() > MAX_PROBLEM {
                return Err(self.foreign(status, "the error is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    pub(crate) fn problem(&self, status: StatusCode, body: &[u8]) -> Error {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => problem.into(),
            Err(_) => self.foreign(status.as_u16(), "it is no problem document"),
        }
    }
}

/// URLs drop dot segments and merge empty ones, which would turn `..` as an id into the route above it; encoded twice
/// they are just ids that nobody has.
fn unmistakable(segment: &str) -> &str {
    match segment {
        "" => "%20",
        "." => "%2E",
        ".." => "%2E%2E",
        segment => segment,
    }
}

fn builder() -> reqwest::ClientBuilder {
    // A redirect would carry the token to wherever an impostor says; our server never sends one to a client.
    reqwest::Client::builder()
        .user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Marks errors of what the caller gave us to send, which would otherwise look like a broken connection.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct LocalRead {
    pub(crate) kind: std::io::ErrorKind,
    pub(crate) text: String,
}

fn local_cause(error: &reqwest::Error) -> Option<std::io::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        let local = current
            .downcast_ref::<LocalRead>()
            .or_else(|| current.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<LocalRead>());
        if let Some(local) = local {
            return Some(std::io::Error::new(local.kind, local.text.clone()));
        }
        cause = current.source();
    }
    None
}

/// What is wrong with the server's certificate, if that is why there is no connection.
fn distrust(error: &reqwest::Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(rustls::Error::InvalidCertificate(cause)) = current.downcast_ref() {
            return Some(cause.to_string());
        }
        // What an I/O error wraps is not its source.
        cause = match current.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => current.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_travel_encrypted_or_not_at_all() {
        for good in ["https://example.org:7227", "http://127.0.0.1:7227", "http://[::1]:7227/", "http://localhost:1"] {
            assert!(Client::tcp(good, Some("sbt_x")).is_ok(), "{good}");
        }
        for insecure in ["http://10.0.0.1:7227", "http://example.org", "http://127.0.0.1.example.org"] {
            assert!(matches!(Client::tcp(insecure, Some("sbt_x")), Err(Error::Insecure { .. })), "{insecure}");
        }
        for bad in ["", "7227", "ftp://127.0.0.1", "http://"] {
            assert!(matches!(Client::tcp(bad, None), Err(Error::BadAddress { .. })), "{bad}");
        }
        assert!(matches!(Client::tcp("https://example.org", Some("a\nb")), Err(Error::BadAddress { .. })));
    }

    #[test]
    fn debug_shows_no_token() -> Result<()> {
        let client = Client::tcp("http://127.0.0.1:7227", Some("sbt_secret"))?;
        assert!(!format!("{client:?}").contains("sbt_secret"));
        Ok(())
    }

    #[test]
    fn no_id_and_no_path_reaches_another_route() -> Result<()> {
        let client = Client::tcp("http://127.0.0.1:7227/base/", None)?;
        let url = |segments: &[&str]| client.request(Method::GET, segments).build().map(|r| r.url().path().to_owned());
        assert_eq!(
            url(&["v1", "sandboxes", "a/../b?x#y"]).ok().as_deref(),
            Some("/base/v1/sandboxes/a%2F..%2Fb%3Fx%23y")
        );
        assert_eq!(url(&["sandboxes", "..", "", "."]).ok().as_deref(), Some("/base/sandboxes/%252E%252E/%2520/%252E"));
        assert_eq!(url(&["files", "/etc/../x y"]).ok().as_deref(), Some("/base/files/%2Fetc%2F..%2Fx%20y"));
        Ok(())
    }
}
