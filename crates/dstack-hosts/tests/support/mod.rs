//! What the tests share: SSH servers of this process, the real OpenSSH server, and a network between.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::mod_module_files,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::indexing_slicing
)]

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dstack_hosts::pool::{Keyring, Pool};
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_sshd::{SessionDefaults, SshHandle, SshOptions, serve};
use dstack_system::accounts::Passwd;
use dstack_system::{Random, Secret, task};
use dstack_units::FleetId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

/// Keys by the names that [`key_ref`] makes.
#[derive(Debug, Default)]
pub struct Keys {
    pub keys: HashMap<String, String>,
    pub asked: AtomicUsize,
    /// What everything fails with.
    pub broken: Option<String>,
}

#[async_trait]
impl Keyring for Keys {
    async fn private_key(&self, key: &KeyRef) -> Result<Option<Secret>, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let KeyRef::Host { hostname, .. } = key else {
            return Ok(None);
        };
        Ok(self.keys.get(hostname).map(|key| Secret::new(key.as_str())))
    }
}

/// Names a key of [`Keys`].
pub fn key_ref(name: &str) -> KeyRef {
    KeyRef::Host {
        fleet: FleetId::from(uuid::Uuid::nil()),
        hostname: name.to_owned(),
    }
}

pub fn pool(keys: &[(&str, &str)]) -> Pool {
    let keys = keys
        .iter()
        .map(|(name, key)| ((*name).to_owned(), (*key).to_owned()));
    Pool::new(Arc::new(Keys {
        keys: keys.collect(),
        ..Keys::default()
    }))
}

pub fn hop(port: u16, key: &str) -> Hop {
    Hop {
        host: "127.0.0.1".to_owned(),
        port,
        user: user(),
        keys: vec![key_ref(key)],
        host_keys: Vec::new(),
    }
}

pub fn reach(port: u16, key: &str) -> Reach {
    Reach {
        jumps: Vec::new(),
        host: hop(port, key),
    }
}

/// Name of this process's user.
pub fn user() -> String {
    Passwd::system()
        .find_uid(rustix::process::geteuid().as_raw())
        .map_or("root".to_owned(), |user| user.name)
}

pub fn new_key() -> KeyPair {
    generate_ed25519(&Random::system(), "test").unwrap()
}

/// A port that nobody listens on, and that the system gives to nobody by itself.
pub fn free_port() -> u16 {
    loop {
        let port = 20_000 + u16::from_le_bytes(Random::system().bytes::<2>()) % 12_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A directory with a short path that others may read.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("dh-").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// An SSH server of this process with one key that may log in, behind a network that counts and cuts.
pub struct Server {
    pub dir: tempfile::TempDir,
    pub key: KeyPair,
    pub handle: SshHandle,
    pub network: Network,
    // Sessions read it.
    _session: watch::Sender<SessionDefaults>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with_env(Vec::new()).await
    }

    pub async fn with_env(env: Vec<(String, String)>) -> Self {
        let dir = directory();
        let key = new_key();
        let (session_set, session) = watch::channel(SessionDefaults {
            env,
            working_dir: None,
        });
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
        let network = Network::to(handle.port()).await;
        Self {
            dir,
            key,
            handle,
            network,
            _session: session_set,
        }
    }

    /// The way there through the network, with the key `k`.
    pub fn reach(&self) -> Reach {
        reach(self.network.port, "k")
    }

    pub fn pool(&self) -> Pool {
        pool(&[("k", self.key.private.expose())])
    }

    /// Its public host keys, `type base64`.
    pub fn host_keys(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path().join("ssh/conf")).unwrap();
        files
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "pub"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect()
    }
}

/// Passes TCP connections on.
pub struct Network {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    accepted: AtomicUsize,
    /// Bytes to the server that pass before everything is cut.
    passes: AtomicU64,
    passed: AtomicU64,
    cut: Notify,
    refuses: AtomicBool,
    is_slow: AtomicBool,
}

