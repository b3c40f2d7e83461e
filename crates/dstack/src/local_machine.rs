//! Whether the server's own machine is an instance of project `main`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// What becomes of the server's own machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It takes jobs.
    Offered,
    /// It takes none, because of `--no-local`.
    NotWanted,
    /// It takes none, because others than the people of this machine reach the server, and nobody asked for it.
    Reachable {
        /// What the server listens on.
        host: String,
    },
}

impl Offer {
    /// `local` and `no_local` are the flags; `host` is what the server listens on.
    pub(crate) fn decide(local: bool, no_local: bool, host: &str) -> Self {
        match (no_local, local || is_loopback(host)) {
            (true, _) => Self::NotWanted,
            (false, true) => Self::Offered,
            (false, false) => Self::Reachable {
                host: host.to_owned(),
            },
        }
    }

    /// What is said at the start; nothing where it is as the flags say.
    pub(crate) fn notice(&self) -> Option<String> {
        match self {
            Self::Offered | Self::NotWanted => None,
            Self::Reachable { host } => Some(format!(
                "this machine is not offered as an instance, because the server listens on {host}, where others may reach it and \
                 would run code here. To offer it all the same: --local, or DSTACK_SERVER_LOCAL=1"
            )),
        }
    }
}

/// Whether only this machine reaches what listens there.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// What no container on this machine gets: the server's directory, the keys and credentials of its user, and the sockets and
/// data of container engines. `docker_host` is the variable `DOCKER_HOST`.
pub(crate) fn protected_paths(
    server: &Path,
    home: Option<&Path>,
    runtime_dir: Option<&str>,
    docker_host: Option<&str>,
) -> Vec<String> {
    const IN_HOME: [&str; 7] = [
        ".dstack",
        ".ssh",
        ".aws",
        ".azure",
        ".config/gcloud",
        ".docker",
        ".kube",
    ];
    const OF_SYSTEM: [&str; 9] = [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd",
        "/var/run/containerd",
        "/run/podman",
        "/var/lib/docker",
        "/var/lib/containerd",
        // Through it a container reaches the files of the host's processes.
        "/proc",
        "/dev",
    ];
    let mut paths = vec![absolute(server)];
    paths.extend(
        home.into_iter()
            .flat_map(|home| IN_HOME.map(|name| home.join(name))),
    );
    paths.extend(OF_SYSTEM.map(PathBuf::from));
    let sockets = ["docker.sock", "docker", "podman", "containerd"];
    paths.extend(
        runtime_dir
            .into_iter()
            .flat_map(|dir| sockets.map(|name| Path::new(dir).join(name))),
    );
    paths.extend(
        docker_host
            .and_then(|host| host.strip_prefix("unix://"))
            .map(PathBuf::from),
    );
    paths.iter().map(|path| path.display().to_string()).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_offered_without_asking_only_where_nobody_else_reaches_the_server() {
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "[::1]",
            "localhost",
            "LOCALHOST",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(Offer::decide(false, false, host), Offer::Offered, "{host}");
        }
        for host in [
            "0.0.0.0",
            "::",
            "192.168.0.7",
            "10.0.0.1",
            "gpu.example.org",
            "localhost.example.org",
            "",
        ] {
            let offer = Offer::decide(false, false, host);
            assert_eq!(
                offer,
                Offer::Reachable {
                    host: host.to_owned()
                }
            );
            assert!(offer.notice().unwrap().contains("--local"), "{host}");
        }
    }

    #[test]
    fn flags_have_the_last_word() {
        assert_eq!(Offer::decide(true, false, "0.0.0.0"), Offer::Offered);
        assert_eq!(Offer::decide(false, true, "127.0.0.1"), Offer::NotWanted);
        assert_eq!(Offer::decide(true, true, "127.0.0.1"), Offer::NotWanted);
        assert_eq!(Offer::decide(true, false, "0.0.0.0").notice(), None);
    }

    #[test]
    fn keys_and_sockets_are_protected() {
        let docker = Some("unix:///srv/engine/docker.sock");
        let found = protected_paths(
            Path::new("/srv/dstack"),
            Some(Path::new("/home/ann")),
            Some("/run/user/7"),
            docker,
        );
        for path in [
            "/srv/dstack",
            "/home/ann/.dstack",
            "/home/ann/.ssh",
            "/var/run/docker.sock",
            "/run/user/7/podman",
            "/srv/engine/docker.sock",
            "/proc",
        ] {
            assert!(found.iter().any(|one| one == path), "{path}: {found:?}");
        }
        let tcp = protected_paths(Path::new("/srv/dstack"), None, None, Some("tcp://engine:2375"));
        assert!(!tcp.iter().any(|path| path.contains("engine")), "{tcp:?}");
    }
}
