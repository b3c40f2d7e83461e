//! What is sold where, and what the calculator says that it costs.

use serde_json::{Value, json};

use crate::{Answer, bad, text};

/// Platform, GiB of its GPUs, whether there are preemptible machines; its presets: name, CPUs, GiB, GPUs, whether in clusters, and dollars an
/// hour.
type Platform = (
    &'static str,
    i64,
    bool,
    &'static [(&'static str, i64, i64, i64, bool, &'static str)],
);

/// The region that has all of it; others have no GPUs.
const FULL_REGION: &str = "eu-north1";

const PLATFORMS: &[Platform] = &[
    (
        "gpu-h100-sxm",
        80,
        true,
        &[
            ("1gpu-16vcpu-200gb", 16, 200, 1, false, "2.95"),
            ("8gpu-128vcpu-1600gb", 128, 1600, 8, true, "23.6"),
        ],
    ),
    (
        "gpu-l40s-a",
        48,
        true,
        &[("1gpu-8vcpu-32gb", 8, 32, 1, false, "1.5484")],
    ),
    // Nobody knows it here.
    (
        "gpu-x900-sxm",
        999,
        true,
        &[("8gpu-128vcpu-1600gb", 128, 1600, 8, true, "99")],
    ),
    (
        "cpu-d3",
        0,
        false,
        &[
            ("4vcpu-16gb", 4, 16, 0, false, "0.0992"),
            ("unpriced", 8, 32, 0, false, ""),
        ],
    ),
];

fn in_region(region: &str) -> impl Iterator<Item = &'static Platform> {
    let all = region == FULL_REGION;
    PLATFORMS
        .iter()
        .filter(move |(name, ..)| all || name.starts_with("cpu-"))
}

pub(crate) fn platforms(region: &str) -> Vec<Value> {
    let preset = |(name, cpus, memory, gpus, clusters, _): &(&str, i64, i64, i64, bool, &str)| {
        json!({"name": name, "allow_gpu_clustering": clusters,
            "resources": {"vcpu_count": cpus, "memory_gibibytes": memory, "gpu_count": gpus}})
    };
    let platform = |(name, memory, spot, presets): &Platform| {
        json!({"metadata": {"id": format!("computeplatform-{name}"), "parent_id": "public", "name": name},
            "spec": {"presets": presets.iter().map(preset).collect::<Vec<_>>(), "gpu_memory_gigabytes": memory},
            "status": {"allowed_for_preemptibles": spot}})
    };
    in_region(region).map(platform).collect()
}

/// Preemptible ones cost half.
pub(crate) fn estimate(region: &str, spec: &Value) -> Answer {
    let (platform, preset) = (
        text(&spec["resources"], "platform"),
        text(&spec["resources"], "preset"),
    );
    let mut found = in_region(region).filter(|(name, ..)| *name == platform);
    let found = found.find_map(|(_, _, spot, presets)| {
        let found = presets.iter().find(|(name, ..)| *name == preset)?;
        (*spot || spec.get("preemptible").is_none()).then_some(found.5)
    });
    let cost = found.ok_or(bad("no such machine is sold there"))?;
    let cost = match (spec.get("preemptible"), cost.parse::<f64>()) {
        (Some(_), Ok(cost)) => (cost / 2.0).to_string(),
        _ => cost.to_owned(),
    };
    let cost = json!({"general": {"total": {"cost": cost, "cost_rounded": cost}}});
    Ok(json!({"hourly_cost": cost, "monthly_cost": cost}))
}
