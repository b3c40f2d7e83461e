//! What a sandbox is asked for with, and what the answers mean.

use dstack_backend::compute_error;
use dstack_compute::{ComputeError, ContainerRequest, Workload};
use dstack_http::ApiError;
use http::StatusCode;
use serde_json::{Value, json};

use crate::offers::gpu_type;

/// The registry of images that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

const MIB_IN_GIB: i64 = 1024;

pub(crate) fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| compute_error(&error))
}

/// Body of `createSandbox`.
///
/// # Errors
/// Daytona cannot run it.
pub(crate) fn sandbox(want: &ContainerRequest, name: &str) -> Result<Value, ComputeError> {
    let workload = &want.workload;
    if workload.privileged {
        return Err(refused("Daytona does not run privileged containers"));
    }
    if let Some(folder) = workload.folders.iter().find(|folder| !folder.optional) {
        return Err(refused(format!(
            "Daytona does not mount folders of its hosts, and the job needs {}",
            folder.node_path
        )));
    }
    let resources = &want.offer.instance.resources;
    let gib = |mib: i64| (mib + MIB_IN_GIB - 1).div_euclid(MIB_IN_GIB).max(1);
    let mut body = json!({
        "name": name,
        "buildInfo": {"dockerfileContent": dockerfile(workload)?},
        "user": "root",
        "target": want.offer.region,
        "cpu": resources.cpus,
        "memory": gib(resources.memory_mib),
        "disk": gib(resources.disk.size_mib),
        "gpu": resources.gpus.len(),
        "spot": resources.spot,
        "public": false,
        // It is never stopped, paused or deleted by itself.
        "autoStopInterval": 0,
        "autoPauseInterval": 0,
        "autoDeleteInterval": 0,
        "ttlMinutes": 0,
    });
    if let Some(body) = body.as_object_mut() {
        if let Some(kind) = gpu_type(&want.offer.instance, &want.offer.backend_data) {
            body.insert("gpuType".to_owned(), json!([kind]));
        }
        if !workload.volumes.is_empty() {
            let volumes = workload.volumes.iter();
            let volumes: Vec<Value> = volumes
                .map(|one| json!({"volumeId": one.volume.volume_id, "mountPath": one.path}))
                .collect();
            body.insert("volumes".to_owned(), json!(volumes));
        }
    }
    Ok(body)
}

/// The image, as root and doing nothing: a sandbox takes its user and command from the image alone.
fn dockerfile(workload: &Workload) -> Result<String, ComputeError> {
    let image = workload.image.as_str();
    // What follows a blank would be another instruction.
    if image.is_empty() || image.contains(char::is_whitespace) {
        return Err(refused("the name of the image is empty or has blanks in it"));
    }
    // Logins are used only for images that name their registry.
    let image = match &workload.registry {
        Some(_) => full_name(image),
        None => image.to_owned(),
    };
    Ok(format!(
        "FROM {image}\nUSER root\nENTRYPOINT []\nCMD [\"sleep\", \"infinity\"]\n"
    ))
}

/// By Docker's rule: the first part is a host when it has a dot or a port, or is `localhost`.
fn parts(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        Some(("docker.io" | "index.docker.io", rest)) => (DEFAULT_REGISTRY, rest),
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, image),
    }
}

/// The registry of an image.
pub(crate) fn registry_of(image: &str) -> &str {
    parts(image).0
}

/// `registry/repository:tag` or `registry/repository@digest`.
fn full_name(image: &str) -> String {
    let (registry, rest) = parts(image);
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (rest, None),
    };
    let (repository, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
    let official = match registry == DEFAULT_REGISTRY && !repository.contains('/') {
        true => "library/",
        false => "",
    };
    match digest {
        Some(digest) => format!("{registry}/{official}{repository}@{digest}"),
        None => format!("{registry}/{official}{repository}:{tag}"),
    }
}

/// The command that runs the container's script.
pub(crate) fn start_command(workload: &Workload) -> String {
    format!("sh -c '{}'", workload.script.replace('\'', r"'\''"))
}

/// What it means that something was not made: limits of the organization are told in words.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    let text = error.body().to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    match error.status() {
        Some(status) if !status.is_client_error() || !error.is_definite() => compute_error(error),
        Some(StatusCode::UNAUTHORIZED) | None => compute_error(error),
        Some(StatusCode::PAYMENT_REQUIRED) => ComputeError::NoQuota(error.body().to_owned()),
        Some(StatusCode::TOO_MANY_REQUESTS) if !has(&["quota", "maximum allowed"]) => compute_error(error),
        Some(_)
            if has(&[
                "limit exceeded",
                "quota",
                "maximum allowed",
                "suspended",
                "credit",
                "balance",
            ]) =>
        {
            ComputeError::NoQuota(error.body().to_owned())
        }
        Some(_) if has(&["no available runner", "no runner", "capacity", "out of stock"]) => {
            ComputeError::NoCapacity(error.body().to_owned())
        }
        Some(_) => compute_error(error),
    }
}

pub(crate) fn refused(text: impl Into<String>) -> ComputeError {
    ComputeError::Refused(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let failed = |status: u16, message: &str| {
            not_made(&ApiError::Status {
                api: "app.daytona.io".to_owned(),
                status: StatusCode::from_u16(status).unwrap(),
                body: message.to_owned(),
                retry_after: None,
            })
        };
        let limit = "Total GPU limit exceeded. Maximum allowed: 4.";
        assert_eq!(failed(403, limit), ComputeError::NoQuota(limit.to_owned()));
        assert!(matches!(failed(402, "pay"), ComputeError::NoQuota(_)));
        assert!(matches!(failed(429, limit), ComputeError::NoQuota(_)));
        assert!(matches!(
            failed(429, "Rate limit exceeded"),
            ComputeError::Throttled { .. }
        ));
        assert!(matches!(
            failed(400, "No available runners"),
            ComputeError::NoCapacity(_)
        ));
        assert!(matches!(failed(401, limit), ComputeError::Credentials(_)));
        assert!(matches!(
            failed(403, "Forbidden resource"),
            ComputeError::Credentials(_)
        ));
        assert!(matches!(failed(400, "bad image"), ComputeError::Refused(_)));
        // It may have been made all the same.
        assert!(matches!(failed(500, limit), ComputeError::Unclear(_)));
        assert!(matches!(failed(408, limit), ComputeError::Unclear(_)));
    }

    #[test]
    fn an_image_that_needs_a_login_names_its_registry() {
        for (image, full) in [
            ("ubuntu", "docker.io/library/ubuntu:latest"),
            ("team/image:1", "docker.io/team/image:1"),
            ("index.docker.io/team/image:1", "docker.io/team/image:1"),
            ("ghcr.io/team/image", "ghcr.io/team/image:latest"),
            ("registry:5000/image:1", "registry:5000/image:1"),
            ("ghcr.io/team/image:1@sha256:ab", "ghcr.io/team/image@sha256:ab"),
        ] {
            assert_eq!(full_name(image), full, "{image}");
        }
    }
}
