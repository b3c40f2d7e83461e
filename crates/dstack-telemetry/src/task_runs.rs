//! Counts steps of the work in the background by how they ended.

use std::fmt::Debug;

use dstack_system::observe;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Counter;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// A layer for the spans of `dstack_system::observe`.
#[derive(Debug)]
pub(crate) struct TaskRuns(pub(crate) Counter<u64>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TaskRuns {
    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut status = Status(None);
        values.record(&mut status);
        if let (Some(status), Some(span)) = (status.0, context.span(id)) {
            let labels = [
                KeyValue::new("task", span.name()),
                KeyValue::new("status", status),
            ];
            self.0.add(1, &labels);
        }
    }
}

/// Finds the field that says how a step ended.
struct Status(Option<&'static str>);

impl Visit for Status {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "task.status" {
            let known = [observe::SUCCESS, observe::ERROR];
            self.0 = known.into_iter().find(|known| *known == value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
