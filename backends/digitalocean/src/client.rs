//! The API v2, as far as machines need it (OpenAPI description of DigitalOcean, 2026-08). AMD Developer Cloud has the same at another address.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_units::Time;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The most that a page may have.
const PAGE: &str = "200";

/// More than any account has: an API that never says that a page is the last is not asked for ever.
const MOST_PAGES: u32 = 500;

const DROPLETS: &str = "v2/droplets";
const KEYS: &str = "v2/account/keys";
const PROJECTS: &str = "v2/projects";
const SIZES: &str = "v2/sizes";

/// Values of `type` that lists of droplets know: without one, those with GPUs are left out.
const DROPLET_TYPES: [&str; 2] = ["droplets", "gpus"];

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

/// What can be made: CPUs, memory, disks and GPUs in one.
#[derive(Debug, Deserialize)]
pub(crate) struct Size {
    pub(crate) slug: String,
    /// In MiB.
    pub(crate) memory: f64,
    pub(crate) vcpus: i64,
    /// Of the first disk, in GiB.
    pub(crate) disk: f64,
    pub(crate) price_hourly: f64,
    /// Where it can be made now.
    #[serde(default)]
    pub(crate) regions: Vec<String>,
    #[serde(default = "yes")]
    pub(crate) available: bool,
    #[serde(default)]
    pub(crate) disk_info: Vec<DiskInfo>,
    #[serde(default)]
    pub(crate) gpu_info: Option<GpuInfo>,
}

const fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
pub(crate) struct DiskInfo {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) size: Amount,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GpuInfo {
    #[serde(default)]
    pub(crate) count: i64,
    /// Such as `nvidia_h100` or `nvidia_rtx6000_ada`.
    #[serde(default)]
    pub(crate) model: String,
    /// Of all GPUs together, whatever the description says (640 of eight H100).
    #[serde(default)]
    pub(crate) vram: Option<Amount>,
}

/// In GiB.
#[derive(Debug, Deserialize)]
pub(crate) struct Amount {
    pub(crate) amount: f64,
}

