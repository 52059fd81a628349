//! Taking a sandbox's gate: the guest hands its listener to whoever connects to a socket that only the server can reach.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::TcpListener,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sandbar_api::SandboxId;
use sandbar_provider::{Error, Gate};
use tokio::{io::Interest, net::UnixStream, time};

use crate::{launcher::GATE, local::Local};

/// The guest does it in well under a millisecond, unless the host is very busy.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn take(local: &Local, id: &SandboxId) -> Result<Gate, Error> {
    if local.guest(id)?.is_none() {
        return Err(Error::Unreachable { id: id.clone(), cause: "it is not running".into() });
    }
    let path = local.path(id);
    match time::timeout(PATIENCE, receive(&path)).await {
        Ok(Ok(listener)) => Ok(Gate::Listener(listener)),
        // Of a time when there were no gates: it has none until it is started again.
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::Declined { provider: "local", verb: "open a gate for" })
        }
        Ok(Err(error)) => Err(Error::io(format!("take the gate of {id}"))(error)),
        Err(_) => Err(Error::Unreachable { id: id.clone(), cause: "it does not hand out its gate".into() }),
    }
}

async fn receive(directory: &Path) -> io::Result<TcpListener> {
    // By descriptor: a home may be deeper than a socket's path may be long.
    let directory = std::fs::File::open(directory)?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/{GATE}", directory.as_raw_fd())).await?;
    let listener = stream.async_io(Interest::READABLE, || descriptor(&stream)).await?;
    let listener = TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.flatten().next().ok_or_else(|| io::Error::other("the guest handed out nothing"))
}
