//! Probes of what a sandbox has in common with the host when it has the host's very files, and not files like them.

use std::{fs::File, io, os::fd::AsRawFd as _, time::Duration};

use super::{Got, calls::text};
use crate::sys::{
    Arg::{Buffer, N, Text},
    PAGE, call,
};

const ACCESSED: u64 = 0x1;
const CLOSED: u64 = 0x10;
const OPENED: u64 = 0x20;
/// Of an event before its name: which watch, what, which of several, and how long the name is.
const EVENT: usize = 16;

pub(super) fn named(name: &str, arguments: &[&str]) -> Option<Got> {
    Some(match (name, arguments) {
        ("watch", [directory, marked, file]) => watch(directory, marked, file),
        ("lock", [file]) => lock(file),
        _ => return None,
    })
}

/// Whether anything happens to `file` in `directory` before something happens in `marked`: the kernel tells of both in
/// the order in which they happen.
fn watch(directory: &str, marked: &str, file: &str) -> Got {
    let events = call(libc::SYS_inotify_init1, &mut [N(0)])?;
    let add = |place: &str| {
        let place = text(place)?;
        call(libc::SYS_inotify_add_watch, &mut [N(events as u64), Text(&place), N(ACCESSED | CLOSED | OPENED)])
    };
    let (watched, marked) = (add(directory)?, add(marked)?);
    super::say("watching");
    let mut buffer = [0; PAGE];
    loop {
        let length = call(libc::SYS_read, &mut [N(events as u64), Buffer(&mut buffer), N(PAGE as u64)])?;
        let mut rest = buffer.get(..length as usize).unwrap_or_default();
        while let Some((event, after)) = rest.split_at_checked(EVENT) {
            let word =
                |at: usize| i64::from(i32::from_le_bytes([event[at], event[at + 1], event[at + 2], event[at + 3]]));
            let (name, after) = after.split_at_checked(word(12) as usize).unwrap_or_default();
            rest = after;
            let name = String::from_utf8_lossy(name);
            if word(0) == watched && name.trim_end_matches('\0') == file {
                return Ok(format!("it was seen that {file} was used"));
            }
            if word(0) == marked && name.trim_end_matches('\0') == "marker" {
                return Err(io::Error::other("nothing was seen"));
            }
        }
    }
}

/// Both kinds of locks, until it is killed.
fn lock(file: &str) -> Got {
    let file = File::open(file)?;
    file.lock()?;
    let mut shared = [0; PAGE];
    call(libc::SYS_fcntl, &mut [N(file.as_raw_fd() as u64), N(libc::F_SETLK as u64), Buffer(&mut shared)])?;
    super::say("holding");
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Whether somebody's lock would keep this process from writing.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let mut wanted = [0; PAGE];
    wanted[0] = libc::F_WRLCK as u8;
    call(libc::SYS_fcntl, &mut [N(file.as_raw_fd() as u64), N(libc::F_GETLK as u64), Buffer(&mut wanted)])?;
    Ok(wanted[0] != libc::F_UNLCK as u8)
}
