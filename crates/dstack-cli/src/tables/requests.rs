//! What was counted of the requests to a service, in three lines.

use dstack_model::metrics::{Percentiles, ServiceMetrics};

use crate::ui::Text;

/// The lines below the charts of its jobs.
pub(crate) fn lines(metrics: &ServiceMetrics) -> Vec<Text> {
    let mut lines = vec![Text::new(), line("requests", &requests(metrics))];
    let (head, whole) = (&metrics.response_head_seconds, &metrics.request_duration_seconds);
    if let (Some(head), Some(whole)) = (times(head), times(whole)) {
        lines.push(line(
            "latency",
            &format!("first byte {head} · whole answer {whole}"),
        ));
    }
    if metrics.prompt_tokens + metrics.completion_tokens > 0 {
        let tokens = format!("{} in · {} out", metrics.prompt_tokens, metrics.completion_tokens);
        lines.push(line("tokens", &tokens));
    }
    lines
}

fn line(name: &str, text: &str) -> Text {
    Text::new().secondary(format!("{name:<9}")).push(text.to_owned())
}

fn requests(metrics: &ServiceMetrics) -> String {
    let mut parts = vec![match metrics.requests_last_minute {
        Some(requests) => format!("{requests} in the last minute"),
        None => "of the last minute unknown yet".to_owned(),
    }];
    parts.push(format!("{} under way", metrics.requests_in_flight));
    for (class, count) in [
        ("1xx", metrics.responses_1xx),
        ("2xx", metrics.responses_2xx),
        ("3xx", metrics.responses_3xx),
        ("4xx", metrics.responses_4xx),
        ("5xx", metrics.responses_5xx),
    ] {
        if count > 0 || class == "2xx" || class == "5xx" {
            parts.push(format!("{class} {count}"));
        }
    }
    parts.join(" · ")
}

fn times(percentiles: &Percentiles) -> Option<String> {
    let (p50, p95, p99) = (percentiles.p50?, percentiles.p95?, percentiles.p99?);
    Some(format!(
        "p50 {}, p95 {}, p99 {}",
        seconds(p50),
        seconds(p95),
        seconds(p99)
    ))
}

fn seconds(seconds: f64) -> String {
    match seconds {
        ..1.0 => format!("{:.0} ms", seconds * 1000.0),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &ServiceMetrics) -> Vec<String> {
        lines(metrics).iter().map(Text::plain).collect()
    }

    #[test]
    fn what_was_not_counted_is_left_out() {
        assert_eq!(
            text(&ServiceMetrics::default()),
            [
                "",
                "requests of the last minute unknown yet · 0 under way · 2xx 0 · 5xx 0"
            ]
        );
    }

    #[test]
    fn requests_times_and_tokens_have_a_line_each() {
        let percentiles = |p50| Percentiles {
            p50: Some(p50),
            p95: Some(p50 * 2.0),
            p99: Some(p50 * 10.0),
        };
        let metrics = ServiceMetrics {
            requests_last_minute: Some(128),
            requests_in_flight: 3,
            responses_2xx: 5123,
            responses_4xx: 12,
            response_head_seconds: percentiles(0.012),
            request_duration_seconds: percentiles(0.3),
            prompt_tokens: 10,
            completion_tokens: 20,
            ..ServiceMetrics::default()
        };
        assert_eq!(
            text(&metrics)[1..],
            [
                "requests 128 in the last minute · 3 under way · 2xx 5123 · 4xx 12 · 5xx 0",
                "latency  first byte p50 12 ms, p95 24 ms, p99 120 ms · whole answer p50 300 ms, p95 600 ms, p99 3.0 s",
                "tokens   10 in · 20 out",
            ]
        );
    }
}
