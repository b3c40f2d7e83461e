//! Instruments: names, units and labels are those of dstack 0.22.5 and of OpenTelemetry's conventions for HTTP servers.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};
use tokio::time::Instant;

use crate::export_worker::ExportWorker;
use crate::options::{MetricsExporters, TelemetryError};
use crate::otlp::{self, SCOPE};
use crate::process::{CpuTime, Status, Utilization, descriptors};

/// In seconds (OpenTelemetry's conventions for HTTP servers).
const DURATIONS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// All metrics of this process.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) provider: SdkMeterProvider,
    /// What `/metrics` shows of them.
    registry: Option<Registry>,
    /// Durations of HTTP requests to the server.
    pub(crate) requests: Histogram<f64>,
    /// Work in the background.
    pub(crate) task_runs: Counter<u64>,
}

impl Metrics {
    /// `export_worker`: to the collector.
    pub(crate) fn start(
        exporters: MetricsExporters,
        export_worker: Option<&ExportWorker>,
        resource: Resource,
    ) -> Result<Self, TelemetryError> {
        let mut builder = SdkMeterProvider::builder().with_resource(resource);
        if let Some(export_worker) = export_worker.filter(|_| exporters.otlp) {
            builder = builder.with_reader(otlp::metrics(export_worker)?);
        }
        let registry = exporters.prometheus.then(Registry::new);
        if let Some(registry) = &registry {
            let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
            builder = builder.with_reader(exporter.build().map_err(TelemetryError::Prometheus)?);
        }
        let provider = builder.build();
        let meter = provider.meter(SCOPE);
        of_process(&meter);
        Ok(Self {
            registry,
            requests: meter
                .f64_histogram("http.server.request.duration")
                .with_unit("s")
                .with_description("Duration of HTTP server requests.")
                .with_boundaries(DURATIONS.to_vec())
                .build(),
            task_runs: meter
                .u64_counter("dstack.server.background.task.runs")
                .with_unit("{run}")
                .with_description("The number of background task runs")
                .build(),
            provider,
        })
    }

    /// In Prometheus' text format; `None`: not asked for.
    pub(crate) fn text(&self) -> Option<String> {
        let families = self.registry.as_ref()?.gather();
        // Fails for families without samples only, of which there are none.
        TextEncoder::new().encode_to_string(&families).ok()
    }
}

/// Reads a number; `None`: not now.
type Read = fn() -> Option<i64>;

fn of_process(meter: &Meter) {
    let kind = |kind| [KeyValue::new("type", kind)];
    meter
        .f64_observable_counter("process.cpu.time")
        .with_unit("s")
        .with_description("Total CPU seconds broken down by different states.")
        .with_callback(move |seen| {
            if let Some(CpuTime { user, system }) = CpuTime::read() {
                seen.observe(user, &kind("user"));
                seen.observe(system, &kind("system"));
            }
        })
        .build();
    let utilization = Arc::new(Utilization::new());
    meter
        .f64_observable_gauge("process.cpu.utilization")
        .with_unit("1")
        .with_description("Share of all CPUs that was used since the last measurement.")
        .with_callback(move |seen| {
            let used = CpuTime::read().and_then(|used| utilization.look(Instant::now(), used));
            if let Some(CpuTime { user, system }) = used {
                seen.observe(user, &kind("user"));
                seen.observe(system, &kind("system"));
            }
        })
        .build();
    let gauges: [(_, _, _, Read); 4] = [
        (
            "process.memory.usage",
            "By",
            "The amount of physical memory in use.",
            || Some(Status::read()?.resident),
        ),
        (
            "process.memory.virtual",
            "By",
            "The amount of virtual memory.",
            || Some(Status::read()?.virtual_memory),
        ),
        (
            "process.thread.count",
            "{thread}",
            "Process threads count.",
            || Some(Status::read()?.threads),
        ),
        (
            "process.open_file_descriptor.count",
            "{file_descriptor}",
            "Number of file descriptors in use by the process.",
            descriptors,
        ),
    ];
    for (name, unit, description, read) in gauges {
        meter
            .i64_observable_up_down_counter(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |seen| {
                if let Some(value) = read() {
                    seen.observe(value, &[]);
                }
            })
            .build();
    }
    meter
        .u64_observable_counter("process.context_switches")
        .with_unit("{context_switch}")
        .with_description("Number of times the process has been context switched.")
        .with_callback(move |seen| {
            if let Some(status) = Status::read() {
                seen.observe(status.involuntary_switches, &kind("involuntary"));
                seen.observe(status.voluntary_switches, &kind("voluntary"));
            }
        })
        .build();
}
