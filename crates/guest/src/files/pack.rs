//! A tree as a tar archive: links stay links, holes stay holes, and what is neither file, directory nor link is left out.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use tar::{Builder, EntryType, Header};

use super::{frames::Outbox, list, read, unheard};
use crate::error::{Code, Fault};

pub(super) fn tree(path: &Path, outbox: &mut Outbox) -> Result<u64, Fault> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    let mut packer = Packer { archive: Builder::new(outbox), entries: 0 };
    if metadata.is_dir() {
        packer.directory(path)?;
    } else if metadata.is_file() {
        packer.file(path, Path::new(path.file_name().unwrap_or(path.as_os_str())))?;
    } else {
        let message = format!("`{}` is {} and cannot be packed.", path.display(), list::kind_of(&metadata));
        return Err(Fault::new(Code::WrongFileKind, message));
    }
    packer.archive.finish().map_err(unheard)?;
    Ok(packer.entries)
}

struct Packer<'a> {
    archive: Builder<&'a mut Outbox>,
    entries: u64,
}

impl Packer<'_> {
    /// Everything below `root`, under names relative to it. The list of open directories grows with breadth, never the stack.
    fn directory(&mut self, root: &Path) -> Result<(), Fault> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(parent) = waiting.pop() {
            let place = root.join(&parent);
            let mut names = Vec::new();
            match fs::read_dir(&place) {
                Ok(entries) => {
                    for entry in entries {
                        names.push(entry.map_err(|error| failed(&place, &error))?.file_name());
                    }
                }
                Err(error) if vanished(&error) && !parent.as_os_str().is_empty() => continue,
                Err(error) => return Err(failed(&place, &error)),
            }
            names.sort_unstable();
            let first_new = waiting.len();
            for name in names {
                let relative = parent.join(&name);
                if self.any(&root.join(&relative), &relative)? {
                    waiting.push(relative);
                }
            }
            waiting[first_new..].reverse();
        }
        Ok(())
    }

    /// Whether it was a directory, whose contents are to follow.
    fn any(&mut self, place: &Path, name: &Path) -> Result<bool, Fault> {
        let metadata = match fs::symlink_metadata(place) {
            Ok(metadata) => metadata,
            Err(error) if vanished(&error) => return Ok(false),
            Err(error) => return Err(failed(place, &error)),
        };
        if metadata.is_dir() {
            self.append(header(&metadata, EntryType::Directory, 0), name, io::empty())?;
            return Ok(true);
        }
        if metadata.is_symlink() {
            let target = match fs::read_link(place) {
                Ok(target) => target,
                Err(error) if vanished(&error) => return Ok(false),
                Err(error) => return Err(failed(place, &error)),
            };
            let mut header = header(&metadata, EntryType::Symlink, 0);
            self.archive.append_link(&mut header, name, target).map_err(unheard)?;
            self.entries += 1;
        } else if metadata.is_file() {
            self.file(place, name)?;
        }
        Ok(false)
    }

    fn file(&mut self, place: &Path, name: &Path) -> Result<(), Fault> {
        let mut file = match read::open_regular(place) {
            Ok(file) => file,
            // Removed or replaced since it was listed.
            Err(fault) if matches!(fault.code, Code::UnknownFile | Code::WrongFileKind) => return Ok(()),
            Err(fault) => return Err(fault),
        };
        let metadata = file.metadata().map_err(|error| failed(place, &error))?;
        if metadata.blocks() * 512 < metadata.len() {
            return self.sparse(place, name, &mut file, &metadata);
        }
        let header = header(&metadata, EntryType::Regular, metadata.len());
        let mut exact = Exact { file, left: metadata.len(), error: None };
        self.append(header, name, &mut exact)?;
        exact.error.map_or(Ok(()), |error| Err(failed(place, &error)))
    }

    /// The library reads the holes; it trusts the size it saw first, so that must still be true afterwards.
    fn sparse(&mut self, place: &Path, name: &Path, file: &mut File, before: &Metadata) -> Result<(), Fault> {
        self.archive.append_file(name, file).map_err(|error| failed(place, &error))?;
        let after = file.metadata().map_err(|error| failed(place, &error))?;
        if (before.len(), before.mtime(), before.mtime_nsec()) != (after.len(), after.mtime(), after.mtime_nsec()) {
            let message = format!("`{}` was changed while it was packed.", place.display());
            return Err(Fault::new(Code::Internal, message));
        }
        self.entries += 1;
        Ok(())
    }

    fn append(&mut self, mut header: Header, name: &Path, data: impl Read) -> Result<(), Fault> {
        self.archive.append_data(&mut header, name, data).map_err(unheard)?;
        self.entries += 1;
        Ok(())
    }
}

/// Exactly as many bytes as the header promised, whatever happens to the file meanwhile.
struct Exact {
    file: File,
    left: u64,
    error: Option<io::Error>,
}

impl Read for &mut Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if limit == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..limit];
        let read = match self.file.read(buffer) {
            Ok(read) if read > 0 => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            ended => {
                // Shorter than it was, or unreadable: zeros keep the archive whole until the error is told.
                self.error = ended.err().or(self.error.take());
                buffer.fill(0);
                limit
            }
        };
        self.left -= read as u64;
        Ok(read)
    }
}

fn header(metadata: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_metadata(metadata);
    header.set_entry_type(kind);
    header.set_size(size);
    header
}

fn vanished(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::file(&format!("pack `{}`", path.display()), error)
}
