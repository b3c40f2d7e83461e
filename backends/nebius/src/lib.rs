//! [Nebius AI Cloud](https://nebius.com): virtual machines, and InfiniBand between them.
//!
//! The API is one of gRPC: `grpc` carries its calls over HTTP, `messages` are those that are used, `token` proves who asks, `client` has the
//! calls and `errors` what their answers mean. `projects` finds the project of each region, `offers` what can be had. `machines` is the life
//! of a machine with its disk, `placements` that of a GPU cluster. `inventory` finds what was left behind. `collector` makes the
//! published catalogue.

#![warn(missing_docs)]

mod client;
mod collector;
mod errors;
mod grpc;
mod inventory;
mod labels;
mod machines;
mod messages;
mod offers;
mod placements;
mod projects;
mod token;
mod user_data;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Cached, CloudKind, Env, Kind as CloudKindOf, not_asked};
use dstack_compute::config::NebiusConfig;
use dstack_compute::{
    Backend, BackendKind, Call, Capabilities, ComputeError, ConfigureError, Lifecycle, Machine, Owned,
    Placement, Removal,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;

use client::{Client, Kind};
pub use collector::NebiusCollector;
use errors::told;
use grpc::Error;
use messages::Thing;
use projects::Projects;

/// How long the projects of a tenant are taken for what they were, and how long after that where the API does not tell.
const PROJECTS_LIFETIME: Duration = Duration::from_secs(10 * 60);
const STALE_PROJECTS_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// What is noted before the first piece: the project in which all are made and looked for, whichever is used later.
const PROJECT: &str = "project";

/// How the name of the subnet begins that Nebius makes with a project.
const SUBNET: &str = "default-subnet";

/// The kind of backends for Nebius.
pub fn kind(env: Env) -> Arc<dyn BackendKind> {
    CloudKindOf::of(NebiusKind { env })
}

#[derive(Debug)]
struct NebiusKind {
    env: Env,
}

#[async_trait]
impl CloudKind for NebiusKind {
    type Config = NebiusConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            placement_groups: true,
            ..Capabilities::default()
        }
    }

    async fn check(&self, config: NebiusConfig) -> Result<NebiusConfig, ConfigureError> {
        let client =
            Client::new(&self.env, &config.creds).map_err(|(field, why)| wrong(&[&["creds", field]], why))?;
        let all = projects::all(&client).await.map_err(refused)?;
        let named = |(field, why): projects::Wrong| wrong(&[&[field]], why);
        let (chosen, problem) = projects::by_region(&all, listed(config.projects.as_ref()));
        if let Some(problem) = problem {
            return Err(named(problem));
        }
        projects::check(&chosen, &all, listed(config.regions.as_ref())).map_err(named)?;
        let known = offers::known_fabrics(&self.env.catalog, None);
        let fabrics = listed(config.fabrics.as_ref()).iter();
        let unknown: Vec<&str> = fabrics
            .filter(|fabric| !known.contains(*fabric))
            .map(String::as_str)
            .collect();
        if !unknown.is_empty() {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let (unknown, known) = (unknown.join(", "), known.join(", "));
            let why = format!("no InfiniBand fabric is known as {unknown}; there are {known}");
            return Err(wrong(&[&["fabrics"]], why));
        }
        match config.tags.as_ref().and_then(labels::configured_problem) {
            Some(problem) => Err(ConfigureError::Invalid(problem)),
            None => Ok(config),
        }
    }

    fn open(kind: CloudKindOf<Self>, config: NebiusConfig) -> Result<Arc<dyn Backend>, String> {
        let client =
            Client::new(&kind.env, &config.creds).map_err(|(field, why)| format!("creds.{field}: {why}"))?;
        let projects = Cached::new(
            Arc::clone(&kind.env.clock),
            PROJECTS_LIFETIME,
            STALE_PROJECTS_LIFETIME,
        );
        Ok(Arc::new(Nebius {
            client,
            projects,
            subnets: Mutex::default(),
            asked_from: Mutex::default(),
            config,
            kind,
        }))
    }
}

fn listed(list: Option<&Vec<String>>) -> &[String] {
    list.map_or(&[], Vec::as_slice)
}

