//! The API `Logs_20140328`: JSON 1.1, signed.

use std::time::Duration;

use bytes::Bytes;
use dstack_credentials::aws::{self, Aws};
use dstack_credentials::http_client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::STORE;
use crate::LogError;
use crate::remote::retry::{Failure, Head, Patience, Said};

/// For a whole call.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    aws: Aws,
    endpoint: String,
}

/// A refusal that means something to us.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no such group or stream.
    NotFound,
    /// There is such a stream.
    Exists,
    /// A parameter, such as the token, is wrong.
    Parameter(Said),
}

impl From<Refusal> for LogError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Parameter(said) => said.of(STORE),
            Refusal::NotFound => Said::new(400, "ResourceNotFoundException").of(STORE),
            Refusal::Exists => Said::new(400, "ResourceAlreadyExistsException").of(STORE),
        }
    }
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    #[serde(rename = "__type", default)]
    kind: String,
}

impl Client {
    pub(super) fn new(aws: Aws, endpoint: Option<String>) -> Result<Self, LogError> {
        let region = aws.region();
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        let endpoint = endpoint
            .or_else(|| aws::endpoint("logs"))
            .unwrap_or_else(|| format!("https://logs.{region}.amazonaws.com{suffix}"));
        Ok(Self {
            http: http_client(TIMEOUT).map_err(LogError::remote(STORE))?,
            endpoint: format!("{}/", endpoint.trim_end_matches('/')),
            aws,
        })
    }

    pub(super) fn region(&self) -> &str {
        self.aws.region()
    }

    /// Makes a call; the outer error is that it could not be made.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        operation: &str,
        body: &Value,
    ) -> Result<Result<T, Refusal>, LogError> {
        let mut patience = Patience::new(STORE);
        loop {
            match self.call_once(operation, body).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.wait(failure).await?,
            }
        }
    }

    /// Makes a call and does not try again.
    pub(super) async fn call_once<T: DeserializeOwned>(
        &self,
        operation: &str,
        body: &Value,
    ) -> Result<Result<T, Refusal>, Failure> {
        let lasting = |source: Box<dyn std::error::Error + Send + Sync>| {
            Failure::Lasting(LogError::remote(STORE)(source))
        };
        let request = http::Request::post(&self.endpoint)
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", format!("Logs_20140328.{operation}"))
            .body(Bytes::from(body.to_string()))
            .map_err(|error| lasting(Box::new(error)))?;
        // Signed anew at each try: a signature is good for some minutes only.
        let signed = self
            .aws
            .sign(request)
            .await
            .map_err(|error| lasting(Box::new(error)))?;
        let request = reqwest::Request::try_from(signed).map_err(|error| lasting(Box::new(error)))?;
        let response = self.http.execute(request).await.map_err(Failure::of_transport)?;
        let head = Head::of(&response);
        let text = response.text().await.map_err(Failure::of_transport)?;
        if !head.status.is_success() {
            return refusal(head, &text).map(Err);
        }
        let text = if text.trim().is_empty() { "{}" } else { &text };
        match serde_json::from_str(text) {
            Ok(answer) => Ok(Ok(answer)),
            Err(error) => Err(Failure::passing(error)),
        }
    }
}

fn refusal(head: Head, text: &str) -> Result<Refusal, Failure> {
    let kind = serde_json::from_str(text)
        .map(|body: ErrorBody| body.kind)
        .unwrap_or_default();
    let said = Said::new(head.status.as_u16(), text);
    // Some services put a namespace before the name.
    Ok(match kind.rsplit('#').next().unwrap_or_default() {
        "ResourceNotFoundException" => Refusal::NotFound,
        "ResourceAlreadyExistsException" => Refusal::Exists,
        "InvalidParameterException" => Refusal::Parameter(said),
        "ThrottlingException" | "ServiceUnavailableException" | "OperationAbortedException" => {
            return Err(Failure::passing(said));
        }
        _ => return Err(Failure::of_status(STORE, head, text)),
    })
}
