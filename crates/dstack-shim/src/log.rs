//! The log: `time=<RFC 3339 with microseconds> level=<l> msg=<text> key=value…`, to stderr and a file (logrus's form).

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use dstack_system::{Clock as _, SystemClock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging for this process. Libraries speak up from warnings on.
pub fn init(level: LevelFilter, file: &Path) -> std::io::Result<()> {
    let file = fs_err::OpenOptions::new().create(true).append(true).open(file)?;
    let filter = tracing_subscriber::filter::Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("dstack_shim", level)
        .with_target("dstack_system", level)
        .with_target("dstack_agent", level);
    let layer = LogLayer {
        file: Mutex::new(file),
    };
    // A second initialisation (tests) keeps the first.
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init();
    Ok(())
}

struct LogLayer {
    file: Mutex<fs_err::File>,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = line(&SystemClock.now().to_jiff(), *event.metadata().level(), &fields);
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Ok(mut file) = self.file.lock() {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

fn line(time: &jiff::Timestamp, level: Level, fields: &Fields) -> String {
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    format!(
        "time={time:.6} level={level} msg={}{}\n",
        quoted(&fields.message),
        fields.rest
    )
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            let _ = write!(self.rest, " {}={}", field.name(), quoted(value));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// As it is when it is one plain word, else in double quotes.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let time: jiff::Timestamp = "2026-11-21T10:00:00.123456789Z".parse().unwrap();
        let fields = Fields {
            message: "task runs".into(),
            rest: format!(" task.id={}", quoted("a-1")),
        };
        assert_eq!(
            line(&time, Level::WARN, &fields),
            "time=2026-11-21T10:00:00.123456Z level=warning msg=\"task runs\" task.id=a-1\n"
        );
        assert_eq!(quoted("a \"b\"\n"), r#""a \"b\"\n""#);
    }
}
