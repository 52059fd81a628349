//! The way out, as far as the guest has to do with it: a listener on loopback. Where the server accepts on it, the guest
//! keeps a duplicate, so that connections wait for the next server when one dies; where no descriptor reaches the server,
//! the guest accepts for it.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener as StdListener,
    },
    sync::Arc,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::net::UnixListener;

use crate::{accept::Door, entrance::ACCEPT_PAUSE};

/// Made by whoever built the sandbox; `listener` listens inside.
pub enum Gate {
    /// The server accepts. `handout` listens outside, out of reach of workloads: whoever connects is given the listener.
    Handed { listener: OwnedFd, handout: OwnedFd },
    /// The guest accepts, and calls of the server carry what comes.
    Carried { listener: OwnedFd },
}

/// Where programs inside find it.
pub(crate) fn port(gate: Option<&Gate>) -> io::Result<Option<u16>> {
    let Some(gate) = gate else { return Ok(None) };
    let (Gate::Handed { listener, .. } | Gate::Carried { listener }) = gate;
    let address = SocketAddr::try_from(rustix::net::getsockname(listener)?)?;
    Ok(Some(address.port()))
}

/// What the guest itself has to do: the door to accept at, or the listener to hand out.
pub(crate) fn split(gate: Option<Gate>) -> io::Result<(Option<Arc<Door>>, Option<Handout>)> {
    Ok(match gate {
        Some(Gate::Handed { listener, handout }) => (None, Some(Handout { listener, handout })),
        Some(Gate::Carried { listener }) => (Some(Arc::new(Door::new(listener)?)), None),
        None => (None, None),
    })
}

pub(crate) struct Handout {
    listener: OwnedFd,
    handout: OwnedFd,
}

/// Gives the listener to everyone who asks, for ever.
pub(crate) async fn hand_out(handout: Option<Handout>) -> io::Result<std::convert::Infallible> {
    let Some(Handout { listener, handout }) = handout else { return std::future::pending().await };
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
