//! Which addresses may be dialled: public ones, and private ones that the operator listed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Why an address is never dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {kind}")]
pub struct Refusal {
    pub address: IpAddr,
    /// For example `a private address`, `link-local, where clouds keep their credentials`.
    pub kind: &'static str,
}

/// `private` are ranges the operator lets allowed names lead to. Link-local (and with it every cloud's metadata service),
/// unspecified, multicast, broadcast and reserved addresses are refused whatever it says. A v4 address inside a v6 one
/// (mapped, compatible, 6to4, NAT64) is judged as the v4 address.
pub fn vet(address: IpAddr, private: &[IpNet]) -> Result<(), Refusal> {
    let inner = effective(address);
    let refused = |kind| Err(Refusal { address, kind });
    match (never(address), listable(inner)) {
        (Some(kind), _) => refused(kind),
        (None, Some(kind)) if !private.iter().any(|net| net.contains(&inner)) => refused(kind),
        _ => Ok(()),
    }
}

/// Why it is refused whatever the operator lists.
pub(crate) fn never(address: IpAddr) -> Option<&'static str> {
    match effective(address) {
        IpAddr::V4(ip) => find(NEVER_V4, |net| net.contains(&ip)),
        IpAddr::V6(ip) => find(NEVER_V6, |net| net.contains(&ip)).or_else(|| {
            // The rest of the space is assigned to nobody, or to what is not reached like a host.
            let known = PUBLIC_V6.contains(&ip) || find(LISTABLE_V6, |net| net.contains(&ip)).is_some();
            (!known).then_some("reserved")
        }),
    }
}

fn listable(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(ip) => find(LISTABLE_V4, |net| net.contains(&ip)),
        IpAddr::V6(ip) => find(LISTABLE_V6, |net| net.contains(&ip)),
    }
}

fn find<N>(table: &[(N, &'static str)], contains: impl Fn(&N) -> bool) -> Option<&'static str> {
    table.iter().find(|(net, _)| contains(net)).map(|(_, kind)| *kind)
}

/// The v4 address that a packet to this v6 address may end up at, else the address itself.
pub(crate) fn effective(address: IpAddr) -> IpAddr {
    let IpAddr::V6(ip) = address else { return address };
    let bytes = ip.octets();
    let v4_at = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into();
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        // ::ffff:0:0/96 mapped, ::/96 compatible
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] => v4_at(12),
        // ::ffff:0:0:0/96 translated by SIIT
        [0, 0, 0, 0, 0xffff, 0, _, _] => v4_at(12),
        // 64:ff9b::/96 NAT64
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => v4_at(12),
        // 2002::/16 6to4
        [0x2002, ..] => v4_at(2),
        _ => address,
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, c: u16, last: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, last), bits)
}

const METADATA: &str = "a cloud's metadata service, which gives out credentials";

const LISTABLE_V4: &[(Ipv4Net, &str)] = &[
    // RFC 1918
    (v4(10, 0, 0, 0, 8), "a private address"),
    (v4(172, 16, 0, 0, 12), "a private address"),
    (v4(192, 168, 0, 0, 16), "a private address"),
    // The host itself: its daemons trust who comes from there.
    (v4(127, 0, 0, 0, 8), "a loopback address, the host itself"),
    // RFC 6598, carriers' NAT; overlay networks use it too.
    (v4(100, 64, 0, 0, 10), "a shared private address"),
    // RFC 2544 benchmarks; some networks use it like a private one.
    (v4(198, 18, 0, 0, 15), "a private address, for benchmarks"),
];

const NEVER_V4: &[(Ipv4Net, &str)] = &[
    // AWS, GCP, Azure and others at 169.254.169.254, ECS at 169.254.170.2
    (v4(169, 254, 0, 0, 16), "link-local, where clouds keep their credentials"),
    // Alibaba, inside 100.64/10
    (v4(100, 100, 100, 200, 32), METADATA),
    // Azure's wire server, a public address that leads to the host
    (v4(168, 63, 129, 16, 32), METADATA),
    // RFC 791 "this network"; Linux takes 0.0.0.0 for the host itself.
    (v4(0, 0, 0, 0, 8), "unspecified"),
    // RFC 6890 protocol assignments; Oracle's metadata service at 192.0.0.192
    (v4(192, 0, 0, 0, 24), "reserved"),
    // RFC 5737 documentation
    (v4(192, 0, 2, 0, 24), "reserved, for documentation"),
    (v4(198, 51, 100, 0, 24), "reserved, for documentation"),
    (v4(203, 0, 113, 0, 24), "reserved, for documentation"),
    // RFC 7526 former 6to4 relays
    (v4(192, 88, 99, 0, 24), "reserved"),
    // RFC 5771
    (v4(224, 0, 0, 0, 4), "multicast"),
    // RFC 919, inside 240/4
    (v4(255, 255, 255, 255, 32), "broadcast"),
    // RFC 1112 class E
    (v4(240, 0, 0, 0, 4), "reserved"),
];

/// RFC 4291: what is handed out to the public.
const PUBLIC_V6: Ipv6Net = v6(0x2000, 0, 0, 0, 3);

const LISTABLE_V6: &[(Ipv6Net, &str)] = &[
    (v6(0, 0, 0, 1, 128), "a loopback address, the host itself"),
    // RFC 4193 unique local
    (v6(0xfc00, 0, 0, 0, 7), "a private address"),
];

