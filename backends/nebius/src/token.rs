//! Access tokens: a service account proves who it is by a JWT (RFC 7519) that its key signed, and exchanges that for one (RFC 8693).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use dstack_backend::Env;
use dstack_compute::config::{Credential, NebiusCreds};
use dstack_http::{ApiClient, ApiError};
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::SigningKey;
use serde_json::json;
use tokio::sync::Mutex;

use crate::grpc::{Code, Error, Refusal, call};
use crate::messages::{ExchangeToken, NewToken};

const EXCHANGE: &str = "nebius.iam.v1.TokenExchangeService/Exchange";

/// For whom the JWT is.
const AUDIENCE: &str = "token-service.iam.new.nebiuscloud.net";

/// How long the JWT is good for, in seconds.
const JWT_LIFETIME: i64 = 60;

/// How long the exchange may take: all calls wait for it.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);

/// A token that ends sooner is not used any more.
const MARGIN: Duration = Duration::from_secs(60);

/// A service account with its key.
pub(crate) struct Account {
    id: String,
    public_key_id: String,
    key: Arc<dyn SigningKey>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why credentials cannot be used: the field at fault, and what is wrong with it.
pub(crate) type Wrong = (&'static str, &'static str);

impl Account {
    pub(crate) fn of(creds: &NebiusCreds) -> Result<Self, Wrong> {
        for (field, id) in [
            ("service_account_id", &creds.service_account_id),
            ("public_key_id", &creds.public_key_id),
        ] {
            if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err((field, "it is no id of Nebius"));
            }
        }
        let wrong = |why| ("private_key_content", why);
        let key = PrivateKeyDer::from_pem_slice(creds.private_key_content.expose().trim().as_bytes());
        let key = key.map_err(|_| wrong("it is not one private key in PEM without a passphrase"))?;
        let key = any_supported_type(&key).map_err(|_| wrong("it is a key of an unknown kind"))?;
        if key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]).is_none() {
            return Err(wrong("it is no RSA key"));
        }
        Ok(Self {
            id: creds.service_account_id.clone(),
            public_key_id: creds.public_key_id.clone(),
            key,
        })
    }

    fn jwt(&self, now: Time) -> Result<String, String> {
        let signer = self.key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]);
        let signer = signer.ok_or("the key is no RSA key")?;
        let seconds = now.to_jiff().as_second();
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": self.public_key_id});
        let claims = json!({"iss": self.id, "sub": self.id, "aud": AUDIENCE, "iat": seconds, "exp": seconds + JWT_LIFETIME});
        let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let text = format!("{header}.{claims}");
        let signature = signer.sign(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Fetches tokens and keeps the last one.
#[derive(Debug)]
pub(crate) struct Tokens {
    api: ApiClient,
    clock: SharedClock,
    account: Account,
    last: Mutex<Last>,
}

/// What came of the last exchange.
#[derive(Debug, Default)]
struct Last {
    token: Option<Token>,
    failure: Option<(Time, Error)>,
}

#[derive(Debug, Clone)]
struct Token {
    text: Credential,
    ends: Time,
}

impl Tokens {
    pub(crate) fn new(api: ApiClient, env: &Env, account: Account) -> Self {
        Self {
            api,
            clock: env.clock.clone(),
            account,
            last: Mutex::default(),
        }
    }

    /// A token, another one than `refused`.
    pub(crate) async fn get(&self, refused: Option<&Credential>) -> Result<Credential, Error> {
        let asked_at = self.clock.now();
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        let is_good = |token: &&Token| now + MARGIN < token.ends && Some(&token.text) != refused;
        if let Some(token) = last.token.as_ref().filter(is_good) {
            return Ok(token.text.clone());
        }
        // Those who waited for an exchange that failed would each wait as long again.
        if let Some((at, error)) = &last.failure
            && *at > asked_at
        {
            return Err(error.clone());
        }
        let fetched = tokio::time::timeout(EXCHANGE_LIMIT, self.fetch(now)).await;
        match fetched.unwrap_or_else(|_| Err(late())).map_err(not_asked) {
            Ok((text, lifetime)) => {
                let ends = now + lifetime;
                last.token = Some(Token {
                    text: text.clone(),
                    ends,
                });
                Ok(text)
            }
            Err(error) => {
                last.failure = Some((self.clock.now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn fetch(&self, now: Time) -> Result<(Credential, Duration), Error> {
        let jwt = self.account.jwt(now).map_err(|details| {
            Error::Http(ApiError::NotSent {
                api: "Nebius".to_owned(),
                details,
            })
        })?;
        let ask = ExchangeToken {
            grant_type: "urn:ietf:params:oauth:grant-type:token-exchange".to_owned(),
            requested_token_type: "urn:ietf:params:oauth:token-type:access_token".to_owned(),
            subject_token: jwt,
            subject_token_type: "urn:ietf:params:oauth:token-type:jwt".to_owned(),
        };
        let told: NewToken = call("tokens.iam", || self.api.post(EXCHANGE), &ask).await?;
        let lifetime = Duration::from_secs(u64::try_from(told.expires_in).unwrap_or(0));
        Ok((Credential::new(told.access_token), lifetime))
    }
}

fn late() -> Error {
    Error::Http(ApiError::NotSent {
        api: "Nebius".to_owned(),
        details: format!("no answer within {} s", EXCHANGE_LIMIT.as_secs()),
    })
}

/// Without a token, what was to be asked was certainly not. What is refused is the key.
fn not_asked(error: Error) -> Error {
    let details = format!("there is no access token: {error}");
    match error {
        Error::Status(Refusal {
            code: Code::InvalidArgument | Code::NotFound | Code::PermissionDenied | Code::Unauthenticated,
            service,
            ..
        }) => Error::Status(Refusal {
            code: Code::Unauthenticated,
            message: details,
            service,
        }),
        Error::Http(error)
            if error
                .status()
                .is_some_and(|status| matches!(status.as_u16(), 401 | 403 | 429)) =>
        {
            Error::Http(error)
        }
        _ => Error::Http(ApiError::NotSent {
            api: "Nebius".to_owned(),
            details,
        }),
    }
}
