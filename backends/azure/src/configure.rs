//! Whether a configuration can be used: the credentials, what they see, and the resource group, which is made where none is named.

use dstack_compute::config::{AzureConfig, AzureCreds};
use dstack_compute::{ComputeError, ConfigureError};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Client, IDENTITIES, PERMISSIONS, RESOURCES, SUBSCRIPTIONS};
use crate::errors::AzureError;
use crate::network::{NoSubnet, configured_subnet};
use crate::offers::{PARALLEL, list_skus};
use crate::{names, tags};

/// Where dstack's images are (dstack 0.22.5).
pub(crate) const REGIONS: &[&str] = &[
    "centralus",
    "eastus",
    "eastus2",
    "southcentralus",
    "westus2",
    "westus3",
    "canadacentral",
    "francecentral",
    "germanywestcentral",
    "northeurope",
    "swedencentral",
    "uksouth",
    "westeurope",
    "southeastasia",
    "eastasia",
    "brazilsouth",
];

/// Where the resource group itself is.
const HOME: &str = "eastus";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    subscription_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tenant {
    tenant_id: String,
}

/// What a role allows. `*` in it is any text.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Permission {
    actions: Vec<String>,
    not_actions: Vec<String>,
}

impl Permission {
    fn allows(&self, action: &str) -> bool {
        let is_one = |patterns: &[String]| patterns.iter().any(|pattern| is_like(action, pattern));
        is_one(&self.actions) && !is_one(&self.not_actions)
    }
}

