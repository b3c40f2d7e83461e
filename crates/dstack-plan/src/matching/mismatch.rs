//! What an instance lacks, or has too much of.

use dstack_units::{AcceleratorVendor, CpuArchitecture, GpuSpec, Memory, Range};

/// At most one digit after the point, and never more than there is: what is too little must not look like enough.
fn size(memory: Memory) -> Memory {
    Memory::from_gb((memory.gb() * 10.0).floor() / 10.0)
}

/// One requirement that an instance does not satisfy. Prints as the end of a sentence: "… has 4 CPUs, wanted 8..".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// Above `max_price`.
    #[error("costs ${price}/h, more than max_price ${max}")]
    Price {
        /// Dollars an hour.
        price: f64,
        /// `max_price`.
        max: f64,
    },
    /// Spot or on-demand instead of the other.
    #[error("{}", if *.is_spot { "is a spot instance" } else { "is not a spot instance" })]
    Spot {
        /// What it is.
        is_spot: bool,
    },
    /// Another instruction set.
    #[error("has the CPU architecture {has}, wanted {wanted}")]
    Architecture {
        /// What it has.
        has: CpuArchitecture,
        /// What is asked for.
        wanted: CpuArchitecture,
    },
    /// Too few or too many CPUs.
    #[error("has {has} CPUs, wanted {wanted}")]
    Cpus {
        /// What it has.
        has: i64,
        /// What is asked for.
        wanted: Range<i64>,
    },
    /// Too little or too much memory.
    #[error("has {} of memory, wanted {wanted}", size(*.has))]
    Memory {
        /// What it has.
        has: Memory,
        /// What is asked for.
        wanted: Range<Memory>,
    },
    /// No GPU at all.
    #[error("has no GPU, wanted {wanted}")]
    NoGpu {
        /// What is asked for.
        wanted: Box<GpuSpec>,
    },
    /// GPUs of another maker.
    #[error("has a GPU of another vendor than {wanted}")]
    GpuVendor {
        /// What it has.
        has: Option<AcceleratorVendor>,
        /// What is asked for.
        wanted: AcceleratorVendor,
    },
    /// Too few or too many GPUs.
    #[error("has {has} GPUs, wanted {wanted}")]
    GpuCount {
        /// What it has.
        has: i64,
        /// What is asked for.
        wanted: Range<i64>,
    },
    /// The names of its GPUs are not among those asked for.
    #[error("has {has}, wanted {}", .wanted.join(", "))]
    GpuName {
        /// What it has.
        has: String,
        /// What is asked for.
        wanted: Vec<String>,
    },
    /// GPUs that can do less, or of which nobody knows.
    #[error("{}", match .has { Some((major, minor)) => format!("has compute capability {major}.{minor}"),
                               None => "has no known compute capability".to_owned() })]
    ComputeCapability {
        /// What it has.
        has: Option<(i64, i64)>,
        /// The least that is asked for.
        wanted: (i64, i64),
    },
    /// GPUs with too little or too much memory.
    #[error("has {} of GPU memory, wanted {wanted}", size(*.has))]
    GpuMemory {
        /// What each has.
        has: Memory,
        /// What is asked for.
        wanted: Range<Memory>,
    },
    /// All GPUs together have too little or too much memory.
    #[error("has {} of GPU memory in all, wanted {wanted}", size(*.has))]
    GpuTotalMemory {
        /// What all have.
        has: Memory,
        /// What is asked for.
        wanted: Range<Memory>,
    },
    /// Too small or too big a disk.
    #[error("has {} of disk, wanted {wanted}", size(*.has))]
    Disk {
        /// What it has.
        has: Memory,
        /// What is asked for.
        wanted: Range<Memory>,
    },
}
