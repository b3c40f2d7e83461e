//! NVIDIA's DCGM exporter as a child process, and its metrics filtered to one task's GPUs.
//!
//! GPU health needs libdcgm, which a static binary cannot load: `dcgm` in the health answer is always null.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::http::{AgentHttp, Call, CallError, TcpConnector};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::Instant;

const PROGRAM: &str = "dcgm-exporter";
const FETCH_LIMIT: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(5);

/// A running exporter.
pub struct Exporter {
    http: AgentHttp,
    interval: Duration,
    child: Mutex<Child>,
    cache: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Exporter {
    /// Starts it where the program exists and works; its absence is only a warning.
    pub async fn start(home: &Path, port: u16, interval_ms: u64) -> Option<Self> {
        let works = Command::new(PROGRAM)
            .arg("-v")
            .stdin(Stdio::null())
            .output()
            .await;
        if !works.is_ok_and(|output| output.status.success()) {
            tracing::warn!("dcgm-exporter is not installed: no GPU metrics for Prometheus");
            return None;
        }
        match Self::spawn(home, port, interval_ms) {
            Ok(exporter) => Some(exporter),
            Err(error) => {
                tracing::warn!(%error, "cannot start dcgm-exporter");
                None
            }
        }
    }

    fn spawn(home: &Path, port: u16, interval_ms: u64) -> std::io::Result<Self> {
        let counters = home.join("dcgm-exporter.csv");
        fs_err::write(&counters, counters_csv())?;
        let child = Command::new(PROGRAM)
            .arg("-f")
            .arg(&counters)
            .args(["-a", &format!("localhost:{port}"), "-c", &interval_ms.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self {
            http: AgentHttp::new(Arc::new(TcpConnector { address })),
            interval: Duration::from_millis(interval_ms),
            child: Mutex::new(child),
            cache: Mutex::default(),
        })
    }

    /// The metrics of these GPUs.
    pub async fn metrics(&self, gpus: &[String]) -> Result<String, CallError> {
        let mut cache = self.cache.lock().await;
        if let Some((when, text)) = &*cache
            && when.elapsed() < self.interval
        {
            return Ok(filter(text, gpus));
        }
        let answer = self.http.send(Call::get("/metrics").within(FETCH_LIMIT)).await?;
        let text: Arc<str> = String::from_utf8_lossy(&answer.body).into();
        *cache = Some((Instant::now(), text.clone()));
        Ok(filter(&text, gpus))
    }

    /// Ends it: TERM, and KILL after 5 s.
    pub async fn stop(&self) {
        let mut child = self.child.lock().await;
        if let Some(pid) = child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}

/// Sample lines that name one of the GPUs, below the comments of their metric.
fn filter(text: &str, gpus: &[String]) -> String {
    let mut kept = String::new();
    let mut comments = String::new();
    let mut in_comments = false;
    for line in text.lines() {
        if line.starts_with('#') {
            if !in_comments {
                comments.clear();
            }
            in_comments = true;
            comments.push_str(line);
            comments.push('\n');
            continue;
        }
        in_comments = false;
        if gpus.iter().any(|gpu| line.contains(gpu.as_str())) {
            kept.push_str(&std::mem::take(&mut comments));
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

const DEVICE_GAUGES: &[&str] = &[
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "FB_FREE",
    "FB_USED",
    "SM_CLOCK",
    "MEM_CLOCK",
    "MEMORY_TEMP",
    "GPU_TEMP",
    "POWER_USAGE",
    "XID_ERRORS",
    "ROW_REMAP_FAILURE",
];
const PROFILE_GAUGES: &[&str] = &[
    "GR_ENGINE_ACTIVE",
    "SM_ACTIVE",
    "SM_OCCUPANCY",
    "PIPE_TENSOR_ACTIVE",
    "PIPE_FP64_ACTIVE",
    "PIPE_FP32_ACTIVE",
    "PIPE_FP16_ACTIVE",
    "PIPE_INT_ACTIVE",
    "DRAM_ACTIVE",
];
const PROFILE_COUNTERS: &[&str] = &[
    "PCIE_TX_BYTES",
    "PCIE_RX_BYTES",
    "NVLINK_RX_BYTES",
    "NVLINK_TX_BYTES",
];
const DEVICE_COUNTERS: &[&str] = &[
    "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER",
    "POWER_VIOLATION",
    "THERMAL_VIOLATION",
    "SYNC_BOOST_VIOLATION",
    "BOARD_LIMIT_VIOLATION",
    "LOW_UTIL_VIOLATION",
    "RELIABILITY_VIOLATION",
    "ECC_SBE_VOL_TOTAL",
    "ECC_DBE_VOL_TOTAL",
    "ECC_SBE_AGG_TOTAL",
    "ECC_DBE_AGG_TOTAL",
    "RETIRED_SBE",
    "RETIRED_DBE",
    "RETIRED_PENDING",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "CORRECTABLE_REMAPPED_ROWS",
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "NVLINK_BANDWIDTH_TOTAL",
    "NVLINK_BANDWIDTH_L0",
];

/// The exporter's list of what to collect: `name, type, help`.
fn counters_csv() -> String {
    let groups = [
        ("DEV", DEVICE_GAUGES, "gauge"),
        ("PROF", PROFILE_GAUGES, "gauge"),
        ("PROF", PROFILE_COUNTERS, "counter"),
        ("DEV", DEVICE_COUNTERS, "counter"),
    ];
    let mut text = String::new();
    for (prefix, names, kind) in groups {
        for name in names {
            let help = name.to_lowercase().replace('_', " ");
            text.push_str(&format!("DCGM_FI_{prefix}_{name}, {kind}, {help}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP A a\n# TYPE A gauge\nA{UUID=\"GPU-1\"} 1\nA{UUID=\"GPU-2\"} 2\n# HELP B b\n# TYPE B gauge\nB{UUID=\"GPU-2\"} 3\n";

    #[test]
    fn only_the_tasks_gpus() {
        assert_eq!(
            filter(TEXT, &["GPU-1".into()]),
            "# HELP A a\n# TYPE A gauge\nA{UUID=\"GPU-1\"} 1\n"
        );
        assert_eq!(filter(TEXT, &["GPU-1".into(), "GPU-2".into()]), TEXT);
        assert_eq!(filter(TEXT, &[]), "");
    }

    #[test]
    fn counters_have_names_types_and_help() {
        let csv = counters_csv();
        assert!(csv.contains("DCGM_FI_DEV_GPU_UTIL, gauge, gpu util\n"));
        assert!(csv.contains("DCGM_FI_PROF_PCIE_TX_BYTES, counter, "));
        assert_eq!(csv.lines().count(), 13 + 9 + 4 + 23);
    }
}
