//! What may change of a fleet in place (dstack 0.22.5: scheduling §9).

use std::collections::BTreeSet;

use dstack_model::fleets::{FleetSpec, SshHost, SshHostParams, SshParams};
use dstack_units::number::quote_list;

use crate::PlanError;
use crate::diff::changed;

const SPEC: &[&str] = &["configuration", "configuration_path", "merged_profile"];
/// Of a fleet in clouds. `reservation` and `tags` count for new instances only.
const CLOUD: &[&str] = &[
    "nodes",
    "reservation",
    "tags",
    "resources",
    "backends",
    "regions",
    "availability_zones",
    "instance_types",
    "spot_policy",
    "max_price",
];
const SSH: &[&str] = &["ssh_config"];
const SSH_CONFIG: &[&str] = &["hosts"];

/// Hosts by address, in which two configurations of an SSH fleet differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostChanges {
    /// Only in the new one.
    pub added: BTreeSet<String>,
    /// Only in the old one.
    pub removed: BTreeSet<String>,
    /// In both, with other parameters.
    pub changed: BTreeSet<String>,
}

/// Whether the change can be made to a fleet that is there.
///
/// # Errors
/// It cannot; the texts are dstack 0.22.5's.
pub fn check_updatable(old: &FleetSpec, new: &FleetSpec) -> Result<(), PlanError> {
    within(&changed(old, new), SPEC)?;
    let (old, new) = (&old.configuration, &new.configuration);
    let fields = changed(old, new);
    match (&old.ssh_config, &new.ssh_config) {
        (None, Some(_)) => Err(PlanError::new(
            "Fleet type changed from Cloud to SSH, cannot update",
        )),
        (Some(_), None) => Err(PlanError::new(
            "Fleet type changed from SSH to Cloud, cannot update",
        )),
        (None, None) => within(&fields, CLOUD),
        (Some(old), Some(new)) => {
            within(&fields, SSH)?;
            within(&changed(old, new), SSH_CONFIG)?;
            check_hosts(old, new)
        }
    }
}

fn within(fields: &[String], updatable: &[&str]) -> Result<(), PlanError> {
    if fields.iter().all(|field| updatable.contains(&field.as_str())) {
        return Ok(());
    }
    Err(PlanError::new(format!(
        "Failed to update fields {}. Can only update {}.",
        quote_list(fields),
        quote_list(updatable)
    )))
}

fn check_hosts(old: &SshParams, new: &SshParams) -> Result<(), PlanError> {
    let changed: Vec<String> = host_changes(old, new).changed.into_iter().collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(PlanError::new(format!(
        "Hosts configuration changed, cannot update: {}",
        quote_list(&changed)
    )))
}

/// How the hosts of an SSH fleet change. Where the client keeps its keys does not matter.
pub fn host_changes(old: &SshParams, new: &SshParams) -> HostChanges {
    let by_name = |params: &SshParams| -> Vec<(String, HostKind)> {
        params
            .hosts
            .iter()
            .map(|host| (host.hostname().to_owned(), HostKind::of(host)))
            .collect()
    };
    let (old, new) = (by_name(old), by_name(new));
    // The last of several with one name counts.
    let find = |hosts: &[(String, HostKind)], name: &str| {
        let mut found = hosts.iter().rev();
        found
            .find(|(other, _)| other == name)
            .map(|(_, kind)| kind.clone())
    };
    let mut changes = HostChanges::default();
    for (name, _) in &new {
        match find(&old, name) {
            None => changes.added.insert(name.clone()),
            Some(before) if Some(&before) != find(&new, name).as_ref() => {
                changes.changed.insert(name.clone())
            }
            Some(_) => false,
        };
    }
    let gone = old.iter().filter(|(name, _)| find(&new, name).is_none());
    changes.removed.extend(gone.map(|(name, _)| name.clone()));
    changes
}

/// A host by its address differs from the same host in detail.
#[derive(Debug, Clone, PartialEq)]
enum HostKind {
    Address,
    Detailed(Box<SshHostParams>),
}

impl HostKind {
    fn of(host: &SshHost) -> Self {
        match host {
            SshHost::Hostname(_) => Self::Address,
            SshHost::Params(params) => {
                let mut params = params.clone();
                params.identity_file = None;
                if let Some(proxy) = &mut params.proxy_jump {
                    proxy.identity_file.clear();
                }
                Self::Detailed(params)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(configuration: &Value) -> FleetSpec {
        let mut fleet = json!({"type": "fleet"});
        fleet
            .as_object_mut()
            .unwrap()
            .extend(configuration.as_object().unwrap().clone());
        serde_json::from_value(json!({"configuration": fleet, "profile": {}})).unwrap()
    }

    fn verdict(old: &Value, new: &Value) -> Result<(), String> {
        check_updatable(&spec(old), &spec(new)).map_err(|error| error.0)
    }

    #[test]
    fn some_fields_of_cloud_fleets_change_in_place() {
        let old = json!({"name": "f", "nodes": 1});
        assert_eq!(
            verdict(
                &old,
                &json!({"name": "f", "nodes": "1..4", "max_price": 2, "tags": {"a": "b"}})
            ),
            Ok(())
        );
        let refused = verdict(&old, &json!({"name": "f", "nodes": 1, "blocks": 2})).unwrap_err();
        assert!(
            refused.starts_with("Failed to update fields ['blocks']. Can only update ['nodes',"),
            "{refused}"
        );
        assert_eq!(
            verdict(&old, &json!({"name": "f", "ssh_config": {"hosts": ["a"]}})).unwrap_err(),
            "Fleet type changed from Cloud to SSH, cannot update"
        );
        let mut profile = spec(&old);
        profile.profile.params.max_price = Some(1.0);
        assert!(check_updatable(&spec(&old), &profile).is_err());
    }

    #[test]
    fn hosts_come_and_go_but_do_not_change() {
        let hosts = |hosts: Value| json!({"ssh_config": {"user": "u", "hosts": hosts}});
        assert_eq!(
            verdict(&hosts(json!(["a", "b"])), &hosts(json!(["b", "c"]))),
            Ok(())
        );
        let host =
            |key: &str, port: i64| hosts(json!([{"hostname": "a", "identity_file": key, "port": port}]));
        assert_eq!(verdict(&host("k1", 22), &host("k2", 22)), Ok(()));
        assert_eq!(
            verdict(&host("k1", 22), &host("k1", 23)).unwrap_err(),
            "Hosts configuration changed, cannot update: ['a']"
        );
        let other_user = json!({"ssh_config": {"user": "v", "hosts": ["a", "b"]}});
        assert!(verdict(&hosts(json!(["a", "b"])), &other_user).is_err());
    }
}
