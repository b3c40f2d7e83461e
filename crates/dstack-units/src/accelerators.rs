//! The accelerators we know, and what follows from a name.
//!
//! Look-ups by name are case-insensitive, return entries in table order, and callers take the first.

use crate::AcceleratorVendor as Vendor;

/// A known accelerator model with one memory size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accelerator {
    /// Who makes it.
    pub vendor: Vendor,
    /// Name as catalogues and configurations have it.
    pub name: &'static str,
    /// GiB; 0 for a TPU generation, whose slices differ.
    pub memory_gib: u32,
    /// NVIDIA only: major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// AMD only: `CDNA`, `CDNA2`, `CDNA3`, `CDNA4`.
    pub architecture: Option<&'static str>,
    /// AMD only: PCI device ids, by which cards are found on hosts.
    pub pci_device_ids: &'static [u32],
}

const fn plain(vendor: Vendor, name: &'static str, memory_gib: u32) -> Accelerator {
    Accelerator {
        vendor,
        name,
        memory_gib,
        compute_capability: None,
        architecture: None,
        pci_device_ids: &[],
    }
}

const fn nvidia(name: &'static str, memory_gib: u32, capability: (u32, u32)) -> Accelerator {
    Accelerator {
        compute_capability: Some(capability),
        ..plain(Vendor::Nvidia, name, memory_gib)
    }
}

const fn amd(name: &'static str, memory_gib: u32, arch: &'static str, ids: &'static [u32]) -> Accelerator {
    Accelerator {
        architecture: Some(arch),
        pci_device_ids: ids,
        ..plain(Vendor::Amd, name, memory_gib)
    }
}

/// Every known accelerator, in look-up order.
pub const ACCELERATORS: &[Accelerator] = &[
    nvidia("A10", 24, (8, 6)),
    nvidia("A16", 16, (8, 6)),
    nvidia("A40", 48, (8, 6)),
    nvidia("A100", 40, (8, 0)),
    nvidia("A100", 80, (8, 0)),
    nvidia("A10G", 24, (8, 6)),
    nvidia("A4000", 16, (8, 6)),
    nvidia("A4500", 20, (8, 6)),
    nvidia("A5000", 24, (8, 6)),
    nvidia("A6000", 48, (8, 6)),
    nvidia("H100", 80, (9, 0)),
    nvidia("H100NVL", 94, (9, 0)),
    nvidia("H200", 141, (9, 0)),
    nvidia("H200NVL", 141, (9, 0)),
    nvidia("B200", 180, (10, 0)),
    nvidia("GB200", 186, (10, 0)),
    nvidia("B300", 270, (10, 0)),
    nvidia("GB300", 270, (10, 0)),
    nvidia("L4", 24, (8, 9)),
    nvidia("L40", 48, (8, 9)),
    nvidia("L40S", 48, (8, 9)),
    nvidia("P100", 16, (6, 0)),
    nvidia("RTX2060", 6, (7, 5)),
    nvidia("RTX2060", 12, (7, 5)),
    nvidia("RTX2060SUPER", 8, (7, 5)),
    nvidia("RTX2070", 8, (7, 5)),
    nvidia("RTX2070SUPER", 8, (7, 5)),
    nvidia("RTX2080", 8, (7, 5)),
    nvidia("RTX2080SUPER", 8, (7, 5)),
    nvidia("RTX2080Ti", 11, (7, 5)),
    nvidia("RTX3050", 6, (8, 6)),
    nvidia("RTX3050", 8, (8, 6)),
    nvidia("RTX3060", 8, (8, 6)),
    nvidia("RTX3060", 12, (8, 6)),
    nvidia("RTX3060Ti", 8, (8, 6)),
    nvidia("RTX3070", 8, (8, 6)),
    nvidia("RTX3070Ti", 8, (8, 6)),
    nvidia("RTX3080", 10, (8, 6)),
    nvidia("RTX3080Ti", 12, (8, 6)),
    nvidia("RTX3090", 24, (8, 6)),
    nvidia("RTX3090Ti", 24, (8, 6)),
    nvidia("RTX4060", 8, (8, 9)),
    nvidia("RTX4060Ti", 8, (8, 9)),
    nvidia("RTX4060Ti", 16, (8, 9)),
    nvidia("RTX4070", 12, (8, 9)),
    nvidia("RTX4070SUPER", 12, (8, 9)),
    nvidia("RTX4070Ti", 12, (8, 9)),
    nvidia("RTX4070TiSUPER", 16, (8, 9)),
    nvidia("RTX4080", 16, (8, 9)),
    nvidia("RTX4080SUPER", 16, (8, 9)),
    nvidia("RTX4090", 24, (8, 9)),
    nvidia("RTX5060", 8, (12, 0)),
    nvidia("RTX5060Ti", 8, (12, 0)),
    nvidia("RTX5060Ti", 16, (12, 0)),
    nvidia("RTX5070", 12, (12, 0)),
    nvidia("RTX5070Ti", 16, (12, 0)),
    nvidia("RTX5080", 16, (12, 0)),
    nvidia("RTX5090", 32, (12, 0)),
    nvidia("RTX6000", 24, (7, 5)),
    nvidia("RTX2000Ada", 16, (8, 9)),
    nvidia("RTX4000Ada", 20, (8, 9)),
    nvidia("RTX6000Ada", 48, (8, 9)),
    nvidia("RTXPRO4500", 32, (12, 0)),
    nvidia("RTXPRO6000", 96, (12, 0)),
    nvidia("T4", 16, (7, 5)),
    nvidia("V100", 16, (7, 0)),
    nvidia("V100", 32, (7, 0)),
    nvidia("GH200", 96, (9, 0)),
    amd("MI100", 32, "CDNA", &[0x738C]),
    amd("MI210", 64, "CDNA2", &[0x740F]),
    amd("MI250", 128, "CDNA2", &[0x740C]),
    amd("MI250X", 128, "CDNA2", &[0x7408]),
    amd("MI300A", 128, "CDNA3", &[0x74A0]),
    amd("MI300X", 192, "CDNA3", &[0x74A1, 0x74A9, 0x74B5, 0x74BD]),
    amd("MI308X", 128, "CDNA3", &[0x74A2, 0x74B6]),
    amd("MI325X", 288, "CDNA3", &[0x74A5]),
    amd("MI350X", 288, "CDNA4", &[0x75A0]),
    amd("MI355X", 288, "CDNA4", &[0x75A3]),
    plain(Vendor::Google, "v2", 0),
    plain(Vendor::Google, "v3", 0),
    plain(Vendor::Google, "v4", 0),
    plain(Vendor::Google, "v5p", 0),
    plain(Vendor::Google, "v5litepod", 0),
    plain(Vendor::Google, "v6e", 0),
    plain(Vendor::Intel, "Gaudi", 32),
    plain(Vendor::Intel, "Gaudi2", 96),
    plain(Vendor::Intel, "Gaudi3", 128),
    plain(Vendor::Tenstorrent, "n150", 12),
    plain(Vendor::Tenstorrent, "n300", 24),
    plain(Vendor::Tenstorrent, "tt-galaxy-wh", 12),
    plain(Vendor::Tenstorrent, "p100a", 28),
    plain(Vendor::Tenstorrent, "p150", 32),
    plain(Vendor::Tenstorrent, "p300", 32),
    plain(Vendor::Tenstorrent, "p300", 64),
    plain(Vendor::Tenstorrent, "tt-galaxy-bh", 32),
];

