//! The catalogue compiled into the program, for a first start without network.

use std::sync::{Arc, Weak};

use dstack_system::Locked;

use crate::{Origin, Snapshot, Table};

/// Tables one after another, compressed with zstd. Made by `cargo run -p dstack-catalog --example pack`.
static PACKED: &[u8] = include_bytes!("../data/snapshot.bin.zst");

/// Bytes of the snapshot unpacked, at most.
const MAX_UNPACKED: usize = 64 << 20;

/// The compiled-in catalogue. Unpacked on first use (a few milliseconds), and gone when nobody holds it any more.
pub fn builtin() -> Arc<Snapshot> {
    static BUILTIN: Locked<Weak<Snapshot>> = Locked::new(Weak::new());
    let mut kept = BUILTIN.lock();
    if let Some(snapshot) = kept.upgrade() {
        return snapshot;
    }
    let snapshot = match unpack(PACKED) {
        Ok(snapshot) => Arc::new(snapshot),
        Err(reason) => {
            tracing::error!(reason, "The built-in catalog cannot be read");
            Arc::default()
        }
    };
    *kept = Arc::downgrade(&snapshot);
    snapshot
}

/// Packs tables the way the compiled-in snapshot is packed.
pub fn pack(snapshot: &Snapshot) -> std::io::Result<Vec<u8>> {
    let bytes: Vec<u8> = snapshot.tables().flat_map(|table| table.to_bytes()).collect();
    zstd::encode_all(bytes.as_slice(), 19)
}

fn unpack(packed: &[u8]) -> Result<Snapshot, String> {
    let bytes = zstd::bulk::decompress(packed, unpacked_size(packed)).map_err(|error| error.to_string())?;
    let mut rest = bytes.as_slice();
    let mut snapshot = Snapshot::default();
    while !rest.is_empty() {
        let (table, behind) = Table::from_bytes(rest, Origin::Builtin).map_err(|error| error.to_string())?;
        snapshot.insert(Arc::new(table));
        rest = behind;
    }
    Ok(snapshot)
}

fn unpacked_size(packed: &[u8]) -> usize {
    let stated = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
    stated
        .and_then(|size| usize::try_from(size).ok())
        .map_or(MAX_UNPACKED, |size| size.min(MAX_UNPACKED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provider;

    #[test]
    fn the_snapshot_holds_every_published_provider() {
        let snapshot = builtin();
        for provider in Provider::offline() {
            let table = snapshot.table(provider).unwrap();
            assert!(
                !table.is_empty() && table.sorted && table.info().as_of.is_some(),
                "{provider}"
            );
        }
        assert!(Provider::online().all(|provider| snapshot.table(provider).is_none()));
        assert_eq!(snapshot.len(), 58_704);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = zstd::bulk::decompress(PACKED, unpacked_size(PACKED)).unwrap();
        let table = &bytes[..20_000];
        assert!(Table::from_bytes(table, Origin::Builtin).is_err());
        assert!(unpack(&PACKED[..PACKED.len() / 2]).is_err());
    }
}
