//! The HTTP API of a dstack server, as far as it is used: that of 0.22.5, which later ones serve as well.
//!
//! Of errors only what they say is kept: refusals of a request repeat what was sent, which may have passwords.

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_model::instances::SshConnectionParams;
use dstack_model::runs::NOT_ANSWERED_YET;
use http::header::AUTHORIZATION;
use http::{HeaderName, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

/// The version whose requests these are. Servers refuse those of later ones, and answer earlier ones in their form.
const API_VERSION: &str = "0.22.5";

const VERSION_HEADER: HeaderName = HeaderName::from_static("x-api-version");

/// Most runs on a page, and most pages.
const PAGE: usize = 100;
const MOST_PAGES: usize = 100;

/// Most offers of a plan.
const MOST_OFFERS: u32 = 2_000;

/// The API as one user, in one project.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    project: String,
}

/// What a project has.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Project {
    /// As the server writes it: not all of its routes find a project whatever the case of its letters.
    pub(crate) project_name: String,
    #[serde(default)]
    pub(crate) backends: Vec<BackendOfProject>,
}

/// A backend, as members see it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct BackendOfProject {
    pub(crate) name: String,
}

/// A fleet, own or imported.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Fleet {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) project_name: String,
    #[serde(default)]
    pub(crate) status: String,
    pub(crate) spec: FleetSpec,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct FleetSpec {
    pub(crate) configuration: FleetConfiguration,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct FleetConfiguration {
    /// Set of fleets of hosts that are reached by SSH.
    #[serde(default)]
    pub(crate) ssh_config: Option<IgnoredAny>,
}

/// A run, as far as its life is followed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// `pending`, `submitted`, `provisioning`, `running`, `terminating`, `terminated`, `failed`, `done`.
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) status_message: Option<String>,
    #[serde(default)]
    pub(crate) termination_reason: Option<String>,
    #[serde(default)]
    pub(crate) run_spec: RunSpec,
    #[serde(default)]
    pub(crate) latest_job_submission: Option<Submission>,
    #[serde(default)]
    pub(crate) deleted: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct RunSpec {
    #[serde(default)]
    pub(crate) run_name: Option<String>,
}

/// One attempt of the job of a run.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Submission {
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) termination_reason: Option<String>,
    #[serde(default)]
    pub(crate) termination_reason_message: Option<String>,
    #[serde(default)]
    pub(crate) job_provisioning_data: Option<Instance>,
    #[serde(default)]
    pub(crate) job_runtime_data: Option<RuntimeData>,
}

/// Where the job of a run is.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Instance {
    pub(crate) backend: String,
    #[serde(default)]
    pub(crate) region: String,
    #[serde(default)]
    pub(crate) hostname: Option<String>,
    #[serde(default)]
    pub(crate) username: String,
    #[serde(default)]
    pub(crate) ssh_port: Option<i64>,
    /// Whether it is a machine on which containers are run.
    #[serde(default)]
    pub(crate) dockerized: bool,
    #[serde(default)]
    pub(crate) ssh_proxy: Option<SshConnectionParams>,
    /// Dollars an hour.
    #[serde(default)]
    pub(crate) price: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RuntimeData {
    /// `host`, `bridge`.
    #[serde(default)]
    pub(crate) network_mode: String,
}

/// Why a call has come to nothing.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// With what the server says, and not with what it was sent.
    pub(crate) error: ApiError,
    /// The server's own code, such as `resource_not_exists`.
    pub(crate) code: Option<String>,
}

type Answer<T> = Result<T, Failure>;

/// One of a list. One that cannot be read hides no other.
fn entry<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

impl Client {
    /// A client of the server at this URL.
    pub(crate) fn new(env: &Env, url: &str, project: &str, token: &str) -> Result<Self, String> {
        let is_address = |url: &reqwest::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if !reqwest::Url::parse(url).is_ok_and(|url| is_address(&url)) {
            return Err(format!(
                "url: {url:?} is no address of a dstack server, such as https://sky.dstack.ai"
            ));
        }
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if project.is_empty() || !project.bytes().all(of_name) {
            return Err(format!("project: {project:?} is no name of a project"));
        }
        let token = format!("Bearer {token}");
        let limits = ApiLimits::default();
        Ok(Self {
            api: env.api_with_key(BackendType::Dstack, url, limits, AUTHORIZATION, &token)?,
            project: project.to_owned(),
        })
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value, is_read: bool) -> Answer<T> {
        let request = self.api.post(path).json(body).header(VERSION_HEADER, API_VERSION);
        let request = match is_read {
            true => request.repeatable(),
            false => request,
        };
        request.send().await.map_err(Failure::of)
    }

    fn in_project(&self, path: &str) -> String {
        format!("api/project/{}/{path}", self.project)
    }

