//! The launcher: this binary re-executed, with one thread and an empty environment, from which every sandbox's guest is
//! forked. After clone3 in a threaded process a child may not even allocate; and forks share the pages that a fresh
//! execution would have made its own.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::Mode,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::Signal,
};

use crate::{
    boot::{self, Boot},
    fence::Fence,
    frame, guest_pid, idmap,
    launch::{Go, Launch, Reply},
    remove,
    step::{Failure, Step},
    sys::{self, Cloned},
    uids::{Register, Uids},
};

/// The control socket is the standard input of a fresh launcher.
pub(crate) const CONTROL: i32 = 0;
/// Set when sandboxes must not outlive the server: the home to remove with them.
pub(crate) const WITH_PARENT: &str = "SANDBAR_WITH_PARENT";

/// The name inside a sandbox's directory; bound by the launcher, so that the sandbox never sees it.
pub(crate) const SOCKET: &str = "guest.sock";

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Serves until the server is gone. To be called before anything else in a process started as the launcher.
pub fn main() -> ! {
    let control = sys::inherited(CONTROL);
    let with_parent = std::env::var_os(WITH_PARENT).map(PathBuf::from);
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
    while let Some((launch, fds)) = frame::receive::<Launch>(control)? {
        match fork_guest(launch, fds, &fence) {
            Ok((pidfd, status)) => {
                frame::send(control, &Reply::Launched, &[pidfd.as_fd(), status.as_fd()])?;
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

fn fork_guest(launch: Launch, fds: Vec<OwnedFd>, fence: &Fence) -> Result<(OwnedFd, OwnedFd), Failure> {
    let mut fds = fds.into_iter();
    let (Some(directory), Some(lower)) = (fds.next(), fds.next()) else {
        return Err(Failure { step: Step::Listen, errno: None, detail: "receive a launch's descriptors".into() });
    };
    let workspace = fds.next();
    // The guest inherits this as its working directory, translated into its own mount namespace; a descriptor would
    // stay in ours, where it may not mount.
    rustix::process::fchdir(&directory)
        .map_err(|errno| Failure::at(Step::Listen, "enter the sandbox's directory")(errno.into()))?;
    let listener = listen().map_err(Failure::at(Step::Listen, "listen for the server"))?;
    let (status_reader, status) = io::pipe().map_err(Failure::at(Step::Listen, "make a pipe"))?;
    let (ours, theirs) = frame::pair().map_err(Failure::at(Step::Listen, "make a socket pair"))?;

    let cloned = sys::clone_into(NAMESPACES as u64)
        .map_err(Failure::at(Step::Namespaces, "clone3 into user, mount, pid, net, ipc, uts and cgroup namespaces"))?;
    let (pid, pidfd) = match cloned {
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
        Cloned::Child => {
            sys::default_children();
            boot::run(Boot { launch, listener, go: theirs, status, fence })
        }
    };
    drop((theirs, status, listener));
    let prepared = prepare(pid, &launch, &directory, &lower, workspace.as_ref()).and_then(|trees| {
        let trees: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
        frame::send(&ours, &Go, &trees).map_err(Failure::at(Step::UidMap, "let the guest go"))
    });
    if let Err(failure) = prepared {
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).ok();
        return Err(failure);
    }
    Ok((pidfd, status_reader.into()))
}

/// What only the parent may do for the child: write its uid map, shift the owners of its trees, remember its pid.
fn prepare(
    pid: i32,
    launch: &Launch,
    directory: &OwnedFd,
    lower: &OwnedFd,
    workspace: Option<&OwnedFd>,
) -> Result<Vec<OwnedFd>, Failure> {
    let write = |file: &str, text: &str| {
        fs::write(format!("/proc/{pid}/{file}"), text).map_err(Failure::at(Step::UidMap, format!("write {file}")))
    };
    if matches!(launch.uids, Uids::One { .. }) {
        // The kernel demands it of whoever maps gids without privilege.
        write("setgroups", "deny")?;
    }
    write("uid_map", &launch.uids.uid_map())?;
    write("gid_map", &launch.uids.gid_map())?;
    guest_pid::write(directory, pid).map_err(Failure::at(Step::Listen, "write guest.pid"))?;
    let mut trees = Vec::new();
    if let Uids::Range(_) = launch.uids {
        let namespace = idmap::user_namespace(pid).map_err(Failure::at(Step::Idmap, "open the user namespace"))?;
        trees.push(
            idmap::detached(lower, Some(&namespace))
                .map_err(Failure::at(Step::Idmap, "shift the owners of the root"))?,
        );
        if let (Some(tree), Some(bound), Some(user)) = (workspace, &launch.workspace, launch.uids.workload_on_host()) {
            let map =
                idmap::single(bound.owner, user).map_err(Failure::at(Step::Idmap, "map the workspace's owner"))?;
            trees.push(
                idmap::detached(tree, Some(&map))
                    .map_err(Failure::at(Step::Idmap, "shift the owner of the workspace"))?,
            );
        }
    }
    Ok(trees)
}

/// The guest's socket, bound by relative name: a home may be deeper than a socket's path may be long.
fn listen() -> io::Result<OwnedFd> {
    match rustix::fs::unlink(SOCKET) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(SOCKET)?);
    rustix::process::umask(mask);
    bound?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
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
