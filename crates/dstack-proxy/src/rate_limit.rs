//! Limits of how often clients may ask: nginx's leaky bucket, as gateways of dstack 0.22.5 have it. Pure: the time is handed in.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

/// Most clients that are remembered for one limit. 10 MB of nginx hold about as many.
pub const MAX_CLIENTS: usize = 65_536;

/// How much a request adds to a bucket.
const REQUEST: u64 = 1_000_000;

/// By what clients are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// By their address.
    Address,
    /// By the value of a header. Requests without it are not limited.
    Header(HeaderName),
}

/// A limit for the paths below a prefix.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimit {
    /// How the path begins; of several limits that fit, the one with the longest prefix counts alone.
    pub prefix: String,
    /// By what clients are told apart.
    pub key: Key,
    /// Requests per second on average, exact to one in a minute.
    pub rps: f64,
    /// Requests that may come at once, besides the first.
    pub burst: u64,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ClientKey {
    Address(IpAddr),
    Header(HeaderValue),
}

/// The limits of a service, and what its clients have used of them.
#[derive(Debug, Default)]
pub struct RateLimits(Vec<(RateLimit, Buckets)>);

impl RateLimits {
    /// Of which nothing is used yet.
    pub fn new(limits: impl IntoIterator<Item = RateLimit>) -> Self {
        let with_buckets = |limit: RateLimit| {
            let buckets = Buckets::new(limit.rps, limit.burst, MAX_CLIENTS);
            (limit, buckets)
        };
        Self(limits.into_iter().map(with_buckets).collect())
    }

    /// Whether a request may go on; if so, it is counted. Otherwise it is to be answered with 429.
    pub fn admit(&mut self, path: &str, address: IpAddr, headers: &HeaderMap, now: Instant) -> bool {
        let fitting = self
            .0
            .iter_mut()
            .filter(|(limit, _)| path.starts_with(&limit.prefix));
        let Some((limit, buckets)) = fitting.max_by_key(|(limit, _)| limit.prefix.len()) else {
            return true;
        };
        let key = match &limit.key {
            Key::Address => Some(ClientKey::Address(address)),
            Key::Header(name) => headers
                .get(name)
                .filter(|value| !value.is_empty())
                .cloned()
                .map(ClientKey::Header),
        };
        key.is_none_or(|key| buckets.admit(key, now))
    }
}

/// What clients have used of a limit.
#[derive(Debug)]
struct Buckets {
    /// Millionths of a request that leave a bucket in a second.
    rate: u64,
    /// As full as a bucket may be after a request, in millionths of a request, the first one not counted.
    burst: u64,
    most: usize,
    clients: HashMap<ClientKey, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// In millionths of a request; without the last one.
    level: u64,
    since: Instant,
}

impl Buckets {
    fn new(rps: f64, burst: u64, most: usize) -> Self {
        Self {
            rate: (rps * 60.0).round().max(1.0) as u64 * REQUEST / 60,
            burst: burst.saturating_mul(REQUEST),
            most,
            clients: HashMap::new(),
        }
    }

    fn admit(&mut self, key: ClientKey, now: Instant) -> bool {
        if self.clients.len() >= self.most && !self.clients.contains_key(&key) {
            self.make_room(now);
        }
        match self.clients.entry(key) {
            Entry::Vacant(new) => {
                new.insert(Bucket { level: 0, since: now });
                true
            }
            Entry::Occupied(mut known) => known.get_mut().admit(self.rate, self.burst, now),
        }
    }

    /// Forgets the clients whose buckets are empty; if there are none, the half that has been silent for the longest time.
    fn make_room(&mut self, now: Instant) {
        let rate = self.rate;
        self.clients.retain(|_, bucket| !bucket.is_empty(rate, now));
        if self.clients.len() < self.most {
            return;
        }
        let mut times: Vec<Instant> = self.clients.values().map(|bucket| bucket.since).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        let before = self.clients.len();
        self.clients.retain(|_, bucket| bucket.since > median);
        debug_assert!(
            self.clients.len() < before,
            "the one in the middle is gone at least"
        );
    }
}

impl Bucket {
    /// nginx's: what has leaked out since the last request is taken off, and a request is put in; if that is too much, the bucket
    /// stays as it is.
    fn admit(&mut self, rate: u64, burst: u64, now: Instant) -> bool {
        let level = (self.level + REQUEST).saturating_sub(self.leaked(rate, now));
        if level > burst {
            return false;
        }
        *self = Self { level, since: now };
        true
    }

    /// The next request is as good as the first.
    fn is_empty(&self, rate: u64, now: Instant) -> bool {
        self.leaked(rate, now) >= self.level + REQUEST
    }

    fn leaked(&self, rate: u64, now: Instant) -> u64 {
        let passed: Duration = now.saturating_duration_since(self.since);
        let leaked = passed.as_nanos() * u128::from(rate) / 1_000_000_000;
        u64::try_from(leaked).unwrap_or(u64::MAX)
    }
}
