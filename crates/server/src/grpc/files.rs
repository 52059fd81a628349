//! The service `Files`.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Problem};
use sandbar_engine::{ByteStream, SearchQuery};
use tonic::{Request, Response, Status, Streaming};

use super::{
    Answers, Desk,
    convert::{entry, found},
    proto::{
        Entry, ListFilesRequest, ReadReply, ReadRequest, RemoveReply, RemoveRequest, SearchEnd, SearchEvent,
        SearchRequest, StatRequest, WriteOpen, WriteReply, WriteRequest, files_server::Files, read_reply, search_event,
        write_request::Message,
    },
    status,
};
use crate::{problem::bad_request, routes::files::exactly};

type Answer<T> = Result<Response<T>, Status>;

/// Hits of a search that does not say how many.
const HITS: u32 = 1000;
/// They are collected before the first one is sent.
const MOST_HITS: u32 = 10_000;

#[tonic::async_trait]
impl Files for Desk {
    async fn stat(&self, request: Request<StatRequest>) -> Answer<Entry> {
        let engine = self.looking(&request)?;
        let StatRequest { sandbox, path } = request.into_inner();
        Ok(Response::new(entry(engine.stat(&sandbox, &path).await.map_err(status::of)?)))
    }

    type ListStream = Answers<Entry>;

    async fn list(&self, request: Request<ListFilesRequest>) -> Answer<Self::ListStream> {
        let engine = self.looking(&request)?;
        let ListFilesRequest { sandbox, path } = request.into_inner();
        let listing = engine.list_directory(&sandbox, &path).await.map_err(status::of)?;
        Ok(Response::new(Box::pin(stream::iter(listing.entries).map(|found| Ok(entry(found))))))
    }

    type ReadStream = Answers<ReadReply>;

    async fn read(&self, request: Request<ReadRequest>) -> Answer<Self::ReadStream> {
        let engine = self.looking(&request)?;
        let ReadRequest { sandbox, path, offset, length } = request.into_inner();
        let (opened, bytes) = engine.read_file(&sandbox, &path, offset, length).await.map_err(status::of)?;
        let bytes = part(bytes, opened.size, offset, length).map_err(status::of)?;
        let first = ReadReply { message: Some(read_reply::Message::Entry(entry(opened))) };
        let rest = bytes.map(|piece| match piece {
            Ok(data) => Ok(ReadReply { message: Some(read_reply::Message::Data(data)) }),
            Err(problem) => Err(status::of(problem)),
        });
        Ok(Response::new(Box::pin(stream::iter([Ok(first)]).chain(rest))))
    }

    async fn write(&self, request: Request<Streaming<WriteRequest>>) -> Answer<WriteReply> {
        let mut said = request.into_inner();
        let Some(Message::Open(open)) = said.message().await.map_err(status::unread)?.and_then(|first| first.message)
        else {
            return Err(status::of(bad_request("The first message is not `open`.", "Say `open` first, then `data`.")));
        };
        let WriteOpen { sandbox, path, mode } = open;
        if mode.is_some_and(|mode| mode > 0o7777) {
            return Err(status::of(bad_request("`mode` has more than permission bits.", "Use 0 to 0o7777.")));
        }
        let size = self.engine().write_file(&sandbox, &path, mode, body(said)).await.map_err(status::of)?;
        Ok(Response::new(WriteReply { size }))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Answer<RemoveReply> {
        let RemoveRequest { sandbox, path, recursive } = request.into_inner();
        self.engine().remove(&sandbox, &path, recursive).await.map_err(status::of)?;
        Ok(Response::new(RemoveReply {}))
    }

    type SearchStream = Answers<SearchEvent>;

    async fn search(&self, request: Request<SearchRequest>) -> Answer<Self::SearchStream> {
        let engine = self.looking(&request)?;
        let SearchRequest { sandbox, path, names, pattern, ignore_case, before, after, most, all } =
            request.into_inner();
        let most = most.unwrap_or(HITS);
        if !(1..=MOST_HITS).contains(&most) {
            let fix = format!("Use 1 to {MOST_HITS}.");
            return Err(status::of(bad_request(format!("`most` is {most}, which is not usable."), fix)));
        }
        let query = SearchQuery { path, names, pattern, ignore_case, before, after, most, all };
        let hits = engine.search(&sandbox, query).await.map_err(status::of)?;
        let end = SearchEnd { looked_at: hits.looked_at, more: hits.more, unreadable: hits.unreadable };
        let events = hits.hits.into_iter().map(|hit| search_event::Event::Hit(found(hit)));
        let events = events.chain([search_event::Event::End(end)]);
        Ok(Response::new(Box::pin(stream::iter(events).map(|event| Ok(SearchEvent { event: Some(event) })))))
    }
}

/// As many bytes as the file has from there on. Files of /proc say 0 and hold something: they are sent until they end.
fn part(bytes: ByteStream, size: u64, offset: u64, length: Option<u64>) -> Result<ByteStream, Problem> {
    if size == 0 {
        return Ok(bytes);
    }
    let Some(left) = size.checked_sub(offset) else {
        let detail = format!("Offset {offset} is past the end of the file, which has {size} bytes.");
        return Err(Problem::new(Code::OffsetBeyond, detail, "Start at or before that."));
    };
    Ok(exactly(bytes, length.map_or(left, |length| length.min(left))))
}

/// The bytes up to `commit`. A call that is cancelled looks like one whose messages have ended: without `commit` it is taken
/// for broken off.
fn body(said: Streaming<WriteRequest>) -> ByteStream {
    Box::pin(stream::unfold(Some(said), async |said| {
        let mut said = said?;
        match said.message().await {
            Ok(Some(WriteRequest { message: Some(Message::Data(data)) })) => Some((Ok(data), Some(said))),
            Ok(Some(WriteRequest { message: Some(Message::Commit(_)) })) => None,
            Ok(Some(_)) => Some((Err(misplaced()), None)),
            Ok(None) => Some((Err(broke_off("it ended without `commit`")), None)),
            Err(status) if status::is_too_large(&status) => Some((Err(status::too_large()), None)),
            Err(status) => Some((Err::<Bytes, _>(broke_off(status.message())), None)),
        }
    }))
}

fn misplaced() -> Problem {
    bad_request("A message is neither `data` nor `commit`.", "Say `open` once, then `data`, then `commit`.")
}

fn broke_off(cause: &str) -> Problem {
    bad_request(format!("The upload broke off: {cause}."), "Send it again; nothing was changed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_of_a_file_is_what_it_has() {
        let bytes = || Box::pin(stream::iter([Ok(Bytes::from_static(b"cdef"))])) as ByteStream;
        for (size, offset, length, want) in [
            (6, 2, None, Some("cdef")),
            (6, 2, Some(3), Some("cde")),
            (6, 6, None, Some("")),
            (6, 7, None, None),
            (0, 9, None, Some("cdef")),
        ] {
            let got = match part(bytes(), size, offset, length) {
                Ok(bytes) => Some(bytes.map(|piece| piece.unwrap_or_default().to_vec()).concat().await),
                Err(_) => None,
            };
            assert_eq!(got.as_deref(), want.map(str::as_bytes), "{offset} {length:?}");
        }
    }
}
