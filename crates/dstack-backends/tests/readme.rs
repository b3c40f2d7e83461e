//! The README's table of backends says what this build has; and each kind says how long its machines have.
#![allow(clippy::unwrap_used)] // tests

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_backend::Env;
use dstack_catalog::{Catalog, Settings};
use dstack_compute::Registry;
use dstack_http::{ClientOptions, LazyClient};
use dstack_system::{Random, SystemClock, env};

const START: &str = "<!-- What this build has: made by the tests of crates/dstack-backends. -->\n";
const END: &str = "<!-- End of what this build has. -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn registry() -> Registry {
    let settings = Settings {
        url: String::new(),
        dir: None,
        cache: None,
    };
    dstack_backends::registry(&Env {
        clock: Arc::new(SystemClock),
        random: Random::seeded(1),
        transport: Arc::new(LazyClient::new(ClientOptions::default())),
        catalog: Arc::new(Catalog::new(settings)),
        endpoints: HashMap::new(),
        own_url: None,
        installation: Arc::default(),
    })
}

/// A row for each backend, with the title of its page.
fn table() -> String {
    let mut table = String::from(
        "| backend | jobs run in | several nodes | reservations | placement groups | network volumes | `privileged` | instance volumes | gateways |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let registry = registry();
    for kind in registry.types() {
        let has = registry.get(kind).unwrap().capabilities();
        let page = format!("docs/backends/{kind}.md");
        let text = fs_err::read_to_string(root().join(&page)).unwrap();
        let title = text.lines().next().unwrap().strip_prefix("# ").unwrap();
        let place = match has.create_instance {
            true => "machines",
            false => "containers",
        };
        let cells = [
            has.multinode || has.compute_groups,
            has.reservations,
            has.placement_groups,
            has.volumes,
            has.privileged,
            has.instance_volumes,
            has.gateways,
        ];
        let cells = cells.map(|has| if has { "yes" } else { "" }).join(" | ");
        table.push_str(&format!("| [{title}]({page}) | {place} | {cells} |\n"));
    }
    table
}

/// Written anew by `DSTACK_UPDATE_PAGES=1 cargo nextest run -p dstack-backends`.
#[test]
fn the_table_of_backends_is_up_to_date() {
    let path = root().join("README.md");
    let text = fs_err::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let current = format!("{before}{START}{}{END}{after}", table());
    if env::flag("DSTACK_UPDATE_PAGES") {
        fs_err::write(&path, &current).unwrap();
    }
    assert!(
        fs_err::read_to_string(&path).unwrap() == current,
        "README.md has another table of backends than this build: DSTACK_UPDATE_PAGES=1 cargo nextest run -p dstack-backends"
    );
}

/// As in dstack 0.22.5 (backends §9).
#[test]
fn slow_clouds_have_more_time() {
    let registry = registry();
    let minutes = registry.types().into_iter().map(|kind| {
        let limit = registry.provisioning_timeout(kind, "any");
        (kind.to_string(), limit.as_secs() / 60)
    });
    let minutes: HashMap<String, u64> = minutes.collect();
    let expected = [
        ("aws", 10),
        ("cloudrift", 30),
        ("kubernetes", 20),
        ("runpod", 20),
        ("slurm", 20),
    ];
    for (kind, expected) in expected {
        assert_eq!(minutes[kind], expected, "{kind}");
    }
}
