//! Steps of the work in the background, as telemetry sees them: each is a span of its own.
//!
//! The spans have a target of their own, which the log does not show. While nobody wants them, making one is the look at a
//! flag.

use std::future::Future;

use tracing::{Instrument, Span};

#[doc(hidden)]
pub use tracing as __tracing;

/// Target of all spans that telemetry is made of.
pub const TARGET: &str = "dstack_observed";

/// How a step ended, in the span's field `task.status`: as dstack 0.22.5 labels its counter.
pub const SUCCESS: &str = "success";
/// See [`SUCCESS`].
pub const ERROR: &str = "error";

/// The span of a step: `task_span!("pipeline_tasks.RunWorker.process")`. Names begin as those of dstack 0.22.5, with
/// `pipeline_tasks.` or `scheduled_tasks.`: by that they are known as work in the background, which is sampled by itself.
#[macro_export]
macro_rules! task_span {
    ($name:literal) => {
        $crate::observe::__tracing::info_span!(
            target: $crate::observe::TARGET,
            parent: None,
            $name,
            task.status = $crate::observe::__tracing::field::Empty,
            otel.status_code = $crate::observe::__tracing::field::Empty,
        )
    };
}

/// Does a step in its span. One that is given up, as at the end of the process, has neither succeeded nor failed.
pub async fn task<T, E>(span: Span, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let result = work.instrument(span.clone()).await;
    match &result {
        Ok(_) => span.record("task.status", SUCCESS),
        Err(_) => span
            .record("task.status", ERROR)
            .record("otel.status_code", "ERROR"),
    };
    result
}
