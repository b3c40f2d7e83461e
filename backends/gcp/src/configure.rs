//! Whether a configuration can be used: the credentials, the labels, and a subnetwork in each region.

use dstack_compute::config::{GcpConfig, GcpCreds};
use dstack_compute::{ComputeError, ConfigureError};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Deserialize;

use crate::client::{Client, ClientError, Router, is_project, last, plain};
use crate::errors::GcpError;
use crate::labels::configured_problem;
use crate::network::{Subnets, name_of, project_of};

/// Regions of a configuration that names none (dstack 0.22.5).
const REGIONS: &[&str] = &[
    "northamerica-northeast1",
    "northamerica-northeast2",
    "us-central1",
    "us-east1",
    "us-east4",
    "us-east5",
    "us-south1",
    "us-west1",
    "us-west2",
    "us-west3",
    "us-west4",
    "southamerica-east1",
    "southamerica-west1",
    "europe-central2",
    "europe-north1",
    "europe-southwest1",
    "europe-west1",
    "europe-west2",
    "europe-west3",
    "europe-west4",
    "europe-west6",
    "europe-west8",
    "europe-west9",
    "asia-east1",
    "asia-east2",
    "asia-northeast1",
    "asia-northeast2",
    "asia-northeast3",
    "asia-south1",
    "asia-south2",
    "asia-southeast1",
    "asia-southeast2",
    "me-west1",
    "australia-southeast1",
    "australia-southeast2",
];

/// Regions that are asked at the same time.
const PARALLEL: usize = 12;

/// Most networks for RDMA.
const MOST_RDMA: usize = 1;

/// The regions of a configuration.
pub(crate) fn regions(config: &GcpConfig) -> Vec<String> {
    match &config.regions {
        Some(regions) if !regions.is_empty() => regions.clone(),
        _ => REGIONS.iter().map(|region| (*region).to_owned()).collect(),
    }
}

/// What is wrong with names of a configuration, which stand in paths and links.
pub(crate) fn names_problem(config: &GcpConfig) -> Option<String> {
    let named = [
        ("regions", config.regions.iter().flatten().collect::<Vec<_>>()),
        ("vpc_name", config.vpc_name.iter().collect()),
        (
            "subnetworks",
            config
                .subnetworks
                .iter()
                .flatten()
                .map(|(_, name)| name)
                .collect(),
        ),
        ("extra_vpcs", config.extra_vpcs.iter().flatten().collect()),
        ("roce_vpcs", config.roce_vpcs.iter().flatten().collect()),
    ];
    let wrong = |(field, names): &(&str, Vec<&String>)| {
        let name = names.iter().find(|name| plain(name).is_err())?;
        Some(format!("`{field}`: {name:?} is no name of Google's"))
    };
    let project = config.vpc_project_id.as_ref().filter(|id| !is_project(id));
    let project = project.map(|id| format!("`vpc_project_id`: {id:?} is no name of Google's"));
    project.or_else(|| named.iter().find_map(wrong))
}

/// Checks a configuration with Google.
pub(crate) async fn check(client: &Client, config: &GcpConfig) -> Result<(), ConfigureError> {
    check_project(client, config).await?;
    let problem = names_problem(config)
        .or_else(|| config.tags.as_ref().and_then(configured_problem))
        .or_else(|| subnetworks_problem(config));
    if let Some(problem) = problem {
        return Err(ConfigureError::Invalid(problem));
    }
    let all = Subnets::usable(client, config)
        .await
        .map_err(|error| match error.is_missing() {
            true => ConfigureError::Invalid(format!("there is no project {} with a VPC", project_of(config))),
            false => unclear(error),
        })?;
    for region in regions(config) {
        let chosen = config.subnetworks.as_ref().and_then(|all| all.get(&region));
        all.find(name_of(config), &region, chosen.map(String::as_str))
            .map_err(|error| unchecked(&error))?;
    }
    check_nat(client, config).await
}

