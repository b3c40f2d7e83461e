//! What may change of a fleet in place (dstack 0.22.5: scheduling §9).

use std::collections::{BTreeMap, BTreeSet};

use dstack_model::fleets::{FleetSpec, SshHost, SshHostParams, SshParams};
use dstack_units::number::quote_list;

use crate::PlanError;
use crate::diff::changed;
use crate::hosts::HostKey;

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

/// Hosts in which two configurations of an SSH fleet differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostChanges {
    /// Only in the new one.
    pub added: BTreeSet<HostKey>,
    /// Only in the old one.
    pub removed: BTreeSet<HostKey>,
    /// In both, with other parameters: their names as the new one writes them.
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
///
/// The only host of a name that gets another port has changed, as for dstack 0.22.5, which tells hosts by their names. One that is
/// written in another way leaves and comes.
pub fn host_changes(old: &SshParams, new: &SshParams) -> HostChanges {
    let (before, after) = (by_key(old), by_key(new));
    let mut changes = HostChanges::default();
    for (key, host) in &after {
        match before.get(key) {
            None if is_moved(key, &before, &after) => {
                changes.changed.insert(host.hostname().to_owned());
            }
            None => {
                changes.added.insert(key.clone());
            }
            Some(was) if was.hostname() != host.hostname() => {
                changes.added.insert(key.clone());
                changes.removed.insert(key.clone());
            }
            Some(was) if HostKind::of(was) != HostKind::of(host) => {
                changes.changed.insert(host.hostname().to_owned());
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    changes.removed.extend(gone.cloned());
    changes
}

/// The last of several that are the same counts.
fn by_key(ssh: &SshParams) -> BTreeMap<HostKey, &SshHost> {
    let hosts = ssh.hosts.iter();
    hosts.map(|host| (HostKey::of(ssh, host), host)).collect()
}

/// Whether a host is the only one of its name, before and after, and has another port.
fn is_moved(
    key: &HostKey,
    before: &BTreeMap<HostKey, &SshHost>,
    after: &BTreeMap<HostKey, &SshHost>,
) -> bool {
    let is_only = |hosts: &BTreeMap<HostKey, &SshHost>| {
        hosts.keys().filter(|other| other.name == key.name).count() == 1
    };
    is_only(before) && is_only(after)
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

    #[test]
    fn hosts_behind_one_address_come_and_go_one_by_one() {
        let ssh = |hosts: &[(&str, u16)]| -> SshParams {
            let hosts = hosts
                .iter()
                .map(|(name, port)| json!({"hostname": name, "port": port}));
            serde_json::from_value(json!({"user": "u", "hosts": hosts.collect::<Vec<_>>()})).unwrap()
        };
        let (one, two) = (("nat", 2201), ("nat", 2202));
        for (old, new, added, removed, changed) in [
            (vec![one, two], vec![two], "", "nat:2201", ""),
            (vec![one], vec![two, one], "nat:2202", "", ""),
            (vec![one], vec![one, two], "nat:2202", "", ""),
            (vec![one], vec![two], "", "nat:2201", "nat"),
            (vec![one, two], vec![one, ("nat", 22)], "nat", "nat:2202", ""),
            (vec![one], vec![("NAT.", 2201)], "nat:2201", "nat:2201", ""),
            (vec![one, ("a", 22)], vec![("a", 22), one], "", "", ""),
        ] {
            let told = host_changes(&ssh(&old), &ssh(&new));
            let listed =
                |keys: &BTreeSet<HostKey>| keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            let names = told.changed.iter().cloned().collect::<Vec<_>>().join(" ");
            assert_eq!(
                (
                    listed(&told.added).as_str(),
                    listed(&told.removed).as_str(),
                    names.as_str()
                ),
                (added, removed, changed),
                "{old:?} {new:?}"
            );
        }
    }
}
