//! The way out, as far as the guest has to do with it: a listener on loopback that the server accepts on, and of which
//! the guest keeps a duplicate, so that connections wait for the next server when one dies.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener as StdListener,
    },
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::net::UnixListener;

/// Made by whoever built the sandbox.
pub struct Gate {
    /// Listens inside.
    pub listener: OwnedFd,
    /// Listens outside: whoever connects is given the listener. Out of reach of workloads.
    pub handout: OwnedFd,
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where programs inside find it.
pub(crate) fn port(gate: Option<&Gate>) -> io::Result<Option<u16>> {
    let Some(gate) = gate else { return Ok(None) };
    let address = SocketAddr::try_from(rustix::net::getsockname(&gate.listener)?)?;
    Ok(Some(address.port()))
}

/// Gives the listener to everyone who asks, for ever.
pub(crate) async fn hand_out(gate: Option<Gate>) -> io::Result<std::convert::Infallible> {
    let Some(Gate { listener, handout }) = gate else { return std::future::pending().await };
    let handout = StdListener::from(handout);
    handout.set_nonblocking(true)?;
    let handout = UnixListener::from_std(handout)?;
    loop {
        match handout.accept().await {
            // Who went away before it was given asks again.
            Ok((asker, _)) => drop(give(&asker, &listener)),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A fresh connection has room for one byte, so this never waits.
fn give(asker: impl AsFd, listener: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    rustix::net::sendmsg(asker, &[IoSlice::new(b"g")], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
