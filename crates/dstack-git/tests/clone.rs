//! Clones from real git servers: smart HTTP through `git http-backend`, and ssh through `dstack-sshd`. Skipped where git
//! is not installed.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dstack_git::{CloneRequest, GitClone, GitError, TransportError};
use dstack_system::Secret;
use support::Host;

fn have_git() -> bool {
    let found = Command::new("git")
        .args(["http-backend"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        eprintln!("skipped: no `git` here");
    }
    found
}

fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args([
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "-c",
        "init.defaultBranch=main",
    ]);
    command
        .args(["-c", "protocol.file.allow=always"])
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A folder with `work` (a clone), `work.git` (the server's side), and the same for `sub`.
struct Repos {
    dir: tempfile::TempDir,
    first: String,
    second: String,
    side: String,
}

impl Repos {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("dr-repo-")
            .tempdir_in("/tmp")
            .unwrap();
        let work = dir.path().join("work");
        fs_err::create_dir(&work).unwrap();
        git(&work, &["init", "-q"]);
        fs_err::write(work.join("file"), "one\n").unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-qm", "first"]);
        let first = git(&work, &["rev-parse", "HEAD"]);
        // Enough objects for more than one round and for deltas.
        for number in 0..300 {
            fs_err::write(
                work.join(format!("data{number}")),
                format!("{number}\n").repeat(200),
            )
            .unwrap();
        }
        fs_err::write(work.join("file"), "two\n").unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-qm", "second"]);
        git(&work, &["tag", "v1"]);
        let second = git(&work, &["rev-parse", "HEAD"]);
        git(&work, &["checkout", "-qb", "side", &first]);
        fs_err::write(work.join("file"), "side\n").unwrap();
        git(&work, &["commit", "-qam", "side"]);
        let side = git(&work, &["rev-parse", "HEAD"]);
        git(&work, &["checkout", "-q", "main"]);
        git(dir.path(), &["clone", "-q", "--bare", "work", "work.git"]);
        Self {
            dir,
            first,
            second,
            side,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Adds a large incompressible file to `main`, so that the pack is larger than any buffer, and moves the tag there.
    fn add_noise(&mut self) {
        let work = self.path("work");
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..12 << 20)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()[0]
            })
            .collect();
        fs_err::write(work.join("noise"), noise).unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-qm", "noise"]);
        git(&work, &["tag", "-f", "v1"]);
        git(
            &work,
            &[
                "push",
                "-qf",
                self.path("work.git").to_str().unwrap(),
                "main",
                "v1",
            ],
        );
        self.second = git(&work, &["rev-parse", "HEAD"]);
    }

    /// Adds a submodule at `sub` (with a submodule of its own) to `main`, by this address; returns the commit.
    fn add_submodule(&self, address: &str) -> String {
        let (inner, sub, work) = (self.path("inner"), self.path("sub"), self.path("work"));
        for (path, text) in [(&inner, "inner\n"), (&sub, "sub\n")] {
            fs_err::create_dir(path).unwrap();
            git(path, &["init", "-q"]);
            fs_err::write(path.join("own"), text).unwrap();
            git(path, &["add", "-A"]);
            git(path, &["commit", "-qm", "x"]);
        }
        git(self.dir.path(), &["clone", "-q", "--bare", "inner", "inner.git"]);
        // Addresses relative to the remote's own.
        fs_err::write(
            sub.join(".gitmodules"),
            "[submodule \"in\"]\n\tpath = in\n\turl = ../inner.git\n",
        )
        .unwrap();
        let head = git(&inner, &["rev-parse", "HEAD"]);
        git(
            &sub,
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("160000,{head},in"),
            ],
        );
        git(&sub, &["add", ".gitmodules"]);
        git(&sub, &["commit", "-qm", "nested"]);
        git(self.dir.path(), &["clone", "-q", "--bare", "sub", "sub.git"]);
        fs_err::write(
            work.join(".gitmodules"),
            format!("[submodule \"sub\"]\n\tpath = sub\n\turl = {address}\n"),
        )
        .unwrap();
        let head = git(&sub, &["rev-parse", "HEAD"]);
        git(
            &work,
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("160000,{head},sub"),
            ],
        );
        git(&work, &["add", ".gitmodules"]);
        git(&work, &["commit", "-qm", "with submodule"]);
        git(
            &work,
            &["push", "-q", self.path("work.git").to_str().unwrap(), "main"],
        );
        git(&work, &["rev-parse", "HEAD"])
    }

    fn job(&self, url: &str) -> Job {
        Job {
            dir: self.path("job/repo"),
            request: CloneRequest {
                url: url.to_owned(),
                ..CloneRequest::default()
            },
            diff: None,
        }
    }
}

