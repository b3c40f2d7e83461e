//! Which kind of network an address belongs to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The kind of network an address belongs to; later ones are closer to this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// The internet.
    Public,
    /// Private networks (RFC 1918, unique local, carrier-grade NAT), and whatever else is not routed on the internet.
    Private,
    /// This machine.
    Loopback,
    /// Link-local addresses, metadata services of clouds, and addresses that are none of one host (multicast, `0.0.0.0`).
    LinkLocal,
}

impl Network {
    /// As messages call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "a public network",
            Self::Private => "a private network",
            Self::Loopback => "the server's own machine",
            Self::LinkLocal => "a link-local or metadata address",
        }
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(head: [u16; 4], tail: [u16; 4], length: u8) -> Ipv6Net {
    let [a, b, c, d] = head;
    let [e, f, g, h] = tail;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length)
}

/// IANA's special-purpose registry and the metadata services that lie outside of link-local networks. All others are public.
const SPECIAL_V4: [(Ipv4Net, Network); 17] = [
    (v4(127, 0, 0, 0, 8), Network::Loopback),
    (v4(0, 0, 0, 0, 8), Network::LinkLocal),
    (v4(169, 254, 0, 0, 16), Network::LinkLocal),
    // Azure's host, Alibaba's metadata, and protocol assignments with Oracle's metadata.
    (v4(168, 63, 129, 16, 32), Network::LinkLocal),
    (v4(100, 100, 100, 200, 32), Network::LinkLocal),
    (v4(192, 0, 0, 0, 24), Network::LinkLocal),
    (v4(224, 0, 0, 0, 4), Network::LinkLocal),
    (v4(240, 0, 0, 0, 4), Network::LinkLocal),
    (v4(10, 0, 0, 0, 8), Network::Private),
    (v4(172, 16, 0, 0, 12), Network::Private),
    (v4(192, 168, 0, 0, 16), Network::Private),
    (v4(100, 64, 0, 0, 10), Network::Private),
    (v4(198, 18, 0, 0, 15), Network::Private),
    (v4(192, 88, 99, 0, 24), Network::Private),
    (v4(192, 0, 2, 0, 24), Network::Private),
    (v4(198, 51, 100, 0, 24), Network::Private),
    (v4(203, 0, 113, 0, 24), Network::Private),
];

/// As [`SPECIAL_V4`], with IPv4 addresses that are written as IPv6 taken out before. Of the others, only 2000::/3 is routed.
const SPECIAL_V6: [(Ipv6Net, Network); 9] = [
    (v6([0; 4], [0, 0, 0, 1], 128), Network::Loopback),
    (v6([0; 4], [0; 4], 128), Network::LinkLocal),
    (v6([0xfe80, 0, 0, 0], [0; 4], 10), Network::LinkLocal),
    (v6([0xff00, 0, 0, 0], [0; 4], 8), Network::LinkLocal),
    // Metadata of AWS, Google and Scaleway.
    (v6([0xfd00, 0xec2, 0, 0], [0; 4], 32), Network::LinkLocal),
    (
        v6([0xfd20, 0xce, 0, 0], [0, 0, 0, 0x254], 128),
        Network::LinkLocal,
    ),
    (v6([0xfd00, 0x42, 0, 0], [0, 0, 0, 0x42], 128), Network::LinkLocal),
    // Protocol assignments with Teredo, and documentation.
    (v6([0x2001, 0, 0, 0], [0; 4], 23), Network::Private),
    (v6([0x2001, 0xdb8, 0, 0], [0; 4], 32), Network::Private),
];

const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0], [0; 4], 3);
const DOCUMENTATION: Ipv6Net = v6([0x3fff, 0, 0, 0], [0; 4], 20);
/// Where a NAT64 gateway puts IPv4 addresses.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0], [0; 4], 96);
const MAPPED: Ipv6Net = v6([0; 4], [0, 0xffff, 0, 0], 96);
const TRANSLATED: Ipv6Net = v6([0; 4], [0xffff, 0, 0, 0], 96);
const COMPATIBLE: Ipv6Net = v6([0; 4], [0; 4], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0], [0; 4], 16);

