//! The API of 2026-08-20, with what it answers beyond its description; the toolbox of a sandbox, which is at another host; and prices,
//! which are public.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits, Transport};
use dstack_model::backends::BackendType;
use dstack_system::Secret;
use http::StatusCode;
use http::header::AUTHORIZATION;
use reqwest::Url;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

const BASE: &str = "https://app.daytona.io/api";
const BILLING_BASE: &str = "https://billing.app.daytona.io";

/// Hosts of toolboxes end so: the key is sent there.
const TOOLBOX_HOSTS: &[&str] = &[".daytona.io", ".daytona.work"];

/// The session of a sandbox in which the container's script runs.
const SESSION: &str = "dstack-runner";

/// A new token ends the one before it: it is to last as long as the sandbox.
const SSH_ACCESS_MINUTES: &str = "5256000";

/// Pages of a list of sandboxes, at most, of 100 each.
const MOST_PAGES: usize = 400;

const LIMITS: ApiLimits = ApiLimits {
    timeout: Duration::from_secs(30),
    attempts: 3,
    parallel: 16,
};

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    billing: ApiClient,
    transport: Arc<dyn Transport>,
    /// Where the API is instead of at its vendor, and toolboxes with it.
    elsewhere: Option<Url>,
    authorization: Secret,
}

/// What a key is and may do (`ApiKeyList`).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Key {
    #[serde(default)]
    pub(crate) permissions: Vec<String>,
    /// Not in the description.
    #[serde(default)]
    pub(crate) organization_id: Option<String>,
}

/// Of `Sandbox` and `SandboxListItem`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
    /// Its region, as the API calls it.
    #[serde(default)]
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) error_reason: Option<String>,
    /// It was spot, and others have its GPUs now.
    #[serde(default)]
    pub(crate) spot_evicted_at: Option<String>,
}

/// A login to an image registry (`DockerRegistry`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Registry {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
}

/// `VolumeDto`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRecord {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) error_reason: Option<String>,
}

/// A command of a session (`Command`).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Command {
    pub(crate) id: String,
    /// `None`: it runs.
    #[serde(default)]
    pub(crate) exit_code: Option<i64>,
}

