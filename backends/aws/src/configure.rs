//! Whether a configuration can be used: the credentials, what it names, and a network in each region.

use dstack_compute::config::{AwsConfig, AwsCreds, AwsRole};
use dstack_compute::{ComputeError, ConfigureError};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Deserialize;

use crate::client::{Client, Form, Service, home_region};
use crate::errors::AwsError;
use crate::network::{NetworkError, find_network};
use crate::offers::PARALLEL;
use crate::tags::configured_problem;

/// Regions of a configuration that names none.
const REGIONS: &[&str] = &[
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ap-southeast-1",
    "ca-central-1",
    "eu-central-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "eu-north-1",
];

/// An answer of IAM of which nothing is read.
#[derive(Debug, Deserialize)]
struct Answered {}

/// The regions of a configuration.
pub(crate) fn regions(config: &AwsConfig) -> Vec<String> {
    match &config.regions {
        Some(regions) if !regions.is_empty() => regions.clone(),
        _ => REGIONS.iter().map(|region| (*region).to_owned()).collect(),
    }
}

/// Checks a configuration with AWS.
pub(crate) async fn check(client: &Client, config: &AwsConfig) -> Result<(), ConfigureError> {
    let regions = regions(config);
    check_credentials(client, config).await?;
    if let Some(problem) = config.tags.as_ref().and_then(configured_problem) {
        return Err(ConfigureError::Invalid(problem));
    }
    if let Some(profile) = &config.iam_instance_profile {
        check_profile(client, profile, home_region(&regions)).await?;
    }
    check_vpcs(config, &regions).map_err(ConfigureError::Invalid)?;
    let found: Vec<_> = stream::iter(regions)
        .map(|region| async move {
            let found = find_network(client, config, &region, config.public_ips.unwrap_or(true)).await;
            found.map_err(|error| no_network(&region, &error))
        })
        .buffered(PARALLEL)
        .collect()
        .await;
    for found in found {
        found?;
    }
    Ok(())
}

fn no_network(region: &str, error: &NetworkError) -> ConfigureError {
    ConfigureError::Invalid(match error {
        NetworkError::None(text) => text.clone(),
        NetworkError::Aws(error) if error.is(&["AuthFailure", "OptInRequired"]) => format!(
            "The account cannot use region {region}: enable it in the AWS console, or leave it out of `regions` ({error})"
        ),
        NetworkError::Aws(error) => {
            format!("Region {region} could not be checked: {}", error.compute_error())
        }
    })
}

async fn check_credentials(client: &Client, config: &AwsConfig) -> Result<(), ConfigureError> {
    let role = config.creds.role();
    if role.external_id.is_some() && role.role_arn.is_none() {
        return Err(ConfigureError::Credentials {
            fields: vec![in_creds("external_id")],
            details: Some("`external_id` is of a role: set `role_arn`, or leave both out".to_owned()),
        });
    }
    let caller = client.caller().await;
    let caller = caller.map_err(|error| wrong_keys(&config.creds, &error))?;
    let assumed = client.assume_role().await;
    assumed.map_err(|error| role_refused(role, &caller.principal(), &error))
}

/// Why the keys of the configuration cannot be used.
fn wrong_keys(creds: &AwsCreds, error: &AwsError) -> ConfigureError {
    if error.is_of_the_clock() {
        return ConfigureError::Invalid(format!(
            "AWS takes signatures of the last minutes only, and the clock of the server is wrong: set it ({error})"
        ));
    }
    match error.compute_error() {
        ComputeError::NoKeysNow(_) if error.is_without_keys() => ConfigureError::Credentials {
            fields: fields_at_fault(creds, error),
            details: Some(error.to_string()),
        },
        ComputeError::Credentials(_) | ComputeError::Refused(_) => ConfigureError::Credentials {
            fields: fields_at_fault(creds, error),
            details: Some(error.to_string()),
        },
        other => ConfigureError::Invalid(format!(
            "The credentials could not be checked: {other}. Try again later"
        )),
    }
}

/// AWS tells which half of a key is wrong.
fn fields_at_fault(creds: &AwsCreds, error: &AwsError) -> Vec<Vec<String>> {
    let names: &[&str] = match creds {
        AwsCreds::Default(_) => return vec![vec!["creds".to_owned()]],
        AwsCreds::AccessKey(_) if error.is(&["InvalidClientTokenId"]) => &["access_key"],
        AwsCreds::AccessKey(_) if error.is(&["SignatureDoesNotMatch"]) => &["secret_key"],
        AwsCreds::AccessKey(_) => &["access_key", "secret_key"],
    };
    names.iter().map(|name| in_creds(name)).collect()
}

fn in_creds(field: &str) -> Vec<String> {
    vec!["creds".to_owned(), field.to_owned()]
}

