//! Prometheus' text format: families in the order in which they came up, each with all its samples.
//!
//! Libraries for metrics keep counters of their own process; here every sample is read for one answer, most of them from the database. The
//! one that can write such (`prometheus-client`) writes OpenMetrics, which renames counters (`_total`).

use std::fmt::Write as _;

use indexmap::IndexMap;

/// What kind of number a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number that only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many there were up to each of some bounds. Its samples are added with [`Exposition::add_histogram`].
    Histogram,
}

#[derive(Debug)]
struct Family {
    kind: Kind,
    help: &'static str,
    samples: String,
}

/// Collects samples by family.
#[derive(Debug, Default)]
pub(super) struct Exposition(IndexMap<&'static str, Family>);

impl Exposition {
    /// Adds a sample; the first of a family decides its kind and help.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &'static str,
        labels: &[(&'static str, String)],
        value: f64,
    ) {
        let sample = sample(name, labels, None, value);
        self.family(name, kind, help).samples.push_str(&sample);
    }

    /// Adds the samples of a histogram: `buckets` are upper bounds with how many were at most so large, `count` how many there were in
    /// all, `sum` what they sum up to.
    pub(super) fn add_histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, String)],
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let bucket = format!("{name}_bucket");
        let mut samples = String::new();
        let bounded = buckets.map(|(bound, at_most)| (format!("{bound:?}"), at_most));
        for (bound, at_most) in bounded.chain([("+Inf".to_owned(), count)]) {
            samples.push_str(&sample(&bucket, labels, Some(&("le", bound)), float(at_most)));
        }
        samples.push_str(&sample(&format!("{name}_sum"), labels, None, sum));
        samples.push_str(&sample(&format!("{name}_count"), labels, None, float(count)));
        self.family(name, Kind::Histogram, help)
            .samples
            .push_str(&samples);
    }

    fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> &mut Family {
        self.0.entry(name).or_insert_with(|| Family {
            kind,
            help,
            samples: String::new(),
        })
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        let mut text = String::new();
        for (name, family) in self.0 {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            // Writing to a text cannot fail.
            let _ = write!(
                text,
                "# HELP {name} {}\n# TYPE {name} {kind}\n{}",
                family.help, family.samples
            );
        }
        text
    }
}

/// A count as a number of Prometheus, which are all floating.
#[allow(clippy::cast_precision_loss)] // nobody counts beyond 2^53
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

fn sample(
    name: &str,
    labels: &[(&'static str, String)],
    last: Option<&(&'static str, String)>,
    value: f64,
) -> String {
    let labels: Vec<String> = labels
        .iter()
        .chain(last)
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    format!("{name}{{{}}} {value:?}\n", labels.join(","))
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_family_stand_together() {
        let mut text = Exposition::default();
        for (run, value) in [("a\"b", 1.0), ("c", 0.25)] {
            let labels = [("run", run.to_owned())];
            text.add("x_total", Kind::Counter, "Xs", &labels, value);
            text.add("y", Kind::Gauge, "Ys", &labels, value);
        }
        assert_eq!(
            text.finish(),
            "# HELP x_total Xs\n# TYPE x_total counter\nx_total{run=\"a\\\"b\"} 1.0\nx_total{run=\"c\"} 0.25\n\
             # HELP y Ys\n# TYPE y gauge\ny{run=\"a\\\"b\"} 1.0\ny{run=\"c\"} 0.25\n"
        );
    }

    #[test]
    fn a_histogram_has_buckets_that_sum_up() {
        let mut text = Exposition::default();
        let labels = [("run", "a".to_owned())];
        text.add_histogram("t", "Ts", &labels, [(0.5, 1), (2.0, 3)].into_iter(), (4, 9.25));
        assert_eq!(
            text.finish(),
            "# HELP t Ts\n# TYPE t histogram\nt_bucket{run=\"a\",le=\"0.5\"} 1.0\nt_bucket{run=\"a\",le=\"2.0\"} 3.0\n\
             t_bucket{run=\"a\",le=\"+Inf\"} 4.0\nt_sum{run=\"a\"} 9.25\nt_count{run=\"a\"} 4.0\n"
        );
    }
}
