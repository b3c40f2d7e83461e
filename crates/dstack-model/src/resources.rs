//! Resources that a configuration requires: CPUs, memory, GPUs and disk.

use dstack_units::{CpuSpec, GpuSpec, Memory, Range};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Decode;

/// What a node must have.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ResourcesSpec {
    /// The CPU requirements.
    #[decode(default)]
    pub cpu: CpuSpec,
    /// The RAM size (e.g., `8GB`).
    #[decode(default = Range::at_least(Memory::from_gb(8.0)))]
    pub memory: Range<Memory>,
    /// The size of shared memory (e.g., `8GB`).
    pub shm_size: Option<Memory>,
    /// The GPU requirements.
    #[decode(default = Some(GpuSpec::any_or_none()))]
    pub gpu: Option<GpuSpec>,
    /// The disk resources.
    #[decode(default = Some(DiskSpec::default()))]
    pub disk: Option<DiskSpec>,
}

impl Default for ResourcesSpec {
    fn default() -> Self {
        Self {
            cpu: CpuSpec::default(),
            memory: Range::at_least(Memory::from_gb(8.0)),
            shm_size: None,
            gpu: Some(GpuSpec::any_or_none()),
            disk: Some(DiskSpec::default()),
        }
    }
}

impl ResourcesSpec {
    /// Hardly any requirement: one CPU.
    pub fn unconstrained() -> Self {
        Self {
            cpu: CpuSpec {
                arch: None,
                count: Range::at_least(1),
            },
            memory: Range::at_least(Memory::from_gb(0.0)),
            shm_size: None,
            gpu: Some(GpuSpec::any_or_none()),
            disk: None,
        }
    }
}

/// Requirements on the disk; a size alone stands for an object.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Decode)]
#[decode(before = disk_from_scalar)]
pub struct DiskSpec {
    /// Size of the disk (e.g., `100GB..`).
    pub size: Range<Memory>,
}

impl Default for DiskSpec {
    fn default() -> Self {
        Self {
            size: Range::at_least(Memory::from_gb(100.0)),
        }
    }
}

fn disk_from_scalar(value: &Value) -> Result<Option<Value>, String> {
    Ok(matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_)).then(|| json!({"size": value})))
}
