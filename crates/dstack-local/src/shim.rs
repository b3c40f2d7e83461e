//! The agent of this machine: a process of its own that outlives the server.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dstack_agent_api::shim::HostReport;
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use dstack_system::task;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::LocalError;

/// How long the agent may take to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest path of a Unix socket that every kernel takes, with room for the zero byte.
const LONGEST_SOCKET_PATH: usize = 100;

/// What to start.
#[derive(Debug, Clone)]
pub struct LocalShimOptions {
    /// State of the agent: tasks, logs, socket.
    pub dir: PathBuf,
    /// The agent's executable.
    pub binary: PathBuf,
    /// `auto`, `docker` or `process`.
    pub runtime: String,
}

/// The running agent of this machine.
#[derive(Debug, Clone)]
pub struct LocalShim {
    options: Arc<LocalShimOptions>,
    socket: PathBuf,
    client: ShimClient,
    /// The server stops: the agent is not started again.
    stopping: Arc<AtomicBool>,
}

impl LocalShim {
    /// Finds the agent that an earlier server left running, or starts one; then keeps it running.
    pub async fn start(options: LocalShimOptions) -> Result<Self, LocalError> {
        fs_err::create_dir_all(&options.dir)?;
        let socket = socket_path(&options.dir);
        let client = ShimClient::new(Arc::new(UnixConnector { path: socket.clone() }));
        let shim = Self {
            options: Arc::new(options),
            socket,
            client,
            stopping: Arc::default(),
        };
        shim.ensure_running().await?;
        let supervised = shim.clone();
        task::spawn("local agent", async move { supervised.supervise().await });
        Ok(shim)
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the machine has.
    pub async fn report(&self) -> Result<HostReport, LocalError> {
        self.client.host().await.map_err(LocalError::Agent)
    }

    /// Ends the agent if it has nothing to do: called when the server stops. Jobs keep it alive.
    pub async fn stop_if_idle(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let idle = self.client.tasks().await.is_ok_and(|list| list.tasks.is_empty());
        if idle {
            self.client.shutdown(false).await.ok(); // already gone is as good
        }
    }

    async fn ensure_running(&self) -> Result<(), LocalError> {
        match self.client.healthcheck().await {
            Ok(health) if health.version == env!("CARGO_PKG_VERSION") => return Ok(()),
            // Left by another version: it hands its tasks over to the new one.
            Ok(_) => self.client.shutdown(false).await.map_err(LocalError::Agent)?,
            Err(_) => {}
        }
        let log = self.options.dir.join("agent.out");
        self.spawn(&log)?;
        self.wait_until_up(&log).await
    }

    fn spawn(&self, log: &Path) -> Result<(), LocalError> {
        let output = fs_err::OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(&self.options.binary);
        command
            .arg("shim")
            .arg("--shim-home")
            .arg(&self.options.dir)
            .arg("--socket")
            .arg(&self.socket)
            .arg("--runtime")
            .arg(&self.options.runtime)
            .arg("--runner-binary-path")
            .arg(&self.options.binary)
            .current_dir(&self.options.dir)
            .stdin(Stdio::null())
            .stdout(output.file().try_clone()?)
            .stderr(output.file().try_clone()?)
            // A Ctrl-C for the server must not reach the jobs.
            .process_group(0)
            .kill_on_drop(false);
        let mut child = command.spawn()?;
        task::spawn("local agent's end", async move {
            let status = child.wait().await;
            tracing::debug!(?status, "the local agent ended");
        });
        Ok(())
    }

    async fn wait_until_up(&self, log: &Path) -> Result<(), LocalError> {
        let up = async {
            let mut pause = Duration::from_millis(2);
            while self.client.healthcheck().await.is_err() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        };
        tokio::time::timeout(START_TIMEOUT, up)
            .await
            .map_err(|_| LocalError::NotUp {
                log: log.display().to_string(),
            })
    }

    /// Holds a stream open; when it breaks, the agent is started again.
    async fn supervise(&self) {
        let mut pause = Duration::from_millis(100);
        loop {
            if let Ok(mut stream) = self.client.stream().await {
                pause = Duration::from_millis(100);
                while let Ok(Some(_)) = stream.next().await {}
            }
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = self.ensure_running().await {
                tracing::error!(%error, "the local agent cannot be started");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(10));
            }
        }
    }
}

/// In the state directory, or, where that path is too long for a socket, in the temporary one under its hash.
fn socket_path(dir: &Path) -> PathBuf {
    let plain = dir.join("shim.sock");
    if plain.as_os_str().len() <= LONGEST_SOCKET_PATH {
        return plain;
    }
    let hash = hex::encode(Sha256::digest(dir.as_os_str().as_encoded_bytes()));
    std::env::temp_dir().join(format!("dstack-shim-{}.sock", hash.get(..16).unwrap_or(&hash)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_always_fits() {
        assert_eq!(socket_path(Path::new("/srv/x")), Path::new("/srv/x/shim.sock"));
        let long = PathBuf::from(format!("/{}", "x".repeat(200)));
        assert!(socket_path(&long).as_os_str().len() <= LONGEST_SOCKET_PATH);
        assert_ne!(socket_path(&long), socket_path(&long.join("y")));
    }
}