/// A repo to clone, where to, and what to change then.
#[derive(Clone)]
struct Job {
    dir: PathBuf,
    request: CloneRequest,
    diff: Option<Vec<u8>>,
}

fn run(job: &Job) -> Result<(), GitError> {
    let clone = GitClone::new(job.request.clone())?;
    clone.run(&job.dir)?;
    match &job.diff {
        Some(diff) => clone.apply_diff(&job.dir, diff),
        None => Ok(()),
    }
}

fn text(job: &Job, name: &str) -> String {
    fs_err::read_to_string(job.dir.join(name)).unwrap()
}

/// A CGI server for `git http-backend`; wants this password when one is given; `/moved/…` redirects to `/…`.
struct Http {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Http {
    fn start(root: &Path, password: Option<&'static str>) -> Self {
        Self::start_with(root, password, None)
    }

    fn start_with(
        root: &Path,
        password: Option<&'static str>,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let (root, stopping) = (root.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    break;
                }
                let (stream, root, tls) = (stream.unwrap(), root.clone(), tls.clone());
                // A client that goes away in the middle is part of some tests.
                std::thread::spawn(move || match tls {
                    None => answer(stream, &root, password, port).ok(),
                    Some(tls) => {
                        let connection = rustls::ServerConnection::new(tls).unwrap();
                        answer(
                            rustls::StreamOwned::new(connection, stream),
                            &root,
                            password,
                            port,
                        )
                        .ok()
                    }
                });
            }
        });
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }

    fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(stream: impl Read + Write, root: &Path, password: Option<&str>, port: u16) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut parts = line.split(' ');
    let (method, target) = (
        parts.next().unwrap().to_owned(),
        parts.next().unwrap_or_default().to_owned(),
    );
    let (mut length, mut kind, mut login) = (0, String::new(), String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "content-type" => value.clone_into(&mut kind),
            "authorization" => value.clone_into(&mut login),
            _ => {}
        }
    }
    if let Some(rest) = target.strip_prefix("/moved") {
        return write!(
            reader.get_mut(),
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}{rest}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    if let Some(password) = password
        && login != format!("Basic {}", base64_of(&format!("anything:{password}")))
    {
        return write!(
            reader.get_mut(),
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut child = Command::new("git")
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", method)
        .env("CONTENT_TYPE", kind)
        .env("CONTENT_LENGTH", length.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().unwrap().write_all(&body)?;
    let output = child.wait_with_output()?.stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let status = head
        .lines()
        .find_map(|line| line.strip_prefix("Status: "))
        .unwrap_or("200 OK");
    write!(
        reader.get_mut(),
        "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        output.len() - end - 4
    )?;
    reader.get_mut().write_all(&output[end + 4..])?;
    reader.get_mut().flush()
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn the_default_branch_is_cloned_and_configured() {
    if !have_git() {
        return;
    }
    let mut repos = Repos::new();
    repos.add_noise();
    let server = Http::start(repos.dir.path(), None);
    let mut job = repos.job(&server.url("work.git"));
    job.request.user_name = Some("Me Myself".to_owned());
    job.request.user_email = Some("me@example.com".to_owned());
    run(&job).unwrap();
    assert_eq!(text(&job, "file"), "two\n");
    assert_eq!(
        git(&job.dir, &["status", "--porcelain", "--branch"]),
        "## main...origin/main"
    );
    assert_eq!(
        git(&job.dir, &["rev-parse", "HEAD", "v1"]),
        format!("{0}\n{0}", repos.second)
    );
    assert_eq!(git(&job.dir, &["config", "--local", "user.name"]), "Me Myself");
    assert_eq!(
        git(&job.dir, &["config", "--local", "remote.origin.url"]),
        server.url("work.git")
    );
    assert_eq!(git(&job.dir, &["branch", "-r"]), "origin/main\n  origin/side");
    git(&job.dir, &["fsck", "--strict"]);
    // What the job's user does next works.
    git(&job.dir, &["fetch", "-q"]);
}

#[test]
fn branch_commit_and_single_branch_are_honoured() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let server = Http::start(repos.dir.path(), None);
    let clone = |name: &str, branch: &str, hash: &str, single: bool| {
        let mut job = repos.job(&server.url("moved/work.git"));
        job.dir = repos.path(name);
        job.request.branch = Some(branch.to_owned());
        job.request.commit = Some(hash.to_owned());
        job.request.single_branch = single;
        run(&job).map(|()| job)
    };
    let job = clone("head", "side", &repos.side, false).unwrap();
    assert_eq!(
        (
            text(&job, "file").as_str(),
            git(&job.dir, &["branch", "--show-current"]).as_str()
        ),
        ("side\n", "side")
    );
    let job = clone("older", "main", &repos.first, true).unwrap();
    assert_eq!(
        (
            text(&job, "file").as_str(),
            git(&job.dir, &["branch", "--show-current"]).as_str()
        ),
        ("one\n", "")
    );
    assert_eq!(git(&job.dir, &["rev-parse", "HEAD"]), repos.first);
    assert_eq!(git(&job.dir, &["branch", "-r"]), "origin/main");
    assert!(!job.dir.join("data0").exists());
    assert!(matches!(
        clone("nope", "nope", &repos.first, false),
        Err(GitError::NoBranch { .. })
    ));
    let unknown = "0123456789012345678901234567890123456789";
    assert!(matches!(
        clone("none", "main", unknown, false),
        Err(GitError::NoCommit { .. })
    ));
    // On another branch than the wanted one: the server hands it out when it allows that.
    git(
        &repos.path("work.git"),
        &["config", "uploadpack.allowAnySHA1InWant", "true"],
    );
    let job = clone("other", "main", &repos.side, true).unwrap();
    assert_eq!(text(&job, "file"), "side\n");
}

#[test]
fn a_token_opens_a_private_repo_and_stays_out_of_its_configuration() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    repos.add_submodule("../sub.git");
    let server = Http::start(repos.dir.path(), Some("s3cret"));
    let mut job = repos.job(&server.url("work.git"));
    let denied = run(&job).unwrap_err();
    let GitError::Fetch { source, .. } = &denied else {
        panic!("{denied:?}")
    };
    assert!(
        matches!(**source, TransportError::HttpDenied { status: 401, .. }),
        "{source:?}"
    );
    job.request.token = Some(Secret::new("s3cret"));
    run(&job).unwrap();
    assert_eq!(
        (text(&job, "sub/own"), text(&job, "sub/in/own")),
        ("sub\n".to_owned(), "inner\n".to_owned())
    );
    assert_eq!(git(&job.dir, &["status", "--porcelain"]), "");
    assert!(
        !fs_err::read_to_string(job.dir.join(".git/config"))
            .unwrap()
            .contains("s3cret")
    );
    // A password in the address works too, and is not kept either.
    let url = server
        .url("work.git")
        .replace("http://", "http://anything:s3cret@");
    let mut job = repos.job(&url);
    job.dir = repos.path("job/by-address");
    run(&job).unwrap();
    assert!(
        !fs_err::read_to_string(job.dir.join(".git/config"))
            .unwrap()
            .contains("s3cret")
    );
}

#[test]
fn a_token_is_not_shown_to_other_servers() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let other = Http::start(repos.dir.path(), Some("s3cret"));
    repos.add_submodule(&other.url("sub.git"));
    let server = Http::start(repos.dir.path(), Some("s3cret"));
    let mut job = repos.job(&server.url("work.git"));
    job.request.token = Some(Secret::new("s3cret"));
    let denied = run(&job).unwrap_err();
    let GitError::Fetch { source, .. } = &denied else {
        panic!("{denied:?}")
    };
    assert!(
        matches!(**source, TransportError::HttpDenied { status: 401, .. }),
        "{source:?}"
    );
}

#[test]
fn an_unreachable_server_is_named() {
    let repos = tempfile::tempdir().unwrap();
    let job = Job {
        dir: repos.path().join("x"),
        request: CloneRequest {
            url: format!("http://user:hush@127.0.0.1:{}/x.git", support::free_port()),
            ..CloneRequest::default()
        },
        diff: None,
    };
    let error = run(&job).unwrap_err();
    assert!(
        error.to_string().contains("127.0.0.1") && !format!("{error:?}").contains("hush"),
        "{error:?}"
    );
}

#[test]
fn a_diff_with_everything_is_applied() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let moved = repos.add_submodule("../sub.git");
    let server = Http::start(repos.dir.path(), None);
    // The user's copy: edits, a rename, a new file, and the submodule moved to a newer commit.
    let user = repos.path("user");
    git(
        repos.dir.path(),
        &["clone", "-q", "--recursive", &server.url("work.git"), "user"],
    );
    fs_err::write(user.join("file"), "edited\n").unwrap();
    fs_err::rename(user.join("data1"), user.join("renamed")).unwrap();
    fs_err::write(user.join("fresh"), [0, 159, 146, 150]).unwrap();
    fs_err::write(user.join("sub/own"), "newer\n").unwrap();
    git(&user.join("sub"), &["commit", "-qam", "newer"]);
    git(
        &user.join("sub"),
        &["push", "-q", repos.path("sub.git").to_str().unwrap(), "HEAD:main"],
    );
    git(&user, &["add", "-N", "renamed", "fresh"]);
    let diff = git(&user, &["diff", "--binary", &moved]) + "\n";
    let mut job = repos.job(&server.url("work.git"));
    job.request.commit = Some(moved);
    job.diff = Some(diff.into_bytes());
    run(&job).unwrap();
    assert_eq!(
        (text(&job, "file"), text(&job, "sub/own")),
        ("edited\n".to_owned(), "newer\n".to_owned())
    );
    assert_eq!(fs_err::read(job.dir.join("fresh")).unwrap(), [0, 159, 146, 150]);
    assert!(job.dir.join("renamed").exists() && !job.dir.join("data1").exists());
    // Against another commit the same diff does not fit, and changes nothing.
    job.dir = repos.path("job/other");
    job.request.commit = Some(repos.first.clone());
    assert!(matches!(run(&job), Err(GitError::Patch(_))));
    assert_eq!(git(&job.dir, &["status", "--porcelain"]), "");
}

