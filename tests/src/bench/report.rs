//! The table of figures.

use std::fmt::Write;
use std::process::Command;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    PerSecond,
    Bytes,
    BytesPerSecond,
}

impl Unit {
    /// A figure with a unit a person reads easily.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Seconds if value >= 1.0 => format!("{value:.2} s"),
            Unit::Seconds if value >= 0.0095 => format!("{:.0} ms", value * 1e3),
            Unit::Seconds => format!("{:.2} ms", value * 1e3),
            Unit::PerSecond if value >= 100.0 => format!("{value:.0}/s"),
            Unit::PerSecond => format!("{value:.1}/s"),
            Unit::Bytes if value < 1e6 => format!("{:.0} KB", value / 1e3),
            Unit::Bytes => format!("{:.1} MB", value / 1e6),
            Unit::BytesPerSecond => format!("{:.0} MB/s", value / 1e6),
        }
    }

    /// How many times better `ours` is.
    pub fn advantage(self, ours: f64, reference: f64) -> f64 {
        match self {
            Unit::PerSecond | Unit::BytesPerSecond => ours / reference,
            Unit::Seconds | Unit::Bytes => reference / ours,
        }
    }
}

/// One measure of the report, with its target.
#[derive(Debug, Clone)]
pub struct Row {
    pub measure: String,
    pub unit: Unit,
    pub ours: f64,
    pub reference: Option<f64>,
    /// As words: `≤ 10 ms`.
    pub target: String,
}

/// All figures of one run, with where and how they were measured.
#[derive(Debug, Default)]
pub struct Report {
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
}

impl Report {
    /// The figures as a Markdown page.
    pub fn markdown(&self, command: &str) -> String {
        let mut text = String::from(
            "# Benchmarks\n\nOurs and dstack 0.22.5 from PyPI, measured one after the other on the same machine.\n\n",
        );
        // Writing into a string cannot fail.
        _ = writeln!(text, "- Command: `{command}`");
        _ = writeln!(text, "- Machine: {}", machine());
        for note in &self.notes {
            _ = writeln!(text, "- {note}");
        }
        text.push_str("\n| measure | ours | reference | ours is | target |\n|---|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&row.markdown());
        }
        text
    }
}

impl Row {
    /// A row of the table.
    pub fn markdown(&self) -> String {
        let ours = self.unit.show(self.ours);
        let (reference, ratio) = match self.reference {
            Some(value) => {
                let advantage = self.unit.advantage(self.ours, value);
                let digits = usize::from(advantage < 10.0);
                (self.unit.show(value), format!("{advantage:.digits$}× better"))
            }
            None => ("–".into(), "–".into()),
        };
        format!(
            "| {} | {ours} | {reference} | {ratio} | {} |\n",
            self.measure, self.target
        )
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let read = |path: &str| fs_err::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_default()
    };
    let processor = field(&read("/proc/cpuinfo"), "model name");
    let memory: f64 = field(&read("/proc/meminfo"), "MemTotal")
        .trim_end_matches(" kB")
        .parse()
        .unwrap_or(0.0);
    let system = Command::new("uname").args(["-sr"]).output();
    let system = system.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!(
        "{cores} cores ({processor}), {:.0} GB, {}",
        memory / 1e6,
        system.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_means_faster_and_smaller() {
        assert!((Unit::Seconds.advantage(0.01, 1.0) - 100.0).abs() < 1e-9);
        assert!((Unit::PerSecond.advantage(500.0, 10.0) - 50.0).abs() < 1e-9);
        assert!((Unit::BytesPerSecond.advantage(600e6, 500e6) - 1.2).abs() < 1e-9);
        assert!((Unit::Bytes.advantage(30e6, 60e6) - 2.0).abs() < 1e-9);
        assert_eq!(Unit::BytesPerSecond.show(512_345_678.0), "512 MB/s");
        assert_eq!(Unit::Bytes.show(64_000.0), "64 KB");
        assert_eq!(Unit::Bytes.show(30_700_000.0), "30.7 MB");
        let row = |ours, reference| Row {
            measure: "start".into(),
            unit: Unit::Seconds,
            ours,
            reference,
            target: "≤ 10 ms".into(),
        };
        assert_eq!(
            row(0.004, Some(0.92)).markdown(),
            "| start | 4.00 ms | 920 ms | 230× better | ≤ 10 ms |\n"
        );
        assert_eq!(
            row(2.0, None).markdown(),
            "| start | 2.00 s | – | – | ≤ 10 ms |\n"
        );
    }
}
