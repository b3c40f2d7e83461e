//! Which traces are kept: those of requests and those of work in the background at rates of their own.

use opentelemetry::trace::{Link, SpanKind, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingResult, ShouldSample};

/// Names of work in the background begin so (dstack 0.22.5).
const BACKGROUND: [&str; 2] = ["scheduled_tasks", "pipeline_tasks"];

/// Shares of traces that are kept, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Share of the traces of requests that is kept.
    pub requests: f64,
    /// Of work in the background.
    pub background: f64,
}

impl Rates {
    /// That of traces whose first span has this name.
    pub fn of(self, name: &str) -> f64 {
        let background = BACKGROUND.iter().any(|prefix| name.starts_with(prefix));
        if background {
            self.background
        } else {
            self.requests
        }
    }

    /// Decides about first spans by their names, and does as the first did for all others.
    pub(crate) fn sampler(self) -> Sampler {
        Sampler::ParentBased(Box::new(ByName(self)))
    }
}

#[derive(Debug, Clone)]
struct ByName(Rates);

impl ShouldSample for ByName {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        // By the trace's id: every server decides the same about a trace.
        let sampler = Sampler::TraceIdRatioBased(self.0.of(name));
        sampler.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};
    use opentelemetry_sdk::trace::SamplingDecision;

    use super::*;

    const ONLY_REQUESTS: Rates = Rates {
        requests: 1.0,
        background: 0.0,
    };

    fn sampled(sampler: &Sampler, parent: Option<&Context>, trace: u128, name: &str) -> bool {
        let trace = TraceId::from(trace);
        let result = sampler.should_sample(parent, trace, name, &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn background_work_has_a_rate_of_its_own() {
        let sampler = ONLY_REQUESTS.sampler();
        assert!(sampled(&sampler, None, u128::MAX, "POST /api/runs/list"));
        assert!(!sampled(&sampler, None, 1, "pipeline_tasks.RunWorker.process"));
        assert!(!sampled(&sampler, None, 1, "scheduled_tasks.delete_events"));
        let other = Rates {
            requests: 0.0,
            background: 1.0,
        };
        assert!(!sampled(&other.sampler(), None, 1, "POST /api/runs/list"));
        assert!(sampled(
            &other.sampler(),
            None,
            u128::MAX,
            "pipeline_tasks.RunWorker.process"
        ));
    }

    #[test]
    fn a_rate_is_the_share_of_traces() {
        let half = Rates {
            requests: 0.25,
            background: 0.0,
        };
        let sampler = half.sampler();
        // The share is taken of the lower half of the id.
        let kept =
            (0..1000_u128).filter(|n| sampled(&sampler, None, n * (u128::from(u64::MAX) / 1000), "GET"));
        let kept = kept.count();
        assert!((240..=260).contains(&kept), "{kept}");
    }

    #[test]
    fn what_the_caller_decided_holds() {
        let parent = |flags| {
            let span = SpanContext::new(TraceId::from(1), SpanId::from(1), flags, true, TraceState::NONE);
            Context::new().with_remote_span_context(span)
        };
        let sampler = ONLY_REQUESTS.sampler();
        let (yes, no) = (parent(TraceFlags::SAMPLED), parent(TraceFlags::NOT_SAMPLED));
        assert!(sampled(
            &sampler,
            Some(&yes),
            1,
            "pipeline_tasks.RunWorker.process"
        ));
        assert!(!sampled(&sampler, Some(&no), 1, "POST /api/runs/list"));
    }
}
