//! A load balancer of a cloud before the gateway: who its clients are.

use std::net::IpAddr;
use std::time::Duration;

use dstack_proxy::Scheme;
use http::{HeaderMap, HeaderName};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Peer;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Load balancers keep connections to machines open, and requests fail that are sent while one is closed here: that of Google closes
/// them after 600 s ("Timeouts and retries", external Application Load Balancers), that of AWS after the 60 s of its idle timeout.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(620);

/// A load balancer before the gateway.
#[derive(Debug)]
pub struct Balancer {
    /// How many addresses it adds to `X-Forwarded-For`, of which the first is its client's.
    hops: usize,
    /// Where it is: in networks that nobody has in the internet (RFC 1918, RFC 6598, RFC 4193).
    networks: [IpNet; 5],
}

impl Balancer {
    /// One that adds so many addresses.
    pub fn new(hops: usize) -> Self {
        let v4 = |a, b, length| IpNet::V4(Ipv4Net::new_assert([a, b, 0, 0].into(), length));
        Self {
            hops,
            networks: [
                v4(10, 0, 8),
                v4(172, 16, 12),
                v4(192, 168, 16),
                v4(100, 64, 10),
                IpNet::V6(Ipv6Net::new_assert([0xfc00, 0, 0, 0, 0, 0, 0, 0].into(), 7)),
            ],
        }
    }

    /// Who asks: where the other end of the connection may be the load balancer, its client, and how that speaks. All else that a
    /// request says of whoever asks came from the client, and counts for nothing.
    pub(super) fn client(&self, peer: Peer, headers: &HeaderMap) -> Peer {
        let address = peer.address.to_canonical();
        if !self.networks.iter().any(|network| network.contains(&address)) {
            return peer;
        }
        let Some(client) = self.forwarded_for(headers) else {
            return peer;
        };
        let is_encrypted = headers
            .get(X_FORWARDED_PROTO)
            .is_some_and(|scheme| scheme == "https");
        Peer {
            address: client,
            scheme: if is_encrypted { Scheme::Https } else { peer.scheme },
        }
    }

    fn forwarded_for(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
        let words = lines.filter_map(|line| line.to_str().ok());
        let mut words = words.flat_map(|line| line.rsplit(','));
        let word = words.nth(self.hops.checked_sub(1)?)?;
        let address: IpAddr = word.trim().parse().ok()?;
        // Nobody on this machine asks a load balancer.
        Some(address.to_canonical()).filter(|address| !address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn asked(hops: usize, peer: &str, lines: &[(&'static str, &str)]) -> (String, Scheme) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let peer = Peer {
            address: peer.parse().unwrap(),
            scheme: Scheme::Http,
        };
        let client = Balancer::new(hops).client(peer, &headers);
        (client.address.to_string(), client.scheme)
    }

    #[test]
    fn its_client_is_the_one_that_it_names_itself() {
        let chain = "1.1.1.1, 203.0.113.7, 198.51.100.9";
        let of = |hops, peer| {
            asked(
                hops,
                peer,
                &[("x-forwarded-for", chain), ("x-forwarded-proto", "https")],
            )
        };
        assert_eq!(of(1, "10.0.0.5"), ("198.51.100.9".to_owned(), Scheme::Https));
        assert_eq!(
            of(2, "::ffff:172.16.3.4"),
            ("203.0.113.7".to_owned(), Scheme::Https)
        );
        // Clients in private networks are clients as well.
        let inside = asked(1, "10.0.0.5", &[("x-forwarded-for", "1.1.1.1, 10.0.0.9")]);
        assert_eq!(inside, ("10.0.0.9".to_owned(), Scheme::Http));
        let apart = asked(
            1,
            "10.0.0.5",
            &[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2")],
        );
        assert_eq!(apart.0, "2.2.2.2");
    }

    #[test]
    fn nobody_else_is_believed() {
        for peer in ["203.0.113.50", "2001:db8::1"] {
            let said = asked(
                1,
                peer,
                &[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https")],
            );
            assert_eq!(said, (peer.to_owned(), Scheme::Http));
        }
        for odd in ["127.0.0.1", "::1", "nonsense", ""] {
            let said = asked(1, "10.0.0.5", &[("x-forwarded-for", odd)]);
            assert_eq!(said.0, "10.0.0.5", "{odd}");
        }
        assert_eq!(
            asked(2, "10.0.0.5", &[("x-forwarded-for", "1.1.1.1")]).0,
            "10.0.0.5"
        );
        assert_eq!(asked(1, "10.0.0.5", &[]).0, "10.0.0.5");
    }
}