/// Why `principal` does not get the role. AWS has one answer for a role that is not there, one whose trust policy does not name who asks
/// or asks for another external id, and who may not ask.
fn role_refused(role: &AwsRole, principal: &str, error: &AwsError) -> ConfigureError {
    let arn = role.role_arn.as_deref().unwrap_or_default();
    let of_external_id = role.external_id.is_some();
    let (fields, details): (&[&str], _) = match error.compute_error() {
        _ if error.is(&["ValidationError"]) && error.message().contains("'externalId'") => {
            (&["external_id"], error.to_string())
        }
        _ if error.is(&["AccessDenied"]) => {
            let external_id = match of_external_id {
                true => "on the condition that `sts:ExternalId` is this `external_id`, or on none",
                false => "without a condition for `sts:ExternalId`, or set `external_id` to what it asks for",
            };
            let details = format!(
                "{principal} may not assume {arn}. Its trust policy has to allow {principal} the action `sts:AssumeRole`, {external_id}; and \
                 a policy of {principal} has to allow `sts:AssumeRole` on it ({error})"
            );
            match of_external_id {
                true => (&["role_arn", "external_id"], details),
                false => (&["role_arn"], details),
            }
        }
        ComputeError::Credentials(_) | ComputeError::Refused(_) => (&["role_arn"], error.to_string()),
        other => {
            return ConfigureError::Invalid(format!(
                "Whether {arn} may be assumed could not be checked: {other}. Try again later"
            ));
        }
    };
    ConfigureError::Credentials {
        fields: fields.iter().map(|field| in_creds(field)).collect(),
        details: Some(details),
    }
}

async fn check_profile(client: &Client, profile: &str, region: &str) -> Result<(), ConfigureError> {
    let form = Form::new("GetInstanceProfile").with("InstanceProfileName", profile);
    match client.read::<Answered>(Service::Iam, region, form).await {
        Ok(_) => Ok(()),
        Err(error) if error.is(&["NoSuchEntity"]) => Err(ConfigureError::Invalid(format!(
            "IAM instance profile {profile} not found"
        ))),
        Err(error) => Err(ConfigureError::Invalid(format!(
            "Failed to check IAM instance profile {profile}: {}",
            error.compute_error()
        ))),
    }
}

fn check_vpcs(config: &AwsConfig, regions: &[String]) -> Result<(), String> {
    if config.vpc_name.is_some() && config.vpc_ids.is_some() {
        return Err("Only one of `vpc_name` and `vpc_ids` can be specified".to_owned());
    }
    if config.default_vpcs.unwrap_or(true) || config.vpc_name.is_some() {
        return Ok(());
    }
    let Some(ids) = &config.vpc_ids else {
        return Err("`vpc_name` or `vpc_ids` must be specified if `default_vpcs: false`.".to_owned());
    };
    let missing: Vec<&str> = regions
        .iter()
        .filter(|region| !ids.contains_key(*region))
        .map(String::as_str)
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "`vpc_ids` not configured for regions {}: configure them, or set `default_vpcs: true`",
            missing.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use dstack_compute::config::BackendConfig;
    use serde_json::{Value, json};

    use super::*;

    fn config(more: &Value) -> AwsConfig {
        let mut config = json!({"type": "aws", "regions": ["a", "b"], "creds": {"type": "default"}});
        for (name, field) in more.as_object().unwrap() {
            config[name] = field.clone();
        }
        let BackendConfig::Aws(config) = BackendConfig::read(&config).unwrap() else {
            panic!("it is of AWS");
        };
        config
    }

    #[test]
    fn vpcs_are_named_for_all_regions_or_taken_by_default() {
        for (more, problem) in [
            (json!({}), None),
            (json!({"vpc_name": "v"}), None),
            (json!({"vpc_ids": {"a": "v"}}), None),
            (json!({"vpc_name": "v", "default_vpcs": false}), None),
            (
                json!({"vpc_ids": {"a": "v", "b": "w"}, "default_vpcs": false}),
                None,
            ),
            (
                json!({"vpc_name": "v", "vpc_ids": {"a": "v"}}),
                Some("Only one of"),
            ),
            (json!({"default_vpcs": false}), Some("must be specified if")),
            (
                json!({"vpc_ids": {"a": "v"}, "default_vpcs": false}),
                Some("not configured for regions b"),
            ),
        ] {
            let config = config(&more);
            let found = check_vpcs(&config, &regions(&config)).err();
            match problem {
                None => assert_eq!(found, None, "{more}"),
                Some(problem) => assert!(found.unwrap().contains(problem), "{more}"),
            }
        }
    }

    #[test]
    fn a_configuration_without_regions_has_the_usual_ones() {
        for none in [json!(null), json!([])] {
            assert_eq!(regions(&config(&json!({"regions": none}))).len(), 11);
        }
        assert_eq!(regions(&config(&json!({}))), ["a", "b"]);
    }
}
