//! A login under way: what was sent to the provider must come back, once, in time, and to where it began.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_model::decode::decode_strict;
use dstack_model::requests::OAuthState;
use dstack_store::queries::logins::{self, LoginRow};
use dstack_system::{Random, Secret};
use serde::{Deserialize, Serialize};

use super::Provider;
use crate::access::token_hash;
use crate::error::{ApiError, Result};
use crate::state::Data;

/// Long enough to find a password and a second factor.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);

/// Anyone may begin a login: what they can fill the database with is bounded.
const MAX_OPEN: i64 = 10_000;

/// What belongs to one login.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    /// Goes to the provider and comes back: base64 of [`OAuthState`].
    pub(crate) state: String,
    /// Where the provider sends the browser.
    pub(crate) redirect_url: String,
    secrets: Secrets,
}

/// What only this server may know.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Secrets {
    verifier: Secret,
    nonce: Secret,
}

fn random_text(random: &Random) -> String {
    hex::encode(random.bytes::<32>())
}

impl Attempt {
    /// A new one.
    pub(super) fn new(random: &Random, redirect_url: String, local_port: Option<i64>) -> Self {
        let state = OAuthState {
            value: hex::encode(random.bytes::<16>()),
            local_port,
        };
        let state = serde_json::to_vec(&state).unwrap_or_default();
        Self {
            state: STANDARD.encode(state),
            redirect_url,
            secrets: Secrets {
                verifier: random_text(random).into(),
                nonce: random_text(random).into(),
            },
        }
    }

    /// Proves to the provider that whoever has the code is who asked for it (PKCE).
    pub(super) fn verifier(&self) -> &Secret {
        &self.secrets.verifier
    }

    /// Ties the provider's token to this login.
    pub(super) fn nonce(&self) -> &Secret {
        &self.secrets.nonce
    }
}

/// Reads what [`Attempt::state`] says. Anybody can make such a text.
pub(crate) fn decode_state(state: &str) -> Option<OAuthState> {
    let bytes = STANDARD.decode(state).ok()?;
    let value = serde_json::from_slice(&bytes).ok()?;
    decode_strict(&value).ok()
}

fn invalid() -> ApiError {
    ApiError::client(
        "Invalid state token: the login took too long, was finished already, or was begun elsewhere. Start it again",
    )
}

/// Notes a login, and makes the text by which whoever began it is recognized.
pub(crate) async fn begin(
    data: &Data,
    provider: &Provider,
    redirect_url: String,
    local_port: Option<i64>,
) -> Result<(Attempt, String)> {
    let attempt = Attempt::new(&data.random, redirect_url, local_port);
    let browser = random_text(&data.random);
    let secrets = serde_json::to_string(&attempt.secrets).map_err(ApiError::internal)?;
    let now = data.clock.now();
    let row = LoginRow {
        state_hash: token_hash(&attempt.state),
        browser_hash: token_hash(&browser),
        provider: provider.name.to_owned(),
        redirect_url: attempt.redirect_url.clone(),
        secrets: data.encryption.encrypt(&secrets)?,
        expires_at: now + LIFETIME,
    };
    let noted = data
        .database
        .write(move |tx| Box::pin(async move { logins::insert(tx, &row, now, MAX_OPEN).await }))
        .await?;
    match noted {
        true => Ok((attempt, browser)),
        false => Err(ApiError::TooMany {
            msg: "Too many logins are under way. Try again later",
            retry_after: Duration::from_secs(60),
        }),
    }
}

/// The login with this state, which cannot be finished a second time. `browser` is what whoever began it was given.
pub(crate) async fn finish(
    data: &Data,
    provider: &Provider,
    given: &str,
    browser: Option<&str>,
) -> Result<Attempt> {
    let hash = token_hash(given);
    let row = data
        .database
        .logins()
        .by_state(&hash)
        .await?
        .ok_or_else(invalid)?;
    let is_same = browser.is_some_and(|browser| token_hash(browser) == row.browser_hash);
    if !is_same || row.provider != provider.name || row.expires_at <= data.clock.now() {
        return Err(invalid());
    }
    let taken = data
        .database
        .write(move |tx| Box::pin(async move { logins::take(tx, &hash).await }))
        .await?;
    if !taken {
        return Err(invalid());
    }
    // The key may have been replaced meanwhile.
    let secrets = data.encryption.decrypt(&row.secrets).map_err(|_| invalid())?;
    Ok(Attempt {
        state: given.to_owned(),
        redirect_url: row.redirect_url,
        secrets: serde_json::from_str(secrets.expose()).map_err(|_| invalid())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_as_clients_read_it_and_no_two_are_equal() {
        let random = Random::seeded(1);
        let attempt = |port| Attempt::new(&random, "http://127.0.0.1:3000/auth/okta/callback".into(), port);
        let (one, other) = (attempt(Some(41001)), attempt(None));
        assert_eq!(decode_state(&one.state).unwrap().local_port, Some(41001));
        let decoded = decode_state(&other.state).unwrap();
        assert_eq!((decoded.local_port, decoded.value.len()), (None, 32));
        assert_ne!(one.verifier().expose(), other.verifier().expose());
        // RFC 7636: 43 to 128 letters and digits.
        assert_eq!(one.verifier().expose().len(), 64);
        assert_eq!(decode_state("???"), None);
    }
}
