//! Starting and stopping all of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::sentry::integrations::tracing::{BreadcrumbLayer, ErrorLayer, SpanLayer};
use dstack_system::{Locked, observe, task};
use opentelemetry::trace::TracerProvider;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt, FilterFn, filter_fn};
use tracing_subscriber::{Layer, Registry};

use crate::export_worker::ExportWorker;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::options::{Options, TelemetryError};
use crate::otlp::{self, SCOPE};
use crate::task_runs::TaskRuns;

/// A layer of the subscriber.
pub type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What sends telemetry says things itself, also in the midst of sending: those are never sent.
const OWN: [&str; 8] = [
    "dstack_telemetry",
    "opentelemetry",
    "sentry",
    "hyper",
    "h2",
    "reqwest",
    "rustls",
    "tower",
];

/// Telemetry of this process; nothing unless started. Cheap to clone.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<Parts>>);

struct Parts {
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    metrics: Option<Metrics>,
    sentry: Option<Arc<::sentry::Client>>,
    runtime: Locked<Option<Runtime>>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Telemetry(on)"
        } else {
            "Telemetry(off)"
        })
    }
}

impl Telemetry {
    /// Starts what is wanted. Once in a process, and before other threads are started.
    ///
    /// # Errors
    /// What is wanted makes no sense, or cannot be had.
    pub fn start(options: &Options) -> Result<Self, TelemetryError> {
        if options.is_off() {
            return Ok(Self::default());
        }
        let sends = options.traces.is_some()
            || options.logs
            || options.sentry.is_some()
            || options.metrics.is_some_and(|exporters| exporters.otlp);
        let (export_worker, runtime) = match sends {
            true => {
                let (export_worker, runtime) = ExportWorker::start()?;
                (Some(export_worker), Some(runtime))
            }
            false => (None, None),
        };
        let resource = otlp::resource(options);
        let mut parts = Parts {
            traces: None,
            logs: None,
            metrics: None,
            sentry: None,
            runtime: Locked::new(runtime),
        };
        if let Some(export_worker) = &export_worker {
            if let Some(rates) = options.traces {
                parts.traces = Some(otlp::traces(export_worker, rates, resource.clone())?);
            }
            if options.logs {
                parts.logs = Some(otlp::logs(export_worker, resource.clone())?);
            }
            if let Some(sentry) = &options.sentry {
                parts.sentry = Some(crate::sentry::start(sentry, options, export_worker)?);
            }
        }
        if let Some(exporters) = options.metrics {
            parts.metrics = Some(Metrics::start(exporters, export_worker.as_ref(), resource)?);
        }
        Ok(Self(Some(Arc::new(parts))))
    }

    /// Layers that make telemetry of spans and of the log; `filter` is that of the log, and holds for what is sent of it.
    pub fn layers(&self, filter: impl Fn() -> EnvFilter) -> Vec<BoxedLayer> {
        let mut layers: Vec<BoxedLayer> = Vec::new();
        let Some(parts) = &self.0 else { return layers };
        if let Some(traces) = &parts.traces {
            let layer = tracing_opentelemetry::layer()
                .with_tracer(traces.tracer(SCOPE))
                .with_location(false)
                .with_threads(false)
                .with_level(false)
                .with_target(false)
                .with_tracked_inactivity(false);
            layers.push(layer.with_filter(observed()).boxed());
        }
        if let Some(logs) = &parts.logs {
            let filter = filter().and(filter_fn(|record| record.is_event() && !is_own(record)));
            layers.push(OpenTelemetryTracingBridge::new(logs).with_filter(filter).boxed());
        }
        if let Some(metrics) = &parts.metrics {
            let layer = TaskRuns(metrics.task_runs.clone());
            layers.push(layer.with_filter(observed()).boxed());
        }
        if parts.sentry.is_some() {
            layers.push(SpanLayer::new().with_filter(observed()).boxed());
            let before = filter().and(at(&[Level::WARN, Level::INFO]));
            layers.push(BreadcrumbLayer::new().with_filter(before).boxed());
            let errors = filter().and(at(&[Level::ERROR]));
            layers.push(ErrorLayer::new().with_filter(errors).boxed());
        }
        layers
    }

    /// Watches requests; `None` when nobody wants to know.
    pub fn http(&self) -> Option<Http> {
        let parts = self.0.as_ref()?;
        let http = Http {
            durations: parts.metrics.as_ref().map(|metrics| metrics.requests.clone()),
            traces: parts.traces.is_some(),
            sentry: parts.sentry.is_some(),
        };
        (http.durations.is_some() || http.traces || http.sentry).then_some(http)
    }

    /// Metrics in Prometheus' text format, if they are wanted at `/metrics`.
    pub fn prometheus(&self) -> Option<String> {
        self.0.as_ref()?.metrics.as_ref()?.text()
    }

    /// Sends what is left, as far as that is possible in this time; nothing is sent afterwards. Not to be called by a
    /// thread that runs async tasks.
    pub fn stop(&self, within: Duration) {
        let Some(parts) = &self.0 else { return };
        let runtime = parts.runtime.lock().take();
        let Some(runtime) = runtime else { return };
        let end = |work: Box<dyn FnOnce() + Send>| task::blocking("send the last telemetry", work);
        let (traces, logs) = (parts.traces.clone(), parts.logs.clone());
        let metrics = parts.metrics.as_ref().map(|metrics| metrics.provider.clone());
        let sentry = parts.sentry.clone();
        runtime.block_on(async {
            let all = async {
                tokio::join!(
                    end(Box::new(move || {
                        traces.map(|traces| traces.shutdown_with_timeout(within));
                    })),
                    end(Box::new(move || {
                        logs.map(|logs| logs.shutdown_with_timeout(within));
                    })),
                    end(Box::new(move || {
                        metrics.map(|metrics| metrics.shutdown_with_timeout(within));
                    })),
                    end(Box::new(move || {
                        sentry.map(|sentry| sentry.close(Some(within)));
                    })),
                )
            };
            // What a receiver does not take in time is lost.
            tokio::time::timeout(within, all).await.ok();
        });
        runtime.shutdown_background();
    }
}

/// The spans that telemetry is made of, and nothing else.
fn observed() -> FilterFn {
    filter_fn(|metadata| metadata.is_span() && metadata.target() == observe::TARGET)
}

/// Lines of the log at these levels.
fn at(levels: &'static [Level]) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |metadata| metadata.is_event() && levels.contains(metadata.level()) && !is_own(metadata))
}

fn is_own(metadata: &Metadata<'_>) -> bool {
    OWN.iter().any(|own| metadata.target().starts_with(own))
}
