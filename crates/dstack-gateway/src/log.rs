//! The log of the process, to standard error.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts it. Libraries speak up from warnings on.
pub(crate) fn init(level: LevelFilter) {
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("dstack_gateway", level)
        .with_target("dstack_proxy", level)
        .with_target("dstack_system", level)
        // Written for those only who ask for it.
        .with_target(dstack_proxy::access_log::TARGET, LevelFilter::INFO);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // A second initialisation (tests) keeps the first.
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init();
}
