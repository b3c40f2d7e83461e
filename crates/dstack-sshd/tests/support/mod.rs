//! What the tests share: a running server and the real OpenSSH client.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::mod_module_files,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used
)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_sshd::{LocalService, SessionDefaults, SshHandle, SshOptions, serve};
use dstack_system::accounts::Passwd;
use dstack_system::{Random, task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::watch;

/// Whether `program` is installed; says so when the test is skipped.
pub fn have(program: &str) -> bool {
    let found = std::process::Command::new(program)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match found {
        Ok(mut child) => {
            child.wait().unwrap();
            true
        }
        Err(error) => {
            eprintln!("skipped: no `{program}` here ({error})");
            false
        }
    }
}

/// Answers `service says ` and the first four bytes.
fn service() -> LocalService {
    LocalService {
        ports: vec![10999],
        serve: Arc::new(|mut stream| {
            task::spawn("test-service", async move {
                let mut head = [0; 4];
                stream.read_exact(&mut head).await.unwrap();
                let answer = [b"service says ", &head[..]].concat();
                stream.write_all(&answer).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }),
    }
}

/// What a program left.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A running server with one authorised key.
pub struct Host {
    pub dir: tempfile::TempDir,
    pub key: KeyPair,
    pub handle: SshHandle,
    pub defaults: watch::Sender<SessionDefaults>,
    pub switch: bool,
}

impl Host {
    pub async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("dr-").tempdir_in("/tmp").unwrap();
        // Users without root's rights look for the helper and their files below it.
        use std::os::unix::fs::PermissionsExt;
        fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let key = generate_ed25519(&Random::system(), "test").unwrap();
        fs_err::write(dir.path().join("key"), key.private.expose()).unwrap();
        fs_err::set_permissions(dir.path().join("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let switch = rustix::process::geteuid().is_root();
        let (defaults, session) = watch::channel(SessionDefaults::default());
        let options = SshOptions {
            listener: Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()),
            authorized_keys: vec!["not a key".to_owned(), key.public.trim().to_owned()],
            dir: dir.path().join("ssh"),
            host_key: None,
            passwd: Passwd::system(),
            switch_user: switch,
            session,
            services: vec![service()],
            sftp_server: vec![helper(dir.path()).into()],
        };
        let handle = serve(options).await.unwrap();
        Self {
            dir,
            key,
            handle,
            defaults,
            switch,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
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

    /// Login name for ordinary logins.
    pub fn user(&self) -> String {
        Passwd::system()
            .find_uid(rustix::process::geteuid().as_raw())
            .map_or("root".to_owned(), |user| user.name)
    }

    /// `program` of OpenSSH with this server's options; destination is the alias `host`.
    pub fn openssh(&self, program: &str) -> Command {
        let config = self.path("config");
        let text = format!(
            "Host *\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n IdentityFile {}\n \
             IdentitiesOnly yes\n BatchMode yes\n ExitOnForwardFailure yes\n User {}\n\
             Host host\n HostName 127.0.0.1\n Port {}\n\
             Host behind\n HostName localhost\n Port 10022\n ProxyJump host\n",
            self.path("key").display(),
            self.user(),
            self.handle.port()
        );
        fs_err::write(&config, text).unwrap();
        let mut command = Command::new(program);
        command
            .arg("-F")
            .arg(config)
            .env("HOME", self.dir.path())
            .env_remove("SSH_AUTH_SOCK")
            .kill_on_drop(true);
        command
    }

    /// Runs `ssh` with these arguments.
    pub async fn ssh(&self, args: &[&str]) -> Done {
        run(self.openssh("ssh").args(args), b"").await
    }
}

/// Runs a program with this input.
pub async fn run(command: &mut Command, input: &[u8]) -> Done {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeding = tokio::spawn(async move {
        // A program may end without reading everything.
        let _ = stdin.write_all(&input).await;
    });
    let output = child.wait_with_output().await.unwrap();
    feeding.await.unwrap();
    Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The SFTP helper, copied to where every user may run it.
fn helper(dir: &Path) -> PathBuf {
    // target/debug/deps/THIS -> target/debug/examples/sftp-server
    let built = std::env::current_exe().unwrap();
    let built = built
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/sftp-server");
    let copy = dir.join("sftp-server");
    fs_err::copy(&built, &copy).unwrap();
    copy
}

/// A port nobody listens on now.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