fn wrong(fields: &[&[&str]], details: String) -> ConfigureError {
    let path = |path: &&[&str]| path.iter().map(|part| (*part).to_owned()).collect();
    ConfigureError::Credentials {
        fields: fields.iter().map(path).collect(),
        details: Some(details),
    }
}

fn refused(error: Error) -> ConfigureError {
    match told::<()>(Err(error)) {
        Err(ComputeError::Credentials(details)) => wrong(
            &[
                &["creds", "service_account_id"],
                &["creds", "public_key_id"],
                &["creds", "private_key_content"],
            ],
            details,
        ),
        Err(other) => ConfigureError::Invalid(format!(
            "The credentials could not be checked: {other}. Try again later"
        )),
        Ok(()) => ConfigureError::Invalid(String::new()),
    }
}

/// The backend of one service account, and what was looked up of late with it.
#[derive(Debug)]
struct Nebius {
    kind: CloudKindOf<NebiusKind>,
    config: NebiusConfig,
    client: Client,
    projects: Cached<Projects>,
    /// Ids of subnets, by project.
    subnets: Mutex<HashMap<String, String>>,
    /// Of the machines of a region that are not listed: with which the next look begins to ask.
    asked_from: Mutex<HashMap<String, usize>>,
}

impl Nebius {
    /// Of all regions, as what was made in one that is not used any more is still looked for.
    async fn projects(&self) -> Result<Arc<Projects>, ComputeError> {
        let fetch = async || {
            let all = told(projects::all(&self.client).await)?;
            let named = listed(self.config.projects.as_ref());
            let (by_region, problem) = projects::by_region(&all, named);
            if let Some((field, problem)) = problem {
                // It was right when it was configured: what is in other regions goes on.
                tracing::warn!(field, problem, "a region of Nebius is not used");
            }
            Ok(Projects { all, by_region })
        };
        self.projects.get(fetch).await
    }

    fn is_used(&self, region: &str) -> bool {
        let regions = listed(self.config.regions.as_ref());
        regions.is_empty() || regions.iter().any(|used| used == region)
    }

    /// That are used.
    async fn regions(&self) -> Result<Vec<String>, ComputeError> {
        let projects = self.projects().await?;
        let used = projects
            .by_region
            .iter()
            .filter(|(region, project)| project.is_some() && self.is_used(region));
        Ok(used.map(|(region, _)| region.clone()).collect())
    }

    async fn project(&self, region: &str) -> Result<String, ComputeError> {
        let projects = self.projects().await?;
        let project = projects.by_region.get(region).cloned().flatten();
        project.ok_or_else(|| {
            ComputeError::Configuration(format!(
                "there is no project in {region}, or several: name one in `projects`"
            ))
        })
    }

    /// The project that was noted, or else the one that is used now, which is noted.
    async fn note_project(&self, region: &str, call: &Call<'_>) -> Result<String, ComputeError> {
        if let Some(noted) = call.made(PROJECT)? {
            return Ok(noted);
        }
        let project = self.project(region).await.map_err(not_asked)?;
        call.choose(PROJECT, project).await
    }

    /// The project in which pieces were asked for. Earlier builds did not note it.
    async fn noted_project(&self, region: &str, call: &Call<'_>) -> Result<String, ComputeError> {
        match call.made(PROJECT)? {
            Some(noted) => Ok(noted),
            None => self.project(region).await,
        }
    }

    async fn subnet(&self, project: &str) -> Result<String, ComputeError> {
        let known = self.lock().get(project).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let subnets: Vec<Thing> = told(self.client.list(Kind::Subnet, project).await)?;
        let mut subnets = subnets.into_iter().filter_map(|subnet| subnet.metadata);
        let found = subnets.find(|subnet| subnet.name.starts_with(SUBNET));
        let id = found.map(|subnet| subnet.id).ok_or_else(|| {
            ComputeError::Configuration(format!("the project {project} has no subnet {SUBNET}"))
        })?;
        self.lock().insert(project.to_owned(), id.clone());
        Ok(id)
    }

    fn forget_subnet(&self, project: &str) {
        self.lock().remove(project);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.subnets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Nebius {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.find_offers(requirements).await
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(self)
    }

    fn placements(&self) -> Option<&dyn Lifecycle<Placement>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.list_owned().await
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        self.remove_by_kind(owned).await
    }
}
