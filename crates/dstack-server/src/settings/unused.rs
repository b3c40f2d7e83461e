//! Variables of a dstack 0.22.5 server that change nothing here, and why. One that is set is reported at start: nothing is
//! ignored in silence.

use dstack_system::env;

/// Variables and the reason.
pub(super) static UNUSED: &[(&[&str], &str)] = &[
    (
        &[
            "DSTACK_RUNNER_VERSION",
            "DSTACK_RUNNER_VERSION_URL",
            "DSTACK_RUNNER_DOWNLOAD_URL",
            "DSTACK_RUNNER_ALLOW_DOWNGRADE",
            "DSTACK_SHIM_VERSION",
            "DSTACK_SHIM_VERSION_URL",
            "DSTACK_SHIM_DOWNLOAD_URL",
            "DSTACK_SHIM_ALLOW_DOWNGRADE",
            "DSTACK_USE_LATEST_FROM_BRANCH",
            "DSTACK_VERSION",
            "DSTACK_RELEASE",
        ],
        "the server carries its agents inside itself: they are always of its version",
    ),
    (
        &["DSTACK_ALEMBIC_MIGRATIONS_LOCATION"],
        "migrations are part of the program",
    ),
    (
        &[
            "DSTACK_SERVER_EXECUTOR_MAX_WORKERS",
            "DSTACK_SERVER_SSH_POOL_DISABLED",
        ],
        "there is no pool of threads that waits for the network",
    ),
    (
        &["DSTACK_SERVER_UVICORN_LOG_LEVEL"],
        "the HTTP library writes nothing to the log: what was asked and answered is in the traces",
    ),
    (
        &[
            "DSTACK_SERVER_PROFILING_ENABLED",
            "DSTACK_SENTRY_PROFILES_SAMPLE_RATE",
        ],
        "there is no profiler inside: those of the system (`perf`) see this program as it is",
    ),
    (
        &[
            "DSTACK_VM_BASE_IMAGE_VERSION",
            "DSTACK_VM_BASE_IMAGE_PREFIX",
            "DSTACK_FF_HOTAISLE_BARE_METAL_NO_FORCE_RELEASE",
        ],
        "this build has no backend that they are for",
    ),
    (
        &["DSTACK_SERVER_SSH_CONNECT_TIMEOUT"],
        "each SSH server on the way to a host has ten seconds to answer",
    ),
    (
        &["DSTACK_SKIP_GATEWAY_UPDATE", "DSTACK_GATEWAY_PACKAGE_URL"],
        "gateways are this build's own, and follow it",
    ),
];

/// Warns of each that is set.
pub fn report() {
    for (names, reason) in UNUSED {
        for name in names.iter().filter(|name| env::var(name).is_some()) {
            tracing::warn!("{name} has no effect here: {reason}");
        }
    }
}
