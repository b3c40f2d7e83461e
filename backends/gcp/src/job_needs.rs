//! What jobs get on machines with GPUDirect (dstack 0.22.5).

use dstack_compute::{JobNeeds, MountedPath};

use crate::startup;

/// Google's libraries for NCCL, and the folder by which GPUs' memory is found.
const TCPXO: JobNeeds = JobNeeds {
    mounts: &[
        MountedPath::same("/dev/aperture_devices"),
        MountedPath::same("/var/lib/tcpxo/lib64"),
        MountedPath::same("/var/lib/fastrak/lib64"),
    ],
    ..JobNeeds::NONE
};

/// On Container-Optimized OS, which has no NVIDIA Container Toolkit: the driver's programs and libraries, Google's library for NCCL, the
/// sockets of the daemon that receives for the GPUs, and the GPUs themselves.
const TCPX: JobNeeds = JobNeeds {
    mounts: &[
        MountedPath::at("/var/lib/nvidia/lib64", "/usr/local/nvidia/lib64"),
        MountedPath::at("/var/lib/nvidia/bin", "/usr/local/nvidia/bin"),
        MountedPath::at("/var/lib/tcpx/lib64", "/usr/local/tcpx/lib64"),
        MountedPath::same("/run/tcpx"),
    ],
    gpu_devices: &[
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidia2",
        "/dev/nvidia3",
        "/dev/nvidia4",
        "/dev/nvidia5",
        "/dev/nvidia6",
        "/dev/nvidia7",
        "/dev/nvidia-uvm",
        "/dev/nvidiactl",
    ],
    ..JobNeeds::NONE
};

pub(crate) fn of_type(machine_type: &str) -> JobNeeds {
    match machine_type {
        startup::TCPXO => TCPXO,
        _ if startup::TCPX.contains(&machine_type) => TCPX,
        _ => JobNeeds::NONE,
    }
}
