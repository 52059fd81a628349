//! A local tree as a tar archive on its way: links stay links, holes stay holes, and no file is held in memory.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};
use tokio::{sync::mpsc, task::JoinHandle};

const PIECE: usize = 256 * 1024;
const PIECES: usize = 4;

type Sender = mpsc::Sender<io::Result<Bytes>>;

/// The archive of everything below a directory, under names relative to it. The task gives what was left out, once the
/// archive has been read to its end.
pub(crate) fn stream(
    directory: PathBuf,
) -> (impl Stream<Item = io::Result<Bytes>> + Send + 'static, JoinHandle<Option<Vec<PathBuf>>>) {
    let (sender, mut receiver) = mpsc::channel(PIECES);
    let packing = tokio::task::spawn_blocking(move || {
        let pipe = Pipe { sender: sender.clone(), buffer: BytesMut::with_capacity(PIECE) };
        match pack(&directory, pipe) {
            Ok(skipped) => Some(skipped),
            Err(error) => {
                // Nobody listens when the upload has failed, which is told there.
                let _ = sender.blocking_send(Err(error));
                None
            }
        }
    });
    (stream::poll_fn(move |cx| receiver.poll_recv(cx)), packing)
}

fn pack(root: &Path, out: impl Write) -> io::Result<Vec<PathBuf>> {
    let mut archive = Builder::new(out);
    let mut skipped = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(parent) = waiting.pop() {
        let directory = root.join(&parent);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(at(&directory))? {
            names.push(entry.map_err(at(&directory))?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let relative = parent.join(name);
            let place = root.join(&relative);
            let metadata = fs::symlink_metadata(&place).map_err(at(&place))?;
            if metadata.is_dir() {
                archive.append_data(&mut header(&metadata, EntryType::Directory, 0), &relative, io::empty())?;
                waiting.push(relative);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&place).map_err(at(&place))?;
                archive.append_link(&mut header(&metadata, EntryType::Symlink, 0), &relative, target)?;
            } else if metadata.is_file() {
                append_file(&mut archive, &place, &relative)?;
            } else {
                skipped.push(place);
            }
        }
    }
    archive.into_inner()?.flush()?;
    Ok(skipped)
}

fn append_file(archive: &mut Builder<impl Write>, place: &Path, name: &Path) -> io::Result<()> {
    // It may have been replaced by a link or a pipe since it was listed.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(place).map_err(at(place))?;
    let metadata = file.metadata().map_err(at(place))?;
    // The library finds the holes; it sends every bit of a mode, and some mean nothing on the other side.
    if metadata.blocks() * 512 < metadata.len() && metadata.mode() & 0o7000 == 0 {
        let mut file = file;
        archive.append_file(name, &mut file).map_err(at(place))?;
        let after = file.metadata().map_err(at(place))?;
        let state = |found: &Metadata| (found.len(), found.mtime(), found.mtime_nsec());
        return match state(&metadata) == state(&after) {
            true => Ok(()),
            false => Err(at(place)(io::Error::other("it was changed while it was read"))),
        };
    }
    let mut exact = Exact { file, left: metadata.len() };
    archive.append_data(&mut header(&metadata, EntryType::Regular, metadata.len()), name, &mut exact).map_err(at(place))
}

/// As many bytes as the header promised: a file that grows is cut, one that shrinks is an error.
struct Exact {
    file: File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut buffer[..limit])?;
        if read == 0 && limit > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Owners and special bits mean nothing on the other side.
fn header(metadata: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(metadata.mode() & 0o777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or_default());
    header
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("`{path}` cannot be copied: {error}"))
}

/// Gathers what the archive writes into pieces worth sending; a slow receiver slows the reading down.
struct Pipe {
    sender: Sender,
    buffer: BytesMut,
}

impl Pipe {
    fn send(&mut self) -> io::Result<()> {
        let piece = self.buffer.split().freeze();
        self.buffer.reserve(PIECE);
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Pipe {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn a_tree_is_packed_with_links_and_without_sockets() -> Outcome {
        let directory = tempfile::tempdir()?;
        let root = directory.path();
        fs::create_dir_all(root.join("a/empty"))?;
        fs::write(root.join("a/file"), "content")?;
        symlink("/etc/passwd", root.join("link"))?;
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket"))?;
        let mut bytes = Vec::new();
        let skipped = pack(root, &mut bytes)?;
        assert_eq!(skipped, [root.join("socket")]);
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut seen = Vec::new();
        for entry in archive.entries()? {
            let entry = entry?;
            let link = entry.link_name()?.map(|link| link.display().to_string()).unwrap_or_default();
            seen.push((entry.path()?.display().to_string(), entry.size(), link));
        }
        let entry = |name: &str, size, link: &str| (name.to_owned(), size, link.to_owned());
        assert_eq!(
            seen,
            [entry("a", 0, ""), entry("link", 0, "/etc/passwd"), entry("a/empty", 0, ""), entry("a/file", 7, "")]
        );
        Ok(())
    }

    #[test]
    fn a_hole_is_no_larger_than_what_is_in_it() -> Outcome {
        let directory = tempfile::tempdir()?;
        let file = File::create(directory.path().join("disk"))?;
        file.set_len(200 << 30)?;
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 100 << 30)?;
        let mut bytes = Vec::new();
        pack(directory.path(), &mut bytes)?;
        assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
        let mut archive = tar::Archive::new(&bytes[..]);
        let entry = archive.entries()?.next().ok_or("nothing was packed")??;
        assert_eq!((entry.size(), entry.header().entry_type()), (200 << 30, EntryType::GNUSparse));
        Ok(())
    }

    #[tokio::test]
    async fn an_unreadable_tree_ends_the_stream_with_the_reason() {
        use futures_util::StreamExt as _;
        let (mut archive, packing) = stream("/nonexistent-directory".into());
        let first = archive.next().await;
        assert!(
            first.is_some_and(|item| item.is_err_and(|error| error.to_string().contains("/nonexistent-directory")))
        );
        assert_eq!(packing.await.ok(), Some(None));
    }
}