/// Set for the part of the https test that runs in a process of its own.
const CHILD_URL: &str = "DSTACK_TEST_CLONE_URL";

#[test]
fn https_uses_the_certificates_of_the_image_when_those_built_in_do_not_do() {
    if let Ok(url) = std::env::var(CHILD_URL) {
        return clone_in_child(&url);
    }
    if !have_git() || !support::have("openssl") {
        return;
    }
    let repos = Repos::new();
    let (key, certificate) = (repos.path("key.pem"), repos.path("cert.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    use rustls::pki_types::pem::PemObject;
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![rustls::pki_types::CertificateDer::from_pem_file(&certificate).unwrap()],
            rustls::pki_types::PrivateKeyDer::from_pem_file(&key).unwrap(),
        )
        .unwrap();
    let server = Http::start_with(repos.dir.path(), Some("s3cret"), Some(Arc::new(tls)));
    let url = format!("https://localhost:{}/work.git", server.port);
    // The variable must be set from the start of a process.
    let run = |certificates: &Path| {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "https_uses_the_certificates_of_the_image_when_those_built_in_do_not_do",
                "--nocapture",
            ])
            .env(CHILD_URL, &url)
            .env("SSL_CERT_FILE", certificates)
            .output()
            .unwrap()
    };
    let trusted = run(&certificate);
    assert!(
        trusted.status.success(),
        "{}",
        String::from_utf8_lossy(&trusted.stderr)
    );
    let unknown = run(Path::new("/etc/hostname"));
    let errors = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        !unknown.status.success() && errors.contains("UnknownIssuer"),
        "{errors}"
    );
}

