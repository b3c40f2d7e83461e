//! Which addresses may be reached on behalf of users.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::guard::Refused;
use crate::network::{Network, first_match, network_of};

/// The setting with the list of what is allowed besides public addresses.
pub const OUTBOUND_ALLOW: &str = "DSTACK_SERVER_OUTBOUND_ALLOW";

/// An entry of the list that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither a host (registry.example.com, *.example.com), nor an address or network (10.0.0.0/8), nor `*`"
)]
pub struct InvalidEntry(String);

/// Public addresses, and what the administrator allows besides:
///
/// * a network or an address: whatever is there;
/// * a host, or all below a domain (`*.corp`): wherever its name leads, except link-local and metadata addresses;
/// * `*`: all hosts, with the same exception.
#[derive(Debug, Clone, Default)]
pub struct OutboundPolicy {
    networks: Vec<IpNet>,
    hosts: BTreeSet<String>,
    /// Domains with their leading dot.
    domains: Vec<String>,
    every_host: bool,
    reclassified: Vec<(IpNet, Network)>,
}

impl OutboundPolicy {
    /// Allows public addresses only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the entries of a list, separated by commas or spaces, and returns those that cannot be used.
    pub fn allow_list(&mut self, list: &str) -> Vec<InvalidEntry> {
        let entries = list
            .split([',', ' ', '\t', '\n'])
            .filter(|entry| !entry.is_empty());
        entries.filter_map(|entry| self.allow(entry).err()).collect()
    }

    /// Adds an entry: `*`, a host, `*.domain`, an address or a network.
    ///
    /// # Errors
    /// It is none of these.
    pub fn allow(&mut self, entry: &str) -> Result<(), InvalidEntry> {
        if entry == "*" {
            self.every_host = true;
        } else if let Some(network) = parse_network(entry) {
            self.networks.push(network);
        } else {
            let host = normal_host(entry);
            let (name, is_domain) = match host.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (host.as_str(), false),
            };
            if !is_host_name(name) {
                return Err(InvalidEntry(entry.to_owned()));
            }
            if is_domain {
                self.domains.push(format!(".{name}"));
            } else {
                self.hosts.insert(host);
            }
        }
        Ok(())
    }

    /// Counts addresses as of another kind of network than they are. Tests have a public registry on this machine so.
    #[must_use]
    pub fn with_network(mut self, addresses: IpNet, network: Network) -> Self {
        self.reclassified.push((addresses, network));
        self
    }

    /// Returns the kind of network of an address.
    pub fn network_of(&self, address: IpAddr) -> Network {
        first_match(&self.reclassified, address).unwrap_or_else(|| network_of(address))
    }

    /// Checks that `address`, to which the name `host` leads, may be reached. `nearest` is the network closest to this machine
    /// that may be reached by this request, whatever is allowed.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn check(&self, host: &str, address: IpAddr, nearest: Network) -> Result<Network, Refused> {
        let network = self.network_of(address);
        let refused = |is_allowed| Refused {
            host: host.to_owned(),
            address,
            network,
            is_allowed,
        };
        if network > nearest {
            return Err(refused(true));
        }
        if network == Network::Public || self.allows(host, address, network) {
            return Ok(network);
        }
        Err(refused(false))
    }

    fn allows(&self, host: &str, address: IpAddr, network: Network) -> bool {
        let canonical = address.to_canonical();
        if self.networks.iter().any(|allowed| allowed.contains(&canonical)) {
            return true;
        }
        network < Network::LinkLocal && (self.every_host || self.names(host))
    }

    fn names(&self, host: &str) -> bool {
        let host = normal_host(host);
        self.hosts.contains(&host) || self.domains.iter().any(|domain| host.ends_with(domain.as_str()))
    }
}

fn parse_network(entry: &str) -> Option<IpNet> {
    if let Ok(network) = entry.parse::<IpNet>() {
        return Some(network.trunc());
    }
    let address: IpAddr = entry.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    Some(address.to_canonical().into())
}

fn normal_host(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // All digits and dots: an address with a mistake in it.
    let is_number = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    !is_number && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(list: &str) -> OutboundPolicy {
        let mut policy = OutboundPolicy::new();
        assert_eq!(policy.allow_list(list), Vec::<InvalidEntry>::new());
        policy
    }

    fn may(policy: &OutboundPolicy, host: &str, address: &str) -> bool {
        let address = address.parse().unwrap();
        policy.check(host, address, Network::LinkLocal).is_ok()
    }

    #[test]
    fn without_a_list_only_public_addresses_are_reached() {
        let policy = policy("");
        assert!(may(&policy, "a", "1.1.1.1"));
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254"] {
            assert!(!may(&policy, "a", address), "{address}");
        }
    }

    #[test]
    fn networks_hosts_and_domains_are_allowed() {
        let policy = policy("10.1.0.0/16, Registry.Corp.,*.lab  192.168.1.5,[fd12::1]");
        for (host, address, allowed) in [
            ("x", "10.1.2.3", true),
            ("x", "::ffff:10.1.2.3", true),
            ("x", "10.2.0.1", false),
            ("registry.corp", "10.9.9.9", true),
            ("REGISTRY.corp.", "127.0.0.1", true),
            ("other.corp", "10.9.9.9", false),
            ("a.b.lab", "10.9.9.9", true),
            ("lab", "10.9.9.9", false),
            ("evillab", "10.9.9.9", false),
            ("192.168.1.5", "192.168.1.5", true),
            ("192.168.1.6", "192.168.1.6", false),
            ("h", "fd12::1", true),
            // A name may lead anywhere: not to where credentials are.
            ("registry.corp", "169.254.169.254", false),
        ] {
            assert_eq!(may(&policy, host, address), allowed, "{host} {address}");
        }
    }

    #[test]
    fn a_star_allows_all_but_metadata() {
        let policy = policy("*");
        assert!(may(&policy, "a", "10.0.0.1") && may(&policy, "a", "127.0.0.1"));
        assert!(!may(&policy, "a", "169.254.169.254") && !may(&policy, "a", "fd00:ec2::254"));
        let mut policy = policy;
        policy.allow("169.254.0.0/16").unwrap();
        assert!(may(&policy, "a", "169.254.169.254"));
    }

    #[test]
    fn what_is_allowed_is_not_reached_from_farther_away() {
        let policy = policy("*");
        let check = |address: &str, nearest| policy.check("a", address.parse().unwrap(), nearest).is_ok();
        assert!(check("10.0.0.1", Network::Private));
        assert!(!check("10.0.0.1", Network::Public));
        assert!(!check("127.0.0.1", Network::Private));
        assert!(check("1.1.1.1", Network::Public));
    }

    #[test]
    fn mistakes_in_the_list_are_told() {
        let mut policy = OutboundPolicy::new();
        let invalid = policy.allow_list("10.0.0.0/33 10.0.0 reg.corp:5000 https://reg.corp ok.corp a..b");
        let invalid: Vec<String> = invalid.into_iter().map(|entry| entry.0).collect();
        assert_eq!(
            invalid,
            [
                "10.0.0.0/33",
                "10.0.0",
                "reg.corp:5000",
                "https://reg.corp",
                "a..b"
            ]
        );
        assert!(may(&policy, "ok.corp", "10.0.0.1"));
    }
}
