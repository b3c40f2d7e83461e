//! What a fleet must look like (the messages are those of dstack 0.22.5).

use dstack_model::fleets::{FleetConfiguration, FleetSpec, SshHost, SshParams};
use dstack_model::instances::SshKey;
use dstack_model::limits;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};
use dstack_units::number::quote_list;
use serde_json::Value;

use crate::error::{ControlError, Result};

/// Fields of fleets in clouds only.
const CLOUD_FIELDS: &[&str] = &[
    "nodes",
    "reservation",
    "resources",
    "backends",
    "regions",
    "availability_zones",
    "instance_types",
    "spot_policy",
    "retry",
    "max_price",
    "idle_duration",
    "tags",
    "backend_options",
];

/// Checks a fleet.
pub fn check(spec: &FleetSpec) -> Result<()> {
    let configuration = &spec.configuration;
    if configuration
        .name
        .as_deref()
        .is_some_and(|name| !is_resource_name(name))
    {
        return Err(ControlError::refused(RESOURCE_NAME_MESSAGE));
    }
    match (&configuration.ssh_config, &configuration.nodes) {
        (None, None) => Err(ControlError::refused("No ssh_config or nodes specified")),
        (Some(_), Some(_)) => Err(ControlError::refused(
            "ssh_config and nodes are mutually exclusive",
        )),
        (Some(ssh), None) => {
            refuse_fields("SSH", configuration, CLOUD_FIELDS)?;
            check_ssh(ssh)
        }
        (None, Some(size)) => {
            limits::check_fleet(size).map_err(ControlError::refused)?;
            refuse_fields("Backend", configuration, &["ssh_config", "env"])
        }
    }
}

fn refuse_fields(kind: &str, configuration: &FleetConfiguration, fields: &[&str]) -> Result<()> {
    let value =
        serde_json::to_value(configuration).map_err(|error| ControlError::Internal(Box::new(error)))?;
    let is_set = |field: &&&str| match value.get(**field) {
        None | Some(Value::Null) => false,
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    };
    let set: Vec<String> = fields
        .iter()
        .filter(is_set)
        .map(|field| (*field).to_owned())
        .collect();
    if set.is_empty() {
        return Ok(());
    }
    let fields = quote_list(&set);
    Err(ControlError::refused(format!(
        "{kind} fleet configuration does not support the following fields: {fields}"
    )))
}

fn check_ssh(ssh: &SshParams) -> Result<()> {
    if let Some((second, first)) = dstack_plan::hosts::twice(ssh) {
        let name = ssh.hosts.get(second).map(SshHost::hostname).unwrap_or_default();
        return Err(ControlError::refused(format!(
            "ssh_config.hosts[{second}]: {name} is the same host as ssh_config.hosts[{first}]: name it once"
        )));
    }
    for host in &ssh.hosts {
        let (key, user) = match host {
            SshHost::Hostname(_) => (None, None),
            SshHost::Params(params) => (params.ssh_key.as_ref(), params.user.as_ref()),
        };
        let host = host.hostname();
        if ssh.ssh_key.is_none() && key.is_none() {
            return Err(ControlError::refused(format!(
                "No ssh key specified for host {host}"
            )));
        }
        if ssh.user.is_none() && user.is_none() {
            return Err(ControlError::refused(format!(
                "No ssh user specified for host {host}"
            )));
        }
    }
    let own = ssh.hosts.iter().filter_map(|host| match host {
        SshHost::Params(params) => params.ssh_key.as_ref(),
        SshHost::Hostname(_) => None,
    });
    ssh.ssh_key.iter().chain(own).try_for_each(check_key)?;
    check_internal_ips(ssh)
}

fn check_key(key: &SshKey) -> Result<()> {
    let private = key
        .private
        .as_deref()
        .ok_or_else(|| ControlError::refused("Private key not provided"))?;
    match dstack_ssh::keys::parse_private(private) {
        Ok(_) => Ok(()),
        Err(_) => Err(ControlError::refused(
            "Unsupported key type. The key type should be RSA, ECDSA, or Ed25519 and should not be encrypted with \
             passphrase.",
        )),
    }
}

