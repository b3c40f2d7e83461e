//! Pulling an image and summing up its layers' progress.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use dstack_agent_api::shim::{ImagePullProgress, TaskConfig};
use futures_util::StreamExt as _;

use super::image::Reference;
use crate::runtime::{ProgressSink, RuntimeError};

const LIMIT: Duration = Duration::from_secs(20 * 60);

pub(super) async fn pull(
    docker: &Docker,
    config: &TaskConfig,
    log: &Path,
    sink: ProgressSink<'_>,
) -> Result<(), RuntimeError> {
    let started = tokio::time::Instant::now();
    let mut layers = Layers::default();
    let ended = tokio::time::timeout(LIMIT, follow(docker, config, log, sink, &mut layers)).await;
    let seconds = started.elapsed().as_secs_f64();
    match ended {
        Ok(errors) if layers.succeeded => {
            drop(errors);
            Ok(())
        }
        Ok(errors) => Err(RuntimeError::Pull(layers.failure(
            &config.image_name,
            seconds,
            &errors,
        ))),
        Err(_) => Err(RuntimeError::Pull(
            layers.interruption(seconds, "no end within 20 minutes"),
        )),
    }
}

/// Reads the engine's lines to their end; returns the errors among them.
async fn follow(
    docker: &Docker,
    config: &TaskConfig,
    log: &Path,
    sink: ProgressSink<'_>,
    layers: &mut Layers,
) -> Vec<String> {
    let image = Reference::parse(&config.image_name);
    let options = CreateImageOptionsBuilder::new()
        .from_image(&image.repository)
        .tag(&image.tag)
        .build();
    // The stream's own limit is for one answer; a pull is one long answer.
    let docker = docker.clone().with_timeout(LIMIT);
    let mut stream = docker.create_image(Some(options), None, credentials(config));
    let mut file = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .ok();
    let mut errors = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(line) => {
                if let (Some(file), Ok(text)) = (&mut file, serde_json::to_string(&line)) {
                    let _ = writeln!(file, "{text}");
                }
                if layers.take(&line) {
                    sink(layers.progress());
                }
            }
            Err(error) => errors.push(message(&error)),
        }
    }
    errors
}

fn credentials(config: &TaskConfig) -> Option<DockerCredentials> {
    let password = config.registry_password.expose();
    if config.registry_username.is_empty() && password.is_empty() {
        return None;
    }
    Some(DockerCredentials {
        username: Some(config.registry_username.clone()),
        password: Some(password.to_owned()),
        ..DockerCredentials::default()
    })
}

