//! Prometheus' text format: families in the order in which they came up, each with all its samples.
//!
//! Libraries for metrics keep counters of their own process; here every sample is read from the database for one answer. The
//! one that can write such (`prometheus-client`) writes OpenMetrics, which renames counters (`_total`).

use std::fmt::Write as _;

/// What kind of number a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number that only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: String,
}

/// Collects samples by family.
#[derive(Debug, Default)]
pub(super) struct Exposition(Vec<Family>);

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
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let sample = format!("{name}{{{}}} {value:?}\n", labels.join(","));
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push_str(&sample),
            None => self.0.push(Family {
                name,
                kind,
                help,
                samples: sample,
            }),
        }
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        let mut text = String::new();
        for family in self.0 {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            // Writing to a text cannot fail.
            let _ = write!(
                text,
                "# HELP {name} {}\n# TYPE {name} {kind}\n{}",
                family.help,
                family.samples,
                name = family.name
            );
        }
        text
    }
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
}