/// All memory variants of a name, in table order.
pub fn find(name: &str) -> impl Iterator<Item = &'static Accelerator> {
    let lower = name.to_lowercase();
    ACCELERATORS
        .iter()
        .filter(move |known| known.name.to_lowercase() == lower)
}

/// The first entry of a name among the given vendors.
pub fn find_of(name: &str, vendors: &[Vendor]) -> Option<&'static Accelerator> {
    find(name).find(|known| vendors.contains(&known.vendor))
}

/// The CUDA compute capability of an NVIDIA model; looked up by name alone.
pub fn compute_capability(name: &str) -> Option<(u32, u32)> {
    find_of(name, &[Vendor::Nvidia])?.compute_capability
}

/// The vendor of the first entry of that name.
pub fn vendor_of(name: &str) -> Option<Vendor> {
    Some(find(name).next()?.vendor)
}

/// Whether the model is an NVIDIA GPU joined to an ARM CPU (GH200, GB200, GB300, GB10).
pub fn is_nvidia_superchip(name: &str) -> bool {
    let lower = name.to_lowercase();
    (lower.starts_with("gb") || lower.starts_with("gh")) && lower.chars().nth(2).is_some_and(char::is_numeric)
}

/// Whole GiB of a card that reports `mib`: the nearest known size when that is within 7 %, else rounded half to even.
pub fn correct_memory_gib(name: &str, mib: f64) -> f64 {
    let gib = mib / 1024.0;
    let nearest = find(name)
        .map(|known| f64::from(known.memory_gib))
        .min_by(|a, b| (a - gib).abs().total_cmp(&(b - gib).abs()));
    match nearest {
        Some(known) if known > 0.0 && (known - gib).abs() / known < 0.07 => known,
        _ => gib.round_ties_even(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_corrected_to_the_known_size() {
        for (name, mib, gib) in [
            ("H100NVL", 95830.0, 94.0),
            ("L40S", 46068.0, 48.0),
            ("A10G", 23028.0, 24.0),
            ("A10", 4096.0, 4.0),
            ("unknown", 8200.1, 8.0),
            ("v2", 8192.0, 8.0),
        ] {
            assert_eq!(correct_memory_gib(name, mib), gib, "{name}");
        }
    }

    #[test]
    fn names_are_looked_up_in_any_case_and_whole() {
        assert_eq!(compute_capability("a100"), Some((8, 0)));
        assert_eq!(compute_capability("A30"), None);
        assert_eq!(compute_capability("MI300X"), None);
        assert_eq!(vendor_of("GAUDI2"), Some(Vendor::Intel));
        assert_eq!(find("V100").count(), 2);
        assert!(is_nvidia_superchip("GH200") && is_nvidia_superchip("gb10") && !is_nvidia_superchip("G4"));
    }

    #[test]
    fn the_table_is_complete() {
        let count = |vendor| ACCELERATORS.iter().filter(|known| known.vendor == vendor).count();
        assert_eq!(Vendor::ALL.map(count), [68, 10, 6, 3, 8]);
    }
}
