//! Terminals looked at without attaching: screen, transcript, recording.

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use reqwest::Method;
use sandbar_api::{ScreenFormat, ScreenView, Transcript};

use crate::{Client, Result};

/// Which lines of a transcript.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranscriptQuery {
    /// The first byte of output wanted; the first one kept, when absent.
    pub from: Option<u64>,
    /// The byte to stop before.
    pub to: Option<u64>,
    /// Only lines that contain this.
    pub grep: Option<String>,
    pub ignore_case: bool,
    /// At most this many lines.
    pub limit: Option<u32>,
}

impl Client {
    /// What a terminal shows now, or showed when its process ended.
    pub async fn screen(&self, sandbox: &str, process: &str) -> Result<ScreenView> {
        self.get(&route(sandbox, process, "screen")).await
    }

    /// The same as text: of `Ansi` with its colours, and nothing else that a terminal would obey.
    pub async fn screen_text(&self, sandbox: &str, process: &str, format: ScreenFormat) -> Result<String> {
        let request = self.request(Method::GET, &route(sandbox, process, "screen")).query(&[("format", format)]);
        let body = self.send(request).await?.bytes().await.map_err(|error| self.transport(error))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Lines that a terminal has shown. While `more` is true, `next` is where to go on.
    pub async fn transcript(&self, sandbox: &str, process: &str, query: &TranscriptQuery) -> Result<Transcript> {
        let mut request = self.request(Method::GET, &route(sandbox, process, "transcript"));
        for (name, value) in [("from", query.from), ("to", query.to), ("limit", query.limit.map(u64::from))] {
            if let Some(value) = value {
                request = request.query(&[(name, value)]);
            }
        }
        if let Some(grep) = &query.grep {
            request = request.query(&[("grep", grep)]);
        }
        if query.ignore_case {
            request = request.query(&[("ignore_case", true)]);
        }
        self.json(request).await
    }

    /// What is kept of a terminal with its timing, as asciicast v3. Broken off, it is to be asked for again.
    pub async fn recording(
        &self,
        sandbox: &str,
        process: &str,
    ) -> Result<impl Stream<Item = Result<Bytes>> + Send + use<>> {
        let response = self.send(self.request(Method::GET, &route(sandbox, process, "recording"))).await?;
        let client = self.clone();
        Ok(response.bytes_stream().map_err(move |error| client.transport(error)))
    }
}

fn route<'a>(sandbox: &'a str, process: &'a str, part: &'a str) -> [&'a str; 6] {
    ["v1", "sandboxes", sandbox, "processes", process, part]
}
