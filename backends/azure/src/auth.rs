//! Tokens of Microsoft Entra for an application, for the machine that the server runs on, or for who is logged in there. They hold for an hour or more, and
//! are renewed before they end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dstack_backend::Env;
use dstack_compute::config::{AzureConfig, AzureCreds};
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_system::clock::SharedClock;
use dstack_system::{Random, Secret, env};
use dstack_units::Time;
use http::{HeaderName, StatusCode};
use serde::{Deserialize, Deserializer};
use tokio::sync::Mutex;

use crate::certificate::Certificate;
use crate::cli::AzureCli;
use crate::errors::AzureError;

const LOGIN: &str = "https://login.microsoftonline.com";

/// The metadata service of Azure's machines.
const METADATA: &str = "http://169.254.169.254";

const RESOURCE: &str = "https://management.azure.com";

/// Of a machine that is none of Azure's, there is no metadata service: that is to be known soon.
const METADATA_LIMITS: ApiLimits = ApiLimits {
    timeout: Duration::from_secs(5),
    attempts: 3,
    parallel: 1,
};

/// A token is renewed so long before it ends.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);

/// More than any token of another issuer has.
const LONGEST_FILE: u64 = 64 * 1024;

/// To whom tokens are given, and how that is proved to Microsoft Entra, or to the metadata service.
#[derive(Debug, Clone, PartialEq)]
enum Identity {
    /// An application with a secret.
    Secret {
        tenant: String,
        client: String,
        secret: Secret,
    },
    /// An application that trusts another issuer, whose token is in a file ("workload identity").
    Federated {
        tenant: String,
        client: String,
        file: PathBuf,
    },
    /// An application with a certificate, which is in a file with its key.
    Certificate {
        tenant: String,
        client: String,
        file: PathBuf,
    },
    /// The identity of this machine; one of several, where it is named. Where it has none, the login of the Azure CLI.
    Machine { client: Option<String> },
}

/// Tokens for Azure Resource Manager.
#[derive(Debug)]
pub(crate) struct Tokens {
    clock: SharedClock,
    random: Random,
    /// Of the configuration: where the login of the Azure CLI is asked.
    tenant: String,
    cli: AzureCli,
    /// Whether the last token was of that: then the machine has no identity.
    is_of_cli: AtomicBool,
    /// Whether it has one: then nobody else's is used, however long the metadata service is silent.
    has_identity: AtomicBool,
    identity: Identity,
    login: ApiClient,
    metadata: ApiClient,
    known: Mutex<Option<Token>>,
}

#[derive(Debug, Clone)]
struct Token {
    text: Secret,
    renewed_at: Time,
}

#[derive(Deserialize)]
struct Granted {
    access_token: Secret,
    #[serde(deserialize_with = "seconds")]
    expires_in: u64,
}

