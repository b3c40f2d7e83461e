//! Names of images as enroot has them: `[REGISTRY#]REPOSITORY[:TAG]` or `[REGISTRY#]REPOSITORY@DIGEST`
//! (<https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md>).

/// Names of Docker Hub, which enroot takes when none is named.
const DOCKER_HUB: &[&str] = &[
    "docker.io",
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
];

/// The name of an image as enroot takes it.
pub(crate) fn enroot_uri(image: &str) -> String {
    let (registry, rest) = match image.split_once('/') {
        Some((first, rest)) if is_registry(first) => (Some(first), rest),
        _ => (None, image),
    };
    let registry = registry.filter(|name| !DOCKER_HUB.contains(name));
    let (named, digest) = match rest.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (rest, None),
    };
    let (repository, tag) = match named.rsplit_once(':') {
        Some((repository, tag)) => (repository, tag),
        None => (named, "latest"),
    };
    // Official images of Docker Hub.
    let library = if registry.is_none() && !repository.contains('/') {
        "library/"
    } else {
        ""
    };
    let registry = registry.map(|name| format!("{name}#")).unwrap_or_default();
    match digest {
        Some(digest) => format!("{registry}{library}{repository}@{digest}"),
        None => format!("{registry}{library}{repository}:{tag}"),
    }
}

/// As Docker tells registries from users of Docker Hub.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_as_enroot_does() {
        for (image, expected) in [
            ("ubuntu", "library/ubuntu:latest"),
            ("ubuntu:24.04", "library/ubuntu:24.04"),
            ("docker.io/ubuntu:24.04", "library/ubuntu:24.04"),
            ("dstackai/base:0.13", "dstackai/base:0.13"),
            (
                "nvcr.io/nvidia/pytorch:24.01-py3",
                "nvcr.io#nvidia/pytorch:24.01-py3",
            ),
            ("localhost:5000/a/b", "localhost:5000#a/b:latest"),
            ("localhost/a:1", "localhost#a:1"),
            ("ghcr.io/a/b:1@sha256:0123", "ghcr.io#a/b@sha256:0123"),
            ("busybox@sha256:0123", "library/busybox@sha256:0123"),
        ] {
            assert_eq!(enroot_uri(image), expected, "{image}");
        }
    }
}
