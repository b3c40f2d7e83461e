//! Login nodes over SSH: one connection each, kept for the next script.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dstack_compute::config::{Credential, SlurmCluster};
use dstack_ssh::channel::ExecChannel;
use dstack_ssh::inbox::Event;
use dstack_ssh::keys::{KeyError, parse_private};
use dstack_ssh::{ConnectOptions, Connection, Endpoint, SshError};
use dstack_system::{causes_of, chain, task};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::login::{LoginError, LoginNode, LoginNodes, Output};

/// Starts the user's login shell, whose profile knows where Slurm is, and in its place a POSIX shell. The shells of the C family take
/// no command as login shells.
const LOGIN_SHELL: &str = "/bin/sh -c 'case \"$SHELL\" in *csh) exec \"$SHELL\" -c \"exec /bin/sh\" ;; \
    \"\") exec /bin/sh ;; *) exec \"$SHELL\" -l -c \"exec /bin/sh\" ;; esac'";

/// As much output of a script is read: some ten thousand nodes.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// Scripts at the same time: OpenSSH has ten sessions for each connection (`MaxSessions`).
const MAX_SESSIONS: usize = 8;

/// Port of SSH servers.
const SSH_PORT: u16 = 22;

/// Login nodes over SSH.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SshLogins;

impl LoginNodes for SshLogins {
    fn login_node(&self, cluster: &SlurmCluster) -> Arc<dyn LoginNode> {
        Arc::new(SshLogin {
            host: cluster.hostname.clone(),
            port: cluster
                .port
                .and_then(|port| port.try_into().ok())
                .unwrap_or(SSH_PORT),
            user: cluster.user.clone(),
            private_key: cluster.private_key.content.clone(),
            pinned: Mutex::default(),
            connection: AsyncMutex::default(),
            sessions: Semaphore::new(MAX_SESSIONS),
        })
    }
}

#[derive(Debug)]
struct SshLogin {
    host: String,
    port: u16,
    user: String,
    private_key: Credential,
    /// Fingerprint of the host key that it has shown first.
    pinned: Mutex<Option<String>>,
    connection: AsyncMutex<Option<Arc<Connection>>>,
    sessions: Semaphore,
}

#[async_trait]
impl LoginNode for SshLogin {
    async fn run(&self, script: &str) -> Result<Output, LoginError> {
        let closed = |_| LoginError::NotSent("no more scripts are run".to_owned());
        let _session = self.sessions.acquire().await.map_err(closed)?;
        let mut shell = self.start().await?;
        // What cannot be written is not run: a shell that has ended says why.
        let _ = shell.stdin().write_all(script.as_bytes()).await;
        let _ = shell.stdin().shutdown().await;
        collect(shell).await
    }
}

impl SshLogin {
    /// A shell that reads its script. A connection that turns out to be dead is made anew, once.
    async fn start(&self) -> Result<ExecChannel, LoginError> {
        let connection = self.connection().await?;
        match connection.start(LOGIN_SHELL).await {
            Ok(shell) => Ok(shell),
            Err(_) if connection.is_closed() => {
                let connection = self.connection().await?;
                connection
                    .start(LOGIN_SHELL)
                    .await
                    .map_err(|error| self.explain(&error))
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>, LoginError> {
        let mut known = self.connection.lock().await;
        if let Some(connection) = known.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let key = self.private_key.clone();
        let parsed = task::blocking("slurm-key", move || parse_private(key.expose())).await;
        let parsed = parsed.map_err(|panicked| LoginError::NotSent(panicked.to_string()))?;
        let endpoint = Endpoint {
            host: self.host.clone(),
            port: self.port,
            user: self.user.clone(),
            keys: vec![Arc::new(parsed.map_err(|error| unusable(&error))?)],
            host_key: self.pinned.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            known_keys: Vec::new(),
        };
        let opened = Connection::open(&endpoint, &[], &ConnectOptions::default()).await;
        let connection = Arc::new(opened.map_err(|error| self.explain(&error))?);
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.get_or_insert_with(|| connection.host_key().to_owned());
        *known = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// What an error before a script was sent means, and what can be done about it.
    fn explain(&self, error: &SshError) -> LoginError {
        let Self { host, port, user, .. } = self;
        match error {
            SshError::Denied { .. } => LoginError::Denied(format!(
                "{user}@{host}:{port}: permission denied (publickey). Check `user` and `private_key`, and that the public key is in \
                 ~{user}/.ssh/authorized_keys there"
            )),
            SshError::HostKey { expected, found, .. } => LoginError::HostKey(format!(
                "{host}:{port}: the host key is {found}, and was {expected}. If the login node was installed anew, or several share \
                 this name with different host keys, name one with a key of its own as `hostname` and apply the backend's \
                 configuration again; if not, somebody may be in between"
            )),
            other => LoginError::NotSent(format!(
                "{user}@{host}:{port}: {}. Check `hostname` and `port`, that the login node is up, and that this server's network \
                 reaches it",
                chain(other)
            )),
        }
    }
}

fn unusable(error: &KeyError) -> LoginError {
    let problem = match error {
        KeyError::Passphrase => "it is protected by a passphrase".to_owned(),
        other => match causes_of(other).to_string().as_str() {
            "" => "its format is not known".to_owned(),
            causes => format!("its format is not known ({causes})"),
        },
    };
    LoginError::Key(format!(
        "`private_key` cannot be used: {problem}. An RSA, ECDSA or Ed25519 key in OpenSSH, PKCS#1 or PKCS#8 format, without a \
         passphrase, is needed"
    ))
}

async fn collect(mut shell: ExecChannel) -> Result<Output, LoginError> {
    let (mut stdout, mut stderr, mut status) = (Vec::new(), Vec::new(), None);
    while let Some(event) = shell.next().await {
        match event {
            Event::Data(data) => stdout.extend_from_slice(&data),
            Event::Stderr(data) => stderr.extend_from_slice(&data),
            Event::Exit(code) => status = Some(code),
            Event::Killed(_) | Event::Reply(_) | Event::Eof => {}
        }
        if stdout.len().saturating_add(stderr.len()) > MAX_OUTPUT_BYTES {
            let text = format!("a command said more than {MAX_OUTPUT_BYTES} bytes");
            return Err(LoginError::Lost(text));
        }
    }
    Ok(Output {
        status,
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(private_key: &str) -> SshLogin {
        SshLogin {
            host: "login.example".to_owned(),
            port: 22,
            user: "me".to_owned(),
            private_key: Credential::new(private_key),
            pinned: Mutex::default(),
            connection: AsyncMutex::default(),
            sessions: Semaphore::new(1),
        }
    }

    #[tokio::test]
    async fn a_key_that_is_none_is_refused_without_being_shown() {
        let error = login("canary").run("").await.unwrap_err();
        let LoginError::Key(text) = &error else {
            panic!("{error:?}");
        };
        assert!(
            text.contains("`private_key` cannot be used") && !text.contains("canary"),
            "{text}"
        );
    }

    #[test]
    fn a_changed_host_key_is_told_with_both() {
        let changed = SshError::HostKey {
            host: "login.example".to_owned(),
            port: 22,
            expected: "SHA256:old".to_owned(),
            found: "SHA256:new".to_owned(),
        };
        let LoginError::HostKey(text) = login("").explain(&changed) else {
            panic!("it is about the host key");
        };
        assert!(
            text.contains("the host key is SHA256:new, and was SHA256:old"),
            "{text}"
        );
    }
}
