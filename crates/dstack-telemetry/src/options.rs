//! What is wanted, and why it cannot be had.

use dstack_system::Secret;

use crate::sampling::Rates;

/// What is sent, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// Version of the server.
    pub version: &'static str,
    /// Name of this process, unlike that of any other: for servers that share a database.
    pub instance: String,
    /// Such as `production`: a label.
    pub environment: String,
    /// Traces to an OpenTelemetry collector; `None`: none.
    pub traces: Option<Rates>,
    /// The log to an OpenTelemetry collector.
    pub logs: bool,
    /// Metrics; `None`: none.
    pub metrics: Option<MetricsExporters>,
    /// Errors and traces to Sentry.
    pub sentry: Option<SentryOptions>,
}

impl Options {
    /// Whether nothing is wanted.
    pub const fn is_off(&self) -> bool {
        self.traces.is_none() && !self.logs && self.metrics.is_none() && self.sentry.is_none()
    }
}

/// Where metrics go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsExporters {
    /// To an OpenTelemetry collector.
    pub otlp: bool,
    /// To whoever reads `/metrics`.
    pub prometheus: bool,
}

impl MetricsExporters {
    /// A list as in `otlp,prometheus`.
    ///
    /// # Errors
    /// Another name in it.
    pub fn parse(list: &str) -> Result<Self, TelemetryError> {
        let mut exporters = Self {
            otlp: false,
            prometheus: false,
        };
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "otlp" => exporters.otlp = true,
                "prometheus" => exporters.prometheus = true,
                other => return Err(TelemetryError::UnknownExporter(other.to_owned())),
            }
        }
        Ok(exporters)
    }
}

/// A project of Sentry.
#[derive(Debug, Clone)]
pub struct SentryOptions {
    /// Where it is, with the key to write there.
    pub dsn: Secret,
    /// Which traces are sent.
    pub rates: Rates,
}

/// Why telemetry cannot be sent. The server does not start then: whoever asked for it relies on it.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// In `DSTACK_OTEL_METRICS_EXPORTERS`.
    #[error("unknown exporter `{0}` in DSTACK_OTEL_METRICS_EXPORTERS: use prometheus or otlp")]
    UnknownExporter(String),
    /// `OTEL_EXPORTER_OTLP_…` say something that cannot be.
    #[error("OpenTelemetry cannot be set up: look at the variables OTEL_EXPORTER_OTLP_*")]
    Otlp(#[source] opentelemetry_otlp::ExporterBuildError),
    /// The exporter for `/metrics`.
    #[error("metrics for Prometheus cannot be set up")]
    Prometheus(#[source] opentelemetry_sdk::error::OTelSdkError),
    /// Not printed: it holds a key.
    #[error("DSTACK_SENTRY_DSN is not the DSN of a Sentry project: https://KEY@HOST/PROJECT")]
    Dsn,
    /// No thread, or no client.
    #[error("telemetry cannot be sent from this process")]
    ExportWorker(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporters_are_a_list() {
        let parse = |list| MetricsExporters::parse(list).unwrap();
        let both = MetricsExporters {
            otlp: true,
            prometheus: true,
        };
        assert_eq!(parse("otlp, prometheus"), both);
        assert_eq!(parse("prometheus,"), MetricsExporters { otlp: false, ..both });
        assert!(!parse("").otlp);
        let error = MetricsExporters::parse("otlp,stdout").unwrap_err().to_string();
        assert!(error.contains("`stdout`"), "{error}");
    }
}
