//! Which addresses a workload can connect to: all are tried at once, because those that a network drops take as long as
//! one is willing to wait.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::{Facts, errno_name};

const PATIENCE: Duration = Duration::from_secs(2);
/// More are not tried.
pub(super) const MOST: usize = 16;

/// `reach.ADDRESS` for each: `ok`, the errno's name, `timeout`, or `not an address`.
pub(super) fn attempt(addresses: &[String]) -> Facts {
    let mut facts = Facts::new();
    let mut waiting: Vec<(&String, OwnedFd)> = Vec::new();
    for address in addresses.iter().take(MOST) {
        let begun = match address.parse::<SocketAddr>() {
            Ok(parsed) => begin(parsed),
            Err(_) => {
                facts.insert(key(address), "not an address".into());
                continue;
            }
        };
        match begun {
            Ok(socket) => waiting.push((address, socket)),
            Err(error) => {
                facts.insert(key(address), errno_name(&error));
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while !waiting.is_empty() {
        let ready = wait(&waiting, deadline.saturating_duration_since(Instant::now()));
        if ready.iter().all(|ready| !ready) && Instant::now() >= deadline {
            facts.extend(waiting.iter().map(|(address, _)| (key(address), "timeout".to_owned())));
            break;
        }
        let mut ready = ready.into_iter();
        waiting.retain(|(address, socket)| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            facts.insert(key(address), outcome(socket));
            false
        });
    }
    facts
}

fn key(address: &str) -> String {
    format!("reach.{address}")
}

fn begin(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// For each, whether something came of it.
fn wait(waiting: &[(&String, OwnedFd)], longest: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = waiting.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::OUT)).collect();
    let longest = Timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: longest.subsec_nanos().into() };
    // Interrupted or not, what is ready says so.
    let _count = rustix::event::poll(&mut polled, Some(&longest));
    polled.iter().map(|polled| !polled.revents().is_empty()).collect()
}

fn outcome(socket: &OwnedFd) -> String {
    match rustix::net::sockopt::socket_error(socket) {
        Ok(Ok(())) => "ok".into(),
        Ok(Err(errno)) | Err(errno) => errno_name(&errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_is_told_from_what_does_not() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let open = listener.local_addr()?.to_string();
        let facts = attempt(&[open.clone(), closed.clone(), "nowhere".into()]);
        assert_eq!(facts.get(&key(&open)).map(String::as_str), Some("ok"));
        assert_eq!(facts.get(&key(&closed)).map(String::as_str), Some("ECONNREFUSED"));
        assert_eq!(facts.get("reach.nowhere").map(String::as_str), Some("not an address"));
        let many: Vec<String> = (0..100).map(|number| format!("x{number}")).collect();
        assert_eq!(attempt(&many).len(), MOST);
        Ok(())
    }
}
