//! What the server tells of itself to others: OpenTelemetry (traces, logs, metrics) and Sentry.
//!
//! Everything is made from spans and events of `tracing`. Spans of requests are made here ([`http`]), those of the work in
//! the background in `dstack_system::observe`; both have a target of their own, which the log does not show. What is
//! switched on is a layer of the subscriber ([`Telemetry::layers`]); what is not costs nothing: there is no layer, no span
//! and no thread for it.
//!
//! * [`options`] — what is wanted.
//! * `sampling` — which traces are kept.
//! * `otlp` — what goes to an OpenTelemetry collector; `export_worker` carries it, `failure_reporter` says when that fails.
//! * `metrics`, `process`, `task_runs` — instruments.
//! * `sentry` — errors and traces for Sentry.

mod export_worker;
mod failure_reporter;
pub mod http;
mod metrics;
pub mod options;
mod otlp;
mod process;
mod sampling;
mod sentry;
mod task_runs;
mod telemetry;

pub use options::{MetricsExporters, Options, SentryOptions, TelemetryError};
pub use sampling::Rates;
pub use telemetry::{BoxedLayer, Telemetry};
