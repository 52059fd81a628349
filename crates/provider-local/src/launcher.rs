//! The launcher: this binary re-executed, with one thread and an empty environment, from which every sandbox's guest is
//! forked. After clone3 in a threaded process a child may not even allocate; and forks share the pages that a fresh
//! execution would have made its own.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use crate::{
    cgroup::Groups,
    fence::Fence,
    fork, frame,
    launch::{Reply, Request, Told},
    oom::Scores,
    remove,
    step::Failure,
    sys,
    uids::Register,
};

/// The control socket is the standard input of a fresh launcher.
pub(crate) const CONTROL: i32 = 0;
/// Set when sandboxes must not outlive the server: the home to remove with them.
pub(crate) const WITH_PARENT: &str = "SANDBAR_WITH_PARENT";
/// Set with it: the provider's directory, by which its control groups are found.
pub(crate) const DIRECTORY: &str = "SANDBAR_DIRECTORY";

/// The name inside a sandbox's directory; bound by the launcher, so that the sandbox never sees it.
pub(crate) const SOCKET: &str = "guest.sock";
/// Likewise, where the server is given the gate's listener.
pub(crate) const GATE: &str = "gate.sock";

/// Serves until the server is gone. To be called before anything else in a process started as the launcher.
pub fn main() -> ! {
    let control = sys::inherited(CONTROL);
    let with_parent = std::env::var_os(WITH_PARENT).map(PathBuf::from);
    // All it makes is seen inside a sandbox by another user, whatever the operator's umask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    sys::ignore_children();
    let mut children = Vec::new();
    let served = serve(&control, with_parent.is_some().then_some(&mut children));
    if let Some(home) = with_parent {
        end(&children, &home);
    }
    if let Err(error) = served
        && !is_end(&error)
    {
        complain(&format!("the launcher failed: {error}"));
        sys::exit(1);
    }
    sys::exit(0)
}

fn serve(control: &OwnedFd, mut children: Option<&mut Vec<OwnedFd>>) -> io::Result<()> {
    // Ctrl-C in the server's terminal is the server's business.
    rustix::process::setsid().ok();
    let fence = Fence::compile().map_err(io::Error::other)?;
    // Where /proc is read-only, somebody else has decided who dies first.
    let oom = Scores::take().ok();
    while let Some((request, fds)) = frame::receive::<Request>(control)? {
        let forked = match request {
            Request::Launch(launch) => fork::guest(*launch, fds, &fence, oom),
            Request::Bind(bind) => fork::bind(*bind, fds),
            Request::Keep(keep) => fork::keep(&keep, fds),
        };
        match forked {
            Ok((pidfd, status)) => {
                frame::send(control, &Reply::Forked, &[pidfd.as_fd(), status.as_fd()])?;
                if let Some(children) = children.as_deref_mut() {
                    children.push(pidfd);
                }
            }
            Err(failure) => frame::send(control, &Reply::Failed(failure), &[])?,
        }
    }
    Ok(())
}

/// A server that was killed leaves its messages unread: that is its end, not a failure of ours.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// The last word of a fork that is not a guest.
pub(crate) fn tell(status: &io::PipeWriter, outcome: Result<Told, Failure>) -> ! {
    let told = outcome.unwrap_or_else(Told::Failed);
    let text = serde_json::to_vec(&told).unwrap_or_default();
    // Without a reader nobody waits for it any more.
    rustix::io::write(status, &text).ok();
    sys::exit(0)
}

/// The server died and its sandboxes were to die with it.
fn end(children: &[OwnedFd], home: &Path) {
    for child in children {
        rustix::process::pidfd_send_signal(child, Signal::KILL).ok();
    }
    for child in children {
        let mut waiting = [rustix::event::PollFd::new(child, rustix::event::PollFlags::IN)];
        while rustix::event::poll(&mut waiting, None) == Err(rustix::io::Errno::INTR) {}
    }
    if let Some(directory) = std::env::var_os(DIRECTORY)
        && let Err(error) = Groups::open(Path::new(&directory)).close()
    {
        complain(&format!("failed to remove control groups: {error}"));
    }
    if let Err(error) = remove::tree(home) {
        complain(&format!("failed to remove {}: {error}", home.display()));
        return;
    }
    if let Err(error) = Register::open().and_then(|register| register.release_below(home)) {
        complain(&format!("failed to release uids: {error}"));
    }
}

fn complain(sentence: &str) {
    rustix::io::write(rustix::stdio::stderr(), format!("sandbar: {sentence}\n").as_bytes()).ok();
}
