//! Which addresses a workload can connect to: all are tried at once, because those that a network drops take as long as
//! one is willing to wait.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::{Facts, errno_name};
use crate::protocol::{NOT_AN_ADDRESS, REACH_KUBERNETES};

const PATIENCE: Duration = Duration::from_secs(2);
/// More are not tried.
pub(super) const MOST: usize = 16;
/// Of every container in a cluster: its kubelet says so, whatever the pod asks for.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// `reach.ADDRESS` for each: `ok`, the errno's name or `timeout`; for what is none, why nothing was tried.
pub(super) fn attempt(targets: &[String], environment: impl Fn(&str) -> Option<String>) -> Facts {
    let mut facts = Facts::new();
    let mut addresses = BTreeSet::new();
    for target in targets.iter().take(MOST) {
        match resolve(target, &environment) {
            Ok(address) => {
                addresses.insert(address);
            }
            Err(why) => {
                facts.insert(key(target), why);
            }
        }
    }
    let mut waiting: Vec<(String, OwnedFd)> = Vec::new();
    for address in addresses {
        match begin(address) {
            Ok(socket) => waiting.push((address.to_string(), socket)),
            Err(error) => {
                facts.insert(key(&address.to_string()), errno_name(&error));
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

fn resolve(target: &str, environment: impl Fn(&str) -> Option<String>) -> Result<SocketAddr, String> {
    if target != REACH_KUBERNETES {
        return target.parse().map_err(|_| NOT_AN_ADDRESS.into());
    }
    let told = |name: &str| environment(name).ok_or_else(|| format!("{NOT_AN_ADDRESS}: {name} is not set"));
    let (host, port) = (told(HOST)?, told(PORT)?);
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok().zip(port.parse::<u16>().ok());
    // At an address of the pod's own nobody listens, which would say nothing of what lies beyond.
    let elsewhere = address.filter(|(host, _)| !host.is_loopback() && !host.is_unspecified());
    elsewhere.map(SocketAddr::from).ok_or_else(|| format!("{NOT_AN_ADDRESS}: {HOST} is `{host}`, {PORT} is `{port}`"))
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
fn wait(waiting: &[(String, OwnedFd)], longest: Duration) -> Vec<bool> {
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
        let facts = attempt(&[open.clone(), closed.clone(), "nowhere".into()], |_| None);
        assert_eq!(facts.get(&key(&open)).map(String::as_str), Some("ok"));
        assert_eq!(facts.get(&key(&closed)).map(String::as_str), Some("ECONNREFUSED"));
        assert_eq!(facts.get("reach.nowhere").map(String::as_str), Some("not an address"));
        let many: Vec<String> = (0..100).map(|number| format!("x{number}")).collect();
        assert_eq!(attempt(&many, |_| None).len(), MOST);
        Ok(())
    }

    fn kubernetes(host: Option<&str>, port: Option<&str>) -> Result<String, String> {
        let environment = |name: &str| if name == HOST { host } else { port.filter(|_| name == PORT) };
        resolve(REACH_KUBERNETES, |name| environment(name).map(Into::into)).map(|address| address.to_string())
    }

    #[test]
    fn the_cluster_is_where_the_kubelet_says() {
        let of = |host, port| kubernetes(Some(host), Some(port));
        assert_eq!(of("10.96.0.1", "443").as_deref(), Ok("10.96.0.1:443"));
        assert_eq!(of("fd00::1", "6443").as_deref(), Ok("[fd00::1]:6443"));
        assert_eq!(of("[fd00::1]", "6443").as_deref(), Ok("[fd00::1]:6443"));
        let unset = |name: &str| Err(format!("not an address: {name} is not set"));
        assert_eq!(kubernetes(None, Some("443")), unset(HOST));
        assert_eq!(kubernetes(Some("10.96.0.1"), None), unset(PORT));
        for (host, port) in
            [("", "443"), ("10.96.0.1", "70000"), ("api.example", "443"), ("127.0.0.1", "1"), ("::", "1")]
        {
            let told = of(host, port).err().unwrap_or_default();
            assert!(told.starts_with("not an address: ") && told.contains(&format!("`{host}`")), "{told}");
        }
    }

    #[test]
    fn what_is_meant_twice_is_told_once_and_what_was_not_tried_by_its_word() {
        // Nobody has an address of this network.
        let environment = |name: &str| Some(if name == HOST { "192.0.2.1" } else { "443" }.to_owned());
        let facts = attempt(&["192.0.2.1:443".into(), REACH_KUBERNETES.into()], environment);
        assert_eq!(facts.keys().collect::<Vec<_>>(), ["reach.192.0.2.1:443"]);
        let facts = attempt(&[REACH_KUBERNETES.into()], |_| None);
        let told = facts.get("reach.kubernetes").map(String::as_str);
        assert_eq!(told, Some("not an address: KUBERNETES_SERVICE_HOST is not set"));
    }
}
