//! Which addresses are this host's own. What is sent there goes over loopback, past every firewall, to daemons that trust
//! who comes from there: a public address of the host is as private as 127.0.0.1.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

/// Nothing is sent: the kernel only tells from where it would be, and that is the address itself on this host alone.
pub(crate) fn is_local(address: IpAddr) -> io::Result<bool> {
    let address = address.to_canonical();
    if address.is_loopback() {
        return Ok(true);
    }
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // where no way leads there is no way to this host either
    Ok(socket.connect((address, 9)).is_ok() && socket.local_addr()?.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_others_are_not() {
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_local(address.parse().expect("an address")).expect("an answer"), "{address}");
        }
        for address in ["192.0.2.1", "::ffff:192.0.2.1"] {
            assert!(!is_local(address.parse().expect("an address")).expect("an answer"), "{address}");
        }
    }
}
