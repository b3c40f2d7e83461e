//! The agents' files: hashed and compressed once.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_system::task;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::{AgentFiles, DeployError};

/// An agent's executable.
pub(super) struct Package {
    /// Where it is on this machine.
    path: PathBuf,
    /// Hash of the executable, hexadecimal.
    pub(super) sha256: String,
    /// Bytes of the executable.
    pub(super) size: u64,
    /// The executable, compressed.
    pub(super) gzip: Arc<[u8]>,
}

impl fmt::Debug for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Package")
            .field("path", &self.path)
            .field("sha256", &self.sha256)
            .finish_non_exhaustive()
    }
}

impl Package {
    fn read(path: &Path) -> std::io::Result<Self> {
        let content = fs_err::read(path)?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&content)?;
        Ok(Self {
            path: path.to_owned(),
            sha256: hex::encode(Sha256::digest(&content)),
            size: u64::try_from(content.len()).unwrap_or(u64::MAX),
            gzip: gzip.finish()?.into(),
        })
    }

    /// Name of its file on hosts.
    pub(super) fn name(&self) -> String {
        format!("dstack-agent-{}", self.sha256.get(..16).unwrap_or(&self.sha256))
    }

    /// The executable, for hosts that cannot decompress it.
    pub(super) async fn raw(&self) -> Result<Arc<[u8]>, DeployError> {
        let path = self.path.clone();
        let read = task::blocking("agent file", move || fs_err::read(path)).await;
        let content = read.map_err(unreadable)?.map_err(unreadable)?;
        if hex::encode(Sha256::digest(&content)) != self.sha256 {
            return Err(DeployError::Transient(format!(
                "the agent's executable {} is another one than at the server's start: start the server again",
                self.path.display()
            )));
        }
        Ok(content.into())
    }
}

/// Packages by their files, each read once: hosts get what this process has begun with, also when the file is replaced meanwhile.
#[derive(Debug, Default)]
pub(super) struct Packages(Mutex<HashMap<PathBuf, Arc<Package>>>);

impl Packages {
    /// The agent for an architecture, as `uname -m` names it.
    pub(super) async fn of(&self, agents: &AgentFiles, machine: &str) -> Result<Arc<Package>, DeployError> {
        let file = match machine {
            "x86_64" | "amd64" => agents.amd64.as_ref(),
            "aarch64" | "arm64" => agents.arm64.as_ref(),
            _ => {
                return Err(DeployError::Refused(format!(
                    "the host's architecture is {machine}, and there are agents for x86_64 and aarch64 only"
                )));
            }
        };
        let Some(path) = file.cloned() else {
            return Err(DeployError::Refused(missing(agents, machine)));
        };
        // Held while it is read: others that need it wait for that.
        let mut known = self.0.lock().await;
        if let Some(package) = known.get(&path) {
            return Ok(Arc::clone(package));
        }
        let at = path.clone();
        let package = task::blocking("agent file", move || Package::read(&at)).await;
        let package = Arc::new(package.map_err(unreadable)?.map_err(unreadable)?);
        known.insert(path, Arc::clone(&package));
        Ok(package)
    }
}

fn unreadable(error: impl fmt::Display) -> DeployError {
    DeployError::Transient(format!(
        "the agent's executable cannot be read on the server: {error}"
    ))
}

fn missing(agents: &AgentFiles, machine: &str) -> String {
    let has = match (&agents.amd64, &agents.arm64) {
        (Some(_), _) => "for x86_64 only",
        (_, Some(_)) => "for aarch64 only",
        (None, None) => "for no architecture",
    };
    let target = match machine {
        "aarch64" | "arm64" => "aarch64-unknown-linux-gnu",
        _ => "x86_64-unknown-linux-gnu",
    };
    format!(
        "the host's architecture is {machine}, and this server has agents {has}: take the host out of the fleet, or run a \
         `dstack` that carries both (`cargo xtask dist --target {target}` builds it)"
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn hosts_get_the_agent_that_the_server_has_begun_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        fs_err::write(&path, "one").unwrap();
        let agents = AgentFiles {
            amd64: Some(path.clone()),
            arm64: None,
        };
        let packages = Packages::default();
        let one = packages.of(&agents, "x86_64").await.unwrap();
        assert!(Arc::ptr_eq(&one, &packages.of(&agents, "amd64").await.unwrap()));
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&*one.gzip)
            .read_to_string(&mut unpacked)
            .unwrap();
        assert_eq!((unpacked.as_str(), one.size), ("one", 3));
        fs_err::write(&path, "two!").unwrap();
        let later = packages.of(&agents, "x86_64").await.unwrap();
        assert_eq!(one.name(), later.name());
        let error = later.raw().await.unwrap_err().to_string();
        assert!(error.contains("start the server again"), "{error}");
        fs_err::write(&path, "one").unwrap();
        assert_eq!(&*later.raw().await.unwrap(), b"one");
    }

    #[tokio::test]
    async fn architectures_without_an_agent_are_refused_for_good() {
        let agents = AgentFiles {
            amd64: Some("/agent".into()),
            arm64: None,
        };
        for (machine, told) in [
            ("aarch64", "agents for x86_64 only"),
            ("aarch64", "cargo xtask dist --target aarch64-unknown-linux-gnu"),
            ("riscv64", "riscv64"),
        ] {
            let error = Packages::default().of(&agents, machine).await.unwrap_err();
            assert!(
                matches!(&error, DeployError::Refused(text) if text.contains(told)),
                "{error}"
            );
        }
        let gone = Packages::default().of(&agents, "x86_64").await.unwrap_err();
        assert!(
            matches!(&gone, DeployError::Transient(text) if text.contains("/agent")),
            "{gone}"
        );
    }

    #[tokio::test]
    async fn a_host_gets_the_agent_of_its_architecture() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs_err::write(&path, name).unwrap();
            Some(path)
        };
        let agents = AgentFiles {
            amd64: file("for amd64"),
            arm64: file("for arm64"),
        };
        let packages = Packages::default();
        for (machine, wanted) in [
            ("x86_64", "for amd64"),
            ("amd64", "for amd64"),
            ("aarch64", "for arm64"),
            ("arm64", "for arm64"),
        ] {
            let package = packages.of(&agents, machine).await.unwrap();
            let content = package.raw().await.unwrap();
            assert_eq!(&*content, wanted.as_bytes(), "{machine}");
        }
    }
}
