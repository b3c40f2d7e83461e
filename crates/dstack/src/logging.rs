//! The server's log: lines `[HH:MM:SS] LEVEL message`, or JSON (`DSTACK_SERVER_LOG_FORMAT=json`), on standard error.

use std::io::{self, IsTerminal};

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

/// Starts logging at this level (`INFO`, `DEBUG`, …); `DSTACK_LOG` takes a full filter.
pub(crate) fn start(level: &str) {
    let level = level.to_lowercase();
    let own = [
        "dstack",
        "dstack_server",
        "dstack_engine",
        "dstack_store",
        "dstack_local",
        "dstack_logs",
    ];
    let ours: Vec<String> = own.iter().map(|name| format!("{name}={level}")).collect();
    let filter = env::var("DSTACK_LOG").unwrap_or_else(|| format!("error,{}", ours.join(",")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        // Colours are for eyes: a file or a journal gets the plain text.
        .with_ansi(io::stderr().is_terminal() && !env::flag("NO_COLOR"))
        .with_writer(io::stderr);
    // Only the first start counts; a second one would be a bug in a test.
    let _ = match env::var("DSTACK_SERVER_LOG_FORMAT").as_deref() {
        Some("json") => builder.json().try_init(),
        _ => builder
            .with_timer(TimeOfDay)
            .with_target(false)
            .compact()
            .try_init(),
    };
}
