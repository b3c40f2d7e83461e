//! What no container on the server's own machine gets: the server's files, keys and credentials, and what belongs to container
//! engines. The list keeps mistakes out; it is no fence (`docs/isolation.md`).

use std::path::{Path, PathBuf};

/// In the home of the server's user.
const IN_HOME: [&str; 18] = [
    ".dstack",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".oci",
    ".config/gcloud",
    ".config/gh",
    ".config/git",
    ".config/containers",
    ".docker",
    ".kube",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    // What engines without root keep there, such as the files of all other jobs.
    ".local/share/docker",
    ".local/share/containers",
    ".local/share/containerd",
];

/// The same on every machine.
const OF_SYSTEM: [&str; 12] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd",
    "/var/run/containerd",
    "/run/podman",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/run/containers",
    // Through them a container reaches the files of the host's processes, and its devices.
    "/proc",
    "/dev",
    "/sys",
];

/// In the directory of the user's session.
const IN_SESSION: [&str; 5] = ["docker.sock", "docker", "podman", "containerd", "containers"];

/// Variables that name files or directories with credentials, some of them several, separated by colons.
const VARIABLES: [&str; 15] = [
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CLOUDSDK_CONFIG",
    "AZURE_CONFIG_DIR",
    "AZURE_CLIENT_CERTIFICATE_PATH",
    "AZURE_FEDERATED_TOKEN_FILE",
    "OCI_CLI_CONFIG_FILE",
    "KUBECONFIG",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "PGPASSFILE",
    "PGSSLKEY",
    "SSH_AUTH_SOCK",
];

/// What follows the name of an SQLite database in those of the files that belong to it.
const OF_SQLITE: [&str; 5] = ["", "-wal", "-shm", "-journal", ".lock"];

/// Where this server's files are.
pub(crate) struct Places<'a> {
    /// Its directory.
    pub(crate) server_dir: &'a Path,
    /// Its SQLite database, if that is what it has.
    pub(crate) database: Option<&'a Path>,
    /// Files that `config.yml` names.
    pub(crate) configured: &'a [PathBuf],
    /// The executables that the server starts, and its own.
    pub(crate) programs: &'a [PathBuf],
    /// The directory of the agent's socket.
    pub(crate) sockets: Option<&'a Path>,
    /// Where the container engine keeps its data, if it says so.
    pub(crate) engine_data: Option<&'a str>,
    /// The home of the server's user.
    pub(crate) home: Option<&'a Path>,
    /// The id of the server's user.
    pub(crate) user: u32,
    /// Reads a variable of the environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
}

/// Returns the list, each path once.
pub(crate) fn protected_paths(places: &Places<'_>) -> Vec<String> {
    let mut paths = vec![places.server_dir.to_owned()];
    paths.extend(places.database.into_iter().flat_map(of_sqlite));
    paths.extend_from_slice(places.configured);
    paths.extend_from_slice(places.programs);
    paths.extend(places.sockets.map(Path::to_owned));
    paths.extend(places.engine_data.map(PathBuf::from));
    let home = places.home.into_iter();
    paths.extend(home.flat_map(|home| IN_HOME.map(|name| home.join(name))));
    paths.extend(OF_SYSTEM.map(PathBuf::from));
    // A service of the system has no session, and the user's engine without root listens there all the same.
    let session = Path::new("/run/user").join(places.user.to_string());
    paths.extend(IN_SESSION.map(|name| session.join(name)));
    paths.extend(of_variables(places.variable));
    let mut list = Vec::new();
    for path in paths {
        let path = absolute(&path).display().to_string();
        // Nothing at all could be mounted.
        if path != "/" && !list.contains(&path) {
            list.push(path);
        }
    }
    list
}

