//! Workload identity federation (AIP-4117): a token of somebody else, from a file or a URL, is exchanged for one of Google's (RFC 8693), and
//! that for one of a service account where the file of credentials names one.
//!
//! Tokens go to Google only, whatever the file names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use dstack_backend::{Env, one_line};
use dstack_compute::ComputeError;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use dstack_system::Secret;
use dstack_units::Time;
use http::HeaderName;
use http::header::AUTHORIZATION;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::auth::{Answer, LIFETIME, LONGEST_FILE, SCOPE, refused};

/// Where tokens are exchanged, where the file does not say it.
const TOKEN_URL: &str = "https://sts.googleapis.com/v1/token";

/// What a token is for that is used for another account only.
const IMPERSONATION_SCOPE: &str = "https://www.googleapis.com/auth/iam";

/// Lives of tokens of service accounts, in seconds: more than an hour, an organization has to allow.
const LIFETIMES: std::ops::RangeInclusive<u64> = 600..=43_200;

/// The fields of a file of credentials of the type `external_account`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    audience: String,
    subject_token_type: String,
    token_url: Option<String>,
    service_account_impersonation_url: Option<String>,
    service_account_impersonation: Option<ImpersonationOptions>,
    credential_source: Option<CredentialSource>,
    client_id: Option<String>,
    workforce_pool_user_project: Option<String>,
}

#[derive(Deserialize)]
struct ImpersonationOptions {
    token_lifetime_seconds: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CredentialSource {
    file: Option<PathBuf>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    format: Format,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Format {
    #[serde(rename = "type")]
    kind: Option<String>,
    subject_token_field_name: Option<String>,
}

/// Who has a token of somebody else.
pub(crate) struct External {
    audience: String,
    subject_token_type: String,
    token_url: Url,
    impersonation: Option<Impersonation>,
    source: Source,
    /// The field of JSON in which the token is; `None`: it is the whole text.
    field: Option<String>,
}

struct Impersonation {
    url: Url,
    lifetime_secs: u64,
}

/// Where the token is.
enum Source {
    File(PathBuf),
    Url {
        url: Url,
        headers: Vec<(HeaderName, Secret)>,
    },
}

impl External {
    /// Of the text of a file; why not.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        // What the parser says may show a part of the text.
        let file: File =
            serde_json::from_str(text).map_err(|_| "a field of it has another type".to_owned())?;
        if file.client_id.is_some() || file.workforce_pool_user_project.is_some() {
            return Err("workforce pools are not supported, only workload identity pools".to_owned());
        }
        for (name, value) in [
            ("audience", &file.audience),
            ("subject_token_type", &file.subject_token_type),
        ] {
            if value.is_empty() {
                return Err(format!("it has no `{name}`"));
            }
        }
        let source = file.credential_source.ok_or("it has no `credential_source`")?;
        let field = match (
            source.format.kind.as_deref(),
            &source.format.subject_token_field_name,
        ) {
            (None | Some("text"), _) => None,
            (Some("json"), Some(field)) => Some(field.clone()),
            (Some("json"), None) => {
                return Err("`credential_source.format` has no `subject_token_field_name`".to_owned());
            }
            (Some(other), _) => {
                let other = one_line(other);
                return Err(format!(
                    "`credential_source.format.type` is {other}, and not text or json"
                ));
            }
        };
        let lifetime = file
            .service_account_impersonation
            .and_then(|all| all.token_lifetime_seconds);
        let lifetime_secs = lifetime.unwrap_or(LIFETIME.as_secs());
        if !LIFETIMES.contains(&lifetime_secs) {
            return Err("`token_lifetime_seconds` is not from 600 to 43200".to_owned());
        }
        let impersonation = match file.service_account_impersonation_url {
            None => None,
            Some(url) => Some(Impersonation {
                url: of_google("service_account_impersonation_url", &url)?,
                lifetime_secs,
            }),
        };
        Ok(Self {
            audience: file.audience,
            subject_token_type: file.subject_token_type,
            token_url: of_google("token_url", file.token_url.as_deref().unwrap_or(TOKEN_URL))?,
            impersonation,
            source: source_of(source)?,
            field,
        })
    }

    /// A token of Google's.
    pub(crate) async fn token(&self, env: &Env, now: Time) -> Result<Answer, ComputeError> {
        let subject_token = self.subject_token(env).await?;
        let scope = match self.impersonation {
            Some(_) => IMPERSONATION_SCOPE,
            None => SCOPE,
        };
        let fields = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            (
                "requested_token_type",
                "urn:ietf:params:oauth:token-type:access_token",
            ),
            ("audience", &self.audience),
            ("scope", scope),
            ("subject_token_type", &self.subject_token_type),
            ("subject_token", subject_token.expose()),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let api = google(env, &self.token_url)?;
        let exchanged = api.post(self.token_url.path()).form(&fields).repeatable();
        let exchanged: Answer = exchanged.send().await.map_err(|error| refused(&error))?;
        match &self.impersonation {
            None => Ok(exchanged),
            Some(impersonation) => impersonation.token(env, &exchanged, now).await,
        }
    }

    /// It is read for each exchange, as others replace it before its end.
    async fn subject_token(&self, env: &Env) -> Result<Secret, ComputeError> {
        let (text, place) = match &self.source {
            Source::File(path) => {
                let why = |error: String| ComputeError::Credentials(format!("the subject token: {error}"));
                let found = fs_err::metadata(path).map_err(|error| why(error.to_string()))?;
                // Others, such as devices and pipes, may have no end.
                if !found.is_file() || found.len() > LONGEST_FILE {
                    return Err(why(format!("{} is no file of at most 64 KiB", path.display())));
                }
                let text = fs_err::read_to_string(path).map_err(|error| why(error.to_string()))?;
                (text, path.display().to_string())
            }
            Source::Url { url, headers } => {
                let host = url.host_str().unwrap_or_default().to_owned();
                (ask(env, url, headers).await?, host)
            }
        };
        let token = match &self.field {
            None => Some(text.trim().to_owned()),
            Some(field) => {
                let told: Option<Value> = serde_json::from_str(&text).ok();
                told.and_then(|told| Some(told.get(field)?.as_str()?.to_owned()))
            }
        };
        // What is there is not shown: it may be a secret.
        let token = token
            .filter(|token| !token.is_empty())
            .ok_or_else(|| match &self.field {
                None => format!("there is no subject token in {place}"),
                Some(field) => format!(
                    "there is no subject token in `{}` of the JSON in {place}",
                    one_line(field)
                ),
            });
        token.map(Secret::from).map_err(ComputeError::Credentials)
    }
}

impl Impersonation {
    /// A token of the service account ("Create short-lived credentials for a service account").
    async fn token(&self, env: &Env, exchanged: &Answer, now: Time) -> Result<Answer, ComputeError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Made {
            access_token: String,
            expire_time: Time,
        }
        let api = google(env, &self.url)?;
        let body = json!({"scope": [SCOPE], "lifetime": format!("{}s", self.lifetime_secs)});
        let bearer = format!("Bearer {}", exchanged.access_token);
        let request = api
            .post(self.url.path())
            .header(AUTHORIZATION, &bearer)
            .json(&body);
        let made: Made = request
            .repeatable()
            .send()
            .await
            .map_err(|error| not_impersonated(&error))?;
        Ok(Answer {
            access_token: made.access_token,
            expires_in: made.expire_time.since(now).as_secs(),
        })
    }
}

