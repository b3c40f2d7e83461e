//! The API, version 1.0.0. Errors are plain text.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

const BASE: &str = "https://admin.hotaisle.app/api";

/// The API as one user, for one team.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    /// The path of the team.
    team: String,
}

/// What sells: virtual machines or whole servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Virtual,
    BareMetal,
}

impl Kind {
    const fn path(self) -> &'static str {
        match self {
            Self::Virtual => "virtual_machines",
            Self::BareMetal => "bare_metal",
        }
    }
}

/// A team of the user.
#[derive(Debug, Deserialize)]
pub(crate) struct Team {
    pub(crate) handle: String,
    /// The user has not accepted yet.
    #[serde(default)]
    pub(crate) invitation: bool,
    /// What the key may do.
    #[serde(default)]
    pub(crate) effective_roles: Option<Vec<String>>,
}

/// Machines of one kind that are free.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Available {
    /// In cents an hour.
    #[serde(default)]
    pub(crate) on_demand_price: Option<f64>,
    pub(crate) quantity: i64,
    /// Sent back as it is when one is asked for.
    pub(crate) specs: Value,
}

/// A virtual machine or server of the team.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Host {
    /// Of a virtual machine: the only name by which it is known. It is given to others afterwards.
    pub(crate) name: String,
    /// Of a reservation of a server; not in all answers.
    #[serde(default)]
    pub(crate) deployment_id: Option<String>,
    #[serde(default)]
    description: Option<String>,
    pub(crate) ip_address: String,
    #[serde(default)]
    pub(crate) ssh_access: Option<SshAccess>,
    /// Of a server.
    #[serde(default)]
    pub(crate) os_status: Option<OsStatus>,
    #[serde(flatten)]
    specs: Map<String, Value>,
}

impl Host {
    /// Empty: none.
    pub(crate) fn description(&self) -> &str {
        self.description.as_deref().unwrap_or_default()
    }

    /// Whether these specifications may be its own.
    pub(crate) fn is_of(&self, specs: &Value) -> bool {
        let sizes = ["cpu_cores", "ram_capacity", "disk_capacity"];
        sizes.iter().all(|size| self.specs.get(*size) == specs.get(*size))
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SshAccess {
    pub(crate) ip_address: String,
    pub(crate) port: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct OsStatus {
    /// `installed`, `failed`, or the stage of the installation.
    pub(crate) os_install_status: String,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str, team: &str) -> Result<Self, String> {
        let is_handle = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if team.is_empty() || !team.chars().all(is_handle) {
            return Err("team_handle is not the handle of a team".to_owned());
        }
        // Machines are assigned and deleted while the caller waits.
        let limits = ApiLimits {
            timeout: Duration::from_secs(60),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::HotAisle,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Token {api_key}"),
        )?;
        Ok(Self {
            api: client,
            team: format!("teams/{team}"),
        })
    }

    /// Teams of the user.
    pub(crate) async fn teams(&self) -> Result<Vec<Team>, ApiError> {
        #[derive(Deserialize)]
        struct User {
            #[serde(default)]
            teams: Option<Vec<Team>>,
        }
        let user: User = self.api.get("user/").send().await?;
        Ok(user.teams.unwrap_or_default())
    }

    /// What is there already is no error.
    pub(crate) async fn add_ssh_key(&self, key: &str) -> Result<(), ApiError> {
        let body = json!({"authorized_key": key});
        // It is there then, once: to ask twice is as good.
        let request = self.api.post("user/ssh_keys/").json(&body).repeatable();
        match request.send_raw().await {
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// What is free: sizes, with prices.
    pub(crate) async fn available(&self, kind: Kind) -> Result<Vec<Available>, ApiError> {
        let path = format!("{}/{}/available/", self.team, kind.path());
        let rows: Vec<Value> = self.list(&path).await?;
        // One that is not understood does not take the others away.
        let read = |row: Value| serde_json::from_value(row).ok();
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// All of the team.
    pub(crate) async fn hosts(&self, kind: Kind) -> Result<Vec<Host>, ApiError> {
        self.list(&format!("{}/{}/", self.team, kind.path())).await
    }

    /// Lists that are empty are null. The API has no pages.
    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ApiError> {
        let all: Option<Vec<T>> = self.api.get(path).send().await?;
        Ok(all.unwrap_or_default())
    }

    /// Of a virtual machine; `None`: it is not known (yet).
    pub(crate) async fn state(&self, name: &str) -> Result<Option<String>, ApiError> {
        #[derive(Deserialize)]
        struct State {
            state: String,
        }
        let path = format!("{}state/", self.path(Kind::Virtual, name));
        match self.api.get(&path).send::<State>().await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            answer => answer.map(|state| Some(state.state)),
        }
    }

    pub(crate) async fn make_virtual(&self, specs: &Value) -> Result<Host, ApiError> {
        self.make(Kind::Virtual, specs).await
    }

    pub(crate) async fn reserve(&self, specs: &Value, description: &str) -> Result<Host, ApiError> {
        let body = json!({"specs": specs, "description": description});
        self.make(Kind::BareMetal, &body).await
    }

    async fn make(&self, kind: Kind, body: &(impl Serialize + ?Sized)) -> Result<Host, ApiError> {
        let path = format!("{}/{}/", self.team, kind.path());
        self.api.post(&path).json(body).send().await
    }

    /// Of a virtual machine.
    pub(crate) async fn describe(&self, name: &str, description: &str) -> Result<(), ApiError> {
        let path = self.path(Kind::Virtual, name);
        let body = json!({"description": description});
        self.api.patch(&path).json(&body).send_raw().await.map(drop)
    }

    /// A virtual machine goes at once, also within the time that is charged in any case. A server is refused (400) within it.
    pub(crate) async fn delete(&self, kind: Kind, id: &str) -> Result<(), ApiError> {
        let request = self.api.delete(&self.path(kind, id));
        let request = match kind {
            Kind::Virtual => request.query("force", "true"),
            Kind::BareMetal => request,
        };
        request.send_raw().await.map(drop)
    }

    fn path(&self, kind: Kind, id: &str) -> String {
        format!("{}/{}/{id}/", self.team, kind.path())
    }
}