fn message(error: &bollard::errors::Error) -> String {
    use bollard::errors::Error::{DockerResponseServerError, DockerStreamError};
    match error {
        DockerResponseServerError { message, .. } => message.trim().to_owned(),
        DockerStreamError { error } => error.clone(),
        other => crate::error::chain(other),
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Layer {
    downloaded: u64,
    extracted: u64,
    total: u64,
    // "Already exists" or "Pull complete": its size does not matter any more.
    settled: bool,
}

/// The layers of an image, by id.
#[derive(Debug, Default)]
struct Layers {
    layers: BTreeMap<String, Layer>,
    succeeded: bool,
}

impl Layers {
    /// Takes one line; true when the progress changed.
    fn take(&mut self, line: &CreateImageInfo) -> bool {
        let status = line.status.as_deref().unwrap_or_default();
        if status.starts_with("Status:") {
            self.succeeded = true;
            return false;
        }
        let known = matches!(
            status,
            "Downloading"
                | "Download complete"
                | "Extracting"
                | "Pull complete"
                | "Pulling fs layer"
                | "Waiting"
                | "Verifying Checksum"
                | "Already exists"
        );
        let Some(id) = line.id.as_deref().filter(|id| known && !id.is_empty()) else {
            return false;
        };
        let layer = self.layers.entry(id.to_owned()).or_default();
        let detail = line.progress_detail.clone().unwrap_or_default();
        let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
        let (current, total) = (number(detail.current), number(detail.total));
        match status {
            "Downloading" => (layer.downloaded, layer.total) = (current, total),
            "Download complete" => layer.downloaded = layer.total,
            "Extracting" => {
                layer.extracted = current;
                if total > 0 {
                    (layer.downloaded, layer.total) = (total, total);
                }
            }
            "Pull complete" => {
                (layer.downloaded, layer.extracted, layer.settled) = (layer.total, layer.total, true);
            }
            "Already exists" => layer.settled = true,
            _ => {}
        }
        true
    }

    fn progress(&self) -> ImagePullProgress {
        let sum = |of: fn(&Layer) -> u64| self.layers.values().map(of).fold(0, u64::saturating_add);
        ImagePullProgress {
            downloaded_bytes: sum(|layer| layer.downloaded),
            extracted_bytes: sum(|layer| layer.extracted),
            total_bytes: sum(|layer| layer.total),
            is_total_bytes_final: self.layers.values().all(|layer| layer.total > 0 || layer.settled),
        }
    }

    fn failure(&self, image: &str, seconds: f64, errors: &[String]) -> String {
        let progress = self.progress();
        format!(
            "failed pulling {image}: downloaded {}/{} bytes ({}/s), errors: [{}]",
            progress.downloaded_bytes,
            progress.total_bytes,
            speed(progress.downloaded_bytes, seconds),
            errors.join(", ")
        )
    }

    fn interruption(&self, seconds: f64, cause: &str) -> String {
        let progress = self.progress();
        format!(
            "image pull interrupted: downloaded {} bytes out of {} ({}/s): {cause}",
            progress.downloaded_bytes,
            progress.total_bytes,
            speed(progress.downloaded_bytes, seconds)
        )
    }
}

fn speed(bytes: u64, seconds: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    #[allow(clippy::cast_precision_loss)]
    let mut value = if seconds > 0.0 {
        bytes as f64 / seconds
    } else {
        0.0
    };
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 1024.0 {
        match units.next() {
            Some(next) => (unit, value) = (Some(next), value / 1024.0),
            None => break,
        }
    }
    format!("{value:.1} {}", unit.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(lines: &[&str]) -> Layers {
        let mut layers = Layers::default();
        for line in lines {
            layers.take(&serde_json::from_str(line).unwrap());
        }
        layers
    }

    #[test]
    fn layers_are_summed() {
        let mut lines = vec![
            r#"{"status":"Pulling from library/alpine","id":"3.20"}"#,
            r#"{"status":"Already exists","progressDetail":{},"id":"a"}"#,
            r#"{"status":"Pulling fs layer","progressDetail":{},"id":"b"}"#,
        ];
        let before = feed(&lines).progress();
        assert_eq!((before.total_bytes, before.is_total_bytes_final), (0, false));
        lines.push(r#"{"status":"Downloading","progressDetail":{"current":10,"total":100},"id":"b"}"#);
        let half = feed(&lines).progress();
        assert_eq!(
            (half.downloaded_bytes, half.total_bytes, half.is_total_bytes_final),
            (10, 100, true)
        );
        lines.push(r#"{"status":"Download complete","id":"b"}"#);
        lines.push(r#"{"status":"Extracting","progressDetail":{"current":50,"total":100},"id":"b"}"#);
        assert_eq!(feed(&lines).progress().extracted_bytes, 50);
        lines.push(r#"{"status":"Pull complete","id":"b"}"#);
        let all = feed(&lines);
        assert_eq!(
            (all.progress().downloaded_bytes, all.progress().extracted_bytes),
            (100, 100)
        );
        assert!(!all.succeeded);
        lines.push(r#"{"status":"Status: Downloaded newer image for alpine:3.20"}"#);
        assert!(feed(&lines).succeeded);
    }

    #[test]
    fn failures_say_how_far_it_came() {
        let layers =
            feed(&[r#"{"status":"Downloading","progressDetail":{"current":2048,"total":4096},"id":"b"}"#]);
        assert_eq!(
            layers.failure("x:1", 2.0, &["manifest unknown".into()]),
            "failed pulling x:1: downloaded 2048/4096 bytes (1.0 KiB/s), errors: [manifest unknown]"
        );
        assert_eq!(
            layers.interruption(1.0, "cancelled"),
            "image pull interrupted: downloaded 2048 bytes out of 4096 (2.0 KiB/s): cancelled"
        );
    }
}
