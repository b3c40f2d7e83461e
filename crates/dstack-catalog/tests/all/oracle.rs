//! The query engine against the rules written down as plainly as possible, on random filters.

use std::sync::{Arc, LazyLock};

use dstack_catalog::{CpuArch, Filter, Item, Provider, Snapshot, Table, Vendor, accelerators};
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{info, table};

/// Small catalogues, one of them not sorted by price, and one with odd rows.
static TABLES: LazyLock<Vec<(Provider, Vec<Item>)>> = LazyLock::new(|| {
    let mut tables: Vec<(Provider, Vec<Item>)> = [
        Provider::Digitalocean,
        Provider::Vastai,
        Provider::Verda,
        Provider::Lambdalabs,
        Provider::Nebius,
    ]
    .into_iter()
    .map(|provider| {
        (
            provider,
            table(provider).offers().map(|offer| offer.to_item()).collect(),
        )
    })
    .collect();
    let odd = |name: &str, change: &dyn Fn(&mut Item)| {
        let mut item = Item {
            price: 1.0,
            cpu: 4,
            memory: 8.0,
            ..Item::new(Provider::Oci, name, "r")
        };
        change(&mut item);
        item
    };
    tables.push((
        Provider::Oci,
        vec![
            odd("nameless GPU", &|item| {
                item.gpu_count = 1;
                item.gpu_vendor = Some(Vendor::Nvidia);
            }),
            odd("memory without GPU", &|item| item.gpu_memory = Some(80.0)),
            odd("free", &|item| item.price = 0.0),
            odd("two flags", &|item| item.flags = vec!["a".into(), "b".into()]),
            odd("gaudi", &|item| {
                item.gpu_count = 8;
                item.gpu_vendor = Some(Vendor::Intel);
                item.gpu_name = Some("Gaudi2".into());
                item.gpu_memory = Some(96.0);
                item.cpu_arch = CpuArch::Arm;
            }),
        ],
    ));
    tables.sort_by_key(|(provider, _)| *provider);
    tables
});

fn within<T: PartialOrd>(value: &T, min: Option<&T>, max: Option<&T>) -> bool {
    min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)
}

fn gpu_accepted(item: &Item, f: &Filter) -> bool {
    if f.min_gpu_count == Some(0) && item.gpu_count == 0 {
        return true;
    }
    let memory = if item.gpu_count > 0 {
        item.gpu_memory.unwrap_or(0.0)
    } else {
        0.0
    };
    let total = if item.gpu_count > 0 {
        item.gpu_count as f64 * memory
    } else {
        0.0
    };
    let named = f.gpu_name.as_ref().is_none_or(|names| {
        item.gpu_name
            .as_ref()
            .is_some_and(|is| names.iter().any(|name| name.to_lowercase() == is.to_lowercase()))
    });
    let capable = (f.min_compute_capability.is_none() && f.max_compute_capability.is_none())
        || (item.gpu_vendor == Some(Vendor::Nvidia)
            && item
                .gpu_name
                .as_deref()
                .and_then(accelerators::compute_capability)
                .is_some_and(|(major, minor)| {
                    let is = (i64::from(major), i64::from(minor));
                    within(
                        &is,
                        f.min_compute_capability.as_ref(),
                        f.max_compute_capability.as_ref(),
                    )
                }));
    f.gpu_vendor.is_none_or(|vendor| item.gpu_vendor == Some(vendor))
        && within(
            &item.gpu_count,
            f.min_gpu_count.as_ref(),
            f.max_gpu_count.as_ref(),
        )
        && named
        && capable
        && within(&memory, f.min_gpu_memory.as_ref(), f.max_gpu_memory.as_ref())
        && within(
            &total,
            f.min_total_gpu_memory.as_ref(),
            f.max_total_gpu_memory.as_ref(),
        )
}

