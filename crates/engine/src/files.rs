//! Files of a sandbox: passed through to the guest and back, a few chunks in memory at a time. The guest acts inside,
//! as the workload's user; nothing here opens a path that a sandbox controls.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Entry, EntryKind, Listing, Problem, check};
use sandbar_guest::protocol::{
    self, CHUNK, FileData, ListDirectoryRequest, PackRequest, ReadFileRequest, RemoveRequest, StatRequest, UnpackOpen,
    UnpackRequest, WriteFileOpen, WriteFileRequest, unpack_request, write_file_request,
};
use sandbar_provider::Guest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::{ByteStream, Engine, handle::Handle, problem};

/// Chunks on their way to a guest; more wait in the caller's connection.
const IN_FLIGHT: usize = 4;
/// A listing is one document; beyond this it serves nobody.
const LONGEST_LISTING: usize = 100_000;

impl Engine {
    pub async fn stat(&self, sandbox: &str, path: &str) -> Result<Entry, Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let mut inside = handle.enter_if(self.asleep).await?;
        Ok(entry(inside.guest.stat(StatRequest { path }).await.map_err(told)?.into_inner()))
    }

    pub async fn list_directory(&self, sandbox: &str, path: &str) -> Result<Listing, Problem> {
        let (listing, all) = self.list_some(sandbox, path, LONGEST_LISTING).await?;
        if all {
            return Ok(listing);
        }
        Err(Problem::new(
            Code::TooLarge,
            format!("`{}` has more than {LONGEST_LISTING} entries.", listing.path),
            "List it with a command inside the sandbox, or take it out as a tar archive.",
        ))
    }

    /// As many as these, in no order, and whether they are all.
    pub async fn list_some(&self, sandbox: &str, path: &str, most: usize) -> Result<(Listing, bool), Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let mut inside = handle.enter_if(self.asleep).await?;
        let request = ListDirectoryRequest { path: path.clone() };
        let mut found = inside.guest.list_directory(request).await.map_err(told)?.into_inner();
        let mut entries = Vec::new();
        while let Some(next) = found.message().await.map_err(told)? {
            if entries.len() == most {
                return Ok((Listing { path, entries }, false));
            }
            entries.push(entry(next));
        }
        Ok((Listing { path, entries }, true))
    }

    pub async fn read_file(
        &self,
        sandbox: &str,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(Entry, ByteStream), Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let mut inside = handle.enter_if(self.asleep).await?;
        let mut data =
            inside.guest.read_file(ReadFileRequest { path, offset, length }).await.map_err(told)?.into_inner();
        let first = data.message().await.map_err(told)?;
        match first {
            Some(FileData { entry: Some(opened), data: begin }) => Ok((entry(opened), bytes_of(handle, begin, data))),
            Some(FileData { entry: None, .. }) | None => {
                Err(told(Status::internal("the guest did not say which file it opened")))
            }
        }
    }

    /// All or nothing: an upload that breaks off leaves what was there.
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        mode: Option<u32>,
        body: ByteStream,
    ) -> Result<u64, Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let wrap = |message| WriteFileRequest { message: Some(message) };
        let open = wrap(write_file_request::Message::Open(WriteFileOpen { path, mode }));
        let commit = wrap(write_file_request::Message::Commit(true));
        let (messages, requests) = mpsc::channel(IN_FLIGHT);
        let limit = handle.template.max_file;
        let data = |piece| wrap(write_file_request::Message::Data(piece));
        let call = |mut guest: Guest| async move { guest.write_file(ReceiverStream::new(requests)).await };
        let call = self.change(&handle, call).await?;
        let feed = feed(messages, open, data, commit, in_use(handle, body), limit);
        Ok(upload(feed, call).await?.size)
    }

    pub async fn remove(&self, sandbox: &str, path: &str, recursive: bool) -> Result<(), Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let call = |mut guest: Guest| async move { guest.remove(RemoveRequest { path, recursive }).await };
        self.change(&handle, call).await?.await?;
        Ok(())
    }

    /// The tree as a tar archive.
    pub async fn pack(&self, sandbox: &str, path: &str) -> Result<ByteStream, Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let mut inside = handle.enter_if(self.asleep).await?;
        let mut data = inside.guest.pack(PackRequest { path }).await.map_err(told)?.into_inner();
        // Waited for, so that a path that cannot be packed is told as a problem and not as a broken body.
        let first = data.message().await.map_err(told)?.map(|first| first.data).unwrap_or_default();
        Ok(bytes_of(handle, first, data))
    }

    /// Returns how many entries of the tar archive were unpacked into the directory.
    pub async fn unpack(&self, sandbox: &str, path: &str, body: ByteStream) -> Result<u64, Problem> {
        let path = check::path(path)?;
        let handle = self.inner.handle(sandbox).await?;
        let wrap = |message| UnpackRequest { message: Some(message) };
        let open = wrap(unpack_request::Message::Open(UnpackOpen { path }));
        let commit = wrap(unpack_request::Message::Commit(true));
        let (messages, requests) = mpsc::channel(IN_FLIGHT);
        let limit = handle.template.max_file;
        let data = |piece| wrap(unpack_request::Message::Data(piece));
        let call = |mut guest: Guest| async move { guest.unpack(ReceiverStream::new(requests)).await };
        let call = self.change(&handle, call).await?;
        let feed = feed(messages, open, data, commit, in_use(handle, body), limit);
        Ok(upload(feed, call).await?.entries)
    }

    /// Begins a call that changes files, in a task of its own: a caller who goes away ends the body without a commit, and
    /// only when the guest has answered is it certain that no worker writes any more.
    async fn change<R, F, C>(
        &self,
        handle: &Handle,
        call: C,
    ) -> Result<impl Future<Output = Result<R, Problem>> + use<R, F, C>, Problem>
    where
        R: Send + 'static,
        C: FnOnce(Guest) -> F,
        F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        let (inside, token) = handle.enter_to_change().await?;
        let (answer, halt) = (call(inside.guest.clone()), self.inner.halt.clone());
        let task = self.inner.tasks.spawn(async move {
            let answered = tokio::select! {
                answered = answer => answered.map(Response::into_inner).map_err(told),
                () = halt.cancelled() => Err(problem::shutting_down()),
            };
            drop((inside, token));
            answered
        });
        Ok(async move {
            task.await.unwrap_or_else(|error| {
                tracing::error!(%error, "a call that changes files panicked");
                Err(told(Status::internal("the call did not end")))
            })
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn told(status: Status) -> Problem {
    problem::from_status(&status)
}

pub(crate) fn kind(kind: protocol::EntryKind) -> EntryKind {
    match kind {
        protocol::EntryKind::File => EntryKind::File,
        protocol::EntryKind::Directory => EntryKind::Directory,
        protocol::EntryKind::Symlink => EntryKind::Symlink,
        protocol::EntryKind::Other => EntryKind::Other,
    }
}

fn entry(entry: protocol::Entry) -> Entry {
    let kind = kind(entry.kind());
    Entry {
        name: entry.name,
        kind,
        size: entry.size,
        mode: format!("{:04o}", entry.mode & 0o7777),
        modified_at: DateTime::<Utc>::from_timestamp_millis(entry.modified_ms).unwrap_or_default(),
        target: Some(entry.target).filter(|_| kind == EntryKind::Symlink),
    }
}

/// Read from the guest only as fast as somebody reads the result.
fn bytes_of(handle: Arc<Handle>, first: Bytes, rest: Streaming<FileData>) -> ByteStream {
    let rest = rest.map(|data| data.map(|data| data.data).map_err(told));
    let full = |data: &Result<Bytes, Problem>| std::future::ready(!data.as_ref().is_ok_and(Bytes::is_empty));
    in_use(handle, Box::pin(stream::iter([Ok(first)]).chain(rest).filter(full)))
}

/// A sandbox is not idle while its files move.
fn in_use(handle: Arc<Handle>, bytes: ByteStream) -> ByteStream {
    Box::pin(bytes.inspect(move |_| handle.activity.touch()))
}

/// Sends the body in pieces that a message holds. The commit comes only after a body that ended well.
async fn feed<T>(
    messages: mpsc::Sender<T>,
    open: T,
    data: impl Fn(Bytes) -> T,
    commit: T,
    mut body: ByteStream,
    limit: u64,
) -> Result<(), Problem> {
    // Nobody takes messages any more when the guest has answered; the answer says why.
    if messages.send(open).await.is_err() {
        return Ok(());
    }
    let mut size = 0;
    while let Some(chunk) = body.next().await {
        let mut chunk = chunk?;
        size += chunk.len() as u64;
        if size > limit {
            return Err(Problem::new(
                Code::TooLarge,
                format!("The body has more than {limit} bytes."),
                "Send less, or raise the template's max_file.",
            ));
        }
        while !chunk.is_empty() {
            if messages.send(data(chunk.split_to(chunk.len().min(CHUNK)))).await.is_err() {
                return Ok(());
            }
        }
    }
    drop(messages.send(commit).await);
    Ok(())
}

/// Whichever ends first decides: a guest that refuses does not wait for the rest of the body, and a body that breaks
/// off ends it uncommitted.
async fn upload<R>(
    feed: impl Future<Output = Result<(), Problem>>,
    call: impl Future<Output = Result<R, Problem>>,
) -> Result<R, Problem> {
    let (mut feed, mut call) = (pin!(feed), pin!(call));
    tokio::select! {
        reply = &mut call => reply,
        fed = &mut feed => {
            fed?;
            call.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_and_api_agree_on_how_an_archive_tells_what_it_lacks() {
        assert_eq!(protocol::SKIPPED, sandbar_api::file::SKIPPED);
        assert_eq!(protocol::SKIPPED_WHY, sandbar_api::file::SKIPPED_WHY);
    }

    async fn fed(body: Vec<Result<Bytes, Problem>>, limit: u64) -> (Result<(), Code>, Vec<usize>) {
        const COMMIT: usize = usize::MAX;
        let (messages, mut requests) = mpsc::channel(1024);
        let body: ByteStream = Box::pin(stream::iter(body));
        let result = feed(messages, 0, |piece| piece.len(), COMMIT, body, limit).await.map_err(|problem| problem.code);
        let mut sent = Vec::new();
        while let Some(message) = requests.recv().await {
            sent.push(message);
        }
        (result, sent)
    }

    #[tokio::test]
    async fn large_pieces_are_cut_and_the_commit_comes_last() {
        let (result, sent) =
            fed(vec![Ok(Bytes::from(vec![0; CHUNK + 1])), Ok(Bytes::from_static(b"x"))], 1 << 20).await;
        assert_eq!(result, Ok(()));
        assert_eq!(sent, [0, CHUNK, 1, 1, usize::MAX]);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_or_is_too_large_is_not_committed() {
        let broken = Problem::new(Code::BadRequest, "The body broke off.", "Send it again.");
        let (result, sent) = fed(vec![Ok(Bytes::from_static(b"ab")), Err(broken)], 1 << 20).await;
        assert_eq!((result, sent), (Err(Code::BadRequest), vec![0, 2]));
        let (result, sent) = fed(vec![Ok(Bytes::from_static(b"abc"))], 2).await;
        assert_eq!((result, sent), (Err(Code::TooLarge), vec![0]));
        assert_eq!(fed(vec![Ok(Bytes::from_static(b"abc"))], 3).await.0, Ok(()));
    }
}
