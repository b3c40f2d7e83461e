//! Which proxies before the server are believed when they say who asks (`X-Forwarded-For` and the like).

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Settings, text};

impl Settings {
    /// Whether what a peer says of its own clients is passed on to services.
    pub fn trusts_proxy(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }
}

/// Networks and addresses, separated by commas; what is none of them is reported and left out. Where nothing is set: this machine.
pub(super) fn networks(name: &str) -> Vec<IpNet> {
    let listed = text(name).unwrap_or_else(|| "127.0.0.0/8,::1".to_owned());
    let entries = listed.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let network = |entry: &str| {
        let address = || entry.parse::<IpAddr>().map(IpNet::from);
        let network = entry.parse().or_else(|_| address());
        if network.is_err() {
            tracing::warn!("{name}: {entry} is neither a network nor an address; the entry is left out");
        }
        network.ok()
    };
    entries.filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_believed_unless_others_are_named() {
        let mut settings = Settings::from_env();
        let trusts = |settings: &Settings, peer: &str| settings.trusts_proxy(peer.parse().unwrap());
        assert!(
            trusts(&settings, "127.0.0.1")
                && trusts(&settings, "::1")
                && trusts(&settings, "::ffff:127.0.0.1")
        );
        assert!(!trusts(&settings, "10.0.0.1"));
        settings.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        assert!(trusts(&settings, "10.1.2.3") && !trusts(&settings, "127.0.0.1"));
    }
}
