//! What the cloud sells: one or two plans of each kind that matters, in the vendor's form.

use serde_json::{Value, json};

/// All regions. In `ord` there is bare metal only.
pub const REGIONS: [&str; 3] = ["ams", "ewr", "ord"];

/// Where dedicated GPUs are, of which the public list does not tell.
const DEDICATED_IN: &str = "ewr";

fn plan(id: &str, kind: &str, cpus: i64, ram: i64, disk: i64, hourly: f64, locations: &[&str]) -> Value {
    json!({"id": id, "name": id, "vcpu_count": cpus, "ram": ram, "disk": disk, "disk_count": 1, "bandwidth": 1024,
        "monthly_cost": hourly * 730.0, "hourly_cost": hourly, "type": kind, "locations": locations,
        "deploy_ondemand": true})
}

fn gpu_plan(of: Value, model: &str, memory: i64) -> Value {
    let mut plan = of;
    plan["gpu_type"] = model.into();
    plan["gpu_vram_gb"] = memory.into();
    plan
}

/// Plans of virtual machines.
pub fn plans() -> Vec<Value> {
    let mut paused = plan("vhp-2c-4gb-amd", "vhp", 2, 4096, 100, 0.03, &["ewr"]);
    paused["deploy_ondemand"] = false.into();
    vec![
        plan("vc2-1c-0.5gb-free", "vc2", 1, 512, 10, 0.0, &["ewr", ""]),
        plan("vc2-1c-0.5gb-v6", "vc2", 1, 512, 10, 0.003, &["ewr"]),
        plan("vc2-1c-1gb", "vc2", 1, 1024, 25, 0.007, &["ewr", "ams"]),
        plan(
            "voc-c-8c-16gb-150s-amd",
            "voc",
            8,
            16_384,
            150,
            0.33,
            &["ewr", ""],
        ),
        paused,
        gpu_plan(
            plan("vcg-a16-2c-16g-4vram", "vcg", 2, 16_384, 80, 0.059, &["ewr"]),
            "NVIDIA_A16",
            4,
        ),
        gpu_plan(
            plan(
                "vcg-a100-12c-120g-80vram",
                "vcg",
                12,
                122_880,
                1400,
                2.397,
                &["ewr", "ams"],
            ),
            "NVIDIA_A100",
            80,
        ),
        gpu_plan(
            plan(
                "vcg-h200-24c-240g-282vram",
                "vcg",
                24,
                245_760,
                1400,
                7.1,
                &["ams"],
            ),
            "NVIDIA_H200",
            282,
        ),
        plan("vcg-a100-96c-960g-640vram", "vdm", 96, 983_040, 1400, 19.2, &[]),
        plan(
            "vcg-b200-248c-2826g-1536vram",
            "vdm",
            248,
            2_893_824,
            1400,
            30.0,
            &[],
        ),
    ]
}

/// Plans of bare metal.
pub fn metal_plans() -> Vec<Value> {
    let plan = |id: &str, cores: i64, ram: i64, hourly: f64| {
        json!({"id": id, "cpu_count": cores, "cpu_threads": 2 * cores, "cpu_model": "Platinum 8480+", "cpu_mhz": 2000,
            "ram": ram, "disk": 480, "disk_count": 2, "bandwidth": 10_240, "monthly_cost": hourly * 730.0,
            "hourly_cost": hourly, "type": "SSD", "locations": ["ord"], "deploy_ondemand": true})
    };
    vec![
        plan("vbm-4c-32gb", 4, 32_768, 0.17),
        plan("vbm-24c-256gb-amd", 24, 262_144, 1.0),
        plan("vbm-72c-480gb-gh200-gpu", 72, 491_520, 2.0),
        plan("vbm-112c-2048gb-8-h100-gpu", 112, 2_097_152, 17.466),
        plan("vbm-256c-3072gb-8-mi325x-gpu", 256, 3_145_728, 16.0),
    ]
}

/// Whether a plan is sold in a region.
pub(crate) fn is_sold(plan: &Value, region: &str) -> bool {
    let listed = plan["locations"].as_array().unwrap();
    (plan["type"] == "vdm" && region == DEDICATED_IN) || listed.iter().any(|place| place == region)
}
