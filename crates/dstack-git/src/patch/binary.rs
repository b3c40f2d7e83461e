//! Binary hunks: git's base-85 lines, zlib, and deltas.

use std::io::Read;

use flate2::read::ZlibDecoder;

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// Decoded bytes of the lines so far.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
}

impl Encoded {
    /// Appends a line: its first character tells how many bytes the others stand for.
    pub(super) fn push(&mut self, line: &[u8]) -> Option<()> {
        let (length, text) = line.split_first()?;
        let length = match length {
            b'A'..=b'Z' => usize::from(length - b'A') + 1,
            b'a'..=b'z' => usize::from(length - b'a') + 27,
            _ => return None,
        };
        if text.len() != length.div_ceil(4) * 5 {
            return None;
        }
        let start = self.bytes.len();
        for group in text.chunks(5) {
            let mut value: u64 = 0;
            for letter in group {
                let digit = ALPHABET.iter().position(|known| known == letter)?;
                value = value * 85 + u64::try_from(digit).ok()?;
            }
            self.bytes
                .extend_from_slice(&u32::try_from(value).ok()?.to_be_bytes());
        }
        self.bytes.truncate(start + length);
        Some(())
    }
}

/// Inflates to exactly `size` bytes.
pub(super) fn inflate(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut inflated = Vec::new();
    let limit = u64::try_from(size).ok()?.checked_add(1)?;
    ZlibDecoder::new(data)
        .take(limit)
        .read_to_end(&mut inflated)
        .ok()?;
    (inflated.len() == size).then_some(inflated)
}

/// Applies git's delta to `old`; `None` when it does not fit.
pub(super) fn apply_delta(old: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut delta = delta;
    if take_size(&mut delta)? != old.len() {
        return None;
    }
    let size = take_size(&mut delta)?;
    let mut new = Vec::new();
    while let Some((operation, rest)) = delta.split_first() {
        delta = rest;
        if operation & 0x80 == 0 {
            let piece = take(&mut delta, usize::from(*operation))?;
            // 0 is reserved.
            if piece.is_empty() {
                return None;
            }
            new.extend_from_slice(piece);
        } else {
            let offset = take_masked(&mut delta, operation & 0x0f, 4)?;
            let length = take_masked(&mut delta, (operation >> 4) & 0x07, 3)?;
            let length = if length == 0 { 0x10000 } else { length };
            new.extend_from_slice(old.get(offset..offset.checked_add(length)?)?);
        }
        if new.len() > size {
            return None;
        }
    }
    (new.len() == size).then_some(new)
}

fn take<'a>(data: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = data.split_at_checked(length)?;
    *data = rest;
    Some(head)
}

/// Seven bits per byte, lowest first.
fn take_size(data: &mut &[u8]) -> Option<usize> {
    let mut size = 0_usize;
    for shift in (0..usize::BITS).step_by(7) {
        let byte = *take(data, 1)?.first()?;
        size |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(size);
        }
    }
    None
}

/// Little-endian number whose zero bytes are left out, as `mask` tells.
fn take_masked(data: &mut &[u8], mask: u8, bytes: u32) -> Option<usize> {
    let mut value = 0_usize;
    for place in 0..bytes {
        if mask & (1 << place) != 0 {
            value |= usize::from(*take(data, 1)?.first()?) << (8 * place);
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base85_lines() {
        let mut encoded = Encoded::default();
        // "ABCD" is K|(_ in git's alphabet.
        let digits: Vec<u8> = {
            let mut value = u32::from_be_bytes(*b"ABCD");
            let mut digits = vec![];
            for _ in 0..5 {
                digits.insert(0, ALPHABET[(value % 85) as usize]);
                value /= 85;
            }
            digits
        };
        encoded.push(&[b"C".as_slice(), &digits].concat()).unwrap();
        assert_eq!(encoded.bytes, b"ABC");
        assert!(
            encoded.push(b"Z00").is_none()
                && encoded.push(b"A~~~~~").is_none()
                && encoded.push(b"").is_none()
        );
    }

    #[test]
    fn deltas_copy_and_insert() {
        // From 10 bytes to 8: copy 3 from offset 2, insert "xy", copy 3 from offset 0.
        let delta = [10, 8, 0x91, 2, 3, 2, b'x', b'y', 0x90, 3];
        assert_eq!(apply_delta(b"0123456789", &delta).unwrap(), b"234xy012");
        assert_eq!(apply_delta(b"012345678", &delta), None);
        assert_eq!(apply_delta(b"0123456789", &[10, 3, 0x91, 9, 3]), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(old in proptest::collection::vec(any::<u8>(), 0..20), delta in proptest::collection::vec(any::<u8>(), 0..20)) {
            let _ = apply_delta(&old, &delta);
            let _ = inflate(&delta, 5);
            let _ = Encoded::default().push(&delta);
        }
    }
}