fn of_sqlite(database: &Path) -> impl Iterator<Item = PathBuf> {
    OF_SQLITE.into_iter().map(move |suffix| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

fn of_variables(variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let below = |name: &str, entries: &[&str]| -> Vec<PathBuf> {
        let dir = variable(name).map(PathBuf::from);
        let entries = entries.iter();
        dir.map(|dir| entries.map(|entry| dir.join(entry)).collect())
            .unwrap_or_default()
    };
    let mut paths = below("XDG_RUNTIME_DIR", &IN_SESSION);
    paths.extend(below("XDG_CONFIG_HOME", &["gcloud", "gh", "git", "containers"]));
    paths.extend(below("XDG_DATA_HOME", &["docker", "containers", "containerd"]));
    for name in VARIABLES {
        let value = variable(name).unwrap_or_default();
        let named = value.split(':').filter(|path| !path.is_empty());
        paths.extend(named.map(PathBuf::from));
    }
    let docker = variable("DOCKER_HOST");
    let socket = docker.as_deref().and_then(|host| host.strip_prefix("unix://"));
    paths.extend(socket.map(PathBuf::from));
    paths
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<'a>(change: impl FnOnce(&mut Places<'a>)) -> Vec<String> {
        let mut places = Places {
            server_dir: Path::new("/srv/dstack"),
            database: None,
            configured: &[],
            programs: &[],
            sockets: None,
            engine_data: None,
            home: None,
            user: 1000,
            variable: &|_| None,
        };
        change(&mut places);
        protected_paths(&places)
    }

    #[track_caller]
    fn assert_has(list: &[String], paths: &[&str]) {
        for path in paths {
            assert!(list.iter().any(|one| one == path), "{path}: {list:?}");
        }
    }

    #[test]
    fn keys_and_sockets_are_protected() {
        let found = list(|places| {
            places.home = Some(Path::new("/home/ann"));
            places.variable = &|name| match name {
                "XDG_RUNTIME_DIR" => Some("/run/user/7".to_owned()),
                "DOCKER_HOST" => Some("unix:///srv/engine/docker.sock".to_owned()),
                _ => None,
            };
        });
        assert_has(
            &found,
            &[
                "/srv/dstack",
                "/home/ann/.dstack",
                "/home/ann/.ssh",
                "/home/ann/.local/share/docker",
                "/var/run/docker.sock",
                "/run/user/7/podman",
                "/srv/engine/docker.sock",
                "/proc",
                "/sys",
            ],
        );
        let tcp = list(|places| {
            places.variable = &|name| (name == "DOCKER_HOST").then(|| "tcp://engine:2375".to_owned());
        });
        assert!(!tcp.iter().any(|path| path.contains("engine")), "{tcp:?}");
    }

    #[test]
    fn an_engine_without_root_is_protected_where_no_variable_tells_of_a_session() {
        let found = list(|places| {
            places.home = Some(Path::new("/home/ann"));
            places.user = 7;
        });
        assert_has(
            &found,
            &[
                "/run/user/7/docker.sock",
                "/run/user/7/podman",
                "/home/ann/.config/git",
            ],
        );
    }

    #[test]
    fn a_database_elsewhere_is_protected_with_the_files_beside_it() {
        let found = list(|places| places.database = Some(Path::new("/srv/db/dstack.db")));
        assert_has(
            &found,
            &[
                "/srv/db/dstack.db",
                "/srv/db/dstack.db-wal",
                "/srv/db/dstack.db-shm",
                "/srv/db/dstack.db.lock",
            ],
        );
    }

    #[test]
    fn what_variables_and_settings_name_is_protected() {
        let found = list(|places| {
            places.variable = &|name| match name {
                "GOOGLE_APPLICATION_CREDENTIALS" => Some("/etc/keys/gcp.json".to_owned()),
                "KUBECONFIG" => Some("/etc/k/a.yml:/etc/k/b.yml".to_owned()),
                "XDG_DATA_HOME" => Some("/data/ann".to_owned()),
                _ => None,
            };
        });
        assert_has(
            &found,
            &[
                "/etc/keys/gcp.json",
                "/etc/k/a.yml",
                "/etc/k/b.yml",
                "/data/ann/containers",
            ],
        );
        let (configured, programs) = (["/keys/nebius.pem".into()], ["/opt/dstack-agent".into()]);
        let found = list(|places| {
            places.configured = &configured;
            places.programs = &programs;
            places.sockets = Some(Path::new("/tmp/dstack-1000"));
            places.engine_data = Some("/mnt/docker");
        });
        assert_has(
            &found,
            &[
                "/keys/nebius.pem",
                "/opt/dstack-agent",
                "/tmp/dstack-1000",
                "/mnt/docker",
            ],
        );
    }

    #[test]
    fn each_path_is_absolute_and_there_once() {
        let found = list(|places| {
            places.server_dir = Path::new("state");
            places.engine_data = Some("/var/lib/docker");
        });
        assert!(found.iter().all(|path| path.starts_with('/')), "{found:?}");
        let again = found.iter().filter(|path| *path == "/var/lib/docker");
        assert_eq!(again.count(), 1);
    }
}
