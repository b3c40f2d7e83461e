//! The server's log: lines `[HH:MM:SS] LEVEL message`, or JSON (`DSTACK_SERVER_LOG_FORMAT=json`), on standard error.

use std::io::{self, IsTerminal};

use dstack_server::settings::Settings;
use dstack_system::env;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::FormatTime;

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

/// Starts logging at this level (`INFO`, `DEBUG`, …), or that of the settings; `DSTACK_LOG` takes a full filter.
pub(crate) fn start(level: Option<String>, settings: &Settings) {
    let level = level.or_else(|| settings.log_level.clone());
    let level = rust_level(level.as_deref().unwrap_or("info"));
    let root = rust_level(settings.root_log_level.as_deref().unwrap_or("error"));
    let own = [
        "dstack",
        "dstack_server",
        "dstack_engine",
        "dstack_store",
        "dstack_local",
        "dstack_logs",
    ];
    let ours: Vec<String> = own.iter().map(|name| format!("{name}={level}")).collect();
    let filter = env::var("DSTACK_LOG").unwrap_or_else(|| format!("{root},{}", ours.join(",")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        // Colours are for eyes: a file or a journal gets the plain text.
        .with_ansi(io::stderr().is_terminal() && !env::flag("NO_COLOR"))
        .with_writer(io::stderr);
    // Only the first start counts; a second one would be a bug in a test.
    let _ = match settings.log_format.as_deref() {
        Some("json") => builder.json().try_init(),
        _ => builder
            .with_timer(TimeOfDay)
            .with_target(false)
            .compact()
            .try_init(),
    };
}
