//! The server's log: lines `[HH:MM:SS] LEVEL message`, or JSON (`DSTACK_SERVER_LOG_FORMAT=json`), on standard error. What is
//! sent of it elsewhere is what is said here (`dstack-telemetry`).

use std::io::{self, IsTerminal};

use dstack_server::settings::Settings;
use dstack_system::{env, observe};
use dstack_telemetry::{BoxedLayer, Telemetry};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Local time of day.
struct TimeOfDay;

impl FormatTime for TimeOfDay {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        use dstack_system::Clock;
        let now = dstack_system::SystemClock
            .now()
            .to_jiff()
            .to_zoned(dstack_system::clock::local_zone());
        write!(w, "[{}]", now.strftime("%H:%M:%S"))
    }
}

/// The name of one of Python's levels here.
fn rust_level(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "warning" => "warn".to_owned(),
        "critical" | "fatal" => "error".to_owned(),
        other => other.to_owned(),
    }
}

/// What is said, by part and level: `full` (`DSTACK_LOG`), or what the other settings make.
fn filter(level: Option<&str>, settings: &Settings, full: Option<String>) -> String {
    let level = rust_level(level.or(settings.log_level.as_deref()).unwrap_or("info"));
    let root = rust_level(settings.root_log_level.as_deref().unwrap_or("error"));
    let mut filter = full.unwrap_or_else(|| {
        // Exporters say of every failure that there was one: we do so now and then.
        // A name stands for all that begin with it: `dstack` for each of our crates.
        format!("{root},opentelemetry=off,dstack={level}")
    });
    if settings.sql_echo {
        filter.push_str(",sqlx::query=debug");
    }
    // Spans for telemetry are no part of the log.
    filter.push_str(&format!(",{}=off", observe::TARGET));
    filter
}

/// Starts logging at this level (`INFO`, `DEBUG`, …), or that of the settings; `DSTACK_LOG` takes a full filter.
pub(crate) fn start(level: Option<&str>, settings: &Settings, telemetry: &Telemetry) {
    let filter = filter(level, settings, env::var("DSTACK_LOG"));
    let filter = || EnvFilter::new(&filter);
    let format = tracing_subscriber::fmt::layer()
        // Colours are for eyes: a file or a journal gets the plain text.
        .with_ansi(io::stderr().is_terminal() && !env::flag("NO_COLOR"))
        .with_writer(io::stderr);
    let text: BoxedLayer = match settings.log_format.as_deref() {
        Some("json") => format.json().with_filter(filter()).boxed(),
        _ => format
            .with_timer(TimeOfDay)
            .with_target(false)
            .compact()
            .with_filter(filter())
            .boxed(),
    };
    let mut layers = vec![text];
    layers.extend(telemetry.layers(filter));
    // Only the first start counts; a second one would be a bug in a test.
    let _ = tracing_subscriber::registry().with(layers).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            log_level: None,
            root_log_level: None,
            sql_echo: false,
            ..Settings::from_env()
        }
    }

    #[test]
    fn levels_are_by_part() {
        let said = filter(Some("WARNING"), &settings(), None);
        assert!(
            said.starts_with("error,opentelemetry=off,dstack=warn,dstack_observed=off"),
            "{said}"
        );
        assert!(!said.contains("sqlx"), "{said}");
        let echo = Settings {
            sql_echo: true,
            ..settings()
        };
        let said = filter(None, &echo, None);
        assert!(said.contains(",sqlx::query=debug,"), "{said}");
        assert_eq!(
            filter(None, &settings(), Some("trace".to_owned())),
            "trace,dstack_observed=off"
        );
    }
}
