//! Limits of how often clients may ask: nginx's leaky bucket, as gateways of dstack 0.22.5 have it. Pure: the time is handed in.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
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

/// The limits of a service, and what its clients have used of them.
#[derive(Debug, Default)]
pub struct RateLimits {
    limits: Vec<(RateLimit, Buckets)>,
    /// Clients are remembered by the hash of their address or header: values may be long, and hold what they came with.
    hashes: RandomState,
}

impl RateLimits {
    /// Of which nothing is used yet.
    pub fn new(limits: impl IntoIterator<Item = RateLimit>) -> Self {
        let with_buckets = |limit: RateLimit| {
            let buckets = Buckets::new(limit.rps, limit.burst, MAX_CLIENTS);
            (limit, buckets)
        };
        Self {
            limits: limits.into_iter().map(with_buckets).collect(),
            hashes: RandomState::new(),
        }
    }

    /// Whether a request may go on; if so, it is counted. Otherwise it is to be answered with 429.
    pub fn admit(&mut self, path: &str, address: IpAddr, headers: &HeaderMap, now: Instant) -> bool {
        let path = seen(path);
        let fitting = self.limits.iter_mut();
        let fitting = fitting.filter(|(limit, _)| path.starts_with(limit.prefix.as_bytes()));
        let Some((limit, buckets)) = fitting.max_by_key(|(limit, _)| limit.prefix.len()) else {
            return true;
        };
        let key = match &limit.key {
            Key::Address => Some(self.hashes.hash_one(address)),
            Key::Header(name) => {
                let value = headers.get(name).filter(|value| !value.is_empty());
                value.map(|value| self.hashes.hash_one(value))
            }
        };
        key.is_none_or(|key| buckets.admit(key, now))
    }
}

/// A path as servers see it, and as nginx compares it: decoded, without double slashes, `.` and `..`.
fn seen(path: &str) -> Cow<'_, [u8]> {
    let plain = !["%", "//", "/."].iter().any(|unclear| path.contains(unclear));
    match plain {
        true => Cow::Borrowed(path.as_bytes()),
        false => Cow::Owned(resolved(&percent_decode_str(path).collect::<Vec<u8>>())),
    }
}

