//! How often logins failed, by address and by token, so that guessing is slow. Nobody is locked out: whoever has a valid
//! token is let in before anything is counted.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use dstack_system::Locked;
use dstack_units::Time;

/// Addresses remembered, and tokens: what came first is forgotten first.
const CAPACITY: usize = 4096;

/// Counts failed logins.
#[derive(Debug)]
pub struct FailedLogins {
    limit: u32,
    window: Duration,
    seen: Locked<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    // Of a network in IPv6, a host has all the low bits to itself.
    addresses: HashMap<IpAddr, Failures>,
    // The beginning of the hash: the tokens themselves are not kept.
    tokens: HashMap<String, Failures>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    since: Time,
    count: u32,
}

impl FailedLogins {
    /// `limit` failures in `window` are answered as usual; 0: any number.
    pub fn new(limit: u32, window: Duration) -> Self {
        Self {
            limit,
            window,
            seen: Locked::default(),
        }
    }

    /// Notes a failure. Returns after how long to try again when there were too many.
    pub(super) fn failed(&self, token_hash: &str, peer: Option<IpAddr>, now: Time) -> Option<Duration> {
        if self.limit == 0 {
            return None;
        }
        let mut seen = self.seen.lock();
        let by_address = peer.and_then(|address| self.count(&mut seen.addresses, network(address), now));
        // An address that is held back does not fill the table of tokens.
        by_address.or_else(|| {
            let start = token_hash.get(..12).unwrap_or(token_hash).to_owned();
            self.count(&mut seen.tokens, start, now)
        })
    }

    fn count<K: Hash + Eq + Clone>(
        &self,
        counts: &mut HashMap<K, Failures>,
        key: K,
        now: Time,
    ) -> Option<Duration> {
        let running = |failures: &Failures| now.since(failures.since) < self.window;
        if counts.len() >= CAPACITY && !counts.contains_key(&key) {
            counts.retain(|_, failures| running(failures));
            if counts.len() >= CAPACITY {
                let oldest = counts.iter().min_by_key(|(_, failures)| failures.since);
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    counts.remove(&oldest);
                }
            }
        }
        let new = Failures { since: now, count: 0 };
        let failures = counts.entry(key).or_insert(new);
        if !running(failures) {
            *failures = new;
        }
        failures.count = failures.count.saturating_add(1);
        (failures.count > self.limit).then(|| (failures.since + self.window).since(now))
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or_else(
            || IpAddr::from((v6.to_bits() >> 64 << 64).to_be_bytes()),
            IpAddr::V4,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> Time {
        Time::from_millis(1_000_000 + seconds * 1000)
    }

    fn peer(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    /// Another token each time.
    fn hash(number: i64) -> String {
        format!("{number:064}").chars().rev().collect()
    }

    #[test]
    fn too_many_failures_of_an_address_have_to_wait_until_the_window_is_over() {
        let logins = FailedLogins::new(3, WINDOW);
        let fail = |number, address, seconds| logins.failed(&hash(number), peer(address), at(seconds));
        for number in 0..3 {
            assert_eq!(fail(number, "10.0.0.1", number), None);
        }
        assert_eq!(fail(3, "10.0.0.1", 20), Some(Duration::from_secs(40)));
        assert_eq!(fail(4, "10.0.0.2", 20), None, "others are not concerned");
        assert_eq!(fail(5, "10.0.0.1", 59), Some(Duration::from_secs(1)));
        assert_eq!(fail(6, "10.0.0.1", 60), None);
    }

    #[test]
    fn one_token_from_many_addresses_counts_together() {
        let logins = FailedLogins::new(2, WINDOW);
        let fail = |address| logins.failed(&hash(1), peer(address), at(0));
        assert_eq!((fail("10.0.0.1"), fail("10.0.0.2")), (None, None));
        assert_eq!(fail("10.0.0.3"), Some(WINDOW));
        assert_eq!(
            logins.failed(&hash(1), None, at(1)),
            Some(Duration::from_secs(59))
        );
    }

    #[test]
    fn hosts_of_a_network_are_one_address_in_ipv6() {
        let logins = FailedLogins::new(1, WINDOW);
        assert_eq!(logins.failed(&hash(1), peer("2001:db8::1"), at(0)), None);
        assert_eq!(logins.failed(&hash(2), peer("2001:db8::2"), at(0)), Some(WINDOW));
        assert_eq!(logins.failed(&hash(3), peer("2001:db8:0:1::1"), at(0)), None);
        assert_eq!(logins.failed(&hash(4), peer("::ffff:10.0.0.1"), at(0)), None);
        assert_eq!(logins.failed(&hash(5), peer("10.0.0.1"), at(0)), Some(WINDOW));
    }

    #[test]
    fn memory_is_bounded_and_what_came_last_is_remembered() {
        let logins = FailedLogins::new(1, WINDOW);
        let address = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
        for number in 0..10_000_u32 {
            let now = at(0) + Duration::from_micros(u64::from(number));
            assert_eq!(
                logins.failed(&hash(i64::from(number)), address(number), now),
                None
            );
        }
        {
            let seen = logins.seen.lock();
            assert_eq!((seen.addresses.len(), seen.tokens.len()), (CAPACITY, CAPACITY));
        }
        assert!(logins.failed(&hash(0), address(9_999), at(1)).is_some());
    }

    #[test]
    fn zero_is_no_limit() {
        let logins = FailedLogins::new(0, WINDOW);
        assert!((0..100).all(|_| logins.failed("x", peer("10.0.0.1"), at(0)).is_none()));
    }
}
