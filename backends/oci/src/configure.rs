//! Whether a configuration can be used: the credentials, the regions, and the compartment, which is made where none is named.

use dstack_compute::ConfigureError;
use dstack_compute::config::{OciConfig, OciCreds};
use dstack_http::ApiError;
use http::StatusCode;
use serde_json::json;

use crate::client::{Client, Service, Thing, known, told};
use crate::signing::Wrong;

/// Where the images are published that machines are made of (dstack 0.22.5).
const REGIONS: &[&str] = &[
    "eu-frankfurt-1",
    "eu-milan-1",
    "me-dubai-1",
    "uk-london-1",
    "us-ashburn-1",
    "us-chicago-1",
    "us-phoenix-1",
];

/// The configuration as it is stored: with the regions and the compartment.
pub(crate) async fn check(
    client: &Client,
    project: &str,
    config: OciConfig,
) -> Result<OciConfig, ConfigureError> {
    let region = &client.account.region;
    let subscriptions = client.subscriptions().await;
    let subscriptions = subscriptions.map_err(|error| refused(&config.creds, &error))?;
    let ready = subscriptions.iter().filter(|one| one.is_ready());
    let ready: Vec<&str> = ready.map(|one| one.region_name.as_str()).collect();
    let regions = regions(&config, &ready).map_err(ConfigureError::Invalid)?;
    let home = subscriptions.iter().find(|one| one.is_home_region);
    let home = home.map_or(region.as_str(), |one| one.region_name.as_str());
    let compartment = compartment(client, home, project, &config).await?;
    Ok(OciConfig {
        regions: Some(regions),
        compartment_id: Some(compartment),
        ..config
    })
}

fn regions(config: &OciConfig, ready: &[&str]) -> Result<Vec<String>, String> {
    let has_images = REGIONS.join(", ");
    let Some(wanted) = config.regions.as_ref().filter(|wanted| !wanted.is_empty()) else {
        let usable = REGIONS.iter().filter(|region| ready.contains(region));
        let usable: Vec<String> = usable.map(|region| (*region).to_owned()).collect();
        return match usable.is_empty() {
            true => Err(format!(
                "the tenancy is subscribed to none of the regions that have images: {has_images}"
            )),
            false => Ok(usable),
        };
    };
    for region in wanted {
        if !REGIONS.contains(&region.as_str()) {
            return Err(format!(
                "`regions`: there are no images in {region}, but in {has_images}"
            ));
        }
        if !ready.contains(&region.as_str()) {
            return Err(format!("`regions`: the tenancy is not subscribed to {region}"));
        }
    }
    Ok(wanted.clone())
}

async fn compartment(
    client: &Client,
    home: &str,
    project: &str,
    config: &OciConfig,
) -> Result<String, ConfigureError> {
    let unclear = |error: ApiError| match told::<()>(Err(error)) {
        Err(error) => ConfigureError::Invalid(format!("The compartment could not be checked: {error}")),
        Ok(()) => ConfigureError::Invalid(String::new()),
    };
    if let Some(id) = config.compartment_id.as_deref().filter(|id| !id.is_empty()) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let found: Option<Thing> = match id.bytes().all(is_plain) {
            true => known(
                client
                    .get(Service::Identity, home, &format!("compartments/{id}"), &[])
                    .await,
            )
            .map_err(unclear)?,
            false => None,
        };
        return match found {
            Some(compartment) => Ok(compartment.id),
            None => Err(ConfigureError::Invalid(format!(
                "`compartment_id`: there is no compartment {id}, or the user may not see it"
            ))),
        };
    }
    let (tenancy, name) = (client.account.tenancy.as_str(), format!("dstack-{project}"));
    let query = [("compartmentId", tenancy), ("name", name.as_str())];
    let found = client
        .list::<Thing>(Service::Identity, home, "compartments", &query)
        .await;
    let found = found.map_err(unclear)?;
    let is_usable = |one: &Thing| matches!(one.lifecycle_state.as_str(), "ACTIVE" | "CREATING");
    if let Some(compartment) = found.into_iter().find(is_usable) {
        return Ok(compartment.id);
    }
    let ask = json!({
        "compartmentId": tenancy,
        "name": name,
        "description": "Resources created and managed by dstack",
    });
    let made = client
        .post::<Thing>(Service::Identity, home, "compartments", &ask)
        .await;
    Ok(made.map_err(unclear)?.id)
}

/// OCI does not tell which part of the credentials is wrong; a tenancy that it does not know, or that the user may not see, it does.
fn refused(creds: &OciCreds, error: &ApiError) -> ConfigureError {
    let fields: &[&str] = match (error.status(), creds) {
        (Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), OciCreds::Client(creds)) => {
            match creds.key_file {
                Some(_) => &["user", "tenancy", "fingerprint", "key_file"],
                None => &["user", "tenancy", "fingerprint", "key_content"],
            }
        }
        (Some(StatusCode::NOT_FOUND), OciCreds::Client(_)) => &["tenancy"],
        (Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND), _) => &["profile"],
        _ => {
            return ConfigureError::Invalid(format!(
                "The credentials could not be checked: {error}. Try again later"
            ));
        }
    };
    credentials(fields, error.to_string())
}

pub(crate) fn unusable((field, why): Wrong) -> ConfigureError {
    credentials(&[field], why)
}

fn credentials(fields: &[&str], details: String) -> ConfigureError {
    let path = |field: &&str| vec!["creds".to_owned(), (*field).to_owned()];
    ConfigureError::Credentials {
        fields: fields.iter().map(path).collect(),
        details: Some(details),
    }
}
