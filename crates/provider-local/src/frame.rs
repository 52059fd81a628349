//! Messages with descriptors over a SEQPACKET socket: how server, launcher and booting guest talk.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::{Serialize, de::DeserializeOwned};

/// A launch names at most this many descriptors: its own few, and one a layer.
const MAX_FDS: usize = 240;
/// Room for the deepest stack of layers below the longest of paths.
const MAX_MESSAGE: usize = 192 * 1024;

pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `None` when the other side is gone.
pub(crate) fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    // Asked for first: a buffer for the longest would stay in the memory of every guest.
    let length = retry(|| rustix::net::recv(socket.as_fd(), &mut [0_u8; 0], RecvFlags::PEEK | RecvFlags::TRUNC))?.1;
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = vec![0; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry(|| {
        let mut into = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket.as_fd(), &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let fds = control
        .drain()
        .filter_map(|message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_message_carries_descriptors_and_the_end_is_seen() -> io::Result<()> {
        let (ours, theirs) = pair()?;
        let (mut reader, writer) = io::pipe()?;
        send(&ours, &"hello", &[writer.as_fd()])?;
        drop((writer, ours));
        let (text, fds) = receive::<String>(&theirs)?.unwrap_or_default();
        assert_eq!((text.as_str(), fds.len()), ("hello", 1));
        for fd in fds {
            std::fs::File::from(fd).write_all(b"through")?;
        }
        let mut got = String::new();
        reader.read_to_string(&mut got)?;
        assert_eq!(got, "through");
        assert!(receive::<String>(&theirs)?.is_none());
        Ok(())
    }
}
