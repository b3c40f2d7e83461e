//! Forwarding of the client's key agent, so that `git push` in a session can use the user's own keys.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dstack_system::task;
use tokio::task::JoinHandle;

use crate::forward::{Back, OwnedSocket, accepted, forward_back};
use crate::login::Login;
use crate::process::with_file_rights;

/// A socket at which the client's agent answers; removed when dropped.
#[derive(Debug)]
pub(crate) struct AgentSocket {
    path: PathBuf,
    directory: PathBuf,
    login: Login,
    task: JoinHandle<Option<()>>,
}

impl AgentSocket {
    /// Returns the path of the socket, for `SSH_AUTH_SOCK`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        self.task.abort();
        // A leftover in /tmp harms nobody.
        let _ = with_file_rights(&self.login, || fs_err::remove_dir_all(&self.directory));
    }
}

/// Listens in a directory of the user's own under `/tmp`.
pub(crate) async fn listen(login: &Login, back: Back) -> io::Result<AgentSocket> {
    let owner = login.clone();
    let make = move || {
        with_file_rights(&owner, || {
            let directory = tempfile::Builder::new().prefix("ssh-").tempdir_in("/tmp")?.keep();
            fs_err::set_permissions(&directory, std::fs::Permissions::from_mode(0o700))?;
            Ok(directory)
        })
    };
    let directory = task::blocking("ssh-agent-directory", make)
        .await
        .map_err(io::Error::other)??;
    let path = directory.join("agent");
    let socket = OwnedSocket::bind(path.clone(), login.clone()).await?;
    let task = task::spawn("ssh-agent", async move {
        loop {
            let Some((stream, _)) = accepted(socket.listener.accept().await).await else {
                continue;
            };
            let back = back.clone();
            task::spawn("ssh-agent-connection", async move {
                forward_back(back.handle.channel_open_agent().await, &back.inbox, stream).await;
            });
        }
    });
    Ok(AgentSocket {
        path,
        directory,
        login: login.clone(),
        task,
    })
}
