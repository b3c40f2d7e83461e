//! JSON made short before it is encrypted: what is encrypted cannot be made short any more.
//!
//! Specifications are long, and mostly the same: with a sample at hand (`sample.json`) a tenth of them is left. Short rows
//! fit into a page of the database as they are, instead of being stored apart.

use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};

use zstd::bulk::{Compressor, Decompressor};
use zstd::dict::{DecoderDictionary, EncoderDictionary};

/// What packed bytes begin with; JSON never does. Another sample gets another number.
const PACKED: u8 = 1;

/// Never change it: what was packed with it can only be unpacked with it.
const SAMPLE: &[u8] = include_bytes!("sample.json");

/// The fastest: these are small texts, and most of what they are is in the sample.
const LEVEL: i32 = 1;

/// More than any row has.
const MAX_BYTES: usize = 64 << 20;

static ENCODER: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(SAMPLE, LEVEL));
static DECODER: LazyLock<DecoderDictionary<'static>> = LazyLock::new(|| DecoderDictionary::copy(SAMPLE));

/// Made once and used again, since making one takes longer than packing with it; not one for each thread, since they take
/// memory.
static COMPRESSORS: Mutex<Vec<Compressor<'static>>> = Mutex::new(Vec::new());
static DECOMPRESSORS: Mutex<Vec<Decompressor<'static>>> = Mutex::new(Vec::new());

/// Lends a spare one, or a new one.
fn with<C, T>(
    spare: &Mutex<Vec<C>>,
    make: impl FnOnce() -> io::Result<C>,
    work: impl FnOnce(&mut C) -> io::Result<T>,
) -> io::Result<T> {
    let lock = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    let lent = lock().pop();
    let mut one = lent.map_or_else(make, Ok)?;
    let done = work(&mut one);
    lock().push(one);
    done
}

/// Packed, or as it is where that is no longer.
pub(super) fn pack(json: &str) -> Vec<u8> {
    let make = || Compressor::with_prepared_dictionary(&ENCODER);
    let compressed = with(&COMPRESSORS, make, |one| one.compress(json.as_bytes()));
    match compressed {
        Ok(compressed) if compressed.len() < json.len() => [&[PACKED], compressed.as_slice()].concat(),
        _ => json.as_bytes().to_vec(),
    }
}

/// The text again; `None` when it is damaged.
pub(super) fn unpack(bytes: Vec<u8>) -> Option<String> {
    let Some((&PACKED, compressed)) = bytes.split_first() else {
        return String::from_utf8(bytes).ok();
    };
    let length = usize::try_from(zstd::zstd_safe::get_frame_content_size(compressed).ok()??).ok()?;
    if length > MAX_BYTES {
        return None;
    }
    let make = || Decompressor::with_prepared_dictionary(&DECODER);
    let text = with(&DECOMPRESSORS, make, |one| one.decompress(compressed, length)).ok()?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_is_packed_to_a_tenth() {
        let spec = std::str::from_utf8(SAMPLE).unwrap().lines().last().unwrap();
        let spec = spec.replace("\"-0-0\"", "\"train-0-0\"");
        let packed = pack(&spec);
        assert!(
            packed.len() < spec.len() / 10,
            "{} of {}",
            packed.len(),
            spec.len()
        );
        assert_eq!(unpack(packed).unwrap(), spec);
    }

    #[test]
    fn short_texts_and_old_rows_are_as_they_are() {
        for text in ["{}", "", "null"] {
            assert_eq!(pack(text), text.as_bytes());
            assert_eq!(unpack(text.as_bytes().to_vec()).unwrap(), text);
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let mut packed = pack(&format!("[{}]", "1,".repeat(500)));
        packed.truncate(packed.len() - 3);
        assert_eq!(unpack(packed), None);
        assert_eq!(unpack(vec![PACKED]), None);
        assert_eq!(unpack(vec![PACKED, 1, 2, 3]), None);
    }

    /// What was written by every version since is read by this one.
    #[test]
    fn the_sample_has_not_changed() {
        let json =
            "{\"job_name\":\"train-0-0\",\"jobs_per_replica\":1,\"replica_group\":\"0\",\"app_specs\":[]}";
        let stored = [
            1, 40, 181, 47, 253, 32, 80, 173, 0, 0, 64, 123, 34, 116, 114, 97, 105, 110, 125, 3, 0, 114, 47,
            75, 73, 16, 13, 234, 195, 242, 21,
        ];
        assert_eq!(unpack(stored.to_vec()).unwrap(), json);
    }
}
