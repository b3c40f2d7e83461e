//! Reading the engine's view of our containers.

use std::path::Path;

use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary, ContainerSummaryStateEnum,
    HostConfig, MountPoint, PortMap,
};
use dstack_agent_api::shim::PortMapping;

use super::config::RUNNER_DIR;
use super::task_label;
use crate::runtime::{Container, ContainerState};
use crate::volumes::MOUNT_ROOT;

/// A row of the container list.
pub(super) fn summary(row: ContainerSummary, root: &Path) -> Option<Container> {
    let mounts = row.mounts.as_deref().unwrap_or_default();
    if !belongs(mounts, root) {
        return None;
    }
    let state = match row.state {
        Some(ContainerSummaryStateEnum::CREATED) => ContainerState::Created,
        // The list does not tell the exit code.
        Some(ContainerSummaryStateEnum::EXITED | ContainerSummaryStateEnum::DEAD) => {
            ContainerState::Exited(0)
        }
        _ => ContainerState::Running,
    };
    let name = row
        .names
        .unwrap_or_default()
        .into_iter()
        .next()
        .unwrap_or_default();
    Some(Container {
        task_id: task_label(row.labels.as_ref())?,
        id: row.id?,
        name: name.trim_start_matches('/').to_owned(),
        state,
        gpus: Vec::new(),
        ports: None,
        volumes: Vec::new(),
    })
}

/// An inspected container; `None` when it is not ours.
pub(super) fn container(answer: &ContainerInspectResponse, root: &Path) -> Option<Container> {
    let mounts = answer.mounts.as_deref().unwrap_or_default();
    if !belongs(mounts, root) {
        return None;
    }
    let host = answer.host_config.as_ref();
    let state = state(answer);
    let bridge = host.and_then(|host| host.network_mode.as_deref()) != Some("host");
    let mapped = answer
        .network_settings
        .as_ref()
        .and_then(|network| network.ports.as_ref())
        .map(ports);
    let env = answer
        .config
        .as_ref()
        .and_then(|config| config.env.as_deref())
        .unwrap_or_default();
    Some(Container {
        task_id: task_label(answer.config.as_ref()?.labels.as_ref())?,
        id: answer.id.clone()?,
        name: answer
            .name
            .clone()
            .unwrap_or_default()
            .trim_start_matches('/')
            .to_owned(),
        state,
        gpus: host.map(|host| gpus(host, env)).unwrap_or_default(),
        ports: Some(if bridge {
            mapped.unwrap_or_default()
        } else {
            Vec::new()
        }),
        volumes: host.map(volumes).unwrap_or_default(),
    })
}

/// Whether the runner's directory lies in ours: other agents may share the engine (another server on this machine),
/// and their containers are not ours to judge.
fn belongs(mounts: &[MountPoint], root: &Path) -> bool {
    mounts
        .iter()
        .filter(|mount| mount.destination.as_deref() == Some(RUNNER_DIR))
        .filter_map(|mount| mount.source.as_deref())
        .any(|source| {
            Path::new(source).starts_with(root)
                || fs_err::canonicalize(source).is_ok_and(|real| real.starts_with(root))
        })
}

/// The first process of a running container, as the engine's machine numbers it.
pub(super) fn pid(answer: &ContainerInspectResponse) -> Option<i32> {
    let state = answer
        .state
        .as_ref()
        .filter(|state| state.running == Some(true))?;
    i32::try_from(state.pid?).ok().filter(|pid| *pid > 0)
}

fn state(answer: &ContainerInspectResponse) -> ContainerState {
    let state = answer.state.as_ref();
    match state.and_then(|state| state.status) {
        Some(ContainerStateStatusEnum::CREATED) => ContainerState::Created,
        Some(ContainerStateStatusEnum::EXITED | ContainerStateStatusEnum::DEAD) => {
            ContainerState::Exited(state.and_then(|state| state.exit_code).unwrap_or(0))
        }
        _ => ContainerState::Running,
    }
}

/// TCP ports bound on IPv4.
fn ports(map: &PortMap) -> Vec<PortMapping> {
    let mut found: Vec<PortMapping> = map
        .iter()
        .filter_map(|(port, bindings)| {
            let container = port.strip_suffix("/tcp")?.parse().ok()?;
            let binding = bindings.as_ref()?.iter().find(|binding| {
                binding
                    .host_ip
                    .as_deref()
                    .is_some_and(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok())
            })?;
            Some(PortMapping {
                host: binding.host_port.as_deref()?.parse().ok()?,
                container,
            })
        })
        .collect();
    found.sort_by_key(|port| port.container);
    found
}

