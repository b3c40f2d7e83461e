//! The image that a machine starts from.

use dstack_compute::config::{AwsConfig, AwsOsImage};
use dstack_compute::{ComputeError, GATEWAY_USER};
use dstack_model::instances::Resources;
use dstack_units::CpuArchitecture;

use crate::Aws;
use crate::client::Form;
use crate::ec2::{Image, Images};

/// Which images may be taken: the newest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageQuery {
    name: String,
    owner: String,
    /// As AWS names it.
    architecture: &'static str,
    pub(crate) user: String,
}

impl ImageQuery {
    fn new(name: &str, owner: &str, architecture: &'static str, user: &str) -> Self {
        Self {
            name: name.to_owned(),
            owner: owner.to_owned(),
            architecture,
            user: user.to_owned(),
        }
    }

    /// What a machine needs: Docker, and drivers for its GPUs.
    ///
    /// # Errors
    /// There is no such image.
    pub(crate) fn of(config: &AwsConfig, resources: &Resources) -> Result<Self, ComputeError> {
        let has_gpus = !resources.gpus.is_empty();
        let is_arm = resources.cpu_arch == Some(CpuArchitecture::Arm);
        let architecture = if is_arm { "arm64" } else { "x86_64" };
        if let Some(images) = &config.os_images {
            let (image, field) = match has_gpus {
                true => (&images.nvidia, "os_images.nvidia"),
                false => (&images.cpu, "os_images.cpu"),
            };
            let missing = || {
                let text = format!(
                    "`{field}` is not configured for the AWS backend: such machines cannot be started"
                );
                ComputeError::Configuration(text)
            };
            let AwsOsImage { name, owner, user } = image.as_ref().ok_or_else(missing)?;
            return Ok(Self::new(name, owner, architecture, user));
        }
        match (has_gpus, is_arm) {
            // AWS Deep Learning AMIs.
            (true, false) => Ok(Self::new(
                "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *",
                "898082745236",
                architecture,
                "ubuntu",
            )),
            (true, true) => Ok(Self::new(
                "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *",
                "898082745236",
                architecture,
                "ubuntu",
            )),
            (false, false) => Ok(Self::new("dstack-0.14", "142421590066", architecture, "ubuntu")),
            (false, true) => Err(ComputeError::Configuration(
                "there is no image for ARM machines without GPUs: name one in `os_images.cpu` of the AWS backend"
                    .to_owned(),
            )),
        }
    }
}

impl ImageQuery {
    /// Of a gateway: plain Ubuntu.
    pub(crate) fn of_gateway() -> Self {
        let name = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*";
        Self::new(name, "amazon", "x86_64", GATEWAY_USER)
    }
}

impl Aws {
    /// The newest image of a query.
    pub(crate) async fn image(&self, region: &str, query: &ImageQuery) -> Result<Image, ComputeError> {
        let key = format!("{region} {query:?}");
        let fetch = async || {
            let form = Form::new("DescribeImages")
                .list("Owner", [query.owner.as_str()])
                .filter("name", [query.name.as_str()])
                .filter("architecture", [query.architecture])
                .filter("state", ["available"]);
            let found = self.client.list::<Images>(region, form).await;
            let found = found.map_err(|error| error.compute_error())?;
            let newest = found
                .into_iter()
                .max_by(|one, other| one.creation_date.cmp(&other.creation_date));
            newest.ok_or_else(|| {
                let ImageQuery { name, owner, architecture, .. } = query;
                ComputeError::Refused(format!(
                    "there is no image (AMI) `{name}` of {owner} for {architecture} in {region}: copy it there, or check `os_images`"
                ))
            })
        };
        let image = self.images.get(key, fetch).await?;
        Ok((*image).clone())
    }
}

#[cfg(test)]
mod tests {
    use dstack_compute::config::BackendConfig;
    use dstack_model::decode::decode_strict;
    use serde_json::{Value, json};

    use super::*;

    fn query(os_images: &Value, gpus: usize, arch: &str) -> Result<ImageQuery, ComputeError> {
        let config = json!({"type": "aws", "creds": {"type": "default"}, "os_images": os_images});
        let BackendConfig::Aws(config) = BackendConfig::read(&config).unwrap() else {
            panic!("it is of AWS");
        };
        let gpus = vec![json!({"name": "T4", "memory_mib": 1, "vendor": "nvidia"}); gpus];
        let resources = json!({"cpus": 2, "memory_mib": 1, "gpus": gpus, "spot": false, "cpu_arch": arch});
        ImageQuery::of(&config, &decode_strict(&resources).unwrap())
    }

    #[test]
    fn images_are_chosen_by_gpus_and_architecture() {
        let of = |gpus, arch| query(&json!(null), gpus, arch).map(|query| (query.owner, query.architecture));
        assert_eq!(of(0, "x86").unwrap(), ("142421590066".to_owned(), "x86_64"));
        assert_eq!(of(1, "x86").unwrap(), ("898082745236".to_owned(), "x86_64"));
        assert_eq!(of(1, "arm").unwrap(), ("898082745236".to_owned(), "arm64"));
        let error = of(0, "arm").unwrap_err().to_string();
        assert!(error.contains("os_images.cpu"), "{error}");
    }

    #[test]
    fn configured_images_replace_all_others() {
        let images = json!({"nvidia": {"name": "mine", "owner": "123456789012", "user": "admin"}});
        let own = query(&images, 1, "x86").unwrap();
        assert_eq!(own, ImageQuery::new("mine", "123456789012", "x86_64", "admin"));
        let error = query(&images, 0, "x86").unwrap_err().to_string();
        assert!(error.contains("`os_images.cpu` is not configured"), "{error}");
    }
}
