//! Flags that replace the resources of a configuration.

use clap::Args;
use dstack_model::resources::{DiskSpec, ResourcesSpec};
use dstack_units::{CpuSpec, GpuSpec, Memory, Range};

/// Flags that override the resources of a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Resources")]
pub struct ResourcesArgs {
    /// Request CPU. The format is `ARCH:COUNT` (all parts are optional)
    #[arg(long, value_name = "SPEC")]
    pub cpu: Option<CpuSpec>,
    /// Request GPU. The format is `NAME:COUNT:MEMORY` (all parts are optional)
    #[arg(long, value_name = "SPEC")]
    pub gpu: Option<GpuSpec>,
    /// Request the size range of RAM, for example `128GB..256GB`
    #[arg(long, value_name = "RANGE")]
    pub memory: Option<Range<Memory>>,
    /// Request the size range of disk, for example `100GB..`
    #[arg(long, value_name = "RANGE")]
    pub disk: Option<Range<Memory>>,
}

impl ResourcesArgs {
    /// Writes the flags into a configuration.
    pub fn apply(&self, resources: &mut ResourcesSpec) {
        if let Some(cpu) = self.cpu {
            resources.cpu = cpu;
        }
        if let Some(gpu) = &self.gpu {
            resources.gpu = Some(gpu.clone());
        }
        if let Some(memory) = self.memory {
            resources.memory = memory;
        }
        if let Some(size) = self.disk {
            resources.disk = Some(DiskSpec { size });
        }
    }
}