/// Returns the kind of network of an address. An IPv4 address that is written as IPv6 (mapped, NAT64, 6to4) counts as itself.
pub(crate) fn network_of(address: IpAddr) -> Network {
    match address {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address),
    }
}

/// Returns the kind of network that the first of `table` with this address has, if any.
pub(crate) fn first_match(table: &[(IpNet, Network)], address: IpAddr) -> Option<Network> {
    let found = table.iter().find(|(network, _)| network.contains(&address));
    found.map(|(_, network)| *network)
}

fn of_v4(address: Ipv4Addr) -> Network {
    let found = SPECIAL_V4.iter().find(|(network, _)| network.contains(&address));
    found.map_or(Network::Public, |(_, network)| *network)
}

fn of_v6(address: Ipv6Addr) -> Network {
    let special = SPECIAL_V6.iter().find(|(network, _)| network.contains(&address));
    if let Some((_, network)) = special {
        return *network;
    }
    if let Some(inner) = embedded_v4(address) {
        return of_v4(inner);
    }
    if GLOBAL_UNICAST.contains(&address) && !DOCUMENTATION.contains(&address) {
        Network::Public
    } else {
        Network::Private
    }
}

fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [_, high, low, .., before_last, last] = address.segments();
    let at_the_end = [MAPPED, TRANSLATED, COMPATIBLE, NAT64];
    if at_the_end.iter().any(|network| network.contains(&address)) {
        return Some(from_segments(before_last, last));
    }
    SIX_TO_FOUR.contains(&address).then(|| from_segments(high, low))
}

fn from_segments(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_special_network_is_known() {
        for (network, addresses) in [
            (
                Network::Public,
                "1.1.1.1 8.8.8.8 172.15.255.255 172.32.0.0 100.63.255.255 100.128.0.0 169.253.0.1 192.167.1.1 223.255.255.255 \
                 2606:4700::1111 2a00:1450:4001::1 ::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1 2001:4860:4860::8888",
            ),
            (
                Network::Private,
                "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 100.127.255.255 198.18.0.1 192.0.2.1 \
                 198.51.100.7 203.0.113.1 fc00::1 fd12:3456::1 fec0::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 64:ff9b:1::8.8.8.8 \
                 2002:a00:1::1 2001:db8::1 2001::1 3fff::1 ::ffff:0:192.168.1.1 ::10.0.0.1 100::1 4000::1",
            ),
            (
                Network::Loopback,
                "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::127.0.0.1 ::127.0.0.1 2002:7f00:1::",
            ),
            (
                Network::LinkLocal,
                "0.0.0.0 0.1.2.3 169.254.169.254 169.254.170.2 192.0.0.192 100.100.100.200 168.63.129.16 224.0.0.1 239.1.1.1 \
                 240.0.0.1 255.255.255.255 :: fe80::1 febf::1 ff02::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42 \
                 ::ffff:169.254.169.254 64:ff9b::169.254.169.254 2002:a9fe:a9fe:: ::ffff:0.0.0.0",
            ),
        ] {
            for address in addresses.split_whitespace() {
                let parsed: IpAddr = address.parse().unwrap();
                assert_eq!(network_of(parsed), network, "{address}");
            }
        }
    }

    proptest! {
        /// However an IPv4 address is written, it is no more public than it is.
        #[test]
        fn writing_an_address_as_ipv6_hides_nothing(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let expected = network_of(address.into());
            let text = address.to_string();
            for prefix in ["::ffff:", "64:ff9b::", "::ffff:0:"] {
                let written: IpAddr = format!("{prefix}{text}").parse().unwrap();
                prop_assert_eq!(network_of(written), expected, "{}", written);
            }
        }
    }
}