/// Cases are not told apart.
fn is_like(action: &str, pattern: &str) -> bool {
    let (action, pattern) = (action.to_ascii_lowercase(), pattern.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = action.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Those that are configured, or all.
pub(crate) fn regions(config: &AzureConfig) -> Vec<String> {
    match config.regions.as_ref().filter(|regions| !regions.is_empty()) {
        Some(regions) => regions.clone(),
        None => REGIONS.iter().map(|region| (*region).to_owned()).collect(),
    }
}

/// What can be told without Azure; the text names the field.
pub(crate) fn problem(config: &AzureConfig) -> Option<String> {
    let ids = [
        ("tenant_id", &config.tenant_id),
        ("subscription_id", &config.subscription_id),
    ];
    if let Some((field, _)) = ids.into_iter().find(|(_, id)| !names::is_name(id)) {
        return Some(format!("`{field}` is no id of Azure"));
    }
    if let AzureCreds::Client(creds) = &config.creds
        && let Some(tenant) = creds.tenant_id.as_ref().filter(|tenant| !names::is_name(tenant))
    {
        return Some(format!("`creds.tenant_id`: {tenant} is no id of Azure"));
    }
    let regions = config.regions.iter().flatten();
    if let Some(region) = regions.into_iter().find(|one| !REGIONS.contains(&one.as_str())) {
        return Some(format!("`regions`: Unknown Azure location {region}"));
    }
    if let Some(problem) = config.tags.as_ref().and_then(tags::configured_problem) {
        return Some(problem);
    }
    if let Some(group) = config
        .resource_group
        .as_ref()
        .filter(|group| !names::is_name(group))
    {
        return Some(format!("`resource_group`: {group} is no name of one"));
    }
    if let Some(identity) = &config.vm_managed_identity
        && names::parts::<2>(identity).is_none()
    {
        return Some(format!(
            "`vm_managed_identity`: {identity} is not of the form managedIdentityResourceGroup/managedIdentityName"
        ));
    }
    networks_problem(config)
}

fn networks_problem(config: &AzureConfig) -> Option<String> {
    let (vpcs, subnets) = (&config.vpc_ids, &config.subnet_ids);
    if vpcs.is_none() && subnets.is_none() {
        let is_private = config.public_ips == Some(false);
        return is_private
            .then(|| "`vpc_ids` or `subnet_ids` must be specified if `public_ips: false`".to_owned());
    }
    let has = |ids: &Option<dstack_model::common::Tags>, region: &str| {
        ids.as_ref().is_some_and(|ids| ids.contains_key(region))
    };
    let both = vpcs.iter().flatten().map(|(region, _)| region.as_str());
    let both: Vec<&str> = both.filter(|region| has(subnets, region)).collect();
    if !both.is_empty() {
        return Some(format!(
            "regions {} are in both `vpc_ids` and `subnet_ids`: name each in one of them",
            both.join(", ")
        ));
    }
    let mut missing = regions(config);
    missing.retain(|region| !has(vpcs, region) && !has(subnets, region));
    (!missing.is_empty()).then(|| {
        format!(
            "networks are not configured for regions {}: name them in `vpc_ids` or `subnet_ids`, or leave them out of `regions`",
            missing.join(", ")
        )
    })
}

/// The configuration as it is stored: with the regions, the resource group, and the tenant of the credentials.
pub(crate) async fn check(
    client: &Client,
    project: &str,
    mut config: AzureConfig,
) -> Result<AzureConfig, ConfigureError> {
    check_account(client, &config).await?;
    let group = resource_group(client, project, &config).await?;
    check_rights(client, &group, &config).await?;
    if let Some(region) = regions(&config).first() {
        let told = list_skus(client, region).await;
        told.map_err(|error| not_checked("What the subscription may have", &error))?;
    }
    check_identity(client, &config).await?;
    let found: Vec<_> = stream::iter(regions(&config))
        .map(|region| {
            let config = &config;
            async move {
                let is_public = config.public_ips.unwrap_or(true);
                let found = configured_subnet(client, config, &region, is_public).await;
                found.map_err(|error| match error {
                    NoSubnet::Wrong(text) => ConfigureError::Invalid(text),
                    NoSubnet::Azure(error) => not_checked(&format!("The network of {region}"), &error),
                })
            }
        })
        .buffered(PARALLEL)
        .collect()
        .await;
    for found in found {
        found?;
    }
    config.regions = Some(regions(&config));
    config.resource_group = Some(group);
    if let AzureCreds::Client(creds) = &mut config.creds {
        creds.tenant_id.get_or_insert_with(|| config.tenant_id.clone());
    }
    Ok(config)
}

async fn check_account(client: &Client, config: &AzureConfig) -> Result<(), ConfigureError> {
    let subscriptions = client
        .list::<Subscription>("/subscriptions", SUBSCRIPTIONS, None)
        .await;
    let subscriptions = subscriptions.map_err(|error| refused(config, &error))?;
    let tenants = client.list::<Tenant>("/tenants", SUBSCRIPTIONS, None).await;
    let tenants = tenants.map_err(|error| refused(config, &error))?;
    let is_same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    if !tenants
        .iter()
        .any(|one| is_same(&one.tenant_id, &config.tenant_id))
    {
        let text = format!("the credentials do not belong to the tenant {}", config.tenant_id);
        return Err(wrong(vec![vec!["tenant_id"]], text));
    }
    let id = &config.subscription_id;
    match subscriptions.iter().any(|one| is_same(&one.subscription_id, id)) {
        true => Ok(()),
        false => Err(wrong(
            vec![vec!["subscription_id"]],
            match subscriptions.is_empty() {
                true => "the credentials see no subscription: assign them a role in one".to_owned(),
                false => {
                    format!("the credentials do not see the subscription {id}: assign them a role in it")
                }
            },
        )),
    }
}

async fn resource_group(
    client: &Client,
    project: &str,
    config: &AzureConfig,
) -> Result<String, ConfigureError> {
    let named = config.resource_group.clone().filter(|group| !group.is_empty());
    let group = named.clone().unwrap_or_else(|| names::group_of(project));
    let path = client.path(format_args!("resourcegroups/{group}"));
    let failed = |error: AzureError| not_checked(&format!("Resource group {group}"), &error);
    if client
        .find::<Value>(&path, RESOURCES)
        .await
        .map_err(failed)?
        .is_some()
    {
        return Ok(group);
    }
    if named.is_some() {
        return Err(ConfigureError::Invalid(format!(
            "`resource_group`: Resource group {group} not found"
        )));
    }
    let ask = json!({"location": HOME, "tags": tags::of_shared(config.tags.as_ref())});
    client.put(&path, RESOURCES, &ask).await.map_err(failed)?;
    Ok(group)
}

/// What machines need at least. Where Azure does not tell what the credentials may do, it shows when it is tried.
async fn check_rights(client: &Client, group: &str, config: &AzureConfig) -> Result<(), ConfigureError> {
    let path = client.in_group(group, "Authorization/permissions");
    let told = client.list::<Permission>(&path, PERMISSIONS, None).await;
    let allowed = told.unwrap_or_else(|error| {
        tracing::debug!(%error, "Azure does not tell what the credentials may do");
        Vec::new()
    });
    let has_networks = config.vpc_ids.is_some() || config.subnet_ids.is_some();
    let all = &["read", "write", "delete"][..];
    let needed = [
        (true, "Compute/virtualMachines", all),
        (true, "Compute/disks", all),
        (true, "Network/networkInterfaces", all),
        (true, "Network/networkSecurityGroups", &["read", "write"]),
        // Gateways need it in any case; whoever has none is not kept from jobs.
        (config.public_ips != Some(false), "Network/publicIPAddresses", all),
        (!has_networks, "Network/virtualNetworks", &["read", "write"]),
    ];
    let needed = needed.iter().filter(|(is_needed, ..)| *is_needed);
    let needed = needed.flat_map(|(_, kind, actions)| {
        actions
            .iter()
            .map(move |action| format!("Microsoft.{kind}/{action}"))
    });
    let is_missing = |action: &String| !allowed.iter().any(|permission| permission.allows(action));
    let missing: Vec<String> = needed.filter(is_missing).collect();
    match allowed.is_empty() || missing.is_empty() {
        true => Ok(()),
        false => Err(ConfigureError::Invalid(format!(
            "the role of the credentials lacks {} in the resource group {group}",
            missing.join(", ")
        ))),
    }
}

async fn check_identity(client: &Client, config: &AzureConfig) -> Result<(), ConfigureError> {
    let identity = config.vm_managed_identity.as_deref();
    let Some([group, name]) = identity.and_then(names::parts::<2>) else {
        return Ok(());
    };
    let path = identity_path(client, group, name);
    let found = client.find::<Value>(&path, IDENTITIES).await;
    match found.map_err(|error| not_checked("`vm_managed_identity`", &error))? {
        Some(_) => Ok(()),
        None => Err(ConfigureError::Invalid(format!(
            "`vm_managed_identity`: Managed identity {name} not found in resource group {group}"
        ))),
    }
}

pub(crate) fn identity_path(client: &Client, group: &str, name: &str) -> String {
    client.in_group(
        group,
        format_args!("ManagedIdentity/userAssignedIdentities/{name}"),
    )
}

fn not_checked(what: &str, error: &AzureError) -> ConfigureError {
    ConfigureError::Invalid(format!("{what} could not be checked: {}", error.compute_error()))
}

/// Entra tells which part of the credentials is wrong ("Microsoft Entra authentication and authorization error codes").
fn refused(config: &AzureConfig, error: &AzureError) -> ConfigureError {
    let is_wrong = error.is_refused_login() || matches!(error.compute_error(), ComputeError::Credentials(_));
    if !is_wrong {
        return not_checked("The credentials", error);
    }
    let fields = match &config.creds {
        AzureCreds::Default(_) => vec![vec!["creds"]],
        AzureCreds::Client(creds) => {
            // As it was given: in one of two places.
            let tenant = match creds.tenant_id {
                Some(_) => vec!["creds", "tenant_id"],
                None => vec!["tenant_id"],
            };
            match error.code.as_str() {
                "AADSTS7000215" | "AADSTS7000222" => vec![vec!["creds", "client_secret"]],
                "AADSTS700016" => vec![vec!["creds", "client_id"]],
                "AADSTS90002" | "AADSTS900023" => vec![tenant],
                _ => vec![tenant, vec!["creds", "client_id"], vec!["creds", "client_secret"]],
            }
        }
    };
    wrong(fields, error.to_string())
}

fn wrong(fields: Vec<Vec<&str>>, details: String) -> ConfigureError {
    let owned = |path: Vec<&str>| path.into_iter().map(str::to_owned).collect();
    ConfigureError::Credentials {
        fields: fields.into_iter().map(owned).collect(),
        details: Some(details),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_allow_what_their_patterns_say() {
        let action = "Microsoft.Compute/virtualMachines/write";
        for (pattern, expected) in [
            ("*", true),
            ("*/write", true),
            ("microsoft.compute/virtualmachines/write", true),
            ("Microsoft.Compute/*", true),
            ("Microsoft.*/virtualMachines/*", true),
            ("Microsoft.Compute/*/write", true),
            ("*/read", false),
            ("Microsoft.Compute/virtualMachines", false),
            ("Microsoft.Compute/disks/*", false),
            ("", false),
        ] {
            assert_eq!(is_like(action, pattern), expected, "{pattern}");
        }
        let role = Permission {
            actions: vec!["*".to_owned()],
            not_actions: vec!["Microsoft.Authorization/*/Write".to_owned()],
        };
        assert!(role.allows(action));
        assert!(!role.allows("Microsoft.Authorization/roleAssignments/write"));
    }

    #[test]
    fn the_role_of_the_page_allows_all_calls() {
        let page = include_str!("../../../docs/backends/azure.md");
        let role = page.split("```").find_map(|part| part.strip_prefix("json"));
        let role: Value = serde_json::from_str(role.unwrap()).unwrap();
        let actions: Vec<String> = serde_json::from_value(role["Actions"].clone()).unwrap();
        let role = Permission {
            actions,
            not_actions: Vec::new(),
        };
        for action in [
            "Microsoft.Authorization/permissions/read",
            "Microsoft.Compute/disks/delete",
            "Microsoft.Compute/disks/read",
            "Microsoft.Compute/disks/write",
            "Microsoft.Compute/locations/operations/read",
            "Microsoft.Compute/locations/usages/read",
            "Microsoft.Compute/skus/read",
            "Microsoft.Compute/virtualMachines/delete",
            "Microsoft.Compute/virtualMachines/instanceView/read",
            "Microsoft.Compute/virtualMachines/read",
            "Microsoft.Compute/virtualMachines/write",
            "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
            "Microsoft.ManagedIdentity/userAssignedIdentities/read",
            "Microsoft.Network/networkInterfaces/delete",
            "Microsoft.Network/networkInterfaces/join/action",
            "Microsoft.Network/networkInterfaces/read",
            "Microsoft.Network/networkInterfaces/write",
            "Microsoft.Network/networkSecurityGroups/join/action",
            "Microsoft.Network/networkSecurityGroups/read",
            "Microsoft.Network/networkSecurityGroups/write",
            "Microsoft.Network/publicIPAddresses/delete",
            "Microsoft.Network/publicIPAddresses/join/action",
            "Microsoft.Network/publicIPAddresses/read",
            "Microsoft.Network/publicIPAddresses/write",
            "Microsoft.Network/virtualNetworks/read",
            "Microsoft.Network/virtualNetworks/subnets/join/action",
            "Microsoft.Network/virtualNetworks/subnets/read",
            "Microsoft.Network/virtualNetworks/virtualNetworkPeerings/read",
            "Microsoft.Network/virtualNetworks/write",
            "Microsoft.Resources/subscriptions/read",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
            "Microsoft.Resources/subscriptions/resourceGroups/write",
        ] {
            assert!(role.allows(action), "{action}");
        }
    }
}
