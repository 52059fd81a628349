//! Bombs on what the kernel counts for the whole host or for a user, not for a sandbox. Each holds what it got until it
//! is killed; `…_one` asks for a single one of the same.

use std::{io, time::Duration};

use super::Got;
use crate::sys::{
    Arg::{Buffer, N},
    PAGE, call,
};

/// More than any of these budgets has.
const MANY: usize = 200_000;
/// The first signal that programs may queue.
const SIGNAL: u64 = 40;

pub(super) fn named(name: &str) -> Option<Got> {
    Some(match name {
        "aio_bomb" => hold(|| aio(4096)),
        "aio_one" => aio(1).map(done),
        "inotify_bomb" => hold(inotify),
        "inotify_one" => inotify().map(done),
        "signal_bomb" => block().and_then(|()| hold(queue)),
        // A timer needs the same room as a queued signal, beforehand.
        "signal_one" => timer().map(done),
        _ => return None,
    })
}

fn done(_: ()) -> String {
    "it got one".into()
}

/// Takes until nothing is given, says how many it got, and stays.
fn hold(take: impl Fn() -> io::Result<()>) -> Got {
    let mut got = 0;
    let stopped = loop {
        match take() {
            Ok(()) if got < MANY => got += 1,
            Ok(()) => break "itself".to_owned(),
            Err(error) => break super::errno(error.raw_os_error().unwrap_or_default()),
        }
    };
    super::say(&format!("holding {got}, stopped by {stopped}"));
    std::thread::sleep(Duration::from_secs(60));
    Ok(format!("held {got}"))
}

fn aio(events: u64) -> io::Result<()> {
    call(libc::SYS_io_setup, &mut [N(events), Buffer(&mut [0; PAGE])]).map(drop)
}

fn inotify() -> io::Result<()> {
    call(libc::SYS_inotify_init1, &mut [N(0)]).map(drop)
}

fn block() -> io::Result<()> {
    let mut set = [0; PAGE];
    set[..8].copy_from_slice(&(1_u64 << (SIGNAL - 1)).to_le_bytes());
    call(libc::SYS_rt_sigprocmask, &mut [N(0), Buffer(&mut set), N(0), N(8)]).map(drop)
}

fn queue() -> io::Result<()> {
    let mut info = [0; PAGE];
    info[8..12].copy_from_slice(&libc::SI_QUEUE.to_le_bytes());
    call(libc::SYS_rt_sigqueueinfo, &mut [N(u64::from(std::process::id())), N(SIGNAL), Buffer(&mut info)]).map(drop)
}

fn timer() -> io::Result<()> {
    call(libc::SYS_timer_create, &mut [N(0), N(0), Buffer(&mut [0; PAGE])]).map(drop)
}
