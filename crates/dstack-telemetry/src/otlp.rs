//! What goes to an OpenTelemetry collector: OTLP over HTTP as protobuf, to where the standard variables
//! `OTEL_EXPORTER_OTLP_*` say.

use std::time::Duration;

use dstack_system::env;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    LogExporter, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::PeriodicReader;
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::export_worker::{ExportWorker, ExporterClient};
use crate::failure_reporter::FailureReporter;
use crate::options::{Options, TelemetryError};
use crate::sampling::Rates;

/// Name of what makes our spans and metrics (dstack 0.22.5).
pub(crate) const SCOPE: &str = "dstack.server";

/// Who we are. `OTEL_RESOURCE_ATTRIBUTES` may add to it.
pub(crate) fn resource(options: &Options) -> Resource {
    Resource::builder()
        .with_attributes([
            KeyValue::new("service.name", "dstack-server"),
            // Metrics of servers that share a database are told apart by it.
            KeyValue::new("service.instance.id", options.instance.clone()),
            KeyValue::new("service.version", options.version),
            KeyValue::new("deployment.environment.name", options.environment.clone()),
        ])
        .build()
}

pub(crate) fn traces(
    export_worker: &ExportWorker,
    rates: Rates,
    resource: Resource,
) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client(export_worker, "OpenTelemetry traces", "TRACES"))
        .build()
        .map_err(TelemetryError::Otlp)?;
    Ok(SdkTracerProvider::builder()
        .with_sampler(rates.sampler())
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build())
}

pub(crate) fn logs(
    export_worker: &ExportWorker,
    resource: Resource,
) -> Result<SdkLoggerProvider, TelemetryError> {
    let exporter = LogExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client(export_worker, "OpenTelemetry logs", "LOGS"))
        .build()
        .map_err(TelemetryError::Otlp)?;
    Ok(SdkLoggerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build())
}

pub(crate) fn metrics(
    export_worker: &ExportWorker,
) -> Result<PeriodicReader<MetricExporter>, TelemetryError> {
    let exporter = MetricExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client(export_worker, "OpenTelemetry metrics", "METRICS"))
        .build()
        .map_err(TelemetryError::Otlp)?;
    Ok(PeriodicReader::builder(exporter).build())
}

fn client(export_worker: &ExportWorker, what: &'static str, signal: &str) -> ExporterClient {
    ExporterClient {
        export_worker: export_worker.clone(),
        within: timeout(
            env::var(&format!("OTEL_EXPORTER_OTLP_{signal}_TIMEOUT"))
                .or_else(|| env::var("OTEL_EXPORTER_OTLP_TIMEOUT"))
                .as_deref(),
        ),
        failure_reporter: FailureReporter::about(what),
    }
}

/// Milliseconds; 10 s unless said otherwise (OpenTelemetry's specification).
fn timeout(said: Option<&str>) -> Duration {
    let millis = said.and_then(|text| text.trim().parse().ok());
    Duration::from_millis(millis.unwrap_or(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_milliseconds() {
        assert_eq!(timeout(Some(" 250 ")), Duration::from_millis(250));
        assert_eq!(timeout(None), Duration::from_secs(10));
        assert_eq!(timeout(Some("soon")), Duration::from_secs(10));
    }
}