fn accepted(item: &Item, f: &Filter) -> bool {
    f.provider.as_ref().is_none_or(|names| {
        names
            .iter()
            .any(|name| name.to_lowercase() == item.provider.name())
    }) && within(&item.price, f.min_price.as_ref(), f.max_price.as_ref())
        && f.spot.is_none_or(|spot| spot == item.spot)
        && f.cpu_arch.is_none_or(|arch| arch == item.cpu_arch)
        && within(&item.cpu, f.min_cpu.as_ref(), f.max_cpu.as_ref())
        && within(&item.memory, f.min_memory.as_ref(), f.max_memory.as_ref())
        && gpu_accepted(item, f)
        && item
            .disk_size
            .is_none_or(|disk| within(&disk, f.min_disk_size.as_ref(), f.max_disk_size.as_ref()))
        && f.allowed_flags
            .as_ref()
            .is_none_or(|allowed| item.flags.iter().all(|flag| allowed.contains(flag)))
}

fn expected(f: &Filter) -> Vec<Item> {
    let mut lanes: Vec<std::collections::VecDeque<&Item>> = TABLES
        .iter()
        .map(|(_, items)| items.iter().filter(|item| accepted(item, f)).collect())
        .collect();
    let mut merged = Vec::new();
    loop {
        let heads = lanes
            .iter()
            .enumerate()
            .filter_map(|(at, lane)| Some((at, lane.front()?.price)));
        let Some((cheapest, _)) = heads.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
            return merged;
        };
        merged.extend(lanes[cheapest].pop_front().cloned());
    }
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Option<T>> {
    prop_oneof![4 => Just(None), 1 => select(values).prop_map(Some)]
}

prop_compose! {
    fn sizes()(
        min_cpu in maybe(vec![0, 2, 8, 44]), max_cpu in maybe(vec![1, 8, 44, 500]),
        min_memory in maybe(vec![0.0, 15.9, 64.0]), max_memory in maybe(vec![16.0, 180.0, 5000.0]),
        min_disk_size in maybe(vec![0.0, 100.0, 549.888]), max_disk_size in maybe(vec![0.0, 160.0, 1e6]),
        min_price in maybe(vec![0.0, 0.29, 1.0]), max_price in maybe(vec![0.0, 0.5, 2.0, 1e3]),
    ) -> Filter {
        Filter { min_cpu, max_cpu, min_memory, max_memory, min_disk_size, max_disk_size, min_price, max_price, ..Filter::default() }
    }
}

prop_compose! {
    fn filters()(
        sizes in sizes(),
        provider in maybe(vec![vec!["NEBIUS".to_owned(), "oci".to_owned()], vec!["vastai".to_owned()], vec![]]),
        gpu in (
            maybe(vec![0, 1, 2, 8]), maybe(vec![0, 1, 8]),
            maybe(vec![vec![], vec!["h100".to_owned()], vec!["A100".to_owned(), "Gaudi2".to_owned()], vec!["RTX6000".to_owned()]]),
            maybe(vec![Vendor::Nvidia, Vendor::Amd, Vendor::Intel]),
        ),
        memory in (
            maybe(vec![0.0, 24.0, 80.0]), maybe(vec![0.0, 48.0, 80.0]),
            maybe(vec![0.0, 160.0, 640.0]), maybe(vec![0.0, 80.0, 640.0]),
        ),
        capability in (maybe(vec![(7, 5), (8, 0), (9, 0)]), maybe(vec![(7, 5), (8, 9), (12, 0)])),
        spot in maybe(vec![true, false]),
        cpu_arch in maybe(vec![CpuArch::X86, CpuArch::Arm]),
        allowed_flags in maybe(vec![vec![], vec!["a".to_owned()], vec!["b".to_owned(), "a".to_owned(), "lambda-arm".to_owned()]]),
    ) -> Filter {
        Filter {
            provider,
            min_gpu_count: gpu.0, max_gpu_count: gpu.1, gpu_name: gpu.2, gpu_vendor: gpu.3,
            min_gpu_memory: memory.0, max_gpu_memory: memory.1,
            min_total_gpu_memory: memory.2, max_total_gpu_memory: memory.3,
            min_compute_capability: capability.0, max_compute_capability: capability.1,
            spot, cpu_arch, allowed_flags,
            ..sizes
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn queries_keep_the_rules(filter in filters()) {
        static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(|| {
            Snapshot::new(TABLES.iter().map(|(provider, items)| Arc::new(Table::from_items(info(*provider), items))))
        });
        let found: Vec<Item> = SNAPSHOT.query(&filter).unwrap().map(|offer| offer.to_item()).collect();
        prop_assert_eq!(found, expected(&filter));
    }
}
