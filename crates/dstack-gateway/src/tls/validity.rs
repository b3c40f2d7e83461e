//! From when to when a certificate holds. This is all that is read of one here: TLS itself does the rest.

use dstack_units::Time;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// From when to when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Time,
    pub(super) until: Time,
}

impl Validity {
    /// Whether it holds at this time.
    pub(super) fn is_at(&self, now: Time) -> bool {
        self.from <= now && now < self.until
    }

    /// When a third of its time is left.
    pub(super) fn renewal(&self) -> Time {
        self.from + self.until.since(self.from) / 3 * 2
    }

    /// Of a certificate in DER; `None`: it is none.
    pub(super) fn of(der: &[u8]) -> Option<Self> {
        let (certificate, _) = element(der, SEQUENCE)?;
        let (mut rest, _) = element(certificate, SEQUENCE)?;
        if let Some((_, after)) = element(rest, VERSION) {
            rest = after;
        }
        // Serial number, algorithm of the signature, issuer.
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            rest = element(rest, tag)?.1;
        }
        let (validity, _) = element(rest, SEQUENCE)?;
        let (from, rest) = time(validity)?;
        let (until, _) = time(rest)?;
        Some(Self { from, until })
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// The content of the first element, which must have this tag, and what comes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.split_first()?;
    if *first != tag {
        return None;
    }
    let (length, rest) = length(rest)?;
    rest.split_at_checked(length)
}

fn length(der: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = der.split_first()?;
    let count = usize::from(first & 0x7f);
    if first & 0x80 == 0 {
        return Some((count, rest));
    }
    if !(1..=4).contains(&count) {
        return None;
    }
    let (bytes, rest) = rest.split_at_checked(count)?;
    let length = bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
    Some((length, rest))
}

fn time(der: &[u8]) -> Option<(Time, &[u8])> {
    let (text, rest, century) = match element(der, UTC_TIME) {
        Some((text, rest)) => (text, rest, true),
        None => {
            let (text, rest) = element(der, GENERALIZED_TIME)?;
            (text, rest, false)
        }
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let text = match (century, text.get(..2)?.parse::<u8>().ok()?) {
        (false, _) => text.to_owned(),
        (true, 0..50) => format!("20{text}"),
        (true, _) => format!("19{text}"),
    };
    let at = DateTime::strptime("%Y%m%d%H%M%S", &text).ok()?;
    let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some((at.into(), rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(from: (i32, u8, u8), until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn it_is_read_of_the_certificate() {
        let der = certificate((2026, 1, 2), (2051, 3, 4));
        let validity = Validity::of(&der).unwrap();
        assert_eq!(validity.from.to_jiff().to_string(), "2026-01-02T00:00:00Z");
        assert_eq!(validity.until.to_jiff().to_string(), "2051-03-04T00:00:00Z");
        for end in 0..der.len().min(200) {
            // Never a panic.
            let _ = Validity::of(&der[..end]);
        }
        assert_eq!(Validity::of(b"nonsense"), None);
    }

    #[test]
    fn it_is_renewed_when_a_third_is_left() {
        let validity = Validity::of(&certificate((2026, 1, 1), (2026, 4, 1))).unwrap();
        assert_eq!(validity.renewal().to_jiff().to_string(), "2026-03-02T00:00:00Z");
        assert!(validity.is_at(validity.from) && !validity.is_at(validity.until));
    }
}
