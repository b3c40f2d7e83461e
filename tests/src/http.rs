//! A blocking HTTP client that takes answers as they are: no redirects followed, no status an error.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// What is said of an answer of which the head has come, and not all of the body.
pub const BROKEN_OFF: &str = "the answer has broken off";

/// An answer of a server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON, if it is.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A client with its own pool of connections.
pub struct Client {
    agent: ureq::Agent,
}

impl Default for Client {
    fn default() -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(Duration::from_secs(120)))
            .proxy(None)
            // A server may close an idle connection just when it is used again.
            .max_idle_connections(0)
            .build();
        Client { agent: config.into() }
    }
}

impl Client {
    /// Sends a request; `body` is left out when `None`.
    pub fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer> {
        let mut request = http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = match body {
            Some(body) => self.agent.run(request.body(body)?),
            None => self.agent.run(request.body(())?),
        };
        let mut answer = answer.with_context(|| format!("{method} {url}"))?;
        let headers = answer.headers().iter().map(|(name, value)| {
            (
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        });
        Ok(Answer {
            status: answer.status().as_u16(),
            headers: headers.collect(),
            body: answer
                .body_mut()
                .with_config()
                .limit(1 << 30)
                .read_to_vec()
                .context(BROKEN_OFF)?,
        })
    }

    /// Posts JSON as the API's own clients do.
    pub fn post(&self, url: &str, token: &str, body: &Value) -> Result<Answer> {
        let headers = [
            ("authorization".to_owned(), format!("Bearer {token}")),
            ("content-type".to_owned(), "application/json".to_owned()),
        ];
        self.send("POST", url, &headers, Some(serde_json::to_vec(body)?))
    }
}
