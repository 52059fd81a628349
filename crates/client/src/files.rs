//! Files of a sandbox, streamed both ways: nothing here holds a whole file.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, header};
use sandbar_api::{Listing, Problem, check};
use serde::Deserialize;
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use crate::{Client, Error, Result, client::LocalRead};

const PIECE: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileInfo {
    File { size: u64, mode: u32, modified_at: Option<DateTime<Utc>> },
    Directory,
}

/// A file's content on its way.
pub struct Download<S> {
    /// Of the part that is sent.
    pub size: u64,
    pub mode: u32,
    pub modified_at: Option<DateTime<Utc>>,
    pub bytes: S,
}

#[derive(Deserialize)]
struct Unpacked {
    entries: u64,
}

impl Client {
    /// What is at a path; symlinks are followed.
    pub async fn stat(&self, sandbox: &str, path: &str) -> Result<FileInfo> {
        let response = match self.send(self.file(Method::HEAD, sandbox, path)?).await {
            // An answer to HEAD has no body that could say more.
            Err(Error::Foreign { .. }) => self.send(self.file(Method::GET, sandbox, path)?).await?,
            outcome => outcome?,
        };
        Ok(info(&response))
    }

    pub async fn list_directory(&self, sandbox: &str, path: &str) -> Result<Listing> {
        let response = self.send(self.file(Method::GET, sandbox, path)?).await?;
        match info(&response) {
            FileInfo::Directory => self.decode(response).await,
            FileInfo::File { .. } => Err(wrong_kind(path, "a file, not a directory", "Download it.")),
        }
    }

    /// A file's bytes, from `offset` on.
    pub async fn download(
        &self,
        sandbox: &str,
        path: &str,
        offset: u64,
    ) -> Result<Download<impl Stream<Item = Result<Bytes>> + Send + use<>>> {
        let mut request = self.file(Method::GET, sandbox, path)?;
        if offset > 0 {
            request = request.header(header::RANGE, format!("bytes={offset}-"));
        }
        let response = self.send(request).await?;
        if offset > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(self.foreign(response.status().as_u16(), "it ignored the range"));
        }
        let FileInfo::File { size, mode, modified_at } = info(&response) else {
            return Err(wrong_kind(path, "a directory", "Ask for it as a tar archive."));
        };
        Ok(Download { size, mode, modified_at, bytes: self.body(response) })
    }

    /// Replaces a file, or makes it: whoever looks sees the old content or all of the new.
    pub async fn upload(
        &self,
        sandbox: &str,
        path: &str,
        mode: Option<u32>,
        reader: impl AsyncRead + Send + 'static,
    ) -> Result<()> {
        let mut request = self.file(Method::PUT, sandbox, path)?;
        if let Some(mode) = mode {
            request = request.query(&[("mode", format!("{mode:04o}"))]);
        }
        let stream = ReaderStream::with_capacity(reader, PIECE);
        self.send_once(request.header(header::CONTENT_TYPE, "application/octet-stream").body(streamed(stream)))
            .await
            .map(drop)
    }

    /// A file or tree as a tar archive.
    pub async fn pack(&self, sandbox: &str, path: &str) -> Result<impl Stream<Item = Result<Bytes>> + Send + use<>> {
        let request = self.file(Method::GET, sandbox, path)?.query(&[("format", "tar")]);
        let response = self.send(request).await?;
        Ok(self.body(response))
    }

    /// Unpacks a tar archive into a directory. Returns how many entries it had.
    pub async fn unpack(
        &self,
        sandbox: &str,
        path: &str,
        archive: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<u64> {
        let request = self.file(Method::PUT, sandbox, path)?.query(&[("format", "tar")]);
        let request = request.header(header::CONTENT_TYPE, "application/x-tar").body(streamed(archive));
        let response = self.send_once(request).await?;
        Ok(self.decode::<Unpacked>(response).await?.entries)
    }

    pub async fn remove(&self, sandbox: &str, path: &str, recursive: bool) -> Result<()> {
        self.empty(self.file(Method::DELETE, sandbox, path)?.query(&[("recursive", recursive)])).await
    }

    /// The path is made absolute and goes as one encoded segment, so that no URL rule can change what it means.
    fn file(&self, method: Method, sandbox: &str, path: &str) -> Result<RequestBuilder> {
        let path = check::path(path)?;
        Ok(self.request(method, &["v1", "sandboxes", sandbox, "files", &path]))
    }

    fn body(&self, response: Response) -> impl Stream<Item = Result<Bytes>> + Send + use<> {
        let client = self.clone();
        response.bytes_stream().map_err(move |error| client.transport(error)).boxed()
    }
}

fn streamed(stream: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Body {
    Body::wrap_stream(stream.map_err(|error| LocalRead { kind: error.kind(), text: error.to_string() }))
}

/// Only files carry a mode.
fn info(response: &Response) -> FileInfo {
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    match text("sandbar-file-mode").and_then(|mode| u32::from_str_radix(mode, 8).ok()) {
        Some(mode) => FileInfo::File {
            size: text("content-length").and_then(|size| size.parse().ok()).unwrap_or_default(),
            mode,
            modified_at: text("last-modified")
                .and_then(|date| DateTime::parse_from_rfc2822(date).ok())
                .map(|date| date.with_timezone(&Utc)),
        },
        None => FileInfo::Directory,
    }
}

fn wrong_kind(path: &str, is: &str, fix: &str) -> Error {
    Problem::new(sandbar_api::Code::WrongFileKind, format!("`{}` is {is}.", path.escape_debug()), fix).into()
}