/// A public key of the account.
#[derive(Debug, Deserialize)]
pub(crate) struct AccountKey {
    pub(crate) id: i64,
    pub(crate) public_key: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Project {
    pub(crate) id: String,
    pub(crate) name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Droplet {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) status: Status,
    #[serde(default)]
    pub(crate) networks: Networks,
    #[serde(default)]
    pub(crate) created_at: Option<Time>,
    #[serde(default)]
    pub(crate) region: Option<Region>,
    #[serde(default)]
    pub(crate) size: Option<DropletSize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    New,
    Active,
    Off,
    Archive,
    /// One that came after this description.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Networks {
    #[serde(default)]
    pub(crate) v4: Vec<Network>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Network {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) ip_address: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Region {
    pub(crate) slug: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DropletSize {
    pub(crate) price_hourly: f64,
}

/// A machine that is asked for.
pub(crate) struct NewDroplet<'a> {
    pub(crate) name: &'a str,
    pub(crate) region: &'a str,
    pub(crate) size: &'a str,
    pub(crate) image: &'a str,
    pub(crate) key: i64,
    pub(crate) user_data: &'a str,
    /// `None`: the account's default project.
    pub(crate) project: Option<&'a str>,
}

impl Client {
    pub(crate) fn new(env: &Env, kind: BackendType, base: &str, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(kind, base, limits, AUTHORIZATION, &format!("Bearer {api_key}"))?;
        Ok(Self(client))
    }

    /// Whether the key is one, and may read what machines need.
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        self.0.get("v2/account").send::<Value>().await?;
        for path in [SIZES, KEYS, DROPLETS] {
            self.0.get(path).query("per_page", "1").send::<Value>().await?;
        }
        Ok(())
    }

    pub(crate) async fn sizes(&self) -> Result<Vec<Size>, ApiError> {
        self.list(SIZES, &[]).await
    }

    pub(crate) async fn projects(&self) -> Result<Vec<Project>, ApiError> {
        self.list(PROJECTS, &[]).await
    }

    pub(crate) async fn keys(&self) -> Result<Vec<AccountKey>, ApiError> {
        self.list(KEYS, &[]).await
    }

    pub(crate) async fn add_key(&self, name: &str, public_key: &str) -> Result<AccountKey, ApiError> {
        #[derive(Deserialize)]
        struct Added {
            ssh_key: AccountKey,
        }
        let ask = json!({"name": name, "public_key": public_key});
        let added: Added = self.0.post(KEYS).json(&ask).send().await?;
        Ok(added.ssh_key)
    }

    /// All machines of the account, or those of this name.
    pub(crate) async fn droplets(&self, name: Option<&str>) -> Result<Vec<Droplet>, ApiError> {
        let mut all = Vec::new();
        for kind in DROPLET_TYPES {
            let mut query = vec![("type", kind)];
            query.extend(name.map(|name| ("name", name)));
            all.extend(self.list(DROPLETS, &query).await?);
        }
        Ok(all)
    }

    pub(crate) async fn droplet(&self, id: &str) -> Result<Option<Droplet>, ApiError> {
        let found = self.0.get(&format!("{DROPLETS}/{id}")).send::<OneDroplet>().await;
        match found {
            Ok(found) => Ok(Some(found.droplet)),
            Err(error) if says_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn create_droplet(&self, new: &NewDroplet<'_>) -> Result<Droplet, ApiError> {
        let mut ask = json!({
            "name": new.name,
            "region": new.region,
            "size": new.size,
            "image": new.image,
            "ssh_keys": [new.key],
            "backups": false,
            "ipv6": false,
            "monitoring": false,
            "user_data": new.user_data,
        });
        if let (Some(project), Some(fields)) = (new.project, ask.as_object_mut()) {
            fields.insert("project_id".to_owned(), project.into());
        }
        let made: OneDroplet = self.0.post(DROPLETS).json(&ask).send().await?;
        Ok(made.droplet)
    }

    /// What is not there any more is no error.
    pub(crate) async fn delete_droplet(&self, id: &str) -> Result<(), ApiError> {
        let answer = self.0.delete(&format!("{DROPLETS}/{id}")).send_raw().await;
        match answer {
            Err(error) if !says_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// All entries of a list, page by page.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ApiError> {
        let mut all = Vec::new();
        for number in 1..=MOST_PAGES {
            let ask = self.0.get(path).query("per_page", PAGE);
            let mut ask = ask.query("page", &number.to_string());
            for (name, value) in query {
                ask = ask.query(name, value);
            }
            let page: Page<T> = ask.send().await?;
            let is_last = page.links.pages.next.is_none() || page.entries.is_empty();
            all.extend(page.entries);
            if is_last {
                return Ok(all);
            }
        }
        Err(ApiError::Malformed {
            api: "DigitalOcean".to_owned(),
            details: format!("{path} has more than {MOST_PAGES} pages"),
        })
    }
}

/// The API itself does, not a proxy before it.
fn says_not_found(error: &ApiError) -> bool {
    #[derive(Deserialize)]
    struct Problem {
        id: String,
    }
    let problem: Option<Problem> = serde_json::from_str(error.body()).ok();
    error.status() == Some(StatusCode::NOT_FOUND) && problem.is_some_and(|problem| problem.id == "not_found")
}

#[derive(Deserialize)]
struct OneDroplet {
    droplet: Droplet,
}

/// Of any of the lists.
#[derive(Deserialize)]
struct Page<T> {
    #[serde(alias = "droplets", alias = "projects", alias = "sizes", alias = "ssh_keys")]
    entries: Vec<T>,
    #[serde(default)]
    links: Links,
}

#[derive(Default, Deserialize)]
struct Links {
    #[serde(default)]
    pages: Pages,
}

#[derive(Default, Deserialize)]
struct Pages {
    #[serde(default)]
    next: Option<String>,
}
