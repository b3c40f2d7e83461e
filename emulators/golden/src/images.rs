//! The images of the recorded setup; no other exists.

use async_trait::async_trait;
use dstack_images::{ImageError, Images, RegistryCredentials};
use dstack_plan::ImageConfig;
use dstack_units::CpuArchitecture::{self, Arm, X86};

#[derive(Debug)]
pub(crate) struct RecordedImages;

type Row = (
    &'static str,
    Option<&'static str>,
    &'static [&'static str],
    &'static [&'static str],
    &'static [CpuArchitecture],
);

/// Name, user, entrypoint, command, architectures.
const IMAGES: &[Row] = &[
    ("ubuntu", None, &[], &["/bin/bash"], &[X86, Arm]),
    ("ubuntu:22.04", None, &[], &["/bin/bash"], &[X86, Arm]),
    (
        "nginx",
        None,
        &["/docker-entrypoint.sh"],
        &["nginx", "-g", "daemon off;"],
        &[X86, Arm],
    ),
    ("vllm/vllm-openai:latest", None, &["vllm", "serve"], &[], &[X86]),
    (
        "lmsysorg/sglang:latest",
        None,
        &["/opt/nvidia/nvidia_entrypoint.sh"],
        &[],
        &[X86],
    ),
    ("rocm/pytorch:latest", None, &[], &["/bin/bash"], &[X86]),
    ("with-user", Some("1000:1000"), &[], &["/app/run"], &[X86]),
    ("with-named-user", Some("app"), &["/app/run"], &[], &[X86]),
    ("arm-only", None, &[], &["/bin/sh"], &[Arm]),
    ("no-command", None, &[], &[], &[X86]),
    (PRIVATE, None, &["/srv/app"], &["--serve"], &[X86]),
];

/// Only with credentials.
const PRIVATE: &str = "ghcr.io/acme/private:1";

#[async_trait]
impl Images for RecordedImages {
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError> {
        let row = IMAGES
            .iter()
            .find(|row| row.0 == image)
            .filter(|row| row.0 != PRIVATE || credentials.is_some());
        let (_, user, entrypoint, cmd, architectures) =
            row.ok_or_else(|| ImageError::Refused("401 Client Error: Unauthorized".to_owned()))?;
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Ok(ImageConfig {
            user: user.map(str::to_owned),
            entrypoint: owned(entrypoint),
            cmd: owned(cmd),
            architectures: architectures.to_vec(),
        })
    }
}
