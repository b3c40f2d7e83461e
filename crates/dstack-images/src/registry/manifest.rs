//! Manifests, indexes and configuration blobs: what is read of them.

use dstack_plan::ImageConfig;
use dstack_units::CpuArchitecture;
use serde::{Deserialize, Deserializer};

use super::error::LookupError;

/// Media types asked for.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// What a tag or digest stands for.
#[derive(Debug)]
pub(super) enum Manifest {
    /// The manifest of one image.
    Image(ImageManifest),
    /// The same image for many platforms.
    Index(Index),
}

#[derive(Debug, Deserialize)]
pub(super) struct ImageManifest {
    pub(super) config: Descriptor,
}

#[derive(Debug, Deserialize)]
pub(super) struct Descriptor {
    pub(super) digest: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Index {
    manifests: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    digest: String,
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

/// The manifest to read, and the architectures there are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) digest: String,
    pub(super) architectures: Vec<CpuArchitecture>,
}

impl Manifest {
    /// Told apart by their members, not by the media type, which not every registry sends right.
    pub(super) fn parse(body: &[u8]) -> Result<Option<Self>, LookupError> {
        let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
            return Ok(None);
        };
        if value.get("schemaVersion").and_then(serde_json::Value::as_u64) == Some(1) {
            return Err(LookupError::Obsolete);
        }
        let manifest = if value.get("manifests").is_some() {
            serde_json::from_value(value).map(Self::Index)
        } else {
            serde_json::from_value(value).map(Self::Image)
        };
        Ok(manifest.ok())
    }
}

impl Index {
    /// The one for amd64, else the one for arm64; images for other platforms do not count (dstack 0.22.5).
    pub(super) fn choose(&self) -> Option<Choice> {
        let of = |architecture: CpuArchitecture| {
            self.manifests.iter().find(|entry| {
                let Some(platform) = &entry.platform else {
                    return false;
                };
                platform.os == "linux" && architecture_of(&platform.architecture) == Some(architecture)
            })
        };
        let found: Vec<_> = [CpuArchitecture::X86, CpuArchitecture::Arm]
            .into_iter()
            .filter_map(|architecture| Some((architecture, of(architecture)?)))
            .collect();
        let digest = found.first()?.1.digest.clone();
        let architectures = found.iter().map(|(architecture, _)| *architecture).collect();
        Some(Choice {
            digest,
            architectures,
        })
    }
}

/// The configuration blob of one image.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigBlob {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<Execution>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Execution {
    #[serde(default)]
    user: Option<String>,
    #[serde(default, deserialize_with = "argv")]
    entrypoint: Vec<String>,
    #[serde(default, deserialize_with = "argv")]
    cmd: Vec<String>,
}

impl ConfigBlob {
    /// What the image is for, if that is supported.
    pub(super) fn architecture(&self) -> Option<CpuArchitecture> {
        architecture_of(&self.architecture).filter(|_| self.os == "linux")
    }

    pub(super) fn into_image_config(self, architectures: Vec<CpuArchitecture>) -> ImageConfig {
        let execution = self.config.unwrap_or_default();
        ImageConfig {
            user: execution.user.filter(|user| !user.is_empty()),
            entrypoint: execution.entrypoint,
            cmd: execution.cmd,
            architectures,
        }
    }
}

/// From the names Go and Docker use.
pub(crate) fn architecture_of(name: &str) -> Option<CpuArchitecture> {
    match name {
        "amd64" => Some(CpuArchitecture::X86),
        "arm64" => Some(CpuArchitecture::Arm),
        _ => None,
    }
}

/// A list of words, or null for none.
fn argv<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(platforms: &[(&str, &str)]) -> Index {
        let manifests: Vec<_> = platforms
            .iter()
            .enumerate()
            .map(|(i, (os, architecture))| {
                serde_json::json!({"digest": format!("sha256:{i}"), "platform": {"os": os, "architecture": architecture}})
            })
            .collect();
        let body = serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        match Manifest::parse(body.as_bytes()).unwrap() {
            Some(Manifest::Index(index)) => index,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn amd64_is_preferred_wherever_it_stands() {
        let choice = index(&[("linux", "arm64"), ("linux", "amd64"), ("windows", "amd64")]).choose();
        let architectures = vec![CpuArchitecture::X86, CpuArchitecture::Arm];
        assert_eq!(
            choice,
            Some(Choice {
                digest: "sha256:1".to_owned(),
                architectures
            })
        );
    }

    #[test]
    fn other_systems_and_attestations_do_not_count() {
        let of = |platforms: &[(&str, &str)]| index(platforms).choose();
        assert_eq!(
            of(&[("windows", "amd64"), ("linux", "s390x"), ("unknown", "unknown")]),
            None
        );
        assert_eq!(of(&[]), None);
        let arm = of(&[("unknown", "unknown"), ("linux", "arm64")]).unwrap();
        assert_eq!(
            (arm.digest.as_str(), arm.architectures),
            ("sha256:1", vec![CpuArchitecture::Arm])
        );
    }

    #[test]
    fn nulls_and_missing_members_are_nothing() {
        for body in [
            r#"{"architecture":"amd64","os":"linux"}"#,
            r#"{"architecture":"amd64","os":"linux","config":null}"#,
            r#"{"architecture":"amd64","os":"linux","config":{"User":"","Entrypoint":null,"Cmd":null}}"#,
        ] {
            let blob: ConfigBlob = serde_json::from_str(body).unwrap();
            assert_eq!(blob.architecture(), Some(CpuArchitecture::X86));
            assert_eq!(
                blob.into_image_config(Vec::new()),
                ImageConfig::default(),
                "{body}"
            );
        }
    }

    #[test]
    fn what_is_no_manifest_is_told() {
        assert!(Manifest::parse(b"<html>").unwrap().is_none());
        assert!(Manifest::parse(b"{\"a\": 1}").unwrap().is_none());
        assert!(Manifest::parse(b"[]").unwrap().is_none());
        assert!(matches!(
            Manifest::parse(b"{\"schemaVersion\": 1}"),
            Err(LookupError::Obsolete)
        ));
    }
}