/// A number, or a text with it, as the metadata service has it.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Seconds {
        Number(u64),
        Text(String),
    }
    match Seconds::deserialize(deserializer)? {
        Seconds::Number(seconds) => Ok(seconds),
        Seconds::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

impl Identity {
    fn of(config: &AzureConfig) -> Result<Self, String> {
        match &config.creds {
            AzureCreds::Client(creds) => Ok(Self::Secret {
                tenant: creds
                    .tenant_id
                    .clone()
                    .unwrap_or_else(|| config.tenant_id.clone()),
                client: creds.client_id.clone(),
                secret: Secret::new(creds.client_secret.expose()),
            }),
            AzureCreds::Default(_) => Self::of_this_machine(env::var),
        }
    }

    /// By the variables that Azure's own libraries take, in their order.
    fn of_this_machine(var: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let client = var("AZURE_CLIENT_ID");
        let application = var("AZURE_TENANT_ID").zip(client.clone());
        let secret = var("AZURE_CLIENT_SECRET");
        let certificate = var("AZURE_CLIENT_CERTIFICATE_PATH");
        let file = var("AZURE_FEDERATED_TOKEN_FILE");
        if secret.is_none() && certificate.is_none() && file.is_none() {
            return Ok(Self::Machine { client });
        }
        let (tenant, client) = application.ok_or(
            "with AZURE_CLIENT_SECRET, AZURE_CLIENT_CERTIFICATE_PATH or AZURE_FEDERATED_TOKEN_FILE, AZURE_TENANT_ID and AZURE_CLIENT_ID have \
             to be set",
        )?;
        Ok(match (secret, certificate, file) {
            (Some(secret), ..) => Self::Secret {
                tenant,
                client,
                secret: Secret::new(secret),
            },
            (None, Some(file), _) => Self::Certificate {
                tenant,
                client,
                file: file.into(),
            },
            (None, None, file) => Self::Federated {
                tenant,
                client,
                file: file.unwrap_or_default().into(),
            },
        })
    }
}

impl Tokens {
    /// No call is made.
    ///
    /// # Errors
    /// What this machine has is no whole set of credentials.
    pub(crate) fn new(backend_env: &Env, config: &AzureConfig) -> Result<Self, String> {
        let identity = Identity::of(config)?;
        let login = backend_env.api(BackendType::Azure, LOGIN, ApiLimits::default())?;
        Ok(Self {
            clock: backend_env.clock.clone(),
            random: backend_env.random.clone(),
            tenant: config.tenant_id.clone(),
            cli: AzureCli::installed(),
            is_of_cli: AtomicBool::new(false),
            has_identity: AtomicBool::new(false),
            identity,
            login,
            metadata: backend_env.api(BackendType::Azure, METADATA, METADATA_LIMITS)?,
            known: Mutex::default(),
        })
    }

    /// One that holds for a while.
    pub(crate) async fn current(&self) -> Result<Secret, AzureError> {
        let mut known = self.known.lock().await;
        let now = self.clock.now();
        if let Some(token) = known.as_ref().filter(|token| now < token.renewed_at) {
            return Ok(token.text.clone());
        }
        let granted = self.ask().await?;
        let lifetime = Duration::from_secs(granted.expires_in).saturating_sub(RENEWED_BEFORE);
        *known = Some(Token {
            text: granted.access_token.clone(),
            renewed_at: now + lifetime,
        });
        Ok(granted.access_token)
    }

    /// This one is not taken any more; whether another one may be.
    pub(crate) async fn forget(&self, token: &Secret) {
        let mut known = self.known.lock().await;
        if known.as_ref().is_some_and(|known| known.text == *token) {
            *known = None;
        }
    }

    async fn ask(&self) -> Result<Granted, AzureError> {
        let (tenant, client, proof) = match &self.identity {
            Identity::Machine { client } => return self.ask_surroundings(client.as_deref()).await,
            Identity::Secret {
                tenant,
                client,
                secret,
            } => (
                tenant,
                client,
                vec![("client_secret".to_owned(), secret.expose().to_owned())],
            ),
            Identity::Federated { tenant, client, file } => {
                let token = read(file).map_err(AzureError::without_credentials)?;
                (tenant, client, assertion(token.expose()))
            }
            Identity::Certificate { tenant, client, file } => {
                let audience = format!("{LOGIN}/{tenant}/oauth2/v2.0/token");
                let id = self.random.uuid().to_string();
                let signed = Certificate::read(file)
                    .and_then(|found| found.assertion(client, &audience, &id, self.clock.now()));
                let signed = signed.map_err(AzureError::without_credentials)?;
                (tenant, client, assertion(&signed))
            }
        };
        let mut form = vec![
            ("grant_type".to_owned(), "client_credentials".to_owned()),
            ("client_id".to_owned(), client.clone()),
            ("scope".to_owned(), format!("{RESOURCE}/.default")),
        ];
        form.extend(proof);
        let path = format!("{tenant}/oauth2/v2.0/token");
        let granted = self.login.post(&path).form(&form).repeatable().send().await;
        granted.map_err(AzureError::of_login)
    }

    /// The identity of this machine, or the login of the Azure CLI.
    async fn ask_surroundings(&self, client: Option<&str>) -> Result<Granted, AzureError> {
        if self.is_of_cli.load(Ordering::Relaxed)
            && let Ok(granted) = self.ask_cli().await
        {
            return Ok(granted);
        }
        let asked = self.ask_metadata(client).await;
        let refused = match asked {
            Err(error) if has_no_identity(&error) && !self.has_identity.load(Ordering::Relaxed) => error,
            Err(error) => return Err(AzureError::of_login(error)),
            Ok(granted) => {
                self.has_identity.store(true, Ordering::Relaxed);
                return Ok(granted);
            }
        };
        let cause = match self.ask_cli().await {
            Ok(granted) => {
                self.is_of_cli.store(true, Ordering::Relaxed);
                return Ok(granted);
            }
            Err(cause) => cause,
        };
        Err(AzureError::without_credentials(format!(
            "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET (or AZURE_CLIENT_CERTIFICATE_PATH) are not set, this machine has no \
             identity of Azure ({refused}), and there is no login of `az`: {cause}"
        )))
    }

    async fn ask_cli(&self) -> Result<Granted, String> {
        let now = self.clock.now();
        let token = self.cli.token(RESOURCE, &self.tenant, now).await?;
        Ok(Granted {
            access_token: token.text,
            expires_in: token.expires_in,
        })
    }

    async fn ask_metadata(&self, client: Option<&str>) -> Result<Granted, ApiError> {
        let request = self
            .metadata
            .get("metadata/identity/oauth2/token")
            .header(HeaderName::from_static("metadata"), "true")
            .query("api-version", "2018-02-01")
            .query("resource", &format!("{RESOURCE}/"));
        let request = match client {
            Some(client) => request.query("client_id", client),
            None => request,
        };
        request.send().await
    }
}

/// Whether the metadata service says that the machine has none, or nobody answers, as elsewhere than in Azure.
fn has_no_identity(error: &ApiError) -> bool {
    matches!(
        error.status(),
        None | Some(StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND)
    )
}

/// Fields of a form that prove by a signed token who asks.
fn assertion(token: &str) -> Vec<(String, String)> {
    let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
    vec![
        ("client_assertion_type".to_owned(), kind.to_owned()),
        ("client_assertion".to_owned(), token.to_owned()),
    ]
}

/// Tokens of other issuers are renewed in their files.
fn read(file: &PathBuf) -> Result<Secret, String> {
    let found = fs_err::metadata(file).map_err(|error| error.to_string())?;
    if !found.is_file() || found.len() > LONGEST_FILE {
        return Err("AZURE_FEDERATED_TOKEN_FILE is no file of at most 64 KiB".to_owned());
    }
    let text = fs_err::read_to_string(file).map_err(|error| error.to_string())?;
    Ok(Secret::new(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(set: &[(&str, &str)]) -> Result<Identity, String> {
        Identity::of_this_machine(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_surroundings_say_who_asks() {
        const TENANT: (&str, &str) = ("AZURE_TENANT_ID", "t");
        const CLIENT: (&str, &str) = ("AZURE_CLIENT_ID", "c");
        const SECRET: (&str, &str) = ("AZURE_CLIENT_SECRET", "s");
        const FILE: (&str, &str) = ("AZURE_FEDERATED_TOKEN_FILE", "/token");
        assert_eq!(found(&[]), Ok(Identity::Machine { client: None }));
        let client = Some("c".to_owned());
        assert_eq!(
            found(&[CLIENT]),
            Ok(Identity::Machine {
                client: client.clone()
            })
        );
        assert_eq!(found(&[TENANT, CLIENT]), Ok(Identity::Machine { client }));
        let all = found(&[TENANT, CLIENT, SECRET, FILE]).unwrap();
        assert!(matches!(all, Identity::Secret { .. }), "{all:?}");
        let file = found(&[TENANT, CLIENT, FILE]).unwrap();
        assert!(matches!(file, Identity::Federated { .. }), "{file:?}");
        for half in [&[SECRET][..], &[TENANT, SECRET], &[CLIENT, FILE]] {
            found(half).unwrap_err();
        }
        const CERTIFICATE: (&str, &str) = ("AZURE_CLIENT_CERTIFICATE_PATH", "/c");
        let certificate = found(&[TENANT, CLIENT, CERTIFICATE, FILE]).unwrap();
        assert!(
            matches!(certificate, Identity::Certificate { .. }),
            "{certificate:?}"
        );
        let secret = found(&[TENANT, CLIENT, CERTIFICATE, SECRET]).unwrap();
        assert!(matches!(secret, Identity::Secret { .. }), "{secret:?}");
        found(&[CLIENT, CERTIFICATE]).unwrap_err();
    }

    #[test]
    fn how_long_a_token_holds_is_a_number_or_a_text() {
        for text in [
            r#"{"access_token": "a", "expires_in": 3599, "token_type": "Bearer"}"#,
            r#"{"access_token": "a", "expires_in": "3599", "resource": "r"}"#,
        ] {
            let granted: Granted = serde_json::from_str(text).unwrap();
            assert_eq!(granted.expires_in, 3599);
        }
    }
}