    /// Whether the token is one.
    pub(crate) async fn check_user(&self) -> Answer<()> {
        self.call::<IgnoredAny>("api/users/get_my_user", &json!({}), true)
            .await
            .map(drop)
    }

    pub(crate) async fn project(&self) -> Answer<Project> {
        let path = format!("api/projects/{}/get", self.project);
        self.call(&path, &json!({}), true).await
    }

    /// Fleets in which runs of the project may be, with those of other projects that it has imported.
    pub(crate) async fn fleets(&self) -> Answer<Vec<Fleet>> {
        let body = json!({"include_imported": true});
        let fleets: Vec<Value> = self.call(&self.in_project("fleets/list"), &body, true).await?;
        Ok(fleets.into_iter().filter_map(entry).collect())
    }

    /// Offers for a run, each as the server has it, and whether there may be more in a moment.
    pub(crate) async fn offers(&self, run_spec: &Value) -> Answer<(Vec<Value>, bool)> {
        #[derive(Deserialize)]
        struct Plan {
            /// Of servers of this kind.
            #[serde(default)]
            notices: Vec<String>,
            #[serde(default)]
            job_plans: Vec<JobPlan>,
        }
        #[derive(Deserialize)]
        struct JobPlan {
            #[serde(default)]
            offers: Vec<Value>,
        }
        let body = json!({"run_spec": run_spec, "max_offers": MOST_OFFERS, "for_offers_only": true});
        let plan: Plan = self.call(&self.in_project("runs/get_plan"), &body, true).await?;
        let are_awaited = plan
            .notices
            .iter()
            .any(|notice| notice.contains(NOT_ANSWERED_YET));
        let job = plan.job_plans.into_iter().next();
        Ok((job.map(|job| job.offers).unwrap_or_default(), are_awaited))
    }

    /// Makes a run. A finished one of that name is deleted; where one is active, this is refused.
    pub(crate) async fn apply(&self, run_spec: &Value) -> Answer<Run> {
        let body = json!({"plan": {"run_spec": run_spec}, "force": false});
        self.call(&self.in_project("runs/apply"), &body, false).await
    }

    /// The run of that name that is not deleted, finished or not.
    pub(crate) async fn run_named(&self, name: &str) -> Answer<Option<Run>> {
        self.run(&json!({"run_name": name})).await
    }

    pub(crate) async fn run_of_id(&self, id: &str) -> Answer<Option<Run>> {
        self.run(&json!({"id": id})).await
    }

    async fn run(&self, body: &Value) -> Answer<Option<Run>> {
        match self.call::<Run>(&self.in_project("runs/get"), body, true).await {
            Err(failure) if failure.is_missing() => Ok(None),
            answer => Ok(Some(answer?).filter(|run| !run.deleted)),
        }
    }

    /// All runs of the project that are not finished, those of other users too.
    ///
    /// # Errors
    /// Also where they are more than 10,000.
    pub(crate) async fn active_runs(&self) -> Answer<Vec<Run>> {
        match self.runs(true).await? {
            (runs, true) => Ok(runs),
            (_, false) => Err(Failure {
                error: ApiError::Malformed {
                    api: self.project.clone(),
                    details: format!("the list of runs has no end within {MOST_PAGES} pages"),
                },
                code: None,
            }),
        }
    }

    /// Runs of the project that are not deleted, finished or not, those of other users too: of the 10,000 that were submitted last, deleted
    /// ones among them.
    pub(crate) async fn latest_runs(&self) -> Answer<Vec<Run>> {
        self.runs(false).await.map(|(runs, _)| runs)
    }

    /// Runs that are not deleted, and whether these are all.
    async fn runs(&self, only_active: bool) -> Answer<(Vec<Run>, bool)> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last: Option<Value> = None;
        for _ in 0..MOST_PAGES {
            let mut body = json!({
                "project_name": self.project,
                "only_active": only_active,
                "job_submissions_limit": 1,
                "limit": PAGE,
            });
            if let (Some(last), Some(body)) = (&last, body.as_object_mut()) {
                body.insert("prev_submitted_at".to_owned(), last["submitted_at"].clone());
                body.insert("prev_run_id".to_owned(), last["id"].clone());
            }
            let page: Vec<Value> = self.call("api/runs/list", &body, true).await?;
            // Servers leave out what they cannot read: only an empty page is the last for certain.
            match page.last() {
                Some(entry) => last = Some(entry.clone()),
                None => return Ok((runs, true)),
            }
            let read = page.into_iter().filter_map(entry::<Run>);
            runs.extend(read.filter(|run| !run.deleted));
        }
        Ok((runs, false))
    }

    /// Unknown and finished runs are none that have to be stopped.
    pub(crate) async fn abort(&self, name: &str) -> Answer<()> {
        let body = json!({"runs_names": [name], "abort": true});
        let path = self.in_project("runs/stop");
        self.call::<IgnoredAny>(&path, &body, true).await.map(drop)
    }

    /// Unknown runs are deleted. Active ones are refused.
    pub(crate) async fn delete(&self, name: &str) -> Answer<()> {
        let body = json!({"runs_names": [name]});
        let path = self.in_project("runs/delete");
        self.call::<IgnoredAny>(&path, &body, true).await.map(drop)
    }
}

