//! The table of metrics: a sparkline per measured thing, all jobs over the same window.

use std::collections::BTreeSet;
use std::time::Duration;

use dstack_model::instances::Resources;
use dstack_model::metrics::JobMetrics;
use dstack_model::runs::Job;
use dstack_units::Time;

use crate::format::date;
use crate::ui::spark::{self, Ramp};
use crate::ui::{Column, Role, Style, Table, Text};

/// Everything beside the two charts and the job's label.
const FIXED_WIDTH: usize = 30;
/// Cells of a chart.
const CHART_WIDTH: std::ops::RangeInclusive<usize> = 10..=80;
/// What the server keeps of a running job.
const WINDOW: Duration = Duration::from_secs(3600);
/// A sample younger than this is from now: samples come every 10 s.
const NOW: Duration = Duration::from_secs(30);
const MIB: f64 = 1024.0 * 1024.0;

/// The jobs with their metrics, for a terminal of `width` cells.
pub(crate) fn table(jobs: &[(&Job, JobMetrics)], width: usize, now: Time) -> Table {
    let labels = labels(jobs);
    let label_width = labels
        .iter()
        .map(|label| label.chars().count())
        .max()
        .unwrap_or(0);
    let chart =
        (width.saturating_sub(FIXED_WIDTH + label_width) / 2).clamp(*CHART_WIDTH.start(), *CHART_WIDTH.end());
    let window = window(jobs);
    let mut table = Table::new(vec![
        Column::default().no_wrap(),
        Column::default().style(Style::SECONDARY).no_wrap(),
        Column::new("UTILIZATION").no_wrap(),
        Column::new("MEMORY").no_wrap(),
    ]);
    let mut drawn = 0;
    for (index, ((job, metrics), label)) in jobs.iter().zip(&labels).enumerate() {
        if index > 0 {
            table.row(Vec::new());
        }
        let blanks = window.map_or(0, |window| blanks(metrics, window, chart));
        drawn = drawn.max(blanks + samples(metrics).min(chart - blanks));
        let rows = JobRows {
            metrics,
            resources: resources(job),
            width: chart - blanks,
            blanks,
        };
        rows.add_to(&mut table, label);
    }
    if let Some((first, last)) = window {
        let axis = axis(drawn, first, last, now);
        table.row(Vec::new());
        table.row(vec![Text::new(), Text::new(), axis.clone(), axis]);
    }
    table
}

struct JobRows<'a> {
    metrics: &'a JobMetrics,
    resources: Option<&'a Resources>,
    width: usize,
    blanks: usize,
}

impl JobRows<'_> {
    fn add_to(&self, table: &mut Table, label: &str) {
        table.row(vec![label.into(), "cpu".into(), self.cpu(), self.memory()]);
        for gpu in 0..self.gpus() {
            let name = format!("gpu={gpu}");
            table.row(vec![
                Text::new(),
                name.into(),
                self.gpu(gpu),
                self.gpu_memory(gpu),
            ]);
        }
    }

    fn cpu(&self) -> Text {
        let cpus = self.resources.map_or(1, |resources| resources.cpus).max(1);
        let percents: Vec<f64> = self
            .values("cpu_usage_percent")
            .iter()
            .map(|value| value / cpus as f64)
            .collect();
        let label = percents.last().map(|last| format!("{last:.0}%"));
        self.chart(&percents, &spark::HOST, label)
    }

    fn memory(&self) -> Text {
        let total = self.resources.map(|resources| resources.memory_mib);
        self.capacity("memory_working_set_bytes", total, &spark::HOST)
    }

    fn gpu(&self, index: usize) -> Text {
        let percents = self.values(&format!("gpu_util_percent_gpu{index}"));
        let label = percents.last().map(|last| format!("{last:.0}%"));
        self.chart(&percents, &spark::GPU, label)
    }

    fn gpu_memory(&self, index: usize) -> Text {
        let gpu = self.resources.and_then(|resources| resources.gpus.get(index));
        let name = format!("gpu_memory_usage_bytes_gpu{index}");
        self.capacity(&name, gpu.map(|gpu| gpu.memory_mib), &spark::GPU)
    }

    /// Memory against all there is, with both numbers.
    fn capacity(&self, name: &str, total_mib: Option<i64>, ramp: &Ramp) -> Text {
        let values = self.values(name);
        let total = total_mib
            .filter(|total| *total > 0)
            .map(|total| total as f64 * MIB);
        let label = values.last().map(|last| match total {
            Some(total) => format!("{}/{}", bytes(*last), bytes(total)),
            None => bytes(*last),
        });
        let percents: Vec<f64> = match total {
            Some(total) => values.iter().map(|value| value / total * 100.0).collect(),
            None => values,
        };
        self.chart(&percents, ramp, label)
    }

    fn chart(&self, percents: &[f64], ramp: &Ramp, label: Option<String>) -> Text {
        let chart = match label {
            Some(label) => spark::line(percents, self.width, ramp).push(format!(" {label}")),
            None => Text::new().secondary("no data"),
        };
        Text::from(" ".repeat(self.blanks)).append(chart)
    }

    /// Returns the values of a metric, oldest first.
    fn values(&self, name: &str) -> Vec<f64> {
        let metric = self.metrics.metrics.iter().find(|metric| metric.name == name);
        let values = metric.map_or(&[][..], |metric| &metric.values);
        values
            .iter()
            .rev()
            .filter_map(serde_json::Value::as_f64)
            .collect()
    }

    fn gpus(&self) -> usize {
        let known = self.resources.map_or(0, |resources| resources.gpus.len());
        if known > 0 {
            return known;
        }
        let detected = self.values("gpus_detected_num").last().copied().unwrap_or(0.0);
        // A count of devices: small and not negative.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = detected.clamp(0.0, 64.0) as usize;
        count
    }
}

