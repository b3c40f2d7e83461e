//! Fluent Bit's HTTP input: a JSON array of records, posted to the tag.

use std::time::Duration;

use super::{Record, STORE};
use crate::LogError;
use crate::remote::retry::{Failure, Head, Patience};

/// For a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    base: String,
}

impl Http {
    pub(super) fn new(host: &str, port: u16) -> Result<Self, LogError> {
        let client = dstack_credentials::http_client(TIMEOUT).map_err(LogError::remote(STORE))?;
        Ok(Self {
            client,
            base: format!("http://{host}:{port}"),
        })
    }

    /// Sends records until they are taken.
    pub(super) async fn send(&self, tag: &str, records: &[Record]) -> Result<(), LogError> {
        let url = format!("{}/{tag}", self.base);
        let mut patience = Patience::new(STORE);
        while let Err(failure) = self.send_once(&url, records).await {
            patience.wait(failure).await?;
        }
        Ok(())
    }

    async fn send_once(&self, url: &str, records: &[Record]) -> Result<(), Failure> {
        let sent = self.client.post(url).json(records).send().await;
        match Head::of(&sent.map_err(Failure::of_transport)?) {
            head if head.status.is_success() => Ok(()),
            head => Err(Failure::of_status(STORE, head, "")),
        }
    }
}
