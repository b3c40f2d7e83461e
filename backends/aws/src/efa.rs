//! Elastic Fabric Adapters in containers.

/// Types with GPUs and EFA, by family: on these, jobs in the server's own image get the one with EFA's libraries (dstack 0.22.5).
const TYPES: &[(&str, &[&str])] = &[
    ("p6-b300", &["48xlarge"]),
    ("p6-b200", &["48xlarge"]),
    ("p5", &["4xlarge", "48xlarge"]),
    ("p5e", &["48xlarge"]),
    ("p5en", &["48xlarge"]),
    ("p4d", &["24xlarge"]),
    ("p4de", &["24xlarge"]),
    ("g7", &["8xlarge", "12xlarge", "24xlarge", "48xlarge"]),
    ("g7e", &["8xlarge", "12xlarge", "24xlarge", "48xlarge"]),
    ("g6", &["8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"]),
    (
        "g6e",
        &["8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"],
    ),
    ("gr6", &["8xlarge"]),
    ("g5", &["8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"]),
    ("g4dn", &["8xlarge", "12xlarge", "16xlarge", "metal"]),
    ("p3dn", &["24xlarge"]),
];

/// Whether jobs on machines of this type need the libraries in their image.
pub(crate) fn is_in_image(instance_type: &str) -> bool {
    let Some((family, size)) = instance_type.split_once('.') else {
        return false;
    };
    let sizes = TYPES.iter().find(|(known, _)| *known == family);
    sizes.is_some_and(|(_, sizes)| sizes.contains(&size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_whole_names() {
        for with in [
            "p5.4xlarge",
            "p5.48xlarge",
            "g4dn.metal",
            "p6-b300.48xlarge",
            "gr6.8xlarge",
        ] {
            assert!(is_in_image(with), "{with}");
        }
        for without in [
            "g5.xlarge",
            "g5.4xlarge",
            "p4d.24xlarge.x",
            "xp4d.24xlarge",
            "p5.16xlarge",
            "gr6.4xlarge",
            "m5.8xlarge",
            "c5n.18xlarge",
            "p5",
            "",
        ] {
            assert!(!is_in_image(without), "{without}");
        }
    }
}