fn source_of(source: CredentialSource) -> Result<Source, String> {
    match (source.file, source.url) {
        (Some(path), None) => Ok(Source::File(path)),
        (None, Some(url)) => {
            let url = Url::parse(&url).map_err(|error| format!("`credential_source.url`: {error}"))?;
            if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
                return Err("`credential_source.url` is no address of HTTP".to_owned());
            }
            let header = |(name, value): (String, String)| match HeaderName::try_from(name) {
                Ok(name) => Ok((name, Secret::from(value))),
                Err(_) => Err("`credential_source.headers` has a name that no header has".to_owned()),
            };
            let headers = source.headers.into_iter().map(header);
            Ok(Source::Url {
                url,
                headers: headers.collect::<Result<_, _>>()?,
            })
        }
        (Some(_), Some(_)) => Err("`credential_source` has a `file` and a `url`".to_owned()),
        // Of AWS, programs and certificates.
        (None, None) => Err("`credential_source` has no `file` or `url`: no others are supported".to_owned()),
    }
}

/// An address of Google's: another one would get the token.
fn of_google(name: &str, url: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).ok().filter(|url| {
        let is_its = url
            .host_str()
            .is_some_and(|host| host.ends_with(".googleapis.com"));
        url.scheme() == "https"
            && is_its
            && url.port().is_none()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    parsed.ok_or_else(|| format!("`{name}` is no address of https://*.googleapis.com"))
}

/// What is at an address of Google's.
fn google(env: &Env, url: &Url) -> Result<ApiClient, ComputeError> {
    let base = url.origin().ascii_serialization();
    let api = env.api(BackendType::Gcp, &base, ApiLimits::default());
    api.map_err(ComputeError::Credentials)
}

/// What an address answers that is not Google's.
async fn ask(env: &Env, url: &Url, headers: &[(HeaderName, Secret)]) -> Result<String, ComputeError> {
    let mut base = url.clone();
    base.set_path("");
    base.set_query(None);
    base.set_fragment(None);
    let api = ApiClient::new(Arc::clone(&env.transport), base, ApiLimits::default());
    let request = url
        .query_pairs()
        .fold(api.get(url.path()), |request: ApiRequest<'_>, (name, value)| {
            request.query(&name, &value)
        });
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(name.clone(), value.expose())
    });
    let answer = request.send_raw().await.map_err(|error| {
        let host = url.host_str().unwrap_or_default();
        match error.status() {
            // Its body is for others.
            Some(status) if status.is_client_error() => {
                ComputeError::Credentials(format!("{host} refuses the subject token: {status}"))
            }
            Some(status) => ComputeError::NoKeysNow(format!("{host} tells no subject token: {status}")),
            None => ComputeError::NoKeysNow(format!("{host} tells no subject token: {error}")),
        }
    })?;
    String::from_utf8(answer.into_body().into()).map_err(|_| {
        ComputeError::Credentials(format!(
            "what {} tells is no text",
            url.host_str().unwrap_or_default()
        ))
    })
}

