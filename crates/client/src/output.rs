//! What processes write: as items that resume at the exact byte, as raw bytes, and as the live stream of an exec.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use reqwest::{Method, RequestBuilder};
use sandbar_api::{ExecRequest, OutputChunk, Process};

use crate::{
    Client, Error, Result,
    patience::Backoff,
    sse::Frame,
    subscription::{self, Live, Source, subscribe},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputItem {
    Chunk(OutputChunk),
    /// Comes once, after everything the process itself wrote; its descendants may add more chunks.
    Exit(Process),
}

/// Which part of a process's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputQuery {
    /// The first byte kept, when absent.
    pub from: Option<u64>,
    /// At most this many bytes.
    pub limit: Option<u64>,
    /// Wait for more until the process ends.
    pub follow: bool,
    /// Only this stream; offsets still count both.
    pub stream: Option<sandbar_api::Stream>,
}

/// Raw output.
pub struct OutputBytes<S> {
    /// The offset of the first byte.
    pub start: u64,
    /// One past the last byte; unknown while following.
    pub end: Option<u64>,
    pub bytes: S,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecItem {
    Started(Process),
    Output(OutputChunk),
    Exit(Process),
}

impl Client {
    /// Output from an offset (the first byte kept, when absent), then the exit. With `follow` it waits for what is
    /// yet to be written. A broken connection is taken up again at the next byte: none is missing, none comes twice.
    pub fn output(
        &self,
        sandbox: &str,
        process: &str,
        from: Option<u64>,
        follow: bool,
    ) -> impl Stream<Item = Result<OutputItem>> + Send + use<> {
        let source =
            OutputSource { sandbox: sandbox.into(), process: process.into(), next: from, follow, exited: false };
        subscribe(self, source)
    }

    /// Output as it was written, both streams mixed unless one is chosen. Not resumed: the offsets are for that.
    pub async fn output_bytes(
        &self,
        sandbox: &str,
        process: &str,
        query: &OutputQuery,
    ) -> Result<OutputBytes<impl Stream<Item = Result<Bytes>> + Send + use<>>> {
        let mut request = self.request(Method::GET, &route(sandbox, process));
        request = request.query(&[("follow", query.follow)]);
        if let Some(from) = query.from {
            request = request.query(&[("from", from)]);
        }
        if let Some(limit) = query.limit {
            request = request.query(&[("limit", limit)]);
        }
        if let Some(stream) = query.stream {
            request = request.query(&[("stream", stream)]);
        }
        let response = self.send(request).await?;
        let number = |name| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let start = number("sandbar-output-start")
            .ok_or_else(|| self.foreign(response.status().as_u16(), "it lacks Sandbar-Output-Start"))?;
        let end = number("sandbar-output-end");
        let client = self.clone();
        let bytes = response.bytes_stream().map_err(move |error| client.transport(error));
        Ok(OutputBytes { start, end, bytes })
    }

    /// Runs a command and streams what it does. Dropping the stream kills the command's whole tree, so this is never
    /// reconnected; `start_process` and `output` are for what must survive.
    pub async fn exec_stream(
        &self,
        sandbox: &str,
        request: &ExecRequest,
    ) -> Result<impl Stream<Item = Result<ExecItem>> + Send + use<>> {
        let route = ["v1", "sandboxes", sandbox, "exec"];
        let live = Live::open(self, self.request(Method::POST, &route).json(request)).await?;
        let state = Some((self.clone(), live));
        Ok(stream::unfold(state, |state| async move {
            let (client, mut live) = state?;
            match next_exec_item(&client, &mut live).await {
                Ok(Some(item)) => Some((Ok(item), Some((client, live)))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed())
    }
}

fn route<'a>(sandbox: &'a str, process: &'a str) -> [&'a str; 6] {
    ["v1", "sandboxes", sandbox, "processes", process, "output"]
}

async fn next_exec_item(client: &Client, live: &mut Live) -> Result<Option<ExecItem>> {
    let mut backoff = Backoff::new(crate::Patience::NONE);
    while let Some(frame) = live.next(client, &mut backoff).await? {
        return Ok(Some(match frame.event.as_str() {
            "started" => ExecItem::Started(subscription::data(&frame, client)?),
            "output" => ExecItem::Output(subscription::data(&frame, client)?),
            "exit" => ExecItem::Exit(subscription::data(&frame, client)?),
            "error" => return Err(subscription::problem(&frame, client)),
            _ => continue,
        }));
    }
    Ok(None)
}

struct OutputSource {
    sandbox: String,
    process: String,
    next: Option<u64>,
    follow: bool,
    exited: bool,
}

impl Source for OutputSource {
    type Item = OutputItem;

    fn request(&self, client: &Client) -> RequestBuilder {
        let request =
            client.request(Method::GET, &route(&self.sandbox, &self.process)).query(&[("follow", self.follow)]);
        match self.next {
            Some(next) => request.query(&[("from", next)]),
            None => request,
        }
    }

    fn take(&mut self, frame: &Frame, client: &Client) -> Result<Option<OutputItem>> {
        match frame.event.as_str() {
            "output" => {
                let chunk: OutputChunk = subscription::data(frame, client)?;
                Ok(self.unseen(chunk)?.map(OutputItem::Chunk))
            }
            "exit" if !self.exited => {
                self.exited = true;
                Ok(Some(OutputItem::Exit(subscription::data(frame, client)?)))
            }
            "error" => Err(subscription::problem(frame, client)),
            _ => Ok(None),
        }
    }

    fn is_over(&self) -> bool {
        self.exited || !self.follow
    }

    fn is_complete(&self) -> bool {
        self.exited
    }
}

impl OutputSource {
    /// What of the chunk has not been given out yet.
    fn unseen(&mut self, mut chunk: OutputChunk) -> Result<Option<OutputChunk>> {
        let expected = self.next.unwrap_or(chunk.offset);
        if chunk.offset > expected {
            return Err(Error::Gap { expected, got: chunk.offset });
        }
        let seen = expected - chunk.offset;
        if seen >= chunk.data.len() as u64 {
            return Ok(None);
        }
        chunk.data.drain(..seen as usize);
        chunk.offset = expected;
        self.next = Some(expected + chunk.data.len() as u64);
        Ok(Some(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_bytes_are_cut_and_gaps_are_told() {
        let mut source =
            OutputSource { sandbox: String::new(), process: String::new(), next: None, follow: true, exited: false };
        let chunk =
            |offset, data: &[u8]| OutputChunk { offset, stream: sandbar_api::Stream::Stdout, data: data.to_vec() };
        assert_eq!(source.unseen(chunk(5, b"abc")).ok(), Some(Some(chunk(5, b"abc"))));
        assert_eq!(source.unseen(chunk(5, b"abc")).ok(), Some(None));
        assert_eq!(source.unseen(chunk(6, b"bcde")).ok(), Some(Some(chunk(8, b"de"))));
        assert!(matches!(source.unseen(chunk(11, b"x")), Err(Error::Gap { expected: 10, got: 11 })));
        assert_eq!(source.unseen(chunk(10, b"x")).ok(), Some(Some(chunk(10, b"x"))));
    }
}
