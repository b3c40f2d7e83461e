//! The runner's own log: standard output, `default.log`, and while a job is there `runner.log` and the spool.
//!
//! Lines: `time=<RFC 3339> level=<level> msg=<text> key=value…`, as dstack 0.22.5's agents write them.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use dstack_system::clock::SharedClock;

use crate::spool::Spool;

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The runner cannot go on.
    Error,
    /// Something is not as asked.
    Warning,
    /// What the runner does, in its main steps.
    Info,
    /// Also every single step.
    Debug,
    /// Also what crates of dstack trace.
    Trace,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl FromStr for Level {
    type Err = String;

    /// Names, or digits 1 to 6 (1 is fatal only, 6 everything).
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "0" | "panic" | "1" | "fatal" | "2" | "error" => Self::Error,
            "3" | "warn" | "warning" => Self::Warning,
            "4" | "info" => Self::Info,
            "5" | "debug" => Self::Debug,
            "6" | "trace" => Self::Trace,
            _ => {
                return Err(format!(
                    "unknown log level {text:?}: use error, warning, info, debug, trace or 1 to 6"
                ));
            }
        })
    }
}

/// Where log lines go. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RunnerLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    level: Level,
    clock: SharedClock,
    stdout: bool,
    dir: PathBuf,
    files: Mutex<Vec<std::fs::File>>,
    spool: OnceLock<Spool>,
}

impl RunnerLog {
    /// Logs to `<dir>/default.log`, and to standard output when asked.
    pub fn create(dir: &Path, level: Level, stdout: bool, clock: SharedClock) -> std::io::Result<Self> {
        let files = Mutex::new(vec![append_to(&dir.join("default.log"))?]);
        let inner = Inner {
            level,
            clock,
            stdout,
            dir: dir.to_owned(),
            files,
            spool: OnceLock::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// From now on also to `runner.log` and to the job's runner log.
    pub fn attach(&self, spool: &Spool) {
        if self.inner.spool.set(spool.clone()).is_ok()
            && let Ok(file) = append_to(&self.inner.dir.join("runner.log"))
        {
            self.inner
                .files
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(file);
        }
    }

    /// Logs what happened.
    pub fn info(&self, message: impl fmt::Display) {
        self.line(Level::Info, &message.to_string(), "");
    }

    /// Logs what is not as asked.
    pub fn warn(&self, message: impl fmt::Display) {
        self.line(Level::Warning, &message.to_string(), "");
    }

    /// Logs a failure.
    pub fn error(&self, message: impl fmt::Display) {
        self.line(Level::Error, &message.to_string(), "");
    }

    fn line(&self, level: Level, message: &str, fields: &str) {
        let inner = &self.inner;
        if level > inner.level {
            return;
        }
        let line = format!(
            "time={} level={} msg={}{fields}\n",
            inner.clock.now(),
            level.name(),
            quoted(message)
        );
        if inner.stdout {
            // Nobody may be reading: that must not end a job.
            let _ = std::io::stdout().lock().write_all(line.as_bytes());
        }
        for file in inner
            .files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter_mut()
        {
            let _ = file.write_all(line.as_bytes());
        }
        if let Some(spool) = inner.spool.get() {
            spool.runner_log(line.as_bytes());
        }
    }
}

fn append_to(path: &Path) -> std::io::Result<std::fs::File> {
    Ok(fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?
        .into_file())
}

/// A value as it is when that is unambiguous, else quoted with control characters escaped.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+:".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("{value:?}")
    }
}

/// Sends what libraries log through `tracing` to the runner's log.
impl<S: tracing::Subscriber> Layer<S> for RunnerLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Info,
            // Protocol details of libraries are of no use to the owner of a job.
            _ if !event.metadata().target().starts_with("dstack") => return,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::TRACE => Level::Trace,
        };
        if level > self.inner.level {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.line(level, &fields.message, &fields.rest);
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            let _ = write!(self.rest, " {}={}", field.name(), quoted(value));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use dstack_system::VirtualClock;
    use dstack_units::Time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_have_the_agents_form() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(VirtualClock::starting_at(Time::from_millis(1_795_245_473_000)));
        let log = RunnerLog::create(dir.path(), Level::Info, false, clock.clone()).unwrap();
        log.info("ready");
        let spool = Spool::create(&dir.path().join("spool"), 0, clock).unwrap();
        log.attach(&spool);
        log.warn("two words, a \"quote\"\nand a line");
        log.line(Level::Debug, "hidden", "");
        let all = fs_err::read_to_string(dir.path().join("default.log")).unwrap();
        let job = fs_err::read_to_string(dir.path().join("runner.log")).unwrap();
        assert_eq!(
            job,
            "time=2026-11-21T07:17:53Z level=warning msg=\"two words, a \\\"quote\\\"\\nand a line\"\n"
        );
        assert_eq!(
            all,
            format!("time=2026-11-21T07:17:53Z level=info msg=ready\n{job}")
        );
        let batch = spool.read(&mut crate::spool::Cursor::after(0), 1000);
        assert_eq!(batch.events.len(), 1);
    }

    #[test]
    fn levels() {
        for (text, level) in [
            ("5", Level::Debug),
            ("6", Level::Trace),
            ("warn", Level::Warning),
            ("INFO", Level::Info),
        ] {
            assert_eq!(text.parse(), Ok(level));
        }
        assert!("7".parse::<Level>().is_err());
    }
}
