//! Access tokens, by the client credentials of OAuth 2.

use std::time::Duration;

use dstack_backend::Env;
use dstack_compute::config::{ClientKeyCreds, Credential};
use dstack_http::{ApiClient, ApiError};
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

/// A token that ends sooner is not used any more.
const MARGIN: Duration = Duration::from_secs(60);

/// Fetches tokens and keeps the last one. Refresh tokens are not used: the credentials are at hand.
#[derive(Debug)]
pub(crate) struct Tokens {
    api: ApiClient,
    clock: SharedClock,
    creds: ClientKeyCreds,
    last: Mutex<Option<Token>>,
}

#[derive(Debug, Clone)]
struct Token {
    text: Credential,
    ends: Time,
}

impl Tokens {
    pub(crate) fn new(api: ApiClient, env: &Env, creds: ClientKeyCreds) -> Self {
        Self {
            api,
            clock: env.clock.clone(),
            creds,
            last: Mutex::default(),
        }
    }

    /// A token, another one than `refused`.
    pub(crate) async fn get(&self, refused: Option<&Credential>) -> Result<Credential, ApiError> {
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        match &*last {
            Some(token) if now + MARGIN < token.ends && Some(&token.text) != refused => {
                Ok(token.text.clone())
            }
            _ => {
                let (text, lifetime) = self.fetch().await.map_err(not_asked)?;
                let ends = now + lifetime;
                *last = Some(Token {
                    text: text.clone(),
                    ends,
                });
                Ok(text)
            }
        }
    }

    async fn fetch(&self) -> Result<(Credential, Duration), ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            access_token: Credential,
            expires_in: u64,
        }
        let ask = json!({
            "grant_type": "client_credentials",
            "client_id": self.creds.client_id,
            "client_secret": self.creds.client_secret.expose(),
        });
        let answer: Answer = self
            .api
            .post("oauth2/token")
            .json(&ask)
            .repeatable()
            .send()
            .await?;
        Ok((answer.access_token, Duration::from_secs(answer.expires_in)))
    }
}

/// Without a token, what was to be asked was certainly not. A 404 says nothing of it either.
fn not_asked(error: ApiError) -> ApiError {
    match error.is_definite() && error.status() != Some(StatusCode::NOT_FOUND) {
        true => error,
        false => ApiError::NotSent {
            api: "Verda".to_owned(),
            details: format!("there is no access token: {error}"),
        },
    }
}