/// `SshAccessDto`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SshAccess {
    pub(crate) token: String,
    /// `ssh -p 22 <token>@ssh.app.daytona.io`.
    pub(crate) ssh_command: String,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let authorization = format!("Bearer {api_key}");
        let api = env.api_with_key(BackendType::Daytona, BASE, LIMITS, AUTHORIZATION, &authorization)?;
        Ok(Self {
            api,
            billing: env.api(BackendType::Daytona, BILLING_BASE, LIMITS)?,
            transport: Arc::clone(&env.transport),
            elsewhere: env.endpoints.get(&BackendType::Daytona).cloned(),
            authorization: authorization.into(),
        })
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.api.get(path).send().await.map_err(readable)
    }

    /// `None`: there is no such thing.
    async fn read_one<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        found(self.read(path).await)
    }

    async fn create(&self, path: &str, body: &Value) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Id {
            id: String,
        }
        let made: Id = self.api.post(path).json(body).send().await.map_err(readable)?;
        Ok(made.id)
    }

    /// What is not there is no error.
    async fn delete(&self, path: &str) -> Result<(), ApiError> {
        let deleted = self.api.delete(path).repeatable().send_raw().await;
        found(deleted.map_err(readable)).map(drop)
    }

    pub(crate) async fn current_key(&self) -> Result<Key, ApiError> {
        self.read("api-keys/current").await
    }

    pub(crate) async fn pricing(&self) -> Result<Value, ApiError> {
        self.billing.get("gpu-pricing").send().await.map_err(readable)
    }

    pub(crate) async fn shared_regions(&self) -> Result<Value, ApiError> {
        self.read("shared-regions").await
    }

    /// What there is of an organization: `gpu-capacity`, `usage` or `available-sandbox-classes`.
    pub(crate) async fn of_organization(&self, organization: &str, what: &str) -> Result<Value, ApiError> {
        self.read(&format!("organizations/{organization}/{what}")).await
    }

    /// All sandboxes, page by page. What is new may not be listed yet.
    pub(crate) async fn sandboxes(&self) -> Result<Vec<Sandbox>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            items: Vec<Sandbox>,
            #[serde(default)]
            next_cursor: Option<String>,
        }
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let request = self.api.get("sandbox").query("limit", "100");
            let mut request = request.query("includeErroredDeleted", "true");
            if let Some(cursor) = &cursor {
                request = request.query("cursor", cursor);
            }
            let page: Page = request.send().await.map_err(readable)?;
            all.extend(page.items);
            cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
            if cursor.is_none() {
                return Ok(all);
            }
        }
        Err(malformed(format!(
            "the list of sandboxes has more than {MOST_PAGES} pages"
        )))
    }

    /// One sandbox, by its id or name.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<Option<Sandbox>, ApiError> {
        self.read_one(&format!("sandbox/{id}")).await
    }

    pub(crate) async fn create_sandbox(&self, body: &Value) -> Result<String, ApiError> {
        self.create("sandbox", body).await
    }

    pub(crate) async fn delete_sandbox(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("sandbox/{id}")).await
    }

    /// A token for the SSH server of sandboxes.
    pub(crate) async fn create_ssh_access(&self, id: &str) -> Result<SshAccess, ApiError> {
        let request = self.api.post(&format!("sandbox/{id}/ssh-access"));
        let request = request.query("expiresInMinutes", SSH_ACCESS_MINUTES);
        request.send().await.map_err(readable)
    }

    pub(crate) async fn registries(&self) -> Result<Vec<Registry>, ApiError> {
        self.read("docker-registry").await
    }

    pub(crate) async fn create_registry(&self, body: &Value) -> Result<String, ApiError> {
        self.create("docker-registry", body).await
    }

    pub(crate) async fn delete_registry(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("docker-registry/{id}")).await
    }

    pub(crate) async fn volumes(&self) -> Result<Vec<VolumeRecord>, ApiError> {
        self.read("volumes").await
    }

    pub(crate) async fn volume(&self, id: &str) -> Result<Option<VolumeRecord>, ApiError> {
        self.read_one(&format!("volumes/{id}")).await
    }

    pub(crate) async fn volume_by_name(&self, name: &str) -> Result<Option<VolumeRecord>, ApiError> {
        self.read_one(&format!("volumes/by-name/{name}")).await
    }

    pub(crate) async fn create_volume(&self, name: &str) -> Result<String, ApiError> {
        self.create("volumes", &json!({"name": name})).await
    }

    pub(crate) async fn delete_volume(&self, id: &str) -> Result<(), ApiError> {
        self.delete(&format!("volumes/{id}")).await
    }

    /// The toolbox of a sandbox that has started.
    pub(crate) async fn toolbox(&self, id: &str) -> Result<Toolbox, ApiError> {
        #[derive(Deserialize)]
        struct Base {
            url: String,
        }
        let base: Base = self.read(&format!("sandbox/{id}/toolbox-proxy-url")).await?;
        let wrong = || malformed("the address of the sandbox's toolbox is not one of Daytona".to_owned());
        let mut url = toolbox_url(&base.url).ok_or_else(wrong)?;
        if let Some(elsewhere) = &self.elsewhere {
            let path = url.path().to_owned();
            url = elsewhere.clone();
            url.set_path(&path);
        }
        let path = format!("{}/{id}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let api = ApiClient::new(Arc::clone(&self.transport), url, LIMITS);
        let api = api.with_secret_header(AUTHORIZATION, self.authorization.expose());
        Ok(Toolbox(api.map_err(|_| wrong())?))
    }
}

/// Runs commands in a sandbox.
#[derive(Debug)]
pub(crate) struct Toolbox(ApiClient);

