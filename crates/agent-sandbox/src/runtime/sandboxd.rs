//! sandboxd: gRPC for processes, by default on port 9090, and REST for files, on 8080.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use hyper_util::rt::TokioIo;
use reqwest::{
    Body, Method, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, RANGE},
};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::ReaderStream;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Endpoint, Uri},
};

use super::{
    Connection, Entry, Kind, Retry, RuntimeError, Token,
    answer::{self, MAX_ANSWER},
    http::Port,
    path::Path,
    process::{Bearer, Service},
};

const REST: u16 = 8080;
const GRPC: u16 = 9090;
const CONNECT: Duration = Duration::from_secs(10);
/// A command's output comes in one message.
const MAX_MESSAGE: usize = 64 << 20;

/// A client of sandboxd. Paths are relative to its root.
#[derive(Clone)]
pub struct Sandboxd {
    connection: Connection,
    rest: Port,
    grpc_port: u16,
    grpc_at: Option<String>,
    token: Option<Token>,
    service: Option<Service>,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// The size of a file.
    pub size: Option<u64>,
}

#[derive(Deserialize)]
struct Listing {
    entries: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    size: u64,
    #[serde(rename = "type")]
    kind: Kind,
    modified_at: DateTime<Utc>,
    mode: Option<String>,
}

#[derive(Deserialize)]
struct Health {
    uptime_seconds: f64,
}

#[derive(Deserialize)]
struct Metadata {
    env: BTreeMap<String, String>,
}

impl Sandboxd {
    /// On its usual ports, where the connection does not say one. Within a Tokio runtime, since gRPC connects in the background.
    pub fn new(connection: impl Into<Connection>) -> Result<Self, RuntimeError> {
        let connection = connection.into();
        let rest = Port::new(&connection, REST)?;
        Self { connection, rest, grpc_port: GRPC, grpc_at: None, token: None, service: None }.dial()
    }

    /// On other ports of the sandbox.
    pub fn ports(mut self, rest: u16, grpc: u16) -> Result<Self, RuntimeError> {
        self.rest = self.rest.another(&self.connection, rest)?;
        if let Some(token) = &self.token {
            self.rest.authorize(token)?;
        }
        Self { grpc_port: grpc, ..self }.dial()
    }

    /// With gRPC at this address, `http://…`; a connection to one address has only REST there.
    pub fn grpc_at(self, url: impl Into<String>) -> Result<Self, RuntimeError> {
        Self { grpc_at: Some(url.into()), ..self }.dial()
    }

    /// With the token that this sandboxd wants.
    pub fn token(mut self, token: impl Into<Token>) -> Result<Self, RuntimeError> {
        let token = token.into();
        self.rest.authorize(&token)?;
        Self { token: Some(token), ..self }.dial()
    }

