//! The API, version 2, as its description and its live answers have it.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const BASE: &str = "https://api.vultr.com/v2";

/// The largest page that the vendor gives.
const PAGE: &str = "500";

/// More than any account has: an API that never says that a page is the last is not asked for ever.
const MOST_PAGES: u32 = 500;

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

/// The two kinds of machines, each with calls of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum PlanType {
    #[serde(rename = "vm_instance")]
    Vm,
    #[serde(rename = "bare-metal")]
    BareMetal,
}

impl PlanType {
    pub(crate) const ALL: [Self; 2] = [Self::Vm, Self::BareMetal];

    /// By the plan's id.
    pub(crate) fn of(plan: &str) -> Self {
        match plan.starts_with("vbm-") {
            true => Self::BareMetal,
            false => Self::Vm,
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Vm => "instances",
            Self::BareMetal => "bare-metals",
        }
    }

    /// The field of a list of them.
    const fn many(self) -> &'static str {
        match self {
            Self::Vm => "instances",
            Self::BareMetal => "bare_metals",
        }
    }

    /// The field of one.
    const fn one(self) -> &'static str {
        match self {
            Self::Vm => "instance",
            Self::BareMetal => "bare_metal",
        }
    }
}

/// A virtual machine or one of bare metal.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) label: String,
    #[serde(default)]
    pub(crate) status: String,
    /// `0.0.0.0` or empty until it has one.
    #[serde(default)]
    pub(crate) main_ip: Option<String>,
    /// In its VPC; no description of bare metal has it.
    #[serde(default)]
    pub(crate) internal_ip: Option<String>,
    #[serde(default)]
    pub(crate) region: String,
    #[serde(default)]
    pub(crate) date_created: String,
}

/// A private network of a region. It costs nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Vpc {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) region: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) date_created: String,
    pub(crate) v4_subnet: String,
    pub(crate) v4_subnet_mask: u8,
}

/// A VPC, as a machine has it.
#[derive(Debug, Deserialize)]
pub(crate) struct Attached {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) ip_address: String,
}

/// A machine that is asked for.
#[derive(Debug, Serialize)]
pub(crate) struct NewServer<'a> {
    pub(crate) region: &'a str,
    pub(crate) plan: &'a str,
    pub(crate) label: &'a str,
    /// For cloud-init, in Base64.
    pub(crate) user_data: String,
    pub(crate) attach_vpc: [&'a str; 1],
    #[serde(flatten)]
    pub(crate) system: System,
}

/// What a machine starts with.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum System {
    OsId(u32),
    ImageId(&'static str),
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            // 30 requests a second are allowed.
            parallel: 5,
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Vultr,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Bearer {api_key}"),
        )?;
        Ok(Self(client))
    }

    /// Whether the key is one.
    pub(crate) async fn check_key(&self) -> Result<(), ApiError> {
        self.0.get("ssh-keys").send::<Value>().await.map(drop)
    }

    pub(crate) async fn plans(&self) -> Result<Vec<Value>, ApiError> {
        self.list("plans", "plans", &[("type", "all")]).await
    }

    pub(crate) async fn metal_plans(&self) -> Result<Vec<Value>, ApiError> {
        self.list("plans-metal", "plans_metal", &[]).await
    }

    pub(crate) async fn regions(&self) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Region {
            id: String,
        }
        let regions: Vec<Region> = self.list("regions", "regions", &[]).await?;
        Ok(regions.into_iter().map(|region| region.id).collect())
    }

    /// Plans of dedicated GPUs that this account can have in a region.
    pub(crate) async fn dedicated_plans(&self, region: &str) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            available_plans: Vec<String>,
        }
        let path = format!("regions/{region}/availability");
        let answer: Answer = self.0.get(&path).query("type", "vdm").send().await?;
        Ok(answer.available_plans)
    }

    pub(crate) async fn vpcs(&self) -> Result<Vec<Vpc>, ApiError> {
        self.list("vpcs", "vpcs", &[]).await
    }

    pub(crate) async fn create_vpc(&self, region: &str, description: &str) -> Result<Vpc, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            vpc: Vpc,
        }
        let ask = json!({"region": region, "description": description});
        let answer: Answer = self.0.post("vpcs").json(&ask).send().await?;
        Ok(answer.vpc)
    }

    /// The id of the machine.
    pub(crate) async fn create(&self, kind: PlanType, ask: &NewServer<'_>) -> Result<String, ApiError> {
        let answer: Value = self.0.post(kind.path()).json(ask).send().await?;
        field::<Server>(answer, kind.one()).map(|server| server.id)
    }

    /// `None`: there is none.
    pub(crate) async fn server(&self, kind: PlanType, id: &str) -> Result<Option<Server>, ApiError> {
        let path = format!("{}/{id}", kind.path());
        match self.0.get(&path).send::<Value>().await {
            Ok(answer) => field(answer, kind.one()).map(Some),
            Err(error) if says_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn servers(&self, kind: PlanType) -> Result<Vec<Server>, ApiError> {
        self.list(kind.path(), kind.many(), &[]).await
    }

    /// The VPCs that it is attached to; `None`: the API does not tell, as it has this call not for all machines.
    pub(crate) async fn vpcs_of(&self, kind: PlanType, id: &str) -> Result<Option<Vec<Attached>>, ApiError> {
        let path = format!("{}/{id}/vpcs", kind.path());
        match self.list(&path, "vpcs", &[]).await {
            Ok(attached) => Ok(Some(attached)),
            // Here, that the API has no such call.
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether there was one.
    pub(crate) async fn delete(&self, kind: PlanType, id: &str) -> Result<bool, ApiError> {
        let path = format!("{}/{id}", kind.path());
        match self.0.delete(&path).send_raw().await {
            Ok(_) => Ok(true),
            Err(error) if says_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All pages.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ApiError> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        for _ in 0..MOST_PAGES {
            let mut ask = self.0.get(path).query("per_page", PAGE);
            for (name, value) in query {
                ask = ask.query(name, value);
            }
            if !cursor.is_empty() {
                ask = ask.query("cursor", &cursor);
            }
            let answer: Value = ask.send().await?;
            let next = answer.pointer("/meta/links/next").and_then(Value::as_str);
            let next = next.unwrap_or_default().to_owned();
            all.extend(field::<Vec<T>>(answer, name)?);
            if next.is_empty() || next == cursor {
                return Ok(all);
            }
            cursor = next;
        }
        Err(malformed(format!("{path} has more than {MOST_PAGES} pages")))
    }
}

fn field<T: DeserializeOwned>(mut answer: Value, name: &str) -> Result<T, ApiError> {
    let value = answer.get_mut(name).map(Value::take).unwrap_or_default();
    serde_json::from_value(value).map_err(|error| malformed(format!("{name}: {error}")))
}

fn malformed(details: String) -> ApiError {
    ApiError::Malformed {
        api: "Vultr".to_owned(),
        details,
    }
}

/// The API itself does, not a proxy before it.
fn says_not_found(error: &ApiError) -> bool {
    #[derive(Deserialize)]
    struct Problem {
        status: u16,
        #[serde(rename = "error")]
        _error: String,
    }
    let problem: Option<Problem> = serde_json::from_str(error.body()).ok();
    error.status() == Some(StatusCode::NOT_FOUND) && problem.is_some_and(|problem| problem.status == 404)
}
