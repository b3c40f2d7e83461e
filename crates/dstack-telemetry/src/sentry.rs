//! Errors of the log, and a share of the traces, for Sentry.

mod transport;

use std::borrow::Cow;
use std::sync::Arc;

use ::sentry::types::Dsn;
use ::sentry::{Client, ClientOptions, Hub};

use self::transport::Factory;
use crate::export_worker::ExportWorker;
use crate::options::{Options, SentryOptions, TelemetryError};

/// Makes the client of the whole process. Before any other thread is started: those take it over from the first.
pub(crate) fn start(
    sentry: &SentryOptions,
    options: &Options,
    export_worker: &ExportWorker,
) -> Result<Arc<Client>, TelemetryError> {
    let dsn: Dsn = sentry.dsn.expose().parse().map_err(|_| TelemetryError::Dsn)?;
    let rates = sentry.rates;
    let mut of_client = ClientOptions::new()
        .release(options.version)
        .environment(options.environment.clone())
        .traces_sampler(move |trace| share(rates.of(trace.name())))
        .transport(Factory(export_worker.clone()));
    of_client.dsn = Some(dsn);
    of_client.server_name = hostname().map(Cow::Owned);
    let client = Arc::new(Client::with_options(of_client));
    Hub::main().bind_client(Some(Arc::clone(&client)));
    Ok(client)
}

#[allow(clippy::cast_possible_truncation)] // a share needs no precision
fn share(rate: f64) -> f32 {
    rate as f32
}

fn hostname() -> Option<String> {
    let name = fs_err::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
