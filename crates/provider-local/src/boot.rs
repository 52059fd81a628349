//! The first moments of a guest: from a fresh fork in new namespaces to PID 1 of a finished sandbox. Every step that
//! fails is told to the server on the status pipe, and the guest ends: there is no half-made sandbox.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    process::{Resource, Rlimit},
    thread::{Gid, Uid},
};

use crate::{
    fence::Fence,
    frame,
    launch::{Go, Launch},
    step::{Failure, Step},
    sys,
    uids::{Uids, WORKLOAD},
    view,
};

/// A fork of the launcher whose working directory is the sandbox's.
pub(crate) struct Boot<'a> {
    pub launch: Launch,
    pub listener: OwnedFd,
    /// Where the parent says that uid maps and trees are ready.
    pub go: OwnedFd,
    pub status: io::PipeWriter,
    pub fence: &'a Fence,
}

/// What stands on the status pipe when all went well.
pub(crate) const READY: &[u8] = b"ready";

pub(crate) fn run(boot: Boot<'_>) -> ! {
    let kept = [boot.listener.as_fd(), boot.go.as_fd(), boot.status.as_fd()];
    if sys::keep_only(&kept).is_err() {
        sys::exit(1);
    }
    let Ok(Some((Go, trees))) = frame::receive(&boot.go) else {
        // The parent failed, and has told its reason itself.
        sys::exit(1);
    };
    let Boot { launch, listener, go, status, fence } = boot;
    drop(go);
    match build(&launch, trees, fence) {
        Ok(confine) => {
            if rustix::io::write(&status, READY).is_err() {
                sys::exit(1);
            }
            drop(status);
            sandbar_guest::run(sandbar_guest::Setup {
                sandbox_id: launch.id.to_string(),
                version: env!("CARGO_PKG_VERSION").into(),
                listener,
                uid: WORKLOAD,
                gid: WORKLOAD,
                home: "/home/agent".into(),
                user: "agent".into(),
                confine,
            })
        }
        Err(failure) => {
            let text = serde_json::to_vec(&failure).unwrap_or_default();
            rustix::io::write(&status, &text).ok();
            sys::exit(1)
        }
    }
}

type Confine = Box<dyn Fn() -> io::Result<()>>;

fn build(launch: &Launch, trees: Vec<OwnedFd>, fence: &Fence) -> Result<Confine, Failure> {
    identity(launch.uids).map_err(Failure::at(Step::Identity, "become the sandbox's root"))?;
    view::build(launch, trees)?;
    rustix::system::sethostname(launch.hostname.as_bytes())
        .map_err(|errno| Failure::at(Step::Hostname, "set the host name")(errno.into()))?;
    sys::loopback_up().map_err(Failure::at(Step::Loopback, "bring loopback up"))?;
    // Core files of a workload could hold what it was given, and land where nobody counts them.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|errno| Failure::at(Step::Capabilities, "forbid core files")(errno.into()))?;
    let confine = fence.arm(launch.uids)?;
    silence().map_err(Failure::at(Step::Dev, "open /dev/null"))?;
    Ok(confine)
}

/// With a range, the guest is root of its user namespace; with one uid it is the workload's user, with capabilities.
fn identity(uids: Uids) -> io::Result<()> {
    if let Uids::Range(_) = uids {
        // The host's groups of whoever started the server grant nothing here.
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    }
    Ok(())
}

/// The server's standard streams must not be reachable from inside.
fn silence() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