impl Network {
    pub async fn to(target: u16) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            accepted: AtomicUsize::new(0),
            passes: AtomicU64::new(u64::MAX),
            passed: AtomicU64::new(0),
            cut: Notify::new(),
            refuses: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
        });
        let ours = Arc::clone(&shared);
        task::spawn("network", async move {
            while let Ok((stream, _)) = listener.accept().await {
                ours.accepted.fetch_add(1, Ordering::Relaxed);
                if !ours.refuses.load(Ordering::Relaxed) {
                    task::spawn("network connection", pass(stream, target, Arc::clone(&ours)));
                }
            }
        });
        Self { port, shared }
    }

    /// How many connections there were.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Bytes that went to the server so far.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Ends all connections once so many more bytes went to the server.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.passes.store(self.passed() + bytes, Ordering::Relaxed);
    }

    /// Does not cut any more.
    pub fn mend(&self) {
        self.shared.passes.store(u64::MAX, Ordering::Relaxed);
    }

    /// Takes a moment for each packet to the server, as a real network: programs there start meanwhile.
    pub fn slow_down(&self) {
        self.shared.is_slow.store(true, Ordering::Relaxed);
    }

    /// Connections are ended at once from now on.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::Relaxed);
    }
}

async fn pass(mut client: TcpStream, target: u16, shared: Arc<Shared>) {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await.unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = from_client.read(&mut buffer).await.unwrap_or(0);
            if shared.is_slow.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let before = shared.passed.fetch_add(count as u64, Ordering::Relaxed);
            let left = shared.passes.load(Ordering::Relaxed).saturating_sub(before);
            let passing = count.min(usize::try_from(left).unwrap_or(usize::MAX));
            if to_server.write_all(&buffer[..passing]).await.is_err() || passing < count || count == 0 {
                return;
            }
        }
    };
    let cut = shared.cut.notified();
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
        () = cut => {}
    }
}

/// The real OpenSSH server, where one is installed.
pub struct OpenSsh {
    pub dir: tempfile::TempDir,
    pub key: KeyPair,
    pub port: u16,
    // Ends with the test.
    _process: Child,
}

impl OpenSsh {
    /// With these lines more in its configuration. `None`, with the reason printed, where there is no usable one.
    pub async fn start(more: &str) -> Option<Self> {
        Self::start_with_mounts(more, &[]).await
    }

    /// As [`OpenSsh::start`]; who logs in sees empty file systems in these folders, with these options, and nobody else does.
    pub async fn start_with_mounts(more: &str, mounts: &[(PathBuf, &str)]) -> Option<Self> {
        let sshd = std::env::var("DSTACK_TEST_SSHD").unwrap_or("/usr/sbin/sshd".to_owned());
        if !Path::new(&sshd).exists() {
            eprintln!("skipped: no {sshd} here");
            return None;
        }
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        let (key, host_key) = (new_key(), new_key());
        std::fs::write(path("host_key"), host_key.private.expose()).unwrap();
        std::fs::set_permissions(path("host_key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(path("authorized_keys"), &key.public).unwrap();
        let port = free_port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {0}/host_key\nAuthorizedKeysFile {0}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n{more}\n",
            dir.path().display()
        );
        std::fs::write(path("config"), config).unwrap();
        // Where sshd wants its (empty) privilege separation directory.
        let _ = std::fs::create_dir_all("/run/sshd");
        let mut command = match mounts {
            [] => Command::new(&sshd),
            mounts => unshared(mounts, &sshd),
        };
        command
            .args(["-D", "-e", "-f"])
            .arg(path("config"))
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        for _ in 0..500 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                return Some(Self {
                    dir,
                    key,
                    port,
                    _process: process,
                });
            }
            if process.try_wait().unwrap().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = process.kill().await;
        let mut reason = String::new();
        let mut stderr = process.stderr.take().unwrap();
        stderr.read_to_string(&mut reason).await.unwrap();
        eprintln!("skipped: {sshd} does not start here: {}", reason.trim());
        None
    }

    pub fn pool(&self) -> Pool {
        pool(&[("k", self.key.private.expose())])
    }

    pub fn reach(&self) -> Reach {
        reach(self.port, "k")
    }
}

/// A program in a mount namespace of its own.
fn unshared(mounts: &[(PathBuf, &str)], program: &str) -> Command {
    let mount = |(folder, options): &(PathBuf, &str)| {
        format!("mount -t tmpfs -o {options} none '{}' && ", folder.display())
    };
    let mounts: String = mounts.iter().map(mount).collect();
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        &format!("{mounts}exec \"$0\" \"$@\""),
        program,
    ]);
    command
}

/// A TCP server that sends back what it gets.
pub async fn echo() -> u16 {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    task::spawn("echo", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            task::spawn("echo connection", async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    port
}

/// All files and directories below, with their content: what a test leaves is seen by comparing.
pub fn tree(root: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.push((path.clone(), None));
                open.push(path);
            } else {
                found.push((path.clone(), Some(std::fs::read(&path).unwrap_or_default())));
            }
        }
    }
    found.sort();
    found
}
