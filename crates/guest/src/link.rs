//! The guest's end of the socket to a minder.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    minder::{MESSAGE, Order, Report},
    sys,
};

pub(crate) struct Link(AsyncFd<OwnedFd>);

impl Link {
    /// Also the minder's end.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        // Packets: a message is there as a whole or not at all.
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((Self(sys::watch(ours, Interest::READABLE)?), theirs))
    }

    /// `None` when the minder is gone.
    pub(crate) async fn receive(&self) -> Option<Report> {
        let mut bytes = [0; MESSAGE];
        let receive = |link: &OwnedFd| Ok(rustix::net::recv(link, &mut bytes, RecvFlags::empty())?.0);
        match self.0.async_io(Interest::READABLE, receive).await {
            Ok(MESSAGE) => Report::from_bytes(bytes),
            _ => None,
        }
    }

    /// Whether the minder will read it. A minder that lets orders pile up has been stopped from inside.
    pub(crate) fn send(&self, order: Order) -> bool {
        loop {
            match rustix::net::send(self.0.get_ref(), &order.to_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}
