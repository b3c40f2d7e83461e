//! Who asks: a service account by its key, or what this machine has ("Application Default Credentials"), as access tokens.
//!
//! Signatures are RS256 ("Using OAuth 2.0 for Server to Server Applications"). Tokens are kept until shortly before their end.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use dstack_backend::{Env, one_line};
use dstack_compute::ComputeError;
use dstack_compute::config::GcpCreds;
use dstack_http::{ApiClient, ApiError, ApiLimits, Signer};
use dstack_model::backends::BackendType;
use dstack_system::{Secret, env};
use dstack_units::Time;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::SigningKey;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use crate::federation::External;

/// The audience of assertions, and where they are exchanged. Keys name it too; no other is taken, as users could lead the server anywhere.
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";

pub(crate) const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// How long an assertion is good: the most that is allowed.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);

/// A token that ends so soon is not used.
const MARGIN: Duration = Duration::from_secs(300);

/// Of a machine that is none of Google's, the name is unknown.
const METADATA_LIMIT: Duration = Duration::from_secs(5);

/// More than any file of credentials has.
pub(crate) const LONGEST_FILE: u64 = 64 * 1024;

/// Who may get a token.
enum Identity {
    Account(Account),
    Login {
        client_id: String,
        client_secret: Secret,
        refresh_token: Secret,
    },
    /// Somebody else's token, which Google takes for one of its own.
    External(Box<External>),
    /// The service account of the machine on which the server runs.
    ThisMachine,
}

/// A service account with a key.
struct Account {
    email: String,
    key_id: String,
    key: Arc<dyn SigningKey>,
}

/// A file of credentials.
#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    #[serde(rename = "type")]
    kind: String,
    client_email: String,
    private_key: String,
    private_key_id: String,
    client_id: String,
    client_secret: String,
    refresh_token: String,
}

#[derive(Deserialize)]
pub(crate) struct Answer {
    pub(crate) access_token: String,
    /// Seconds for which the token is still good.
    pub(crate) expires_in: u64,
}

impl Identity {
    /// Of the text of a file; why not.
    fn read(text: &str) -> Result<Self, String> {
        // What the parser says may show a part of the text.
        let file: File = serde_json::from_str(text).map_err(|_| "it is no JSON of credentials".to_owned())?;
        match file.kind.as_str() {
            "service_account" => {
                for (name, value) in [
                    ("client_email", &file.client_email),
                    ("private_key", &file.private_key),
                ] {
                    if value.is_empty() {
                        return Err(format!("it has no `{name}`"));
                    }
                }
                Ok(Self::Account(Account {
                    key: private_key(&file.private_key)?,
                    email: file.client_email,
                    key_id: file.private_key_id,
                }))
            }
            "authorized_user" => Ok(Self::Login {
                client_id: file.client_id,
                client_secret: file.client_secret.into(),
                refresh_token: file.refresh_token.into(),
            }),
            "external_account" => Ok(Self::External(Box::new(External::read(text)?))),
            "" => Err("it has no `type`".to_owned()),
            other => Err(format!(
                "credentials of the type {} are not supported",
                one_line(other)
            )),
        }
    }

    /// What Google's own programs would use here: a file that is named, the login of `gcloud`, or the machine's account.
    fn of_this_machine() -> Result<Self, String> {
        let named = env::var("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from);
        let folder = env::var("CLOUDSDK_CONFIG").map(PathBuf::from);
        let folder = folder.or_else(|| Some(env::home()?.join(".config/gcloud")));
        let usual = folder.map(|folder| folder.join("application_default_credentials.json"));
        let Some(path) = named.or_else(|| usual.filter(|path| path.exists())) else {
            return Ok(Self::ThisMachine);
        };
        let wrong = |why: String| format!("{}: {why}", path.display());
        // Others, such as devices and pipes, may have no end.
        let found = fs_err::metadata(&path).map_err(|error| error.to_string())?;
        if !found.is_file() || found.len() > LONGEST_FILE {
            return Err(wrong("it is no file of at most 64 KiB".to_owned()));
        }
        let text = fs_err::read_to_string(&path).map_err(|error| error.to_string())?;
        Self::read(&text).map_err(wrong)
    }
}

impl Account {
    /// Says who it is, until an hour from now.
    fn assertion(&self, now: Time) -> Result<String, String> {
        let encode = |part: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": self.key_id});
        let begin = now.as_millis() / 1000;
        let end = begin + i64::try_from(LIFETIME.as_secs()).unwrap_or(0);
        let claims = json!({"iss": self.email, "scope": SCOPE, "aud": TOKEN_URL, "iat": begin, "exp": end});
        let text = format!("{}.{}", encode(&header), encode(&claims));
        let signer = self.key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]);
        let signer = signer.ok_or("the key is no RSA key")?;
        let signature = signer.sign(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// In PEM.
fn private_key(pem: &str) -> Result<Arc<dyn SigningKey>, String> {
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("its `private_key` cannot be read: {error}"))?;
    let key =
        any_supported_type(&der).map_err(|error| format!("its `private_key` cannot be used: {error}"))?;
    match key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]) {
        Some(_) => Ok(key),
        None => Err("its `private_key` is no RSA key".to_owned()),
    }
}

/// A token, and when it ends.
type Token = Option<(Time, Arc<Secret>)>;