/// `12GB`, or `512MB` below a gigabyte.
fn bytes(bytes: f64) -> String {
    let mib = bytes / MIB;
    if mib >= 1024.0 {
        format!("{:.0}GB", mib / 1024.0)
    } else {
        format!("{mib:.0}MB")
    }
}

/// What tells the jobs apart; a group is named where it begins.
fn labels(jobs: &[(&Job, JobMetrics)]) -> Vec<String> {
    let specs = || jobs.iter().map(|(job, _)| &job.job_spec);
    let many_groups = specs()
        .map(|spec| &spec.replica_group)
        .collect::<BTreeSet<_>>()
        .len()
        > 1;
    let many_replicas = specs()
        .map(|spec| spec.replica_num)
        .collect::<BTreeSet<_>>()
        .len()
        > 1;
    let mut before = None;
    specs()
        .map(|spec| {
            let mut parts = Vec::new();
            if many_groups {
                let group = format!("group={}", spec.replica_group);
                let again = before == Some(&spec.replica_group);
                parts.push(if again {
                    " ".repeat(group.chars().count())
                } else {
                    group
                });
                before = Some(&spec.replica_group);
            }
            if many_replicas {
                parts.push(format!("replica={}", spec.replica_num));
            }
            parts.push(format!("job={}", spec.job_num));
            parts.join(" ")
        })
        .collect()
}

fn resources(job: &Job) -> Option<&Resources> {
    let submission = job.job_submissions.last()?;
    let runtime = submission.job_runtime_data.as_ref();
    let offer = runtime.and_then(|runtime| runtime.offer.as_ref());
    if let Some(offer) = offer {
        return Some(&offer.instance.resources);
    }
    let provisioning = submission.job_provisioning_data.as_ref();
    provisioning.map(|data| &data.instance_type.resources)
}

/// Oldest and newest sample.
fn span(metrics: &JobMetrics) -> Option<(Time, Time)> {
    let stamps = || {
        metrics
            .metrics
            .iter()
            .flat_map(|metric| &metric.timestamps)
            .copied()
    };
    Some((stamps().min()?, stamps().max()?))
}

fn samples(metrics: &JobMetrics) -> usize {
    metrics
        .metrics
        .iter()
        .map(|metric| metric.timestamps.len())
        .max()
        .unwrap_or(0)
}

/// From an hour (or more) before the newest sample of all jobs until then.
fn window(jobs: &[(&Job, JobMetrics)]) -> Option<(Time, Time)> {
    let spans: Vec<_> = jobs.iter().filter_map(|(_, metrics)| span(metrics)).collect();
    let first = spans.iter().map(|(first, _)| *first).min()?;
    let last = spans.iter().map(|(_, last)| *last).max()?;
    Some((first.min(last - WINDOW), last))
}

/// Empty cells before the chart of a job that started within the window.
fn blanks(metrics: &JobMetrics, window: (Time, Time), width: usize) -> usize {
    let Some((first, _)) = span(metrics) else { return 0 };
    let total = window.1.since(window.0).as_millis();
    if total == 0 {
        return 0;
    }
    let width_cells = u128::try_from(width).unwrap_or(0);
    let before = first.since(window.0).as_millis();
    let cells = (before * width_cells * 2 + total) / (total * 2);
    usize::try_from(cells).unwrap_or(0).min(width.saturating_sub(1))
}

/// First and last moment with a rule between, exactly `width` cells; nothing where that does not fit.
fn axis(width: usize, first: Time, last: Time, now: Time) -> Text {
    let label = |time: Time, format: &str| {
        if now.since(time) < NOW {
            "now".to_owned()
        } else {
            date::local(time, format)
        }
    };
    let fits = |format: &str, gap: usize| {
        let (left, right) = (label(first, format), label(last, format));
        (left.len() + right.len() + gap <= width).then_some((left, right))
    };
    let Some((left, right)) = fits("%-d %b %H:%M", 3).or_else(|| fits("%H:%M", 2)) else {
        return Text::new();
    };
    let rule = "┄".repeat(width - left.len() - right.len() - 2);
    let style = if right == "now" {
        Style::bold(Role::Secondary)
    } else {
        Style::of(Role::Heat(242))
    };
    Text::styled(format!("{left} {rule} "), Style::of(Role::Heat(242))).push_styled(right, style)
}