/// Why there is no token of the service account. Nothing else was asked for.
fn not_impersonated(error: &ApiError) -> ComputeError {
    let told: Option<Value> = serde_json::from_str(error.body()).ok();
    let message = told
        .as_ref()
        .and_then(|told| told.pointer("/error/message")?.as_str());
    match message {
        Some(message) if error.status().is_some_and(|status| status.is_client_error()) => {
            ComputeError::Credentials(format!("the service account: {}", one_line(message)))
        }
        _ => ComputeError::NoKeysNow(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(more: &Value) -> Result<External, String> {
        let mut file = json!({"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": TOKEN_URL, "credential_source": {"file": "/token"}});
        file.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        External::read(&file.to_string())
    }

    #[test]
    fn tokens_go_to_google_only() {
        for good in [
            "https://sts.googleapis.com/v1/token",
            "https://sts.us-east1.rep.googleapis.com/v1/token",
        ] {
            assert!(file(&json!({"token_url": good})).is_ok(), "{good}");
        }
        for bad in [
            "http://sts.googleapis.com/v1/token",
            "https://sts.googleapis.com.evil.example/v1/token",
            "https://evilgoogleapis.com/v1/token",
            "https://googleapis.com@evil.example/v1/token",
            "https://user@sts.googleapis.com/v1/token",
            "https://sts.googleapis.com:8443/v1/token",
            "https://sts.googleapis.com/v1/token?x=https://evil.example",
            "sts.googleapis.com",
        ] {
            for name in ["token_url", "service_account_impersonation_url"] {
                let error = file(&json!({name: bad})).err();
                let expected = format!("`{name}` is no address of https://*.googleapis.com");
                assert_eq!(error, Some(expected), "{bad}");
            }
        }
    }

    #[test]
    fn what_a_file_lacks_is_told() {
        for (more, expected) in [
            (json!({"audience": ""}), "it has no `audience`"),
            (
                json!({"subject_token_type": ""}),
                "it has no `subject_token_type`",
            ),
            (
                json!({"credential_source": null}),
                "it has no `credential_source`",
            ),
            (
                json!({"credential_source": {"environment_id": "aws1"}}),
                "has no `file` or `url`",
            ),
            (
                json!({"credential_source": {"file": "a", "url": "https://b"}}),
                "has a `file` and a `url`",
            ),
            (
                json!({"credential_source": {"url": "file:///etc/passwd"}}),
                "no address of HTTP",
            ),
            (
                json!({"credential_source": {"file": "a", "format": {"type": "xml"}}}),
                "is xml",
            ),
            (
                json!({"credential_source": {"file": "a", "format": {"type": "json"}}}),
                "no `subject_token_field_name`",
            ),
            (json!({"client_id": "x"}), "workforce pools"),
            (
                json!({"service_account_impersonation": {"token_lifetime_seconds": 5}}),
                "`token_lifetime_seconds`",
            ),
            (json!({"audience": 1}), "another type"),
        ] {
            let error = file(&more).err().unwrap_or_default();
            assert!(error.contains(expected), "{more}: {error}");
        }
    }
}
