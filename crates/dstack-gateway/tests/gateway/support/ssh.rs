//! An SSH server of this process with one key that may log in.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_sshd::{SessionDefaults, SshHandle, SshOptions, serve};
use dstack_system::Random;
use dstack_system::accounts::Passwd;
use serde_json::{Value, json};
use tokio::sync::watch;

/// An SSH server.
pub(crate) struct Ssh {
    pub(crate) handle: SshHandle,
    key: KeyPair,
    // Sessions read it; keys of the host are there.
    _session: watch::Sender<SessionDefaults>,
    _dir: tempfile::TempDir,
}

/// A key that nobody has.
pub(crate) fn new_key() -> KeyPair {
    generate_ed25519(&Random::system(), "test").unwrap()
}

impl Ssh {
    pub(crate) async fn start() -> Self {
        Self::start_at(0, new_key()).await
    }

    /// On this port, for whoever has this key.
    pub(crate) async fn start_at(port: u16, key: KeyPair) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (session_set, session) = watch::channel(SessionDefaults::default());
        let options = SshOptions {
            listener: Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()),
            authorized_keys: vec![key.public.trim().to_owned()],
            dir: dir.path().join("ssh"),
            host_key: None,
            passwd: Passwd::system(),
            switch_user: false,
            session,
            services: Vec::new(),
            sftp_server: Vec::new(),
        };
        Self {
            handle: serve(options).await.unwrap(),
            key,
            _session: session_set,
            _dir: dir,
        }
    }

    pub(crate) fn key(&self) -> &str {
        self.key.private.expose()
    }

    pub(crate) fn port(&self) -> u16 {
        self.handle.port()
    }

    /// Ends it, and starts it again at the same port.
    pub(crate) async fn restarted(self) -> Self {
        let port = self.port();
        self.handle.stop();
        let Self { handle, key, .. } = self;
        drop(handle);
        super::until("the port is free", async || {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
        .await;
        Self::start_at(port, key).await
    }

    /// A replica on a port of this host, as it is registered.
    pub(crate) fn replica(&self, number: u128, port: u16) -> Value {
        json!({
            "job_id": super::job(number), "app_port": port,
            "ssh_host": "root@127.0.0.1", "ssh_port": self.port(), "ssh_proxy": null, "ssh_head_proxy": null
        })
    }
}
