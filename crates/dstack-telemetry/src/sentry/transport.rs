//! Sends what Sentry's client makes, with our HTTP client. The one that comes with the client would bring a second set of
//! features of it.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use ::sentry::transports::{RateLimiter, RateLimitingCategory};
use ::sentry::{Envelope, Transport, TransportFactory, TransportOptions};
use bytes::Bytes;
use dstack_system::task;
use http::{Request, StatusCode, header};
use tokio::sync::mpsc;

use crate::export_worker::{ExportError, ExportWorker};
use crate::failure_reporter::FailureReporter;

/// Envelopes that wait; more are dropped (as many as Sentry's own transports keep).
const WAITING: usize = 30;

/// How long Sentry may take for one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes the transport when the client knows where to.
pub(super) struct Factory(pub(super) ExportWorker);

impl TransportFactory for Factory {
    fn create_transport_with_options(&self, options: TransportOptions) -> Arc<dyn Transport> {
        let (queue, waiting) = mpsc::channel(WAITING);
        let sender = Sender {
            export_worker: self.0.clone(),
            url: options.dsn.envelope_api_url().to_string(),
            auth: options.dsn.to_auth(Some(&options.user_agent)).to_string(),
            limits: RateLimiter::new(),
            failure_reporter: FailureReporter::about("Sentry"),
        };
        task::spawn_on(self.0.thread(), "send to Sentry", sender.run(waiting));
        Arc::new(Queue(queue))
    }
}

enum Command {
    Send(Box<Envelope>),
    /// Told when everything before it was sent.
    Flush(SyncSender<()>),
}

struct Queue(mpsc::Sender<Command>);

impl Transport for Queue {
    fn send_envelope(&self, envelope: Envelope) {
        // Whoever makes a trace or an error never waits.
        self.0.try_send(Command::Send(Box::new(envelope))).ok();
    }

    fn flush(&self, within: Duration) -> bool {
        let (done, sent) = sync_channel(1);
        self.0.try_send(Command::Flush(done)).is_ok() && sent.recv_timeout(within).is_ok()
    }
}

struct Sender {
    export_worker: ExportWorker,
    url: String,
    auth: String,
    limits: RateLimiter,
    failure_reporter: FailureReporter,
}

impl Sender {
    async fn run(mut self, mut waiting: mpsc::Receiver<Command>) {
        while let Some(command) = waiting.recv().await {
            match command {
                Command::Flush(done) => {
                    done.try_send(()).ok(); // whoever asked may have given up
                }
                Command::Send(envelope) if self.limits.is_enabled(category(&envelope)) => {
                    let failure = self.send(&envelope).await.err().map(|error| error.to_string());
                    self.failure_reporter
                        .note(failure.as_ref().map(|failure| failure as &dyn std::fmt::Display));
                }
                Command::Send(_) => {}
            }
        }
    }

    async fn send(&mut self, envelope: &Envelope) -> Result<(), ExportError> {
        let mut body = Vec::new();
        if envelope.to_writer(&mut body).is_err() {
            return Ok(()); // cannot be written as JSON: nothing that trying again would mend
        }
        let request = Request::post(&self.url)
            .header("X-Sentry-Auth", &self.auth)
            .header(header::CONTENT_TYPE, "application/x-sentry-envelope")
            .body(Bytes::from(body));
        let Ok(request) = request else {
            return Ok(());
        };
        let answer = self.export_worker.send(request, REQUEST_TIMEOUT).await?;
        let said = |name| answer.headers().get(name)?.to_str().ok();
        if let Some(limits) = said("x-sentry-rate-limits") {
            self.limits.update_from_sentry_header(limits);
        } else if let Some(after) = said("retry-after") {
            self.limits.update_from_retry_after(after);
        } else if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            self.limits.update_from_429();
        }
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(ExportError::Refused(status)),
        }
    }
}

fn category(envelope: &Envelope) -> RateLimitingCategory {
    match envelope.event() {
        Some(_) => RateLimitingCategory::Error,
        None => RateLimitingCategory::Transaction,
    }
}
