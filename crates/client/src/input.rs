//! What processes read: standard input, numbered like output, so that a repeat types nothing twice.

use bytes::Bytes;
use reqwest::Method;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{Client, Error, Result};

/// Each piece is acknowledged before the next is read: what must be kept for a repeat is one piece, and a process
/// that does not read slows the reader down instead of filling memory.
const PIECE: usize = 256 * 1024;

#[derive(Deserialize)]
struct Taken {
    offset: u64,
}

impl Client {
    /// Writes a piece of input that starts at `offset` (appends when absent), and ends the input with `eof`.
    /// Returns the offset after what was taken. With an offset, a broken connection is retried.
    pub async fn write_stdin(
        &self,
        sandbox: &str,
        process: &str,
        offset: Option<u64>,
        data: Bytes,
        eof: bool,
    ) -> Result<u64> {
        let mut backoff = self.backoff();
        loop {
            let mut request = self.request(Method::POST, &["v1", "sandboxes", sandbox, "processes", process, "stdin"]);
            if let Some(offset) = offset {
                request = request.query(&[("offset", offset)]);
            }
            if eof {
                request = request.query(&[("eof", true)]);
            }
            let outcome = match self.send(request.body(data.clone())).await {
                Ok(response) => self.decode::<Taken>(response).await,
                Err(error) => Err(error),
            };
            match outcome {
                Err(error) if offset.is_some() && error.is_passing() => {
                    if !self.wait(&mut backoff).await {
                        return Err(error);
                    }
                }
                outcome => return outcome.map(|taken| taken.offset),
            }
        }
    }

    /// Gives everything the reader has to a process that has read nothing yet, piece by piece as it comes, and then
    /// ends its input. Returns how many bytes that were.
    pub async fn forward_stdin(
        &self,
        sandbox: &str,
        process: &str,
        mut reader: impl AsyncRead + Unpin + Send,
    ) -> Result<u64> {
        let mut offset = 0;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let eof = reader.read_buf(&mut piece).await.map_err(Error::Read)? == 0;
            offset = self.write_stdin(sandbox, process, Some(offset), piece.into(), eof).await?;
            if eof {
                return Ok(offset);
            }
        }
    }
}