fn clone_in_child(url: &str) {
    let dir = tempfile::tempdir().unwrap();
    let job = Job {
        dir: dir.path().join("repo"),
        request: CloneRequest {
            url: url.to_owned(),
            token: Some(Secret::new("s3cret")),
            ..CloneRequest::default()
        },
        diff: None,
    };
    run(&job).unwrap();
    assert_eq!(text(&job, "file"), "two\n");
}

#[test]
fn a_cancelled_clone_does_not_start() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let server = Http::start(repos.dir.path(), None);
    let job = repos.job(&server.url("work.git"));
    job.request.cancelled.store(true, Ordering::SeqCst);
    assert!(matches!(run(&job), Err(GitError::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_remotes_are_cloned_with_the_key() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let host = Host::start().await;
    let url = host.url(&repos.path("work.git"));
    let nested = host.url(&repos.path("sub.git"));
    repos.add_submodule(&nested);
    let mut job = repos.job(&url);
    let blocking = |job: Job| async move { tokio::task::spawn_blocking(move || run(&job)).await.unwrap() };
    let no_key = blocking(job.clone()).await.unwrap_err();
    let GitError::Fetch { source, .. } = &no_key else {
        panic!("{no_key:?}")
    };
    assert!(matches!(**source, TransportError::NoKey { .. }), "{source:?}");

    job.request.private_key = Some(host.key.private.clone());
    blocking(job.clone()).await.unwrap();
    assert_eq!(
        (text(&job, "file"), text(&job, "sub/in/own")),
        ("two\n".to_owned(), "inner\n".to_owned())
    );
    git(&job.dir, &["fsck", "--strict"]);

    // The remote side's own words are shown.
    job.dir = repos.path("job/missing");
    job.request.url = format!("{url}-missing");
    let missing = blocking(job.clone()).await.unwrap_err();
    let GitError::Fetch { source, .. } = &missing else {
        panic!("{missing:?}")
    };
    assert!(
        source
            .to_string()
            .contains("does not appear to be a git repository"),
        "{source}"
    );

    job.request.url = url;
    job.request.private_key = Some(
        dstack_ssh::keys::generate_ed25519(&dstack_system::Random::system(), "")
            .unwrap()
            .private,
    );
    job.dir = repos.path("job/denied");
    let denied = blocking(job).await.unwrap_err();
    let GitError::Fetch { source, .. } = &denied else {
        panic!("{denied:?}")
    };
    assert!(format!("{source:?}").contains("Denied"), "{source:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_only_shown_to_the_host_of_the_repo() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let (host, other) = (Host::start().await, Host::start().await);
    repos.add_submodule(&other.url(&repos.path("sub.git")));
    let mut job = repos.job(&host.url(&repos.path("work.git")));
    job.request.private_key = Some(host.key.private.clone());
    let refused = tokio::task::spawn_blocking(move || run(&job)).await.unwrap();
    let Err(GitError::Fetch { source, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert!(matches!(**source, TransportError::OtherHost { .. }), "{source:?}");
    // It would have said so if it had been offered a key.
    assert_eq!(other.handle.connections().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_known_must_have_its_key() {
    if !have_git() {
        return;
    }
    let repos = Repos::new();
    let host = Host::start().await;
    let url = host.url(&repos.path("work.git"));
    let known_hosts = repos.path("known_hosts");
    let know = |keys: &[String]| {
        let line = |key: &String| format!("[127.0.0.1]:{} {}\n", host.handle.port(), key.trim());
        fs_err::write(&known_hosts, keys.iter().map(line).collect::<String>()).unwrap();
    };
    let mut job = repos.job(&url);
    job.request.private_key = Some(host.key.private.clone());
    job.request.known_hosts = vec![known_hosts.clone()];
    let clone = |name: &str| {
        let job = Job {
            dir: repos.path(name),
            ..job.clone()
        };
        tokio::task::spawn_blocking(move || run(&job))
    };
    clone("job/unknown").await.unwrap().unwrap();
    assert!(!known_hosts.exists(), "nothing is written there");

    let foreign = dstack_ssh::keys::generate_ed25519(&dstack_system::Random::system(), "").unwrap();
    know(std::slice::from_ref(&foreign.public));
    let changed = clone("job/changed").await.unwrap().unwrap_err();
    let said = format!("{changed:?}");
    assert!(said.contains("HostKey"), "{said}");
    assert!(!repos.path("job/changed/file").exists());

    let own = host.host_keys();
    assert!(own.len() > 1, "of several kinds");
    for key in &own {
        // Whatever kind the server likes best, it is asked for the one that is known.
        know(std::slice::from_ref(key));
        let kind = key.split(' ').next().unwrap();
        clone(&format!("job/{kind}")).await.unwrap().unwrap();
    }
    know(&[foreign.public, own[0].clone()]);
    clone("job/one-of-two").await.unwrap().unwrap();
}
