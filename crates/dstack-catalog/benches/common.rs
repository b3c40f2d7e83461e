//! What both benchmarks measure with: the catalogue of the tests, as it is and ten times as large.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::io::Read;
use std::sync::Arc;

use dstack_catalog::{Filter, Item, Provider, Snapshot, Table, TableInfo, read_csv, write_csv};

/// Name and filter of each query; the filters are read by gpuhunt as well.
pub(crate) const QUERIES: [(&str, &str); 4] = [
    ("unfiltered", "{}"),
    (
        "default resources",
        r#"{"min_cpu": 2, "min_memory": 8, "min_disk_size": 100, "min_gpu_count": 0, "max_gpu_count": 0, "allowed_flags": ["oci-spot", "lambda-arm", "gcp-a4", "gcp-g4", "gcp-dws-calendar-mode", "runpod-cpu", "runpod-cluster", "hotaisle-bm"]}"#,
    ),
    (
        "H100 x 8",
        r#"{"gpu_name": ["H100"], "min_gpu_count": 8, "max_gpu_count": 8}"#,
    ),
    ("compute capability", r#"{"min_compute_capability": "8.0"}"#),
];

pub(crate) fn filter(text: &str) -> Filter {
    Filter::from_json(text).expect("a good filter")
}

/// CSV text of every published provider.
pub(crate) fn files() -> Vec<(Provider, Vec<u8>)> {
    Provider::offline()
        .map(|provider| {
            let path = format!("{}/tests/data/{provider}.csv.gz", env!("CARGO_MANIFEST_DIR"));
            let mut text = Vec::new();
            let file = fs_err::File::open(path).expect("test data");
            flate2::read::GzDecoder::new(file)
                .read_to_end(&mut text)
                .expect("gzip");
            (provider, text)
        })
        .collect()
}

pub(crate) fn load(files: &[(Provider, Vec<u8>)]) -> Snapshot {
    Snapshot::new(files.iter().map(|(provider, text)| {
        let (table, _) = read_csv(TableInfo::unversioned(*provider), text.as_slice()).expect("a good file");
        Arc::new(table)
    }))
}

/// Ten times the offers: copies under other names at slightly other prices, sorted again.
pub(crate) fn tenfold(files: &[(Provider, Vec<u8>)]) -> Vec<(Provider, Vec<u8>)> {
    let snapshot = load(files);
    files
        .iter()
        .map(|(provider, _)| {
            let table = snapshot.table(*provider).expect("loaded");
            let mut items: Vec<Item> = Vec::with_capacity(table.len() * 10);
            for copy in 0..10 {
                items.extend(table.offers().map(|offer| {
                    let item = offer.to_item();
                    Item {
                        instance_name: format!("{}-{copy}", item.instance_name),
                        price: item.price * (1.0 + f64::from(copy) / 1000.0),
                        ..item
                    }
                }));
            }
            items.sort_by(|a, b| a.price.total_cmp(&b.price));
            let mut text = Vec::new();
            let table = Table::from_items(TableInfo::unversioned(*provider), &items);
            write_csv(table.offers(), &mut text).expect("in memory");
            (*provider, text)
        })
        .collect()
}
