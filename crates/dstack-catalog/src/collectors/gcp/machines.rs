//! Machine types and the accelerators they have or can have.

use serde_json::Value;

use super::super::json::Json;
use crate::collect::round_to;

/// An accelerator that is sold by the hour.
#[derive(Debug, PartialEq)]
pub(super) struct Gpu {
    /// Name of the accelerator type in the API, and in prices.
    pub(super) api_name: &'static str,
    /// Name that the catalogue has for it.
    pub(super) name: &'static str,
    /// Memory of one accelerator, in GiB.
    pub(super) memory: f64,
}

const fn gpu(api_name: &'static str, name: &'static str, memory: f64) -> Gpu {
    Gpu {
        api_name,
        name,
        memory,
    }
}

const GPUS: [Gpu; 9] = [
    gpu("nvidia-b200", "B200", 180.0),
    gpu("nvidia-a100-80gb", "A100", 80.0),
    gpu("nvidia-h100-80gb", "H100", 80.0),
    gpu("nvidia-h100-mega-80gb", "H100", 80.0),
    gpu("nvidia-l4", "L4", 24.0),
    gpu("nvidia-tesla-a100", "A100", 40.0),
    gpu("nvidia-tesla-t4", "T4", 16.0),
    gpu("nvidia-tesla-v100", "V100", 16.0),
    gpu("nvidia-rtx-pro-6000", "RTXPRO6000", 96.0),
];

fn gpu_of(api_name: &str) -> Option<&'static Gpu> {
    GPUS.iter().find(|gpu| gpu.api_name == api_name)
}

/// Shapes with a part of a GPU, which the API reports as a whole one: GiB they get.
const FRACTIONS: [(&str, f64); 3] = [
    ("g4-standard-6", 12.0),
    ("g4-standard-12", 24.0),
    ("g4-standard-24", 48.0),
];

/// A machine type in a zone.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) zone: String,
    pub(super) cpus: i64,
    /// RAM, in GiB.
    pub(super) memory: f64,
    pub(super) gpu_count: i64,
    pub(super) gpu: Option<&'static Gpu>,
    pub(super) gpu_memory: Option<f64>,
}

impl Machine {
    /// `Ok(None)`: deprecated or incomplete; `Err`: has an accelerator of that name, which is not known.
    pub(super) fn read(zone: &str, one: &Value) -> Result<Option<Self>, String> {
        if one.at("deprecated").text("state") == Some("DEPRECATED") {
            return Ok(None);
        }
        let accelerator = one.list("accelerators").first();
        let gpu = match accelerator.and_then(|accelerator| accelerator.text("guestAcceleratorType")) {
            Some(name) => Some(gpu_of(name).ok_or_else(|| name.to_owned())?),
            None => None,
        };
        let read = || {
            let name = one.text("name")?;
            let part = FRACTIONS
                .iter()
                .find(|(shape, _)| *shape == name)
                .map(|(_, gib)| *gib);
            Some(Self {
                name: name.to_owned(),
                zone: zone.to_owned(),
                cpus: one.int("guestCpus")?,
                memory: round_to(one.number("memoryMb")? / 1024.0, 1),
                gpu_count: accelerator
                    .map_or(Some(0), |accelerator| accelerator.int("guestAcceleratorCount"))?,
                gpu,
                gpu_memory: gpu.map(|gpu| part.unwrap_or(gpu.memory)),
            })
        };
        Ok(read())
    }

    pub(super) fn region(&self) -> &str {
        self.zone
            .get(..self.zone.len().saturating_sub(2))
            .unwrap_or_default()
    }
}

/// Attachable GPUs: vCPUs and GiB a machine may have at most with 1, 2, 4, 8 of them.
const LIMITS: [(&str, &[(i64, f64)]); 2] = [
    ("nvidia-tesla-t4", &[(48, 312.0), (48, 312.0), (96, 624.0)]),
    (
        "nvidia-tesla-v100",
        &[(12, 78.0), (24, 156.0), (48, 312.0), (96, 624.0)],
    ),
];

/// The N1 machines of a zone with every allowed number of the zone's accelerators.
pub(super) fn with_accelerators(machines: &[Machine], accelerators: &[&str]) -> Vec<Machine> {
    let mut found = Vec::new();
    for accelerator in accelerators {
        let limits = LIMITS.iter().find(|(name, _)| name == accelerator);
        let (Some((_, limits)), Some(gpu)) = (limits, gpu_of(accelerator)) else {
            continue;
        };
        for (count, (cpus, memory)) in [1, 2, 4, 8].into_iter().zip(*limits) {
            let fitting = machines
                .iter()
                .filter(|machine| machine.cpus <= *cpus && machine.memory <= *memory);
            found.extend(fitting.map(|machine| Machine {
                gpu_count: count,
                gpu: Some(gpu),
                gpu_memory: Some(gpu.memory),
                ..machine.clone()
            }));
        }
    }
    found
}