/// Lock ids of the GPUs a container was created with, by the traces each vendor's setup leaves.
fn gpus(host: &HostConfig, env: &[String]) -> Vec<String> {
    if let Some([request]) = host.device_requests.as_deref() {
        return request.device_ids.clone().unwrap_or_default();
    }
    if let Some(list) = env
        .iter()
        .find_map(|entry| entry.strip_prefix("HABANA_VISIBLE_DEVICES="))
    {
        return list.split(',').map(str::to_owned).collect();
    }
    let paths = host
        .devices
        .iter()
        .flatten()
        .filter_map(|device| device.path_on_host.as_deref());
    paths
        .filter_map(|path| {
            if path.starts_with("/dev/dri/renderD") {
                Some(path.to_owned())
            } else {
                path.strip_prefix("/dev/tenstorrent/").map(str::to_owned)
            }
        })
        .collect()
}

/// Names of the mount points of network volumes on the host.
fn volumes(host: &HostConfig) -> Vec<String> {
    let prefix = format!("{MOUNT_ROOT}/");
    host.mounts
        .iter()
        .flatten()
        .filter_map(|mount| mount.source.as_deref()?.strip_prefix(&prefix).map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn inspected(host: &serde_json::Value, env: &[&str]) -> Container {
        let answer = json!({
            "Id": "c1", "Name": "/run-0-0-x",
            "State": {"Status": "exited", "ExitCode": 3},
            "Config": {"Labels": {"ai.dstack.shim.is-task": "true", "ai.dstack.shim.task-id": "1"}, "Env": env},
            "HostConfig": host,
            "Mounts": [{"Source": "/home/runners/run-0-0-x/runner", "Destination": "/tmp/runner"}],
            "NetworkSettings": {"Ports": {
                "10022/tcp": [{"HostIp": "::", "HostPort": "1"}, {"HostIp": "127.0.0.1", "HostPort": "32770"}],
                "10999/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32769"}], "53/udp": [{"HostIp": "0.0.0.0", "HostPort": "5"}],
                "80/tcp": null}},
        });
        container(
            &serde_json::from_value(answer).unwrap(),
            Path::new("/home/runners"),
        )
        .unwrap()
    }

    #[test]
    fn ports_states_and_names() {
        let found = inspected(&json!({"NetworkMode": "bridge"}), &[]);
        assert_eq!(
            (found.name.as_str(), found.task_id.as_str(), found.state),
            ("run-0-0-x", "1", ContainerState::Exited(3))
        );
        assert_eq!(
            found.ports.unwrap(),
            [
                PortMapping {
                    host: 32770,
                    container: 10022
                },
                PortMapping {
                    host: 32769,
                    container: 10999
                }
            ]
        );
        assert_eq!(
            inspected(&json!({"NetworkMode": "host"}), &[]).ports,
            Some(vec![])
        );
        let foreign = serde_json::from_value(json!({"Id": "x", "Config": {"Labels": {}}})).unwrap();
        assert_eq!(container(&foreign, Path::new("/home")), None);
        let mount = MountPoint {
            source: Some("/other/runners/x/runner".into()),
            destination: Some(RUNNER_DIR.into()),
            ..MountPoint::default()
        };
        assert!(!belongs(std::slice::from_ref(&mount), Path::new("/home/runners")));
        assert!(belongs(&[mount], Path::new("/other/runners")));
    }

    #[test]
    fn gpus_of_every_vendor_are_recovered() {
        let nvidia = json!({"DeviceRequests": [{"DeviceIDs": ["GPU-1", "GPU-2"]}]});
        assert_eq!(inspected(&nvidia, &[]).gpus, ["GPU-1", "GPU-2"]);
        let amd = json!({"Devices": [{"PathOnHost": "/dev/kfd"}, {"PathOnHost": "/dev/dri/renderD128"}]});
        assert_eq!(inspected(&amd, &[]).gpus, ["/dev/dri/renderD128"]);
        let tt = json!({"Devices": [{"PathOnHost": "/dev/tenstorrent/3"}]});
        assert_eq!(inspected(&tt, &[]).gpus, ["3"]);
        assert_eq!(
            inspected(&json!({}), &["A=b", "HABANA_VISIBLE_DEVICES=0,1"]).gpus,
            ["0", "1"]
        );
        let volumes = json!({"Mounts": [{"Source": "/mnt/disks/dstack-volumes/data"}, {"Source": "/etc"}]});
        assert_eq!(inspected(&volumes, &[]).volumes, ["data"]);
    }
}
