//! NVIDIA: nvidia-smi.

use std::time::Duration;

use super::{DetectError, Gpu, known_version, rows, stdout_of};
use crate::command::Commands;

pub(super) async fn detect(commands: &dyn Commands) -> Result<Vec<Gpu>, DetectError> {
    let args = [
        "--query-gpu=name,memory.total,uuid,driver_version",
        "--format=csv,noheader,nounits",
    ];
    let output = commands.run("nvidia-smi", &args, Duration::from_secs(60)).await?;
    Ok(parse(&stdout_of("nvidia-smi", output)?))
}

/// Rows of `name, memory MiB, uuid, driver`; others are skipped.
fn parse(text: &str) -> Vec<Gpu> {
    rows(text)
        .filter_map(|row| match row.as_slice() {
            [name, memory, uuid, driver] => Some(Gpu {
                name: name.clone(),
                memory_mib: memory.parse().unwrap_or(0),
                id: uuid.clone(),
                driver_version: known_version(driver),
            }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::recorded::Recorded;

    // Printed by nvidia-smi on an H200 host; the second by a host with an unreadable memory size.
    const H200: &str = "NVIDIA H200, 143771, GPU-5e0aa9f5-47cf-4a5a-0e8e-d9c9a5f3a8f1, 570.86.15\n";
    const MIXED: &str = "Tesla T4, 15360, GPU-1, [N/A]\nTesla T4, [N/A], GPU-2, 535.183.01\nbroken line\n";

    #[tokio::test]
    async fn h200() {
        let line =
            "nvidia-smi --query-gpu=name,memory.total,uuid,driver_version --format=csv,noheader,nounits";
        let found = detect(&Recorded::default().answer(line, 0, H200)).await.unwrap();
        assert_eq!(
            found,
            [Gpu {
                name: "NVIDIA H200".into(),
                memory_mib: 143_771,
                id: "GPU-5e0aa9f5-47cf-4a5a-0e8e-d9c9a5f3a8f1".into(),
                driver_version: "570.86.15".into(),
            }]
        );
        let failed = detect(&Recorded::default().answer(line, 9, "")).await;
        assert!(
            matches!(failed, Err(DetectError::Failed { code: Some(9), .. })),
            "{failed:?}"
        );
    }

    #[test]
    fn odd_rows() {
        let found = parse(MIXED);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].memory_mib, found[0].driver_version.as_str()),
            (15_360, "")
        );
        assert_eq!((found[1].memory_mib, found[1].id.as_str()), (0, "GPU-2"));
    }
}
