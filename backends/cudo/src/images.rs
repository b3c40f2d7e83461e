use crate::client::Image;

/// Of images without Docker: that of Ubuntu. Just after the start, the image's own updates may hold the lock, and mirrors may fail.
const INSTALL_DOCKER: &str = "#!/bin/sh\n\
    export DEBIAN_FRONTEND=noninteractive; for i in $(seq 10); do \
    apt-get -o DPkg::Lock::Timeout=300 update && \
    apt-get -o DPkg::Lock::Timeout=300 install --yes docker.io && break; sleep 10; done\n";

/// The public images that machines are started with: the vendor puts new dates into their ids.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    with_gpus: Option<Image>,
    without_gpus: Option<Image>,
}

impl Images {
    pub(crate) fn of(all: &[Image]) -> Self {
        let latest = |is_wanted: &dyn Fn(&[&str]) -> bool| {
            let wanted = all.iter().filter(|image| {
                let words: Vec<&str> = image.id.split('-').collect();
                words.first() == Some(&"ubuntu") && is_wanted(&words)
            });
            wanted.max_by_key(|image| numbers(&image.id)).cloned()
        };
        let plain = || latest(&|words| words.iter().skip(1).all(|word| is_version(word)));
        Self {
            with_gpus: latest(&|words| words.contains(&"nvidia") && words.contains(&"docker")),
            without_gpus: latest(&|words| words.contains(&"docker") && !words.contains(&"nvidia"))
                .or_else(plain),
        }
    }

    pub(crate) const fn for_machine(&self, has_gpus: bool) -> Option<&Image> {
        match has_gpus {
            true => self.with_gpus.as_ref(),
            false => self.without_gpus.as_ref(),
        }
    }

    /// Disks have at least this size.
    pub(crate) fn largest_gib(&self) -> i64 {
        let all = [&self.with_gpus, &self.without_gpus];
        let sizes = all.into_iter().flatten().map(|image| image.size_gib);
        sizes.max().unwrap_or(1)
    }
}

/// What a machine does at its first start.
pub(crate) fn start_script(image: &Image) -> Option<&'static str> {
    let has_docker = image.id.split('-').any(|word| word == "docker");
    (!has_docker).then_some(INSTALL_DOCKER)
}

/// `2204` or `v20241017`.
fn is_version(word: &str) -> bool {
    let digits = word.strip_prefix('v').unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Of the system, the driver and the day.
fn numbers(id: &str) -> Vec<u64> {
    let parts = id.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_images_that_fit_are_taken() {
        let image = |id: &str| Image {
            id: id.to_owned(),
            size_gib: 30,
        };
        let mut all: Vec<Image> = [
            "alma-linux-9",
            "ubuntu-2204",
            "ubuntu-2204-desktop",
            "ubuntu-2204-nvidia-535-docker-v20240214",
            "ubuntu-2204-nvidia-535-docker-v20241017",
            "ubuntu-2404-nvidia-550",
            "ubuntu-2004",
        ]
        .map(image)
        .into();
        let images = Images::of(&all);
        let taken =
            |images: &Images, has_gpus: bool| images.for_machine(has_gpus).map(|image| image.id.clone());
        assert_eq!(
            taken(&images, true).unwrap(),
            "ubuntu-2204-nvidia-535-docker-v20241017"
        );
        assert_eq!(taken(&images, false).unwrap(), "ubuntu-2204");
        assert!(start_script(images.for_machine(false).unwrap()).is_some());
        assert_eq!(start_script(images.for_machine(true).unwrap()), None);
        all.push(image("ubuntu-2204-docker-v20250101"));
        assert_eq!(
            taken(&Images::of(&all), false).unwrap(),
            "ubuntu-2204-docker-v20250101"
        );
        assert_eq!(taken(&Images::of(&[]), true), None);
    }
}
