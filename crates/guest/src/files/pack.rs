//! A tree as a tar archive: links stay links and holes stay holes. What cannot be packed is left out and told by an entry
//! that plain tar ignores, so that one unreadable file does not cost the others.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use tar::{Builder, EntryType, Header};

use super::{frames::Outbox, list, read, unheard};
use crate::{
    error::{Code, Fault},
    protocol::{SKIPPED, SKIPPED_WHY},
};

pub(super) fn tree(path: &Path, outbox: &mut Outbox) -> Result<u64, Fault> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    let mut packer = Packer { archive: Builder::new(outbox), entries: 0, held: None };
    if metadata.is_dir() {
        packer.directory(path)?;
    } else if metadata.is_file() {
        let name = Path::new(path.file_name().unwrap_or(path.as_os_str()));
        match open(path, name) {
            Opened::Found(file) => packer.hold(file)?,
            Opened::Skipped(fault) => return Err(fault),
            Opened::Vanished => {}
        }
    } else {
        let message = format!("`{}` is {} and cannot be packed.", path.display(), list::kind_of(&metadata));
        return Err(Fault::new(Code::WrongFileKind, message));
    }
    packer.finish()
}

struct Packer<'a> {
    archive: Builder<&'a mut Outbox>,
    entries: u64,
    /// Found and not yet written: what is left out is told before it, because some readers of tar take a global header
    /// with nothing after it for a broken archive.
    held: Option<Found>,
}

/// What can be packed.
enum Found {
    Directory { name: PathBuf, metadata: Metadata },
    Link { name: PathBuf, metadata: Metadata, target: PathBuf },
    File { place: PathBuf, name: PathBuf, file: File, metadata: Metadata },
}

enum Opened {
    Found(Found),
    Vanished,
    /// It is there but cannot be read.
    Skipped(Fault),
}

impl Packer<'_> {
    /// Everything below `root`, under names relative to it. The list of open directories grows with breadth, never the stack.
    fn directory(&mut self, root: &Path) -> Result<(), Fault> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(parent) = waiting.pop() {
            let place = root.join(&parent);
            let listed = fs::read_dir(&place)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>());
            let mut names = match listed {
                Ok(names) => names,
                Err(error) if parent.as_os_str().is_empty() => return Err(failed(&place, &error)),
                Err(error) if vanished(&error) => continue,
                Err(error) => {
                    self.skip(&parent, &failed(&place, &error).message)?;
                    continue;
                }
            };
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
        let looked = fs::symlink_metadata(place).and_then(|metadata| {
            let target = metadata.is_symlink().then(|| fs::read_link(place)).transpose()?;
            Ok((metadata, target))
        });
        let (metadata, target) = match looked {
            Ok(found) => found,
            Err(error) if vanished(&error) => return Ok(false),
            Err(error) => {
                self.skip(name, &failed(place, &error).message)?;
                return Ok(false);
            }
        };
        let is_directory = metadata.is_dir();
        if is_directory {
            self.hold(Found::Directory { name: name.to_owned(), metadata })?;
        } else if let Some(target) = target {
            self.hold(Found::Link { name: name.to_owned(), metadata, target })?;
        } else if metadata.is_file() {
            match open(place, name) {
                Opened::Found(file) => self.hold(file)?,
                Opened::Skipped(fault) => self.skip(name, &fault.message)?,
                Opened::Vanished => {}
            }
        } else {
            self.skip(name, &format!("It is {}.", list::kind_of(&metadata)))?;
        }
        Ok(is_directory)
    }

    fn hold(&mut self, found: Found) -> Result<(), Fault> {
        match self.held.replace(found) {
            Some(before) => self.write(before),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<u64, Fault> {
        if let Some(last) = self.held.take() {
            self.write(last)?;
        }
        self.archive.finish().map_err(unheard)?;
        Ok(self.entries)
    }

    fn write(&mut self, found: Found) -> Result<(), Fault> {
        self.entries += 1;
        match found {
            Found::Directory { name, metadata } => {
                let mut header = header(&metadata, EntryType::Directory, 0);
                self.archive.append_data(&mut header, name, io::empty()).map_err(unheard)
            }
            Found::Link { name, metadata, target } => {
                let mut header = header(&metadata, EntryType::Symlink, 0);
                self.archive.append_link(&mut header, name, target).map_err(unheard)
            }
            Found::File { place, name, mut file, metadata } if metadata.blocks() * 512 < metadata.len() => {
                self.sparse(&place, &name, &mut file, &metadata)
            }
            Found::File { place, name, file, metadata } => {
                let mut header = header(&metadata, EntryType::Regular, metadata.len());
                let mut exact = Exact { file, left: metadata.len(), error: None };
                self.archive.append_data(&mut header, name, &mut exact).map_err(unheard)?;
                exact.error.map_or(Ok(()), |error| Err(failed(&place, &error)))
            }
        }
    }

    /// Tells what is missing, about where it would be in the archive.
    fn skip(&mut self, name: &Path, why: &str) -> Result<(), Fault> {
        let mut records = record(SKIPPED, name.as_os_str().as_bytes());
        records.extend(record(SKIPPED_WHY, why.as_bytes()));
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XGlobalHeader);
        header.set_path("pax_global_header").map_err(unheard)?;
        header.set_mode(0o644);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.archive.append(&header, &records[..]).map_err(unheard)
    }

    /// The library reads the holes; it trusts the size it saw first, so that must still be true afterwards.
    fn sparse(&mut self, place: &Path, name: &Path, file: &mut File, before: &Metadata) -> Result<(), Fault> {
        self.archive.append_file(name, file).map_err(|error| failed(place, &error))?;
        let after = file.metadata().map_err(|error| failed(place, &error))?;
        if (before.len(), before.mtime(), before.mtime_nsec()) != (after.len(), after.mtime(), after.mtime_nsec()) {
            let message = format!("`{}` was changed while it was packed.", place.display());
            return Err(Fault::new(Code::Internal, message));
        }
        Ok(())
    }
}

fn open(place: &Path, name: &Path) -> Opened {
    let file = match read::open_regular(place) {
        Ok(file) => file,
        // Removed or replaced since it was listed.
        Err(fault) if matches!(fault.code, Code::UnknownFile | Code::WrongFileKind) => return Opened::Vanished,
        Err(fault) => return Opened::Skipped(fault),
    };
    // Some files of the kernel open well and then cannot be read; after the header it is too late to leave them out.
    match file.metadata().and_then(|metadata| file.read_at(&mut [0], 0).map(|_| metadata)) {
        Ok(metadata) => Opened::Found(Found::File { place: place.to_owned(), name: name.to_owned(), file, metadata }),
        Err(error) => Opened::Skipped(failed(place, &error)),
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + " =\n".len();
    let mut length = rest;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        assert_eq!(record("k", b"v"), b"6 k=v\n");
        for length in [0, 1, 4, 5, 90, 93, 94, 95, 990, 5000] {
            let record = record("k", &vec![b'v'; length]);
            let text = String::from_utf8_lossy(&record);
            assert_eq!(text.split_once(' ').and_then(|(number, _)| number.parse().ok()), Some(record.len()));
        }
    }
}