const NEVER_V6: &[(Ipv6Net, &str)] = &[
    // RFC 4291
    (v6(0, 0, 0, 0, 128), "unspecified"),
    (v6(0xfe80, 0, 0, 0, 10), "link-local, where clouds keep their credentials"),
    // RFC 3879 former site-local
    (v6(0xfec0, 0, 0, 0, 10), "reserved"),
    (v6(0xff00, 0, 0, 0, 8), "multicast"),
    // AWS: instance metadata at ::254, pod identity at ::23; inside fc00::/7
    (v6(0xfd00, 0xec2, 0, 0, 32), METADATA),
    // GCP, inside fc00::/7
    (v6(0xfd20, 0xce, 0, 0x254, 128), METADATA),
    // RFC 8215 NAT64 of a network's own: where in it the v4 address stands only that network knows
    (v6(0x64, 0xff9b, 1, 0, 48), "a translated address that only its own network can read"),
    // RFC 2928 protocol assignments, with Teredo 2001::/32 (a tunnel to any v4 address) and benchmarks 2001:2::/48
    (v6(0x2001, 0, 0, 0, 23), "reserved"),
    // RFC 3849, RFC 9637 documentation
    (v6(0x2001, 0xdb8, 0, 0, 32), "reserved, for documentation"),
    (v6(0x3fff, 0, 0, 0, 20), "reserved, for documentation"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(address: &str, private: &[&str]) -> Result<(), &'static str> {
        let private: Vec<IpNet> = private.iter().filter_map(|net| net.parse().ok()).collect();
        let address: IpAddr = address.parse().unwrap_or_else(|_| panic!("{address} is no address"));
        vet(address, &private).map_err(|refusal| {
            assert_eq!(refusal.address, address);
            refusal.kind
        })
    }

    #[test]
    fn public_addresses() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "192.0.1.0",
            "168.63.129.15",
            "223.255.255.255",
            "1.0.0.0",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "::8.8.8.8",
        ] {
            assert_eq!(judged(address, &[]), Ok(()), "{address}");
        }
    }

    #[test]
    fn private_addresses_need_to_be_listed() {
        for (address, net) in [
            ("10.0.0.0", "10.0.0.0/8"),
            ("10.255.255.255", "10.255.0.0/16"),
            ("172.16.0.1", "172.16.0.0/12"),
            ("172.31.255.255", "172.16.0.0/12"),
            ("192.168.0.1", "192.168.0.1/32"),
            ("127.0.0.1", "127.0.0.0/8"),
            ("127.255.255.255", "127.0.0.0/8"),
            ("100.64.0.1", "100.64.0.0/10"),
            ("198.19.255.255", "198.18.0.0/15"),
            ("::1", "::1/128"),
            ("fc00::1", "fc00::/7"),
            ("fdff::1", "fc00::/7"),
            ("::ffff:10.0.0.1", "10.0.0.0/8"),
            ("::10.0.0.1", "10.0.0.0/8"),
            ("::ffff:0:10.0.0.1", "10.0.0.0/8"),
            ("64:ff9b::10.0.0.1", "10.0.0.0/8"),
            ("2002:a00:1::", "10.0.0.0/8"),
        ] {
            assert!(judged(address, &[]).is_err(), "{address}");
            assert!(judged(address, &["192.168.77.0/24", "fd77::/16"]).is_err(), "{address}");
            assert_eq!(judged(address, &[net]), Ok(()), "{address}");
        }
        for (address, net) in
            [("::ffff:10.0.0.1", "::/0"), ("2002:a00:1::", "2002::/16"), ("64:ff9b::a00:1", "64:ff9b::/96")]
        {
            assert_eq!(judged(address, &[net]), Err("a private address"), "{address}: only the v4 range counts");
        }
    }

    #[test]
    fn some_addresses_are_never_dialled() {
        for (address, kind) in [
            ("169.254.169.254", "link-local"),
            ("169.254.0.0", "link-local"),
            ("169.254.170.2", "link-local"),
            ("::ffff:169.254.169.254", "link-local"),
            ("::169.254.169.254", "link-local"),
            ("2002:a9fe:a9fe::1", "link-local"),
            ("64:ff9b::a9fe:a9fe", "link-local"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "reserved"),
            ("fd00:ec2::254", "metadata"),
            ("fd00:ec2::23", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("100.100.100.200", "metadata"),
            ("::ffff:100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
            ("192.0.0.192", "reserved"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("::", "unspecified"),
            ("::ffff:0.0.0.0", "unspecified"),
            ("::2", "unspecified"),
            ("192.0.2.1", "documentation"),
            ("198.51.100.1", "documentation"),
            ("203.0.113.1", "documentation"),
            ("192.88.99.1", "reserved"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("ff02::1", "multicast"),
            ("2001:db8::1", "documentation"),
            ("3fff::1", "documentation"),
            ("2001::1", "reserved"),
            ("2001:0:a9fe:a9fe::1", "reserved"),
            ("64:ff9b:1::a9fe:a9fe", "translated"),
            ("64:ff9b:1:a9fe:a9:fe00::", "translated"),
            ("64:ff9b:2::1", "reserved"),
            ("100::1", "reserved"),
            ("4000::1", "reserved"),
            ("5f00::1", "reserved"),
        ] {
            for private in [&[][..], &["0.0.0.0/0", "::/0"]] {
                let told = judged(address, private);
                assert!(told.is_err_and(|told| told.contains(kind)), "{address}: {told:?}");
            }
        }
    }
}