impl Toolbox {
    /// The commands of the session; `None`: there is none yet.
    pub(crate) async fn commands(&self) -> Result<Option<Vec<Command>>, ApiError> {
        #[derive(Deserialize)]
        struct Session {
            #[serde(default)]
            commands: Vec<Command>,
        }
        let session = self.0.get(&format!("process/session/{SESSION}"));
        let session: Option<Session> = found(session.send().await.map_err(readable))?;
        Ok(session.map(|session| session.commands))
    }

    /// Makes the session. One that is there is no error.
    pub(crate) async fn create_session(&self) -> Result<(), ApiError> {
        let request = self
            .0
            .post("process/session")
            .json(&json!({"sessionId": SESSION}));
        match request.send_raw().await.map_err(readable) {
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Begins a command.
    pub(crate) async fn run(&self, command: &str) -> Result<(), ApiError> {
        let request = self.0.post(&format!("process/session/{SESSION}/exec"));
        let request = request.json(&json!({"command": command, "runAsync": true}));
        request.send::<IgnoredAny>().await.map(drop).map_err(readable)
    }
}

/// `None`: the API says that it is not there. What a proxy before it says is left of no message.
fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) && !error.body().is_empty() => Ok(None),
        answer => answer.map(Some),
    }
}

fn malformed(details: String) -> ApiError {
    ApiError::Malformed {
        api: "app.daytona.io".to_owned(),
        details,
    }
}

fn toolbox_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?;
    let is_of_daytona = TOOLBOX_HOSTS.iter().any(|end| host.ends_with(end));
    let is_plain = url.scheme() == "https"
        && url.port().is_none()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    (is_of_daytona && is_plain).then_some(url)
}

/// An error with its message alone: other answers may repeat what was sent.
fn readable(error: ApiError) -> ApiError {
    match error {
        ApiError::Status {
            api,
            status,
            body,
            retry_after,
        } => ApiError::Status {
            api,
            status,
            body: message_of(&body),
            retry_after,
        },
        other => other,
    }
}

fn message_of(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let text = |field: &str| match body.get(field)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Array(texts) => {
            let texts: Option<Vec<&str>> = texts.iter().map(Value::as_str).collect();
            texts.map(|texts| texts.join("; "))
        }
        _ => None,
    };
    ["message", "error", "detail"]
        .into_iter()
        .find_map(text)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_sent_to_toolboxes_of_daytona_only() {
        for (url, is_one) in [
            ("https://proxy.app.daytona.io/toolbox", true),
            ("https://proxy.eu.daytona.work/toolbox/", true),
            ("http://proxy.app.daytona.io/toolbox", false),
            ("https://proxy.app.daytona.io:8443/toolbox", false),
            ("https://daytona.io.example.com/toolbox", false),
            ("https://evildaytona.io/toolbox", false),
            ("https://user@proxy.app.daytona.io/toolbox", false),
            ("https://proxy.app.daytona.io/toolbox?x=1", false),
            ("https://proxy.app.daytona.io/toolbox#x", false),
            ("toolbox", false),
        ] {
            assert_eq!(toolbox_url(url).is_some(), is_one, "{url}");
        }
    }

    #[test]
    fn of_an_error_only_the_message_is_kept() {
        for (body, message) in [
            (
                json!({"statusCode": 403, "message": "Total GPU limit exceeded.", "error": "Forbidden"}),
                "Total GPU limit exceeded.",
            ),
            (json!({"message": ["a", "b"], "error": "Bad Request"}), "a; b"),
            (json!({"error": "Forbidden"}), "Forbidden"),
            (json!({"detail": "no"}), "no"),
            (json!({"secret": "x"}), ""),
            (json!(["x"]), ""),
        ] {
            assert_eq!(message_of(&body.to_string()), message);
        }
        assert_eq!(message_of("<html>"), "");
    }
}
