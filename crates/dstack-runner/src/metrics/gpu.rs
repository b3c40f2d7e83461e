//! GPU usage, from the vendor's tool in the image.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use dstack_agent_api::runner::GpuMetrics;

const MIB: i64 = 1024 * 1024;
/// A tool that hangs on a broken driver must not hold up the answer (the server waits 9 s).
const TOOL_TIMEOUT: Duration = Duration::from_secs(5);

/// How to ask a vendor's tool.
struct Tool {
    /// Exists in `/dev` where the container has such GPUs.
    device: &'static str,
    command: &'static [&'static str],
    parse: fn(&str) -> Option<Vec<GpuMetrics>>,
}

const TOOLS: [Tool; 3] = [
    Tool {
        device: "/dev/nvidiactl",
        command: &[
            "nvidia-smi",
            "--query-gpu=memory.used,utilization.gpu",
            "--format=csv,noheader,nounits",
        ],
        parse: parse_rows,
    },
    Tool {
        device: "/dev/accel",
        command: &[
            "hl-smi",
            "--query-aip=memory.used,utilization.aip",
            "--format=csv,noheader,nounits",
        ],
        parse: parse_rows,
    },
    Tool {
        device: "/dev/kfd",
        command: &["amd-smi", "monitor", "-vu", "--csv"],
        parse: parse_amd,
    },
];

/// The container's GPUs in the tool's order; empty when there are none or the tool fails.
pub(super) async fn collect() -> Vec<GpuMetrics> {
    let Some(tool) = TOOLS.iter().find(|tool| Path::new(tool.device).exists()) else {
        return Vec::new();
    };
    output(tool.command)
        .await
        .and_then(|text| (tool.parse)(&text))
        .unwrap_or_default()
}

async fn output(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let run = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(TOOL_TIMEOUT, run).await.ok()?.ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `memory in MiB, utilisation in percent`, a line for each GPU.
fn parse_rows(text: &str) -> Option<Vec<GpuMetrics>> {
    let row = |line: &str| {
        let (memory, utilisation) = line.split_once(',')?;
        gpu(memory, utilisation)
    };
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(row)
        .collect()
}

/// With a header that names the columns.
fn parse_amd(text: &str) -> Option<Vec<GpuMetrics>> {
    let mut lines = text.lines().filter(|line| line.contains(','));
    let header: Vec<&str> = lines.next()?.split(',').map(str::trim).collect();
    let column = |name: &str| header.iter().position(|column| *column == name);
    let (utilisation, memory) = (column("gfx")?, column("vram_used")?);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        gpu(cells.get(memory)?, cells.get(utilisation)?)
    };
    lines.map(row).collect()
}

fn gpu(memory_mib: &str, utilisation: &str) -> Option<GpuMetrics> {
    Some(GpuMetrics {
        gpu_memory_usage_bytes: memory_mib.trim().parse::<i64>().ok()?.checked_mul(MIB)?,
        gpu_util_percent: utilisation.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn used(mib: i64, percent: i64) -> GpuMetrics {
        GpuMetrics {
            gpu_memory_usage_bytes: mib * MIB,
            gpu_util_percent: percent,
        }
    }

    #[test]
    fn nvidia() {
        assert_eq!(
            parse_rows("10, 5\n20, 100\n"),
            Some(vec![used(10, 5), used(20, 100)])
        );
        assert_eq!(parse_rows("[N/A], 5\n"), None);
        assert_eq!(parse_rows(""), Some(vec![]));
    }

    #[test]
    fn amd_by_header() {
        let text = "gpu,gfx,gfx_clock,vram_used,vram_total\n0,7,132,283,196300\n1,0,131,284,196300\n";
        assert_eq!(parse_amd(text), Some(vec![used(283, 7), used(284, 0)]));
        assert_eq!(parse_amd("gpu,gfx,vram_used\n0,N/A,283\n"), None);
        assert_eq!(parse_amd("gpu,vram_used\n0,283\n"), None);
    }
}
