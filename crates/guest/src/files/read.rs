//! A file's bytes, or a range of them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use super::{frames::Outbox, list, unheard};
use crate::{
    error::{Code, Fault},
    protocol::CHUNK,
};

pub(super) fn file(path: &Path, offset: u64, length: Option<u64>, outbox: &mut Outbox) -> Result<u64, Fault> {
    let mut file = open_regular(path)?;
    let metadata = file.metadata().map_err(|error| failed(path, &error))?;
    if offset > metadata.len() {
        let message = format!("`{}` has {} bytes, offset {offset} is past its end.", path.display(), metadata.len());
        return Err(Fault::new(Code::OffsetBeyond, message));
    }
    outbox.entry(&list::entry(list::name(path), &metadata, String::new())).map_err(unheard)?;
    outbox.flush().map_err(unheard)?;
    file.seek(SeekFrom::Start(offset)).map_err(|error| failed(path, &error))?;
    pass_on(file.take(length.unwrap_or(u64::MAX)), outbox, |error| failed(path, &error))
}

pub(super) fn pass_on(
    mut rest: impl Read,
    outbox: &mut Outbox,
    failed: impl Fn(io::Error) -> Fault,
) -> Result<u64, Fault> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(read) => {
                outbox.write_all(&buffer[..read]).map_err(unheard)?;
                total += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Opens what is certainly a regular file: pipes cannot make us wait for a writer, and devices are not read.
pub(super) fn open_regular(path: &Path) -> Result<File, Fault> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| failed(path, &error))?;
    let metadata = file.metadata().map_err(|error| failed(path, &error))?;
    if !metadata.is_file() {
        let message = format!("`{}` is {}, not a file.", path.display(), list::kind_of(&metadata));
        return Err(Fault::new(Code::WrongFileKind, message));
    }
    Ok(file)
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::file(&format!("read `{}`", path.display()), error)
}
