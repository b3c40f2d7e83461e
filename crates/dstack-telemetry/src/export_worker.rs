//! Carries requests to whoever receives telemetry, on a thread of its own: exporters wait, the server does not.

use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use dstack_http::{ClientOptions, Redirects};
use dstack_system::task;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::{Handle, Runtime};

use crate::failure_reporter::FailureReporter;
use crate::options::TelemetryError;

/// More than any receiver answers.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Why something was not delivered. Addresses are not said: they may hold keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("no answer within {0:?}")]
    Slow(Duration),
    #[error("{}", causes(.0))]
    Failed(#[from] reqwest::Error),
    #[error("the answer is larger than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
    #[error("refused with status {0}")]
    Refused(http::StatusCode),
    #[error("the server is stopping")]
    Stopped,
}

/// All causes on one line; without the address.
fn causes(error: &reqwest::Error) -> String {
    let what = match error.is_connect() {
        true => "cannot connect",
        false => "the request failed",
    };
    format!("{what}: {}", dstack_system::causes_of(error))
}

/// A client, and the thread that it runs on.
#[derive(Debug, Clone)]
pub(crate) struct ExportWorker {
    client: reqwest::Client,
    thread: Handle,
}

impl ExportWorker {
    /// With the runtime that it needs as long as it is used.
    pub(crate) fn start() -> Result<(Self, Runtime), TelemetryError> {
        let options = ClientOptions {
            // Keys must not be carried elsewhere.
            redirects: Redirects::Never,
            ..ClientOptions::default()
        };
        let client = options
            .build()
            .map_err(|error| TelemetryError::ExportWorker(error.into()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("dstack-telemetry")
            .enable_all()
            .build()
            .map_err(|error| TelemetryError::ExportWorker(error.into()))?;
        let thread = runtime.handle().clone();
        Ok((Self { client, thread }, runtime))
    }

    /// Where its work is done.
    pub(crate) const fn thread(&self) -> &Handle {
        &self.thread
    }

    /// Sends a request and reads the answer, whatever its status.
    pub(crate) async fn send(
        &self,
        request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<Bytes>, ExportError> {
        let client = self.client.clone();
        // Exporters wait on threads without a runtime.
        let sent = task::spawn_on(&self.thread, "send telemetry", async move {
            tokio::time::timeout(within, exchange(&client, request))
                .await
                .unwrap_or(Err(ExportError::Slow(within)))
        });
        match sent.await {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(_) => Err(ExportError::Stopped),
        }
    }
}

async fn exchange(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, ExportError> {
    let mut answer = client.execute(request.try_into()?).await?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(ExportError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    *response.body_mut() = body.freeze();
    Ok(response)
}

/// The client of one OpenTelemetry exporter.
#[derive(Debug)]
pub(crate) struct ExporterClient {
    pub(crate) export_worker: ExportWorker,
    /// How long a request may take.
    pub(crate) within: Duration,
    pub(crate) failure_reporter: FailureReporter,
}

#[async_trait]
impl HttpClient for ExporterClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.export_worker.send(request, self.within).await;
        let failure = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(ExportError::Refused(answer.status()).to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.failure_reporter
            .note(failure.as_ref().map(|failure| failure as &dyn std::fmt::Display));
        Ok(answer?)
    }
}
