//! An SSH server for git, and what else the tests share.
#![allow(
    unreachable_pub,
    clippy::mod_module_files,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used
)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_sshd::{SessionDefaults, SshHandle, SshOptions, serve};
use dstack_system::Random;
use dstack_system::accounts::Passwd;
use tokio::sync::watch;

/// Whether `program` is installed; says so when the test is skipped.
pub fn have(program: &str) -> bool {
    let found = Command::new(program)
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        eprintln!("skipped: no `{program}` here");
    }
    found
}

/// A running SSH server with one authorised key.
pub struct Host {
    dir: tempfile::TempDir,
    pub key: KeyPair,
    pub handle: SshHandle,
    _session: watch::Sender<SessionDefaults>,
}

impl Host {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = generate_ed25519(&Random::system(), "test").unwrap();
        let (sender, session) = watch::channel(SessionDefaults::default());
        let options = SshOptions {
            listener: Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()),
            authorized_keys: vec![key.public.trim().to_owned()],
            dir: dir.path().join("ssh"),
            host_key: None,
            passwd: Passwd::system(),
            switch_user: false,
            session,
            services: Vec::new(),
            sftp_server: Vec::new(),
        };
        let handle = serve(options).await.unwrap();
        Self {
            dir,
            key,
            handle,
            _session: sender,
        }
    }

    /// Its public host keys, a line each.
    pub fn host_keys(&self) -> Vec<String> {
        let files = fs_err::read_dir(self.dir.path().join("ssh/conf")).unwrap();
        files
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "pub"))
            .map(|path| fs_err::read_to_string(path).unwrap())
            .collect()
    }

    /// Where a repository is reached through it, for ordinary logins.
    pub fn url(&self, repository: &Path) -> String {
        let user = Passwd::system()
            .find_uid(rustix::process::geteuid().as_raw())
            .map_or("root".to_owned(), |user| user.name);
        let port = self.handle.port();
        format!("ssh://{user}@127.0.0.1:{port}{}", repository.display())
    }
}

/// A port nobody listens on now.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