async fn check_project(client: &Client, config: &GcpConfig) -> Result<(), ConfigureError> {
    #[derive(Deserialize)]
    struct Project {}
    let Err(error) = client.get::<Project>("").await else {
        return Ok(());
    };
    let details = match &error {
        error if error.is_missing() => format!("project_id {} not found", config.project_id),
        GcpError::Told(_) | GcpError::NotAsked(ComputeError::Credentials(_)) => match error.compute_error() {
            ComputeError::Credentials(text)
            | ComputeError::Refused(text)
            | ComputeError::Configuration(text) => text,
            other => return Err(unchecked(&other)),
        },
        _ => return Err(unclear(error)),
    };
    Err(wrong(&config.creds, details))
}

/// These credentials cannot be used.
pub(crate) fn wrong(creds: &GcpCreds, details: String) -> ConfigureError {
    let field: &[&str] = match creds {
        GcpCreds::ServiceAccount(_) => &["creds", "data"],
        GcpCreds::Default(_) => &["creds"],
    };
    ConfigureError::Credentials {
        fields: vec![field.iter().map(|part| (*part).to_owned()).collect()],
        details: Some(details),
    }
}

/// There is no client of a configuration.
pub(crate) fn no_client(creds: &GcpCreds, error: ClientError) -> ConfigureError {
    match error {
        ClientError::Project => ConfigureError::Invalid(error.to_string()),
        ClientError::Creds(why) => wrong(creds, why),
    }
}

fn subnetworks_problem(config: &GcpConfig) -> Option<String> {
    if config.roce_vpcs.as_ref().is_some_and(|all| all.len() > MOST_RDMA) {
        return Some(format!("`roce_vpcs` takes {MOST_RDMA} VPC at most"));
    }
    let chosen = config.subnetworks.as_ref().filter(|all| !all.is_empty())?;
    if config.vpc_name.is_none() {
        return Some("`vpc_name` must be specified when `subnetworks` is configured.".to_owned());
    }
    let known = regions(config);
    let unknown: Vec<&String> = chosen.keys().filter(|region| !known.contains(region)).collect();
    (!unknown.is_empty())
        .then(|| format!("`subnetworks` is configured for regions not in `regions`: {unknown:?}"))
}

/// Machines without public addresses reach the internet by a NAT, unless the user has another way. Of networks that another project
/// shares, the account may not be allowed to ask.
async fn check_nat(client: &Client, config: &GcpConfig) -> Result<(), ConfigureError> {
    let is_checked = !config.public_ips.unwrap_or(true) && config.nat_check.unwrap_or(true);
    if !is_checked || config.vpc_project_id.is_some() {
        return Ok(());
    }
    let network = name_of(config);
    let found: Vec<_> = stream::iter(regions(config))
        .map(|region| async move {
            let routers = client
                .list::<Router>(None, &format!("regions/{region}/routers"), None)
                .await;
            let has = |router: &Router| last(&router.network) == network && !router.nats.is_empty();
            match routers {
                Ok(routers) => Ok((!routers.iter().any(has)).then_some(region)),
                Err(error) if error.is_missing() => Ok(Some(region)),
                Err(error) => Err(unclear(error)),
            }
        })
        .buffered(PARALLEL)
        .collect()
        .await;
    let without: Vec<Option<String>> = found.into_iter().collect::<Result<_, _>>()?;
    let without: Vec<String> = without.into_iter().flatten().collect();
    match without.is_empty() {
        true => Ok(()),
        false => Err(ConfigureError::Invalid(format!(
            "the VPC {network} has no Cloud NAT in {without:?}, and machines without public addresses would not reach the \
             internet. If they have another way there, set `nat_check: false`"
        ))),
    }
}

fn unclear(error: GcpError) -> ConfigureError {
    unchecked(&error.compute_error())
}

fn unchecked(error: &ComputeError) -> ConfigureError {
    ConfigureError::Invalid(match error {
        ComputeError::Credentials(text) | ComputeError::Configuration(text) => text.clone(),
        other => format!("The configuration could not be checked: {other}. Try again later"),
    })
}
