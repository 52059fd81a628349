//! Sockets of families nobody needs, ways out of the network namespace, and what neighbours would meet at.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use super::{Got, reached};
use crate::sys::{
    Arg::{Buffer, N},
    PAGE, call,
};

const STREAM: u64 = libc::SOCK_STREAM as u64;
const DATAGRAM: u64 = libc::SOCK_DGRAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;

/// Where nobody is: addresses for documentation, and the metadata service of clouds.
const OUTSIDE: &[&str] = &["192.0.2.1:80", "[2001:db8::1]:80", "169.254.169.254:80", "10.0.0.1:53", "8.8.8.8:53"];

pub(super) fn named(name: &str, arguments: &[&str]) -> Option<Got> {
    let first = arguments.first().copied().unwrap_or_default();
    let (family, kind, protocol) = match name {
        "socket_packet" => (17, RAW, 0x0300),
        // The kernel takes 32 bits of a family, and so must the filter.
        "socket_packet_by_high_bits" => ((1 << 32) | 17, RAW, 0x0300),
        "socket_vsock" => (40, STREAM, 0),
        "socket_alg" => (38, 5, 0),
        "socket_netlink_audit" => (16, RAW, 9),
        "socket_netlink_netfilter" => (16, RAW, 12),
        "socket_netlink_xfrm" => (16, RAW, 6),
        "socket_netlink_uevent" => (16, RAW, 15),
        "socket_key" => (15, RAW, 2),
        "socket_bluetooth" => (31, RAW, 1),
        "socket_can" => (29, RAW, 1),
        "socket_tipc" => (30, STREAM, 0),
        "socket_xdp" => (44, RAW, 0),
        "socket_smc" => (43, STREAM, 0),
        "socket_raw_icmp" => (2, RAW, 1),
        "socket_ping" => (2, DATAGRAM, 1),
        "socket_mptcp" => (2, STREAM, 262),
        "socket_mptcp_by_high_bits" => (2, STREAM, (1 << 32) | 262),
        "socket_mptcp_over_ipv6" => (10, STREAM, 262),
        "socket_udplite" => (2, DATAGRAM, 136),
        "socket_sctp" => (2, STREAM, 132),
        "socket_dccp" => (2, 6, 33),
        "socket_l2tp" => (2, DATAGRAM, 115),
        "socket_smc_over_ip" => (2, STREAM, 256),
        "protocol_on_tcp" => return Some(protocol_on_tcp()),
        "no_route_tcp" => return Some(each(OUTSIDE, tcp)),
        "no_route_udp" => return Some(each(OUTSIDE, udp)),
        "own_loopback" => return Some(own_loopback()),
        "tcp" => return Some(tcp(first)),
        "lookup" => return Some(lookup(first)),
        "lookup_of_any" => return Some(each(&["example.org", "open.out.test", "_gateway"], lookup)),
        "resolvers_by_udp" => return Some(resolvers()),
        "quic" => return Some(each(&["192.0.2.1:443", "[2001:db8::1]:443", "1.1.1.1:443"], datagram)),
        "ask_dns" => return Some(ask_dns(first, arguments.get(1).copied().unwrap_or_default())),
        "abstract_listen" => return Some(listen(first)),
        "abstract_connect" => return Some(connect(first)),
        "tcp_listen" => return Some(tcp_listen(first)),
        "shm_make" => return Some(shm(first, 0o1600)),
        "shm_find" => return Some(shm(first, 0)),
        "queue_make" => return Some(queue(libc::O_CREAT | libc::O_RDWR)),
        "queue_find" => return Some(queue(libc::O_RDWR)),
        _ => return None,
    };
    Some(reached(call(libc::SYS_socket, &mut [N(family), N(kind), N(protocol)]), &[]))
}

/// TLS by the kernel, on a socket that is not connected: whoever says so has looked at it.
fn protocol_on_tcp() -> Got {
    let socket = call(libc::SYS_socket, &mut [N(2), N(STREAM), N(0)])?;
    let mut name = [0; PAGE];
    name[..3].copy_from_slice(b"tls");
    let (level, option) = (N(libc::IPPROTO_TCP as u64), N(libc::TCP_ULP as u64));
    let set = call(libc::SYS_setsockopt, &mut [N(socket as u64), level, option, Buffer(&mut name), N(3)]);
    reached(set, &[libc::ENOTCONN, libc::ENOENT])
}

/// The first that goes through, or the error of the last.
fn each(places: &[&str], attempt: fn(&str) -> Got) -> Got {
    let mut last = Err(io::Error::other("nothing was tried"));
    for place in places {
        last = attempt(place);
        if last.is_ok() {
            break;
        }
    }
    last
}

fn tcp(place: &str) -> Got {
    let place: SocketAddr = place.parse().map_err(io::Error::other)?;
    TcpStream::connect_timeout(&place, Duration::from_secs(2))?;
    Ok(format!("connected to {place}"))
}

/// Connecting sends nothing: the kernel looks for a route, no more.
fn udp(place: &str) -> Got {
    let socket = UdpSocket::bind(if place.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.connect(place)?;
    Ok(format!("there is a route to {place}"))
}

/// A datagram that leaves, answered or not.
fn datagram(place: &str) -> Got {
    let socket = UdpSocket::bind(if place.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.send_to(&[0xc0; 1200], place)?;
    Ok(format!("1200 bytes left for {place}"))
}

/// By the system's own resolver, whatever it is.
fn lookup(name: &str) -> Got {
    let found = (name, 80).to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no address"))?;
    Ok(format!("{name} is {found}"))
}

/// Those that programs inside would ask, and the usual public ones.
fn resolvers() -> Got {
    let file = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = file.lines().filter_map(|line| line.strip_prefix("nameserver "));
    let mut last = Err(io::Error::other("nobody was asked"));
    for server in servers.chain(["8.8.8.8", "192.0.2.53"]) {
        last = ask_dns(&format!("{}:53", server.trim()), "example.org");
        if last.is_ok() {
            break;
        }
    }
    last
}

fn ask_dns(server: &str, name: &str) -> Got {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    socket.connect(server)?;
    socket.send(&question)?;
    let count = socket.recv(&mut [0; 512])?;
    Ok(format!("{server} answered {count} bytes about {name}"))
}

/// What `no_route_*` try, where there is a route.
fn own_loopback() -> Got {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    tcp(&listener.local_addr()?.to_string())?;
    udp("127.0.0.1:9")
}

fn listen(name: &str) -> Got {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    super::say("listening");
    for stream in listener.incoming() {
        stream?.write_all(b"hello")?;
    }
    Ok("it ended".into())
}

fn connect(name: &str) -> Got {
    let mut stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(format!("the abstract socket said {text}"))
}

fn tcp_listen(port: &str) -> Got {
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    super::say("listening");
    for stream in listener.incoming() {
        drop(stream?);
    }
    Ok("it ended".into())
}

fn shm(key: &str, flags: u64) -> Got {
    let key: u64 = key.parse().map_err(io::Error::other)?;
    let id = call(libc::SYS_shmget, &mut [N(key), N(4096), N(flags)])?;
    Ok(format!("shared memory {id}"))
}

fn queue(flags: i32) -> Got {
    let mut name = [0; PAGE];
    name[..14].copy_from_slice(b"sandbar-attack");
    let opened = call(libc::SYS_mq_open, &mut [Buffer(&mut name), N(flags as u64), N(0o600), N(0)])?;
    Ok(format!("message queue {opened}"))
}
