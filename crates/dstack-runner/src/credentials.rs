//! What the job's user finds in its home: a way to the git host, and to the other nodes of the cluster.
//!
//! None of it is needed to start the job: failures are logged and the job goes on.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use dstack_agent_api::runner::{RepoCredentials, SshKey};
use dstack_system::Secret;

use crate::paths;
use crate::users::Owner;

/// Credentials in the job's home, removed when this is dropped.
#[derive(Debug, Default)]
pub struct GitCredentials {
    written: Option<PathBuf>,
}

impl Drop for GitCredentials {
    fn drop(&mut self) {
        if let Some(path) = self.written.take() {
            // The job may have removed it.
            let _ = fs_err::remove_file(path);
        }
    }
}

/// Writes git credentials: an ssh key to `~/.ssh/id_rsa`, a token to `~/.config/gh/hosts.yml`. A file that is there is
/// the image's own and stays: an error.
pub fn install_git(
    home: &Path,
    credentials: &RepoCredentials,
    owner: Option<Owner>,
) -> io::Result<GitCredentials> {
    let url = credentials.clone_url.as_str();
    let path = match (&credentials.private_key, &credentials.oauth_token) {
        (_, Some(token)) if url.starts_with("https://") => {
            let host = url
                .trim_start_matches("https://")
                .split('/')
                .next()
                .unwrap_or_default();
            let host = host.rsplit('@').next().unwrap_or_default();
            write_gh_hosts(home, host, token, owner)?
        }
        (Some(key), _) if !url.starts_with("https://") => {
            let path = ssh_dir(home, owner)?.join("id_rsa");
            paths::write_file(&path, with_line_end(key.expose()).as_bytes(), 0o600, owner, true)?;
            path
        }
        _ => return Ok(GitCredentials::default()),
    };
    Ok(GitCredentials { written: Some(path) })
}

fn write_gh_hosts(home: &Path, host: &str, token: &Secret, owner: Option<Owner>) -> io::Result<PathBuf> {
    let dir = home.join(".config/gh");
    paths::create_dirs(&dir, owner)?;
    let path = dir.join("hosts.yml");
    let content = format!("{host}:\n  oauth_token: \"{}\"\n", token.expose());
    paths::write_file(&path, content.as_bytes(), 0o600, owner, true)?;
    Ok(path)
}

/// A node of a replica, as SSH clients of the others know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its address on the network of the nodes; empty: not known.
    pub address: String,
    /// Name of its job.
    pub name: String,
}

/// Lets the nodes of a replica reach each other: writes the shared key to `~/.ssh/dstack_job` and a host block for each
/// to `~/.ssh/config`.
pub fn install_cluster(
    home: &Path,
    key: &SshKey,
    nodes: &[Node],
    ssh_port: u16,
    owner: Option<Owner>,
) -> io::Result<()> {
    let dir = ssh_dir(home, owner)?;
    let identity = dir.join("dstack_job");
    paths::write_file(
        &identity,
        with_line_end(key.private.expose()).as_bytes(),
        0o600,
        owner,
        false,
    )?;
    let blocks: String = nodes
        .iter()
        .filter(|node| !node.address.is_empty())
        .map(|Node { address, name }| {
            format!(
                "\nHost {address} {name}\n    HostName {address}\n    Port {ssh_port}\n    StrictHostKeyChecking no\n    \
                 UserKnownHostsFile /dev/null\n    IdentityFile {}\n",
                identity.display()
            )
        })
        .collect();
    let config = dir.join("config");
    let mut file = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&config)?;
    file.write_all(blocks.as_bytes())?;
    paths::set_mode(&config, 0o600)?;
    paths::chown(&config, owner)
}

fn ssh_dir(home: &Path, owner: Option<Owner>) -> io::Result<PathBuf> {
    paths::create_dirs(home, owner)?;
    let dir = home.join(".ssh");
    paths::create_dirs(&dir, owner)?;
    paths::set_mode(&dir, 0o700)?;
    paths::chown(&dir, owner)?;
    Ok(dir)
}

fn with_line_end(key: &str) -> String {
    format!("{}\n", key.trim_end())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs_err::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn git_credentials_come_and_go() {
        let home = tempfile::tempdir().unwrap();
        let ssh = RepoCredentials {
            clone_url: "ssh://git@host/x".into(),
            private_key: Some("KEY".into()),
            oauth_token: None,
        };
        let https = RepoCredentials {
            clone_url: "https://me@github.com/x/y".into(),
            private_key: None,
            oauth_token: Some("tok".into()),
        };
        let key = home.path().join(".ssh/id_rsa");
        let hosts = home.path().join(".config/gh/hosts.yml");
        {
            let _ssh = install_git(home.path(), &ssh, None).unwrap();
            let _https = install_git(home.path(), &https, None).unwrap();
            assert_eq!(fs_err::read_to_string(&key).unwrap(), "KEY\n");
            assert_eq!(
                fs_err::read_to_string(&hosts).unwrap(),
                "github.com:\n  oauth_token: \"tok\"\n"
            );
            assert_eq!(
                (mode(&key), mode(key.parent().unwrap()), mode(&hosts)),
                (0o600, 0o700, 0o600)
            );
        }
        assert!(!key.exists() && !hosts.exists());
        // What the image has is neither overwritten nor removed.
        fs_err::write(&key, "IMAGE").unwrap();
        assert!(install_git(home.path(), &ssh, None).is_err());
        assert_eq!(fs_err::read_to_string(&key).unwrap(), "IMAGE");
    }

    #[test]
    fn cluster_hosts_are_appended() {
        let home = tempfile::tempdir().unwrap();
        fs_err::create_dir(home.path().join(".ssh")).unwrap();
        fs_err::write(home.path().join(".ssh/config"), "Host mine\n").unwrap();
        let key = SshKey {
            private: "PRIVATE".into(),
            public: "PUBLIC".into(),
        };
        let node = |address: &str, name: &str| Node {
            address: address.into(),
            name: name.into(),
        };
        let nodes = [
            node("10.0.0.1", "train-0-0"),
            node("", "train-1-0"),
            node("10.0.0.2", "train-2-0"),
        ];
        install_cluster(home.path(), &key, &nodes, 10022, None).unwrap();
        let config = fs_err::read_to_string(home.path().join(".ssh/config")).unwrap();
        assert!(
            config
                .starts_with("Host mine\n\nHost 10.0.0.1 train-0-0\n    HostName 10.0.0.1\n    Port 10022\n"),
            "{config}"
        );
        assert!(config.contains("Host 10.0.0.2 train-2-0\n"), "{config}");
        assert_eq!(config.matches("\nHost ").count(), 2);
        assert_eq!(
            fs_err::read_to_string(home.path().join(".ssh/dstack_job")).unwrap(),
            "PRIVATE\n"
        );
    }
}
