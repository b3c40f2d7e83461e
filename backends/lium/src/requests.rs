//! What templates and pods are asked for with, and what the answers mean.

use dstack_backend::compute_error;
use dstack_compute::{CONTAINER_SSH_PORT, ComputeError, ContainerRequest, MountedVolume, Workload};
use dstack_http::ApiError;
use http::StatusCode;
use serde_json::{Value, json};

/// Codes that say that the node is not to be had, or not in so many GPUs.
const NO_CAPACITY: &[&str] = &[
    "node_not_found",
    "node_rent_in_progress",
    "node_not_verified",
    "node_unavailable",
    "node_paused_by_provider",
    "provider_banned",
    "node_below_bandwidth_floor",
    "gpu_count_invalid",
    "gpu_split_not_allowed",
    "no_executor_matches_spec",
];

/// Codes after which nobody knows yet whether there is a pod.
const UNDECIDED: &[&str] = &["idempotency_in_progress", "idempotency_outcome_unknown"];

/// Where Lium has a volume in a pod.
const VOLUME_PATH: &str = "/mnt";

/// Folders that no volume may hide.
const SYSTEM_FOLDERS: &[&str] = &["/proc", "/sys", "/dev"];

pub(crate) fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| compute_error(&error))
}

/// Body of `POST /templates`, the login to the image's registry by its id.
///
/// # Errors
/// Lium cannot run it.
pub(crate) fn template(workload: &Workload, name: &str, login: Option<&str>) -> Result<Value, ComputeError> {
    if workload.privileged {
        return Err(refused("Lium does not run privileged containers"));
    }
    if let Some(folder) = workload.folders.iter().find(|folder| !folder.optional) {
        return Err(refused(format!(
            "Lium does not mount folders of its nodes, and the job needs {}",
            folder.node_path
        )));
    }
    let mount = match workload.volumes.as_slice() {
        [] => String::new(),
        [volume] => mount_commands(volume)?,
        several => {
            return Err(refused(format!(
                "a Lium pod can have one network volume, and the job names {}",
                several.len()
            )));
        }
    };
    // Lium splits it as a shell does.
    let keys = let_keys_in(&workload.authorized_keys);
    let command = format!("-c {}", shell_word(&format!("{keys}{mount}{}", workload.script)));
    Ok(json!({
        "name": name,
        // Lium splits off tag and digest.
        "docker_image": workload.image,
        "docker_image_tag": "",
        "docker_image_digest": "",
        "entrypoint": "/bin/sh",
        "startup_commands": command,
        "internal_ports": [22, CONTAINER_SSH_PORT],
        "volumes": ["/root"],
        "is_private": true,
        "supports_docker": false,
        "supports_volume_encryption": false,
        "docker_credential_id": login,
    }))
}

/// Body of `POST /executors/{node}/rent`.
///
/// # Errors
/// There is no key that may log in.
pub(crate) fn rent(want: &ContainerRequest, name: &str, template: &str) -> Result<Value, ComputeError> {
    let key = want.workload.authorized_keys.first();
    let key = key.ok_or_else(|| refused("a Lium pod needs a public key that may log in"))?;
    let mut body = json!({
        "pod_name": name,
        "template_id": template,
        "user_public_key": key,
        "gpu_count": want.offer.instance.resources.gpus.len(),
        // One of Lium's own SSH server, one of the container's.
        "initial_port_count": 2,
        "enable_jupyter": false,
        // What is encrypted may be lost when the node is restarted.
        "enable_volume_encryption": false,
    });
    if let (Some(body), Some(volume)) = (body.as_object_mut(), want.workload.volumes.first()) {
        body.insert("volume_id".to_owned(), json!(volume.volume.volume_id));
    }
    Ok(body)
}

/// Where a node has one port only, users go through Lium's own SSH server too, into which it lets the first key. The others may only
/// go on from there. Lium writes the file as well, at a time that is not known.
fn let_keys_in(authorized_keys: &[String]) -> String {
    let others: Vec<&str> = authorized_keys.iter().skip(1).map(String::as_str).collect();
    if others.is_empty() {
        return String::new();
    }
    format!(
        "(\numask 077\nmkdir -p /root/.ssh\nfile=/root/.ssh/authorized_keys\nwaited=0\n\
         while [ \"$waited\" -lt 60 ]; do\n  while read -r key; do\n    \
         grep -qF \"$key\" \"$file\" 2>/dev/null || printf '\\ncommand=\"/bin/false\" %s\\n' \"$key\" >> \"$file\"\n  \
         done <<'END_OF_KEYS'\n{}\nEND_OF_KEYS\n  waited=$((waited + 1))\n  sleep 10\ndone\n) </dev/null >/dev/null 2>&1 &\n",
        others.join("\n")
    )
}