/// Gives tokens, and signs requests with the last one.
pub(crate) struct Tokens {
    env: Env,
    /// `None`: what this machine has, which is looked up for each token.
    account: Option<Identity>,
    exchange: ApiClient,
    metadata: ApiClient,
    token: Arc<StdMutex<Token>>,
    asking: Mutex<()>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Nothing is asked for yet.
    ///
    /// # Errors
    /// The key cannot be used; why.
    pub(crate) fn new(env: &Env, creds: &GcpCreds) -> Result<Self, String> {
        let account = match creds {
            GcpCreds::ServiceAccount(creds) => Some(Identity::read(creds.data.expose())?),
            GcpCreds::Default(_) => None,
        };
        if matches!(&account, Some(Identity::Login { .. } | Identity::External(_))) {
            return Err("it is no key of a service account".to_owned());
        }
        let host = env::var("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".to_owned());
        let metadata_limits = ApiLimits {
            timeout: METADATA_LIMIT,
            ..ApiLimits::default()
        };
        Ok(Self {
            env: env.clone(),
            account,
            exchange: env.api(
                BackendType::Gcp,
                "https://oauth2.googleapis.com",
                ApiLimits::default(),
            )?,
            metadata: env.api(BackendType::Gcp, &format!("http://{host}"), metadata_limits)?,
            token: Arc::default(),
            asking: Mutex::default(),
        })
    }

    /// What puts the token into requests.
    pub(crate) fn signer(&self) -> Arc<dyn Signer> {
        Arc::new(Bearer(Arc::clone(&self.token)))
    }

    /// Sees to it that there is a token, and returns it.
    pub(crate) async fn refresh(&self) -> Result<Arc<Secret>, ComputeError> {
        if let Some(token) = self.fresh() {
            return Ok(token);
        }
        let _asking = self.asking.lock().await;
        if let Some(token) = self.fresh() {
            return Ok(token);
        }
        let now = self.env.clock.now();
        let answer = self.ask(now).await?;
        let end = now + Duration::from_secs(answer.expires_in);
        let token = Arc::new(Secret::from(answer.access_token));
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, Arc::clone(&token)));
        Ok(token)
    }

    /// Google does not take this token any more. One that came after it stays.
    pub(crate) fn forget(&self, used: &Arc<Secret>) {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.take_if(|(_, token)| Arc::ptr_eq(token, used));
    }

    fn fresh(&self) -> Option<Arc<Secret>> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let (end, token) = token.as_ref()?;
        (self.env.clock.now() + MARGIN < *end).then(|| Arc::clone(token))
    }

    async fn ask(&self, now: Time) -> Result<Answer, ComputeError> {
        let own;
        let identity = match &self.account {
            Some(account) => account,
            None => {
                own = Identity::of_this_machine().map_err(ComputeError::Credentials)?;
                &own
            }
        };
        let exchange = async |fields: &[(&str, &str)]| {
            let fields = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let fields: Vec<_> = fields.collect();
            self.exchange
                .post("token")
                .form(&fields)
                .repeatable()
                .send::<Answer>()
                .await
        };
        let answer = match identity {
            Identity::Account(account) => {
                let assertion = account.assertion(now).map_err(ComputeError::Credentials)?;
                let kind = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                exchange(&[("grant_type", kind), ("assertion", &assertion)]).await
            }
            Identity::Login {
                client_id,
                client_secret,
                refresh_token,
            } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", client_id),
                    ("client_secret", client_secret.expose()),
                    ("refresh_token", refresh_token.expose()),
                ];
                exchange(&fields).await
            }
            Identity::External(external) => return external.token(&self.env, now).await,
            Identity::ThisMachine => {
                let path = "computeMetadata/v1/instance/service-accounts/default/token";
                let request = self.metadata.get(path);
                let request = request.header(HeaderName::from_static("metadata-flavor"), "Google");
                request.send().await.map_err(|error| match error {
                    ApiError::NotSent { .. } => none_here(),
                    error => error,
                })
            }
        };
        answer.map_err(|error| refused(&error))
    }
}

fn none_here() -> ApiError {
    ApiError::NotSent {
        api: "the metadata server of Google".to_owned(),
        details: "there are no other credentials on this machine: set GOOGLE_APPLICATION_CREDENTIALS"
            .to_owned(),
    }
}

/// Why there is no token. Nothing else was asked for.
pub(crate) fn refused(error: &ApiError) -> ComputeError {
    #[derive(Deserialize)]
    struct Body {
        error: String,
        #[serde(default)]
        error_description: String,
    }
    match serde_json::from_str::<Body>(error.body()) {
        Ok(body) if error.status().is_some_and(|status| status.is_client_error()) => {
            let text = format!("{}: {}", body.error, body.error_description);
            ComputeError::Credentials(one_line(&text))
        }
        _ => ComputeError::NoKeysNow(error.to_string()),
    }
}

struct Bearer(Arc<StdMutex<Token>>);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bearer").finish_non_exhaustive()
    }
}

impl Signer for Bearer {
    fn sign(&self, request: &mut Request<Bytes>) -> Result<(), String> {
        let token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, token) = token.as_ref().ok_or("there is no token")?;
        let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let mut value = value.map_err(|_| "the token is no header".to_owned())?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Ok(())
    }
}
