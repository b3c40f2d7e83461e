//! What this machine has.

use std::path::Path;

use dstack_agent_api::shim::{HostInfo, InstanceInfo};

use crate::gpu::{Gpus, Vendor};

/// Looks once. `storage`: where images or task directories are kept.
pub fn inspect(gpus: &Gpus, storage: &Path) -> HostInfo {
    let first = gpus.list.first();
    HostInfo {
        gpu_vendor: if gpus.list.is_empty() {
            Vendor::None
        } else {
            gpus.vendor
        }
        .name()
        .to_owned(),
        gpu_name: first.map(|gpu| gpu.name.clone()).unwrap_or_default(),
        gpu_memory: first.map_or(0, |gpu| gpu.memory_mib),
        gpu_count: u32::try_from(gpus.list.len()).unwrap_or(u32::MAX),
        addresses: addresses(),
        disk_size: free_bytes(storage),
        cpus: std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1)),
        memory: total_memory(&fs_err::read_to_string("/proc/meminfo").unwrap_or_default()),
    }
}

/// Vendor and driver for `GET /api/instance/info`.
pub fn instance_info(gpus: &Gpus) -> InstanceInfo {
    match gpus.list.first() {
        Some(gpu) => InstanceInfo {
            gpu_vendor: gpus.vendor.name().to_owned(),
            gpu_driver_version: gpu.driver_version.clone(),
        },
        None => InstanceInfo::default(),
    }
}

/// Bytes an unprivileged user may still write on the filesystem of `path`.
fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total_memory(meminfo: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        .saturating_mul(1024)
}

/// Addresses of all interfaces but loopback, as `address/prefix`, in interface order: the server may take the first
/// IPv4 one as the machine's internal address.
fn addresses() -> Vec<String> {
    crate::interfaces::list().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the network addresses");
        Vec::new()
    })
}

/// Writes `host_info.json` unless it is there: the server deletes it to ask for a fresh one.
pub fn write(home: &Path, info: &HostInfo) -> std::io::Result<()> {
    let path = home.join("host_info.json");
    if path.exists() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            format!("{} exists; left as it is", path.display()),
        ));
    }
    let text = serde_json::to_vec(info).map_err(std::io::Error::other)?;
    dstack_system::file::write_atomically(&path, &text, 0o644)
}

/// The architecture as download URLs spell it.
pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;

    #[test]
    fn memory_is_read_from_meminfo() {
        assert_eq!(
            total_memory("MemTotal:       24684092 kB\nMemFree: 1 kB\n"),
            24_684_092 * 1024
        );
        assert_eq!(total_memory(""), 0);
    }

    #[test]
    fn this_machine() {
        let gpus = Gpus {
            vendor: Vendor::Nvidia,
            list: vec![Gpu {
                name: "NVIDIA H200".into(),
                memory_mib: 143_771,
                id: "GPU-1".into(),
                driver_version: "570.86.15".into(),
            }],
        };
        let info = inspect(&gpus, Path::new("/"));
        assert!(info.cpus > 0 && info.memory > 0 && info.disk_size > 0, "{info:?}");
        assert_eq!(
            (info.gpu_name.as_str(), info.gpu_memory, info.gpu_count),
            ("NVIDIA H200", 143_771, 1)
        );
        assert!(
            info.addresses
                .iter()
                .all(|address| address.contains('/') && !address.starts_with("127."))
        );
        assert_eq!(instance_info(&gpus).gpu_driver_version, "570.86.15");
        assert_eq!(instance_info(&Gpus::default()), InstanceInfo::default());
    }

    #[test]
    fn an_existing_host_info_is_left() {
        let home = tempfile::tempdir().unwrap();
        write(
            home.path(),
            &HostInfo {
                cpus: 2,
                ..HostInfo::default()
            },
        )
        .unwrap();
        assert!(
            write(
                home.path(),
                &HostInfo {
                    cpus: 3,
                    ..HostInfo::default()
                }
            )
            .is_err()
        );
        let text = fs_err::read_to_string(home.path().join("host_info.json")).unwrap();
        assert!(
            text.contains("\"cpus\":2") && text.starts_with("{\"gpu_vendor\":\"\""),
            "{text}"
        );
    }
}