/// Waits for the volume, which Lium mounts when the container runs, and shows it where the job wants it.
fn mount_commands(volume: &MountedVolume) -> Result<String, ComputeError> {
    let path = volume.path.trim_end_matches('/');
    let is_below = |parent: &str| path == parent || path.starts_with(&format!("{parent}/"));
    let hides = path.is_empty()
        || path.split('/').any(|part| part == "..")
        || path == "/root"
        || SYSTEM_FOLDERS.iter().any(|folder| is_below(folder))
        || (path != VOLUME_PATH && is_below(VOLUME_PATH));
    if hides || !path.starts_with('/') {
        return Err(refused(format!(
            "a Lium volume cannot be mounted at {}: choose another folder, such as {VOLUME_PATH}",
            volume.path
        )));
    }
    let wait = format!(
        "waited=0\nuntil grep -q ' {VOLUME_PATH} .* - fuse.s3fs ' /proc/self/mountinfo; do\n  \
         [ \"$waited\" -lt 600 ] || {{ echo 'dstack: the volume is not mounted'; exit 1; }}\n  \
         waited=$((waited + 1))\n  sleep 1\ndone\n"
    );
    if path == VOLUME_PATH {
        return Ok(wait);
    }
    let target = shell_word(path);
    Ok(format!(
        "{wait}mkdir -p -- {target} && mount --bind {VOLUME_PATH} {target} || exit 1\n"
    ))
}

fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What it means that something was not made.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    let code = error.body();
    let text = || {
        let status = error.status().map_or(0, |status| status.as_u16());
        format!("Lium answered {status}: {code}")
    };
    match error.status() {
        Some(_) if UNDECIDED.contains(&code) => ComputeError::Unclear(text()),
        Some(status) if status.is_client_error() && NO_CAPACITY.contains(&code) => {
            ComputeError::NoCapacity(text())
        }
        Some(StatusCode::PAYMENT_REQUIRED) => {
            ComputeError::NoQuota(format!("{}. Add credits to the Lium account", text()))
        }
        Some(status)
            if status.is_client_error() && (code.contains("balance") || code.contains("limit_exceeded")) =>
        {
            match error.throttled() {
                Some(_) => compute_error(error),
                None => ComputeError::NoQuota(text()),
            }
        }
        _ => compute_error(error),
    }
}

pub(crate) fn refused(text: impl Into<String>) -> ComputeError {
    ComputeError::Refused(text.into())
}

/// Whether an id can be a part of a path.
pub(crate) fn is_id(id: &str) -> bool {
    let of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !id.is_empty() && id.bytes().all(of_id)
}

#[cfg(test)]
mod tests {
    use dstack_model::volumes::VolumeProvisioningData;

    use super::*;

    fn failed(status: u16, code: &str) -> ComputeError {
        not_made(&ApiError::Status {
            api: "lium.io".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: code.to_owned(),
            retry_after: None,
        })
    }

    #[test]
    fn refusals_are_told_apart() {
        for code in NO_CAPACITY {
            for status in [400, 403, 404, 409] {
                assert!(
                    matches!(failed(status, code), ComputeError::NoCapacity(_)),
                    "{status} {code}"
                );
            }
        }
        for code in UNDECIDED {
            assert!(matches!(failed(409, code), ComputeError::Unclear(_)), "{code}");
        }
        assert!(matches!(
            failed(402, "insufficient_balance"),
            ComputeError::NoQuota(_)
        ));
        assert!(matches!(failed(401, ""), ComputeError::Credentials(_)));
        assert!(matches!(failed(422, "invalid_image"), ComputeError::Refused(_)));
        assert!(matches!(failed(429, ""), ComputeError::Throttled { .. }));
        // It may have been made all the same.
        assert!(matches!(
            failed(500, "node_unavailable"),
            ComputeError::Unclear(_)
        ));
        assert!(matches!(failed(408, ""), ComputeError::Unclear(_)));
    }

    #[test]
    fn a_volume_hides_nothing_that_the_pod_needs() {
        let mount = |path: &str| {
            mount_commands(&MountedVolume {
                name: "data".to_owned(),
                volume: VolumeProvisioningData {
                    backend: None,
                    volume_id: "vol-1".to_owned(),
                    size_gb: None,
                    availability_zone: None,
                    price: None,
                    attachable: false,
                    detachable: false,
                    backend_data: None,
                },
                path: path.to_owned(),
            })
        };
        for path in [
            "/",
            "",
            "/root",
            "/root/",
            "/proc",
            "/proc/x",
            "/sys",
            "/dev/shm",
            "/mnt/data",
            "data",
            "/data/../proc",
        ] {
            assert!(matches!(mount(path), Err(ComputeError::Refused(_))), "{path}");
        }
        assert!(!mount("/mnt").unwrap().contains("mount --bind"));
        let commands = mount("/data/it's").unwrap();
        assert!(
            commands.contains(r"mount --bind /mnt '/data/it'\''s'"),
            "{commands}"
        );
        assert!(mount("/root/data").is_ok());
    }
}