fn resolved(decoded: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = false;
    for part in decoded.split(|byte| *byte == b'/') {
        ends_in_slash = matches!(part, b"" | b"." | b"..");
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut path: Vec<u8> = parts.iter().flat_map(|part| [b"/", *part].concat()).collect();
    if ends_in_slash {
        path.push(b'/');
    }
    path
}

/// What clients have used of a limit.
#[derive(Debug)]
struct Buckets {
    /// Millionths of a request that leave a bucket in a second.
    rate: u64,
    /// As full as a bucket may be after a request, in millionths of a request, the first one not counted.
    burst: u64,
    most: usize,
    clients: HashMap<u64, Bucket>,
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
            rate: ((rps * 60.0).round().max(1.0) as u64).saturating_mul(REQUEST) / 60,
            burst: burst.saturating_mul(REQUEST),
            most,
            clients: HashMap::new(),
        }
    }

    fn admit(&mut self, key: u64, now: Instant) -> bool {
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

    /// Forgets the clients whose buckets are empty; if they are less than a quarter, the half of the rest that has been silent for
    /// the longest time: whoever comes with ever new addresses is not to make each request look through all.
    fn make_room(&mut self, now: Instant) {
        let rate = self.rate;
        self.clients.retain(|_, bucket| !bucket.is_empty(rate, now));
        if self.clients.len() <= self.most - self.most / 4 {
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
        let level = self
            .level
            .saturating_add(REQUEST)
            .saturating_sub(self.leaked(rate, now));
        if level > burst {
            return false;
        }
        *self = Self { level, since: now };
        true
    }

    /// The next request is as good as the first.
    fn is_empty(&self, rate: u64, now: Instant) -> bool {
        self.leaked(rate, now) >= self.level.saturating_add(REQUEST)
    }

    fn leaked(&self, rate: u64, now: Instant) -> u64 {
        let passed: Duration = now.saturating_duration_since(self.since);
        let leaked = passed.as_nanos().saturating_mul(u128::from(rate)) / 1_000_000_000;
        u64::try_from(leaked).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn limit(prefix: &str, rps: f64, burst: u64) -> RateLimit {
        RateLimit {
            prefix: prefix.to_owned(),
            key: Key::Address,
            rps,
            burst,
        }
    }

    fn by_header(prefix: &str) -> RateLimit {
        RateLimit {
            key: Key::Header(HeaderName::from_static("x-user")),
            ..limit(prefix, 1.0, 0)
        }
    }

    /// How many of so many requests at once may go on.
    fn admitted(
        limits: &mut RateLimits,
        path: &str,
        count: usize,
        headers: &HeaderMap,
        now: Instant,
    ) -> usize {
        let admit = |_: &usize| limits.admit(path, address(1), headers, now);
        (0..count).filter(admit).count()
    }

    #[test]
    fn a_burst_may_come_at_once_and_then_as_much_as_leaks_out() {
        let start = Instant::now();
        let none = HeaderMap::new();
        let mut limits = RateLimits::new([limit("/", 2.0, 3)]);
        let mut at = |millis| {
            admitted(
                &mut limits,
                "/a",
                10,
                &none,
                start + Duration::from_millis(millis),
            )
        };
        assert_eq!([at(0), at(499), at(500), at(1000), at(60_000)], [4, 0, 1, 1, 4]);
    }

    #[test]
    fn rates_are_exact_to_one_request_in_a_minute() {
        let start = Instant::now();
        let none = HeaderMap::new();
        let mut limits = RateLimits::new([limit("/", 1.0 / 60.0, 0)]);
        let mut at = |seconds| admitted(&mut limits, "/", 10, &none, start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(59), at(61), at(120), at(122)], [1, 0, 1, 0, 1]);
    }

    #[test]
    fn of_several_prefixes_the_longest_counts_alone() {
        let start = Instant::now();
        let none = HeaderMap::new();
        let mut limits = RateLimits::new([
            limit("/v1/", 1.0, 4),
            limit("/", 1.0, 0),
            limit("/v1/chat", 1.0, 1),
        ]);
        let mut of = |path| admitted(&mut limits, path, 10, &none, start);
        assert_eq!(
            [of("/v1/chat/completions"), of("/v1/models"), of("/v2")],
            [2, 5, 1]
        );
        let mut limits = RateLimits::new([limit("/v1/", 1.0, 0)]);
        assert_eq!(
            admitted(&mut limits, "/v1", 10, &none, start),
            10,
            "no limit fits"
        );
    }

    #[test]
    fn prefixes_are_those_of_the_path_that_the_service_sees() {
        for path in [
            "/v1/a",
            "//v1/a",
            "/./v1/a",
            "/x/../v1/a",
            "/%76%31/a",
            "/x/%2e%2E/v1/a",
            "/%2Fv1/",
            "/../v1/./",
        ] {
            let mut limits = RateLimits::new([limit("/v1/", 1.0, 0)]);
            let none = HeaderMap::new();
            assert_eq!(
                admitted(&mut limits, path, 10, &none, Instant::now()),
                1,
                "{path}"
            );
        }
        for path in [
            "/v1",
            "/v1/..",
            "/v1/../x",
            "/%2576%31/a",
            "/V1/",
            "/..v1/",
            "/%zz/v1/",
        ] {
            let mut limits = RateLimits::new([limit("/v1/", 1.0, 0)]);
            let none = HeaderMap::new();
            assert_eq!(
                admitted(&mut limits, path, 10, &none, Instant::now()),
                10,
                "{path}"
            );
        }
        assert_eq!(seen("/a//b/./c/../").as_ref(), b"/a/b/");
        assert_eq!(seen("/a/.hidden").as_ref(), b"/a/.hidden");
    }

    #[test]
    fn numbers_that_are_too_large_are_as_large_as_can_be() {
        let start = Instant::now();
        let mut limits = RateLimits::new([limit("/", f64::MAX, u64::MAX)]);
        let none = HeaderMap::new();
        assert_eq!(admitted(&mut limits, "/", 10, &none, start), 10);
        let later = start + Duration::from_secs(u64::from(u32::MAX));
        assert_eq!(admitted(&mut limits, "/", 10, &none, later), 10);
        let full = Bucket {
            level: u64::MAX,
            since: start,
        };
        assert!(!full.is_empty(1, start));
    }

    #[test]
    fn when_it_is_full_a_quarter_is_free_at_once() {
        let start = Instant::now();
        let mut buckets = Buckets::new(1.0, 10, 16);
        assert!(buckets.admit(0, start));
        let at = start + Duration::from_millis(500);
        (1..16).for_each(|client| assert!(buckets.admit(client, at)));
        // One of them is empty by now, and the others are not.
        assert!(buckets.admit(16, start + Duration::from_millis(1100)));
        assert!(buckets.clients.len() <= 13, "{}", buckets.clients.len());
    }

    #[test]
    fn clients_are_told_apart_by_address_or_header_and_without_the_header_there_is_no_limit() {
        let start = Instant::now();
        let mut limits = RateLimits::new([limit("/a", 1.0, 0), by_header("/h")]);
        let user = |name: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static("x-user"), HeaderValue::from_static(name))])
        };
        let mut ask = |path, last, name| limits.admit(path, address(last), &user(name), start);
        assert_eq!(
            [ask("/a", 1, "u"), ask("/a", 2, "u"), ask("/a", 1, "v")],
            [true, true, false]
        );
        assert_eq!(
            [ask("/h", 1, "u"), ask("/h", 2, "u"), ask("/h", 1, "v")],
            [true, false, true]
        );
        assert_eq!([ask("/h", 1, ""), ask("/h", 1, "")], [true, true]);
        assert_eq!(admitted(&mut limits, "/h", 10, &HeaderMap::new(), start), 10);
    }

    #[test]
    fn clients_whose_buckets_are_empty_are_forgotten_first_and_then_those_that_were_silent_for_longest() {
        let start = Instant::now();
        let mut buckets = Buckets::new(1.0, 10, 4);
        let at = |millis| start + Duration::from_millis(millis);
        for last in 0..4 {
            assert!(buckets.admit(last, at(300 * last)));
        }
        buckets.admit(4, at(1100)); // the first one's is empty
        assert!(!buckets.clients.contains_key(&0));
        assert_eq!(buckets.clients.len(), 4);
        buckets.admit(5, at(1101));
        assert!(buckets.clients.contains_key(&4) && !buckets.clients.contains_key(&1));
        assert!(buckets.clients.len() <= 4);
    }

    proptest! {
        #[test]
        fn no_more_go_on_than_the_rate_and_the_burst_allow_and_no_fewer(
            pauses in prop::collection::vec(0_u64..3000, 1..60),
            per_minute in 1_u64..600,
            burst in 0_u64..20,
        ) {
            let start = Instant::now();
            let mut limits = RateLimits::new([limit("/", per_minute as f64 / 60.0, burst)]);
            let (mut millis, mut admitted, mut level) = (0, 0_u64, None);
            for pause in pauses {
                millis += pause;
                let now = start + Duration::from_millis(millis);
                let on = limits.admit("/", address(1), &HeaderMap::new(), now);
                admitted += u64::from(on);
                // A level that counts the last request as well, in requests: what may come beside the burst is one.
                let (before, since) = level.unwrap_or((0.0, millis));
                let leaked = (millis - since) as f64 * per_minute as f64 / 60_000.0;
                let with_this = f64::max(before - leaked, 0.0) + 1.0;
                let room = burst as f64 + 1.0 - with_this;
                prop_assert!(on == (room >= 0.0) || room.abs() < 1e-3, "{room}");
                if on {
                    level = Some((with_this, millis));
                }
                let most = burst as f64 + 1.001 + millis as f64 * per_minute as f64 / 60_000.0;
                prop_assert!(admitted as f64 <= most);
            }
        }

        #[test]
        fn the_number_of_clients_that_are_remembered_is_bounded(lasts in prop::collection::vec(0_u64..256, 1..300)) {
            let start = Instant::now();
            let mut buckets = Buckets::new(0.1, 5, 8);
            for (index, last) in lasts.into_iter().enumerate() {
                buckets.admit(last, start + Duration::from_millis(index as u64 / 3));
                prop_assert!(buckets.clients.len() <= 8);
            }
        }
    }
}