    /// Waits no longer than this for an answer, or for more of a file; 60 s unless told. Commands have limits of their own.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rest.timeout = timeout;
        self
    }

    /// Repeats what can be repeated in another way.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.rest.retry = retry;
        self
    }

    fn dial(mut self) -> Result<Self, RuntimeError> {
        let bearer = self.token.as_ref().map(|token| token.bearer().parse()).transpose();
        let bearer = Bearer(bearer.map_err(|_| RuntimeError::BadToken)?);
        let url = match (&self.grpc_at, &self.connection) {
            (Some(url), _) => url.clone(),
            (None, Connection::Direct(_) | Connection::Router(_)) => return Ok(self),
            (None, connection) => connection.base(self.grpc_port),
        };
        let bad = |why: String| RuntimeError::BadUrl { url: url.clone(), why };
        let endpoint =
            Endpoint::from_shared(url.clone()).map_err(|error| bad(error.to_string()))?.connect_timeout(CONNECT);
        if endpoint.uri().scheme_str() != Some("http") {
            return Err(bad("sandboxd's gRPC is plain http".to_owned()));
        }
        let channel = match &self.connection {
            Connection::PortForward { cluster, pod } if self.grpc_at.is_none() => {
                let (cluster, pod, port) = (cluster.clone(), pod.clone(), self.grpc_port);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                    let (cluster, pod) = (cluster.clone(), pod.clone());
                    async move { cluster.port_forward(pod, port).await.map(TokioIo::new) }
                }))
            }
            _ => endpoint.connect_lazy(),
        };
        let service = Service::new(InterceptedService::new(channel, bearer)).max_decoding_message_size(MAX_MESSAGE);
        self.service = Some(service);
        Ok(self)
    }

    pub(super) fn service(&self) -> Result<Service, RuntimeError> {
        self.service.clone().ok_or(RuntimeError::NoGrpc)
    }

    pub(super) fn patience(&self) -> Duration {
        self.rest.timeout
    }

    /// How long it has been running; an error also while it shuts down.
    pub async fn health(&self) -> Result<Duration, RuntimeError> {
        let health: Health = self.json("/v1/health").await?;
        let uptime = Duration::try_from_secs_f64(health.uptime_seconds);
        uptime.map_err(|error| RuntimeError::BadAnswer(error.to_string()))
    }

    /// The variables that it shows.
    pub async fn metadata(&self) -> Result<BTreeMap<String, String>, RuntimeError> {
        Ok(self.json::<Metadata>("/v1/metadata").await?.env)
    }

    /// Reads a file, of at most 256 MiB.
    pub async fn read(&self, path: &str) -> Result<Bytes, RuntimeError> {
        answer::collect(self.file(path, None).await?, MAX_ANSWER, self.rest.timeout).await
    }

    /// Reads `length` bytes of a file from `start`, or fewer at its end.
    pub async fn read_range(&self, path: &str, start: u64, length: u64) -> Result<Bytes, RuntimeError> {
        let Some(last) = length.checked_sub(1).and_then(|length| start.checked_add(length)) else {
            return Ok(Bytes::new());
        };
        let answer = self.file(path, Some(format!("bytes={start}-{last}"))).await;
        match answer {
            Ok(response) if response.status() == StatusCode::PARTIAL_CONTENT => {
                answer::collect(response, length.min(MAX_ANSWER), self.rest.timeout).await
            }
            Ok(_) => Err(RuntimeError::BadAnswer("it has the whole file instead of the range".to_owned())),
            Err(RuntimeError::Refused { status, .. }) if status == "416" => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }

    /// Copies a file of any size, and returns it.
    pub async fn read_to(&self, path: &str, to: &mut (impl AsyncWrite + Unpin)) -> Result<u64, RuntimeError> {
        answer::copy(self.file(path, None).await?, to, self.rest.timeout).await
    }

    /// Writes a file and makes the directories it needs. It appears whole or not at all.
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<(), RuntimeError> {
        self.put(path, content.into(), None).await
    }

    /// As [`write`](Self::write), with these permissions.
    pub async fn write_with_mode(&self, path: &str, content: impl Into<Bytes>, mode: u32) -> Result<(), RuntimeError> {
        self.put(path, content.into(), Some(mode)).await
    }

    /// Writes a file of any size; such a request is never repeated.
    pub async fn write_from(
        &self,
        path: &str,
        content: impl AsyncRead + Send + 'static,
        mode: Option<u32>,
    ) -> Result<(), RuntimeError> {
        self.put(path, Body::wrap_stream(ReaderStream::new(content)), mode).await
    }

    /// The entries of a directory by name; `/` is the root.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, RuntimeError> {
        let address = format!("/v1/files/{}", Path::or_root(path)?.segments());
        let response = self.rest.send(self.rest.request(Method::GET, &address)).await?;
        if !is_listing(&response) {
            return Err(RuntimeError::NotDirectory(path.to_owned()));
        }
        let listing: Listing = answer::json(response, self.rest.timeout).await?;
        listing.entries.into_iter().map(Entry::try_from).collect()
    }

    /// What is at a path.
    pub async fn stat(&self, path: &str) -> Result<Stat, RuntimeError> {
        let address = format!("/v1/files/{}", Path::or_root(path)?.segments());
        let response = self.rest.send(self.rest.request(Method::HEAD, &address)).await;
        // The answer to HEAD has no text that would name the path.
        let response = response.map_err(|error| match error {
            RuntimeError::NotFound(_) => RuntimeError::NotFound(path.to_owned()),
            RuntimeError::Denied(_) => RuntimeError::Denied(path.to_owned()),
            other => other,
        })?;
        if is_listing(&response) {
            return Ok(Stat { kind: Kind::Directory, size: None });
        }
        let size = response.headers().get(CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse().ok());
        Ok(Stat { kind: Kind::File, size })
    }

    /// Whether there is such a file or directory.
    pub async fn exists(&self, path: &str) -> Result<bool, RuntimeError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(RuntimeError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a file or an empty directory. What is gone already is [`RuntimeError::NotFound`], also when the request had to be repeated.
    pub async fn delete(&self, path: &str) -> Result<(), RuntimeError> {
        self.remove(&Path::of(path)?, false).await
    }

    /// Removes a directory with all that is in it; of the root, `/`, all that is in it.
    pub async fn delete_all(&self, path: &str) -> Result<(), RuntimeError> {
        self.remove(&Path::or_root(path)?, true).await
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<(), RuntimeError> {
        let request = self.rest.request(Method::DELETE, &format!("/v1/files/{}", path.segments()));
        self.rest.send(request.query(&[("recursive", recursive)])).await.map(drop)
    }

    async fn put(&self, path: &str, body: impl Into<Body>, mode: Option<u32>) -> Result<(), RuntimeError> {
        let mut request = self.rest.request(Method::PUT, &format!("/v1/files/{}", Path::of(path)?.segments()));
        if let Some(mode) = mode {
            request = request.query(&[("mode", format!("{mode:04o}"))]);
        }
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(body);
        self.rest.send(request).await.map(drop)
    }

    async fn file(&self, path: &str, range: Option<String>) -> Result<Response, RuntimeError> {
        let mut request = self.rest.request(Method::GET, &format!("/v1/files/{}", Path::of(path)?.segments()));
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let response = self.rest.send(request).await?;
        if is_listing(&response) { Err(RuntimeError::IsDirectory(path.to_owned())) } else { Ok(response) }
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, address: &str) -> Result<T, RuntimeError> {
        answer::json(self.rest.send(self.rest.request(Method::GET, address)).await?, self.rest.timeout).await
    }
}

/// A file is always `application/octet-stream`, whatever is in it.
fn is_listing(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

impl TryFrom<Listed> for Entry {
    type Error = RuntimeError;

    fn try_from(listed: Listed) -> Result<Self, RuntimeError> {
        let Listed { name, size, kind, modified_at, mode } = listed;
        let mode = mode.map(|mode| u32::from_str_radix(&mode, 8)).transpose();
        let mode = mode.map_err(|error| RuntimeError::BadAnswer(format!("{name}: mode: {error}")))?;
        Ok(Self { name, size, kind, modified: modified_at, mode })
    }
}
