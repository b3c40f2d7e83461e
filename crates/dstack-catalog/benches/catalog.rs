//! Loading and querying the catalogue.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod common;

use std::hint::black_box;

use common::{QUERIES, files, filter, load, tenfold};
use criterion::{Criterion, criterion_group, criterion_main};
use dstack_catalog::Snapshot;

fn queries(criterion: &mut Criterion, size: &str, snapshot: &Snapshot) {
    let mut group = criterion.benchmark_group(format!("query {size}, first 100"));
    for (name, text) in QUERIES {
        let filter = filter(text);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for offer in snapshot
                    .query(black_box(&filter))
                    .expect("a good filter")
                    .take(100)
                {
                    black_box(offer);
                }
            });
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group(format!("query {size}, all"));
    for (name, text) in QUERIES {
        let filter = filter(text);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                snapshot
                    .query(black_box(&filter))
                    .expect("a good filter")
                    .map(|offer| offer.price())
                    .sum::<f64>()
            });
        });
    }
    group.finish();
}

fn catalog(criterion: &mut Criterion) {
    let files = files();
    let snapshot = load(&files);
    criterion.bench_function("load, nine CSV files", |bencher| {
        bencher.iter(|| load(black_box(&files)));
    });
    let packed: Vec<_> = snapshot
        .tables()
        .map(|table| {
            (
                table.info().clone(),
                dstack_catalog::write_archive(table).unwrap(),
            )
        })
        .collect();
    criterion.bench_function("load, nine archives", |bencher| {
        bencher.iter(|| {
            packed
                .iter()
                .map(|(info, bytes)| dstack_catalog::read_archive(info, bytes).unwrap().0.len())
                .sum::<usize>()
        });
    });
    queries(criterion, "59 000 offers", &snapshot);
    queries(criterion, "590 000 offers", &load(&tenfold(&files)));
}

criterion_group!(benches, catalog);
criterion_main!(benches);
