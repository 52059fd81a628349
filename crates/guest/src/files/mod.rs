//! File operations, done in a forked worker that has become the workload's user: plain blocking calls that mean what
//! they would mean to the workload, and that can be killed when nobody waits for them any more.

pub(crate) mod below;
pub(crate) mod frames;
#[cfg(test)]
mod fuzz;
mod list;
mod pack;
pub(crate) mod part;
mod read;
mod remove;
pub(crate) mod search;
mod unpack;
mod write;

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use rustix::process::{Resource, Rlimit};

use crate::{Confine, error::Fault, protocol::SearchRequest, sys};
use frames::{Inbox, Outbox};

#[derive(Debug)]
pub(crate) enum Job {
    Stat { path: PathBuf },
    List { path: PathBuf },
    Read { path: PathBuf, offset: u64, length: Option<u64> },
    Write { path: PathBuf, mode: Option<u32> },
    Remove { path: PathBuf, recursive: bool },
    Pack { path: PathBuf },
    Unpack { path: PathBuf },
    Below(below::Below),
    Search { path: PathBuf, request: SearchRequest },
}

/// A job and the worker's ends of its pipes.
pub(crate) struct Errand {
    pub(crate) job: Job,
    pub(crate) inbox: OwnedFd,
    pub(crate) outbox: OwnedFd,
}

/// Enough to list a directory of a million files, not enough for an archive that claims a name of many gigabytes.
const MAX_MEMORY: u64 = 512 * 1024 * 1024;

/// The body of a worker's process; returns its exit code.
pub(crate) fn run(errand: Errand, confine: &dyn Confine) -> i32 {
    let Errand { job, inbox, outbox } = errand;
    let confined = become_worker(&inbox, &outbox, confine);
    let (mut inbox, mut outbox) = (Inbox::new(inbox), Outbox::new(outbox));
    let outcome = match confined {
        Ok(()) => carry_out(job, &mut inbox, &mut outbox),
        Err(error) => Err(Fault::internal("confine the file worker")(error)),
    };
    // If the guest does not listen any more, there is nobody left to tell.
    i32::from(outbox.finish(outcome).is_err())
}

fn become_worker(inbox: &OwnedFd, outbox: &OwnedFd, confine: &dyn Confine) -> std::io::Result<()> {
    rustix::thread::set_name(c"sandbar-file")?;
    sys::block_signals(sys::Mask::Nothing)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let limit = Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) };
    rustix::process::setrlimit(Resource::Data, limit)?;
    confine.prepare()?.apply()?;
    // After `confine`, which may own some of them.
    sys::close_all_but(&[inbox.as_fd(), outbox.as_fd()])
}

fn carry_out(job: Job, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<u64, Fault> {
    match job {
        Job::Stat { path } => list::stat(&path, outbox),
        Job::List { path } => list::directory(&path, outbox),
        Job::Read { path, offset, length } => read::file(&path, offset, length, outbox),
        Job::Write { path, mode } => write::file(&path, mode, inbox),
        Job::Remove { path, recursive } => remove::path(&path, recursive),
        Job::Pack { path } => pack::tree(&path, outbox),
        Job::Unpack { path } => unpack::tree(&path, inbox),
        Job::Below(below) => below::carry_out(&below, inbox, outbox),
        Job::Search { path, request } => search::below(&path, &request, outbox),
    }
}

/// A failure to tell the guest something; it is gone then, so the code hardly matters.
fn unheard(error: std::io::Error) -> Fault {
    Fault::internal("answer")(error)
}