fn check_internal_ips(ssh: &SshParams) -> Result<()> {
    let has_ip = |host: &&SshHost| matches!(host, SshHost::Params(params) if params.internal_ip.is_some());
    match ssh.hosts.iter().filter(has_ip).count() {
        0 => Ok(()),
        some if some != ssh.hosts.len() => Err(ControlError::refused(
            "internal_ip must be specified for all hosts",
        )),
        _ if ssh.network.is_some() => Err(ControlError::refused(
            "internal_ip is mutually exclusive with network",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(configuration: &Value) -> String {
        let spec = serde_json::json!({"configuration": configuration, "profile": {}});
        match check(&serde_json::from_value(spec).unwrap()) {
            Err(ControlError::Refused { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    /// Requests for them are refused where they are decoded; this holds for other callers.
    #[test]
    fn fleets_of_too_many_instances_are_refused() {
        for nodes in [
            serde_json::json!({"min": 10_001}),
            serde_json::json!({"min": 0, "target": 10_001}),
        ] {
            let refusal = refusal(&serde_json::json!({"type": "fleet", "nodes": nodes}));
            assert_eq!(
                refusal,
                "A fleet can start with at most 10000 instances, not 10001"
            );
        }
        let nodes = serde_json::json!({"min": 0, "max": 1_000_001});
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet", "nodes": nodes})),
            "A fleet can have at most 1000000 instances, not 1000001"
        );
    }

    #[test]
    fn a_host_is_named_once_however_it_is_written() {
        let told = |port: Value, hosts: Value| {
            let ssh = serde_json::json!({"user": "u", "port": port, "hosts": hosts});
            refusal(&serde_json::json!({"type": "fleet", "ssh_config": ssh}))
        };
        let none = Value::Null;
        for hosts in [
            serde_json::json!(["other", "Host.example", "host.EXAMPLE."]),
            serde_json::json!(["other", "host.example", {"hostname": "host.example", "port": 22}]),
            serde_json::json!(["other", "2001:db8::1", "2001:0db8:0::1"]),
        ] {
            let text = told(none.clone(), hosts);
            assert!(
                text.starts_with("ssh_config.hosts[2]: ")
                    && text.ends_with(" is the same host as ssh_config.hosts[1]: name it once"),
                "{text}"
            );
        }
        let of_fleet = told(
            serde_json::json!(2200),
            serde_json::json!(["h", {"hostname": "h", "port": 2200}]),
        );
        assert!(
            of_fleet.starts_with("ssh_config.hosts[1]: h is the same host"),
            "{of_fleet}"
        );
        // Several may be behind one address.
        let ports = told(none, serde_json::json!(["h", {"hostname": "h", "port": 2200}]));
        assert_eq!(ports, "No ssh key specified for host h");
    }

    #[test]
    fn kinds_of_fleets_do_not_mix() {
        let ssh = serde_json::json!({"user": "u", "hosts": ["h"]});
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet"})),
            "No ssh_config or nodes specified"
        );
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet", "nodes": 1, "ssh_config": ssh})),
            "ssh_config and nodes are mutually exclusive"
        );
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet", "resources": {"gpu": 1}, "ssh_config": ssh})),
            "SSH fleet configuration does not support the following fields: ['resources']"
        );
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet", "nodes": 1, "env": {"A": "b"}})),
            "Backend fleet configuration does not support the following fields: ['env']"
        );
        assert_eq!(
            refusal(&serde_json::json!({"type": "fleet", "ssh_config": ssh})),
            "No ssh key specified for host h"
        );
        let key = serde_json::json!({"public": "", "private": "nonsense"});
        let ssh = serde_json::json!({"user": "u", "ssh_key": key, "hosts": ["h"]});
        assert!(
            refusal(&serde_json::json!({"type": "fleet", "ssh_config": ssh}))
                .starts_with("Unsupported key type.")
        );
    }
}
