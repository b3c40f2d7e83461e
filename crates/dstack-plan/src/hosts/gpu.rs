//! Marketing names of GPUs as the catalog writes them (dstack 0.22.5: shim §3).

/// The catalog's name of an NVIDIA card: `NVIDIA H100 80GB HBM3` → `H100`.
fn nvidia(raw: &str) -> String {
    let mut name = raw.to_owned();
    for word in ["NVIDIA ", "Tesla ", "Quadro ", "GeForce "] {
        name = name.replace(word, "");
    }
    if name.contains("GH200") {
        return "GH200".to_owned();
    }
    if let Some(model) = name.find("RTX A").and_then(|at| name.get(at + 4..)) {
        let model: String = model.chars().take_while(char::is_ascii_alphanumeric).collect();
        return model;
    }
    name = name
        .replace(" Ti", "Ti")
        .replace(" SUPER", "SUPER")
        .replace(" NVL", "NVL")
        .replace(" Ada Generation", "Ada");
    name = name.replace("RTX ", "RTX");
    // The first word that looks like a model of the data centre: a letter, digits, anything.
    let model = name.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| {
        let mut letters = word.chars();
        letters.next().is_some_and(|c| "AHLPTVB".contains(c))
            && letters.next().is_some_and(|c| c.is_ascii_digit())
    });
    model.map_or_else(|| name.replace(' ', ""), str::to_owned)
}

fn amd(raw: &str) -> String {
    let model = raw
        .split(|c: char| !c.is_ascii_alphanumeric())
        .find(|word| word.starts_with("MI"));
    model.unwrap_or(raw).to_owned()
}

fn intel(raw: &str) -> String {
    for (board, name) in [
        ("HL-205", "Gaudi"),
        ("HL-225", "Gaudi2"),
        ("HL-325", "Gaudi3"),
        ("HL-338", "Gaudi3"),
    ] {
        if raw.contains(board) {
            return name.to_owned();
        }
    }
    raw.to_owned()
}

/// The catalog's name of a card, by vendor (`nvidia`, `amd`, …).
pub fn catalog_name(vendor: &str, raw: &str) -> String {
    match vendor {
        "nvidia" => nvidia(raw),
        "amd" => amd(raw),
        "intel" => intel(raw),
        _ => raw.to_owned(),
    }
}

/// The memory that the card is sold with, where the catalog knows it: tools report a little less. In MiB.
pub fn marketed_memory(name: &str, reported_mib: u64) -> u64 {
    let nearest = dstack_units::accelerators::find(name)
        .map(|known| u64::from(known.memory_gib) * 1024)
        .filter(|mib| *mib > 0)
        .min_by_key(|mib| mib.abs_diff(reported_mib));
    nearest
        .filter(|mib| mib.abs_diff(reported_mib) * 10 <= *mib)
        .unwrap_or(reported_mib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_catalog() {
        for (raw, name) in [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA GH200 480GB", "GH200"),
            ("NVIDIA RTX A6000", "A6000"),
            ("NVIDIA GeForce RTX 3060 Ti", "RTX3060Ti"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
            ("Tesla T4", "T4"),
            ("NVIDIA A100-SXM4-40GB", "A100"),
        ] {
            assert_eq!(catalog_name("nvidia", raw), name, "{raw}");
        }
        assert_eq!(catalog_name("amd", "MI300X-O"), "MI300X");
        assert_eq!(catalog_name("intel", "HL-225"), "Gaudi2");
    }

    #[test]
    fn memory_is_the_marketed_one() {
        assert_eq!(marketed_memory("A100", 40_960), 40 * 1024);
        assert_eq!(marketed_memory("A100", 81_559), 80 * 1024);
        assert_eq!(marketed_memory("Unknown", 12_345), 12_345);
    }
}
