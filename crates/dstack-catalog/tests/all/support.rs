//! What several tests need: the catalogue under `tests/data`.

pub(crate) mod server;

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use dstack_catalog::{Origin, Provider, Snapshot, Table, TableInfo, read_csv};

pub(crate) fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

pub(crate) fn gunzip(name: &str) -> Vec<u8> {
    let mut text = Vec::new();
    let file = fs_err::File::open(data(name)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut text).unwrap();
    text
}

pub(crate) fn info(provider: Provider) -> TableInfo {
    TableInfo {
        provider,
        version: "1".into(),
        origin: Origin::Directory,
        as_of: None,
    }
}

pub(crate) fn table(provider: Provider) -> Table {
    let (table, warnings) =
        read_csv(info(provider), gunzip(&format!("{provider}.csv.gz")).as_slice()).unwrap();
    assert_eq!(warnings.total, 0, "{warnings:?}");
    table
}

/// All published providers, and the given ones standing in for live ones.
pub(crate) fn snapshot(online: &[Provider]) -> Snapshot {
    Snapshot::new(
        Provider::offline()
            .chain(online.iter().copied())
            .map(|provider| Arc::new(table(provider))),
    )
}