impl Failure {
    fn of(error: ApiError) -> Self {
        let ApiError::Status {
            api,
            status,
            body,
            retry_after,
        } = error
        else {
            return Self { error, code: None };
        };
        let said = Said::read(&body);
        // What is at an address that a user has named is not shown unless it speaks as a dstack server does.
        let (body, code) = match said {
            Some(said) => (dstack_backend::one_line(&said.texts.join("; ")), said.code),
            None => (String::new(), None),
        };
        let error = ApiError::Status {
            api,
            status,
            body,
            retry_after,
        };
        Self { error, code }
    }

    /// Only the server itself says that something is missing, and not a proxy before it.
    fn is_missing(&self) -> bool {
        self.error.status() == Some(StatusCode::BAD_REQUEST)
            && self.code.as_deref() == Some("resource_not_exists")
    }

    /// Whether there is no such project, or this user may not know of it.
    pub(crate) fn is_of_project(&self) -> bool {
        self.error.status() == Some(StatusCode::NOT_FOUND) && self.error.body() == "Not found"
    }

    /// Whether the user of the token may not do this in the project.
    pub(crate) fn is_of_rights(&self) -> bool {
        self.error.status() == Some(StatusCode::FORBIDDEN) && self.error.body() == "Access denied"
    }

    /// Whether the server is older than the requests.
    pub(crate) fn is_of_version(&self) -> bool {
        self.error.status() == Some(StatusCode::BAD_REQUEST)
            && self.error.body().contains("incompatible with the server version")
    }
}

/// What an error says: `{"detail": ...}` with a text, one thing of `msg` and `code`, or several, which may have a `loc` and what was sent.
struct Said {
    texts: Vec<String>,
    code: Option<String>,
}

impl Said {
    fn read(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_str(body).ok()?;
        let detail = body.get("detail")?;
        let details = match detail {
            Value::Array(details) => details.as_slice(),
            other => std::slice::from_ref(other),
        };
        Some(Self {
            texts: details.iter().filter_map(text_of).collect(),
            code: details.iter().find_map(code_of),
        })
    }
}

fn text_of(detail: &Value) -> Option<String> {
    let text = detail.as_str().or_else(|| detail.get("msg")?.as_str())?;
    let path: Vec<String> = match detail.get("loc").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(part_of_path).collect(),
        None => Vec::new(),
    };
    Some(match path.is_empty() {
        true => text.to_owned(),
        false => format!("{}: {text}", path.join(".")),
    })
}

fn part_of_path(part: &Value) -> String {
    part.as_str().map_or_else(|| part.to_string(), str::to_owned)
}

fn code_of(detail: &Value) -> Option<String> {
    detail.get("code")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &str) -> Failure {
        Failure::of(ApiError::Status {
            api: "sky.example".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        })
    }

    #[test]
    fn errors_keep_what_is_said_and_not_what_was_sent() {
        for (body, text, code) in [
            (
                r#"{"detail": [{"msg": "Run not found", "code": "resource_not_exists"}]}"#,
                "Run not found",
                Some("resource_not_exists"),
            ),
            (
                r#"{"detail": {"msg": "Invalid token", "code": null}}"#,
                "Invalid token",
                None,
            ),
            (r#"{"detail": "Not authenticated"}"#, "Not authenticated", None),
            (
                r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "plan", 0], "msg": "Extra inputs", "input": "secret"}]}"#,
                "body.plan.0: Extra inputs",
                None,
            ),
            (r#"{"password": "secret"}"#, "", None),
            ("Bad Gateway", "", None),
        ] {
            let failure = failure(400, body);
            assert_eq!(
                (failure.error.body(), failure.code.as_deref()),
                (text, code),
                "{body}"
            );
        }
    }

    #[test]
    fn only_the_server_says_that_a_run_is_missing() {
        let told = r#"{"detail": [{"msg": "Run not found", "code": "resource_not_exists"}]}"#;
        assert!(failure(400, told).is_missing());
        assert!(!failure(404, told).is_missing());
        assert!(!failure(400, "<html>resource_not_exists</html>").is_missing());
        assert!(!failure(400, r#"{"detail": [{"msg": "Run not found", "code": "error"}]}"#).is_missing());
        assert!(failure(404, r#"{"detail": {"msg": "Not found", "code": null}}"#).is_of_project());
        assert!(!failure(404, "<html>404</html>").is_of_project());
    }
}
