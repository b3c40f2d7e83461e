//! GPUs as configurations name them: `[vendor:]name[:memory]`.

use dstack_model::instances::Gpu;
use dstack_units::accelerators::{ACCELERATORS, Accelerator};
use dstack_units::{AcceleratorVendor, Memory};

/// Reads the name of a GPU. What is not given, the list of known GPUs tells.
///
/// # Errors
/// It is no such text, or it may mean several GPUs or none; the text is for users.
pub(crate) fn read(text: &str) -> Result<Gpu, String> {
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(format!(
            "`{text}` has an empty part: `[vendor:]name[:memory]` is needed"
        ));
    }
    match parts.as_slice() {
        [vendor, name, memory] => Ok(Gpu {
            name: (*name).to_owned(),
            memory_mib: mib(read_memory(memory)?),
            vendor: Some(
                vendor
                    .parse()
                    .map_err(|_| format!("`{vendor}` is no vendor of GPUs"))?,
            ),
        }),
        [first, second] => match first.parse() {
            Ok(vendor) => known(second, Some(vendor), None),
            Err(_) => known(first, None, Some(read_memory(second)?)),
        },
        [name] => known(name, None, None),
        _ => Err(format!(
            "`{text}` has too many parts: `[vendor:]name[:memory]` is needed"
        )),
    }
}

fn read_memory(text: &str) -> Result<Memory, String> {
    let memory: Memory = text
        .parse()
        .map_err(|_| format!("`{text}` is no size of memory, such as `80GB`"))?;
    match memory.gb() > 0.0 {
        true => Ok(memory),
        false => Err(format!("`{text}` is no size of memory, such as `80GB`")),
    }
}

#[allow(clippy::cast_possible_truncation)] // sizes of GPUs
fn mib(memory: Memory) -> i64 {
    memory.mib().round() as i64
}

/// The one GPU of that name in the list of known ones.
fn known(name: &str, vendor: Option<AcceleratorVendor>, memory: Option<Memory>) -> Result<Gpu, String> {
    let plain = name.replace(' ', "");
    let is_meant = |gpu: &&Accelerator| {
        gpu.name.eq_ignore_ascii_case(&plain)
            && vendor.is_none_or(|vendor| vendor == gpu.vendor)
            && memory.is_none_or(|memory| mib(memory) == i64::from(gpu.memory_gib) * 1024)
    };
    let mut found = ACCELERATORS.iter().filter(is_meant);
    match (found.next(), found.next()) {
        (Some(gpu), None) => Ok(Gpu {
            name: gpu.name.to_owned(),
            memory_mib: i64::from(gpu.memory_gib) * 1024,
            vendor: Some(gpu.vendor),
        }),
        (None, _) => Err(format!(
            "no matching GPU model found for `{name}`: name it in full as `vendor:name:memory`, such as `nvidia:A100:80GB`"
        )),
        (Some(one), Some(other)) => Err(format!(
            "multiple matching GPU models found for `{name}`, with {}GB and with {}GB: add the memory, such as `{name}:{}GB`",
            one.memory_gib, other.memory_gib, one.memory_gib
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_in_full_or_looked_up() {
        for (text, name, gib, vendor) in [
            ("H100", "H100", 80, AcceleratorVendor::Nvidia),
            ("h100", "H100", 80, AcceleratorVendor::Nvidia),
            ("A100:80GB", "A100", 80, AcceleratorVendor::Nvidia),
            ("amd:MI300X", "MI300X", 192, AcceleratorVendor::Amd),
            ("nvidia:Rubin:288GB", "Rubin", 288, AcceleratorVendor::Nvidia),
        ] {
            let gpu = read(text).unwrap();
            assert_eq!(
                (gpu.name.as_str(), gpu.memory_mib, gpu.vendor),
                (name, gib * 1024, Some(vendor))
            );
        }
    }

    #[test]
    fn what_names_no_single_gpu_is_refused_in_words() {
        for (text, expected) in [
            ("A100", "multiple matching GPU models found for `A100`"),
            ("Rubin", "no matching GPU model found for `Rubin`"),
            ("amd:H100", "no matching GPU model found"),
            ("H100:much", "`much` is no size of memory"),
            ("H100:0GB", "`0GB` is no size of memory"),
            ("nobody:X:1GB", "`nobody` is no vendor"),
            ("", "has an empty part"),
            ("a:b:c:d", "too many parts"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
