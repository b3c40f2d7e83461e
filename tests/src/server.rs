//! The real server binary in a folder of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dstack_conformance::{Document, Exchange};
use serde_json::Value;
use tempfile::TempDir;

use crate::http::{Answer, Client};
use crate::parts::{self, Part};

/// The admin token of servers under test.
pub const TOKEN: &str = "test-admin-token";

/// Servers that share a database need the same key for the secrets in it.
const SHARED_KEY: &str = "encryption:\n  keys:\n    - type: aes\n      name: shared\n      \
    secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";

/// How long a server may take until it says where it is running.
const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// How to start a server.
pub struct Setup {
    program: PathBuf,
    token: String,
    config: Option<String>,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    host: String,
}

impl Setup {
    /// `dstack server` of the given binary.
    pub fn new(program: impl Into<PathBuf>) -> Setup {
        Setup {
            program: program.into(),
            token: TOKEN.into(),
            config: None,
            variables: Vec::new(),
            arguments: Vec::new(),
            host: "127.0.0.1".into(),
        }
    }

    /// The address that the server listens on: one that this machine reaches as 127.0.0.1.
    #[must_use]
    pub fn listening_on(mut self, host: &str) -> Setup {
        self.host = host.into();
        self
    }

    /// The server built from this workspace, with this machine as its only instance and jobs as plain processes.
    ///
    /// # Errors
    /// The reason to skip the test, when the binaries are not built.
    pub fn local() -> Part<Setup> {
        let setup = Setup::new(parts::dstack()?)
            .variable("DSTACK_AGENT_PATH", parts::agent()?.display().to_string())
            .variable("DSTACK_LOCAL_RUNTIME", "process");
        if parts::on_postgres() {
            setup.on_postgres()
        } else {
            Ok(setup)
        }
    }

    /// A server that only answers: nothing is placed and nothing ends.
    ///
    /// # Errors
    /// The reason to skip the test, when the binary is not built.
    pub fn without_engine() -> Part<Setup> {
        let idle = "DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED";
        Ok(Setup::new(parts::dstack()?).variable(idle, "1"))
    }

    /// With a new, empty PostgreSQL database instead of SQLite.
    ///
    /// # Errors
    /// The reason to skip the test, when there is no PostgreSQL.
    pub fn on_postgres(self) -> Part<Setup> {
        let database =
            crate::postgres::create(&parts::postgres_url()?).map_err(|error| format!("{error:#}"))?;
        Ok(self.variable("DSTACK_DATABASE_URL", database))
    }

    /// With this PostgreSQL database, which other servers may share: all of them have the same key for secrets.
    #[must_use]
    pub fn sharing(self, database: &str) -> Setup {
        self.variable("DSTACK_DATABASE_URL", database).config(SHARED_KEY)
    }

    #[must_use]
    pub fn token(mut self, token: &str) -> Setup {
        self.token = token.into();
        self
    }

    /// The text of `~/.dstack/server/config.yml`.
    #[must_use]
    pub fn config(mut self, text: &str) -> Setup {
        self.config = Some(text.into());
        self
    }

    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Setup {
        self.variables.push((name.into(), value.into()));
        self
    }

    #[must_use]
    pub fn argument(mut self, argument: &str) -> Setup {
        self.arguments.push(argument.into());
        self
    }

    /// Starts the server and waits until it is ready.
    pub fn start(self) -> Result<Server> {
        let home = TempDir::with_prefix("dstack-test-")?;
        if let Some(config) = &self.config {
            let folder = home.path().join(".dstack/server");
            fs_err::create_dir_all(&folder)?;
            fs_err::write(folder.join("config.yml"), config)?;
        }
        let mut server = Server {
            setup: self,
            home,
            port: free_port()?,
            process: None,
            client: Client::default(),
            document: OnceLock::new(),
        };
        server.start()?;
        Ok(server)
    }
}

/// A running server. Dropping it ends it together with everything it started.
pub struct Server {
    setup: Setup,
    home: TempDir,
    port: u16,
    process: Option<(Child, Arc<Output>)>,
    client: Client,
    document: OnceLock<Option<Document>>,
}

impl Server {
    /// Starts the server again after [`Server::kill`] or [`Server::terminate`]: same state, same port.
    pub fn start(&mut self) -> Result<()> {
        let mut child = Command::new(&self.setup.program)
            .args([
                "server",
                "-y",
                "--host",
                &self.setup.host,
                "--port",
                &self.port.to_string(),
            ])
            .args(["--token", &self.setup.token])
            .args(&self.setup.arguments)
            .env("HOME", self.home.path())
            .envs(self.setup.variables.iter().map(|(name, value)| (name, value)))
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.setup.program.display()))?;
        let output = Output::collect(&mut child);
        let ready = output.wait_for(" is running at", READY_TIMEOUT);
        self.process = Some((child, Arc::clone(&output)));
        if !ready {
            bail!("the server did not become ready; it said:\n{}", output.text());
        }
        // The reference says so a moment before it listens.
        let port = self.port;
        eventually("the server listens", READY_TIMEOUT, || {
            Ok(TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })
    }

    /// From the next start on the server is not given this variable.
    pub fn without_variable(&mut self, name: &str) {
        self.setup.variables.retain(|(given, _)| given != name);
    }

    /// From the next start on the server listens there.
    pub fn listen_on(&mut self, host: &str) {
        self.setup.host = host.into();
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn token(&self) -> &str {
        &self.setup.token
    }

    /// The home folder of the server.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The process of the server; `None` while it is not running.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|(child, _)| child.id())
    }

    /// The server's resident memory; what it started (the local agent) is not in it.
    pub fn resident_bytes(&self) -> Result<f64> {
        self.memory_bytes("VmRSS:")
    }

    /// The most that was resident since the server's start.
    pub fn resident_bytes_at_most(&self) -> Result<f64> {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, field: &str) -> Result<f64> {
        memory_bytes(self.pid().context("the server is not running")?, field)
    }

    /// What the server has printed since its last start.
    pub fn output(&self) -> String {
        self.process
            .as_ref()
            .map(|(_, output)| output.text())
            .unwrap_or_default()
    }

    /// Calls a route as the admin; `path` starts with a slash. An answer that is not as the server's OpenAPI document
    /// says is an error.
    pub fn call(&self, path: &str, body: &Value) -> Result<Answer> {
        let url = format!("{}{path}", self.url());
        let answer = self.client.post(&url, self.token(), body)?;
        let document = self.document.get_or_init(|| document(&self.client, &self.url()));
        let exchange = Exchange {
            method: "POST",
            path,
            status: answer.status,
            body: &answer.body,
        };
        match document.as_ref().map(|document| document.check(exchange)) {
            Some(Err(problem)) => bail!("{problem}"),
            _ => Ok(answer),
        }
    }

    /// As [`Server::call`]; any status but 200 is an error that shows the answer.
    pub fn get(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.call(path, body)?;
        if answer.status != 200 {
            bail!("{path}: {} {}", answer.status, answer.text());
        }
        answer.json().with_context(|| format!("{path}: no JSON"))
    }

    /// SIGKILL to the server alone: what it started lives on.
    pub fn kill(&mut self) -> Result<()> {
        if let Some((mut child, _)) = self.process.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// SIGTERM, and its exit code; `None` when a signal ended it.
    pub fn terminate(&mut self) -> Result<Option<i32>> {
        let Some((mut child, _)) = self.process.take() else {
            return Ok(None);
        };
        signal(child.id(), "TERM");
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            if let Some(status) = child.try_wait()? {
                return Ok(status.code());
            }
            thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("the server did not end within 30 s of SIGTERM")
    }

    /// Processes (the server's agents and jobs) that name the server's home folder.
    pub fn descendants(&self) -> Vec<u32> {
        processes_naming(self.home.path())
    }
}

/// The OpenAPI document of one of our servers.
pub fn document(client: &Client, url: &str) -> Option<Document> {
    let answer = client
        .send("GET", &format!("{url}/openapi.json"), &[], None)
        .ok()?;
    let document = answer.json()?;
    let is_ours = document.pointer("/info/title")?.as_str() == Some("dstack");
    Document::new(&document).ok().filter(|_| is_ours)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill().ok();
        for pid in self.descendants() {
            signal(pid, "KILL");
        }
    }
}

/// Waits until `check` gives a value, looking again and again: for what offers nothing to wait on.
///
/// # Errors
/// When nothing came within `timeout`; `what` names what was awaited.
pub fn eventually<T>(
    what: &str,
    timeout: Duration,
    mut check: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + timeout;
    loop {
        if let Some(value) = check()? {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("{what}: not within {timeout:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The resident memory of a process.
///
/// # Errors
/// There is no such process.
pub fn resident_bytes(pid: u32) -> Result<f64> {
    memory_bytes(pid, "VmRSS:")
}

/// A field of what the kernel says of a process.
fn memory_bytes(pid: u32, field: &str) -> Result<f64> {
    let status = fs_err::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .with_context(|| format!("no {field}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

/// Sends a signal, by its name without SIG.
pub fn signal(pid: u32, name: &str) {
    Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .ok();
}

/// A loopback port nobody listens on at this moment.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free loopback port")?;
    Ok(listener.local_addr()?.port())
}

/// Processes with a folder's path in their command line or environment, other than this one.
fn processes_naming(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs_err::read_dir("/proc") else {
        return Vec::new();
    };
    let name = folder.as_os_str().as_encoded_bytes();
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let names = |file: &str| {
                fs_err::read(entry.path().join(file))
                    .is_ok_and(|bytes| bytes.windows(name.len()).any(|part| part == name))
            };
            (pid != std::process::id() && (names("cmdline") || names("environ"))).then_some(pid)
        })
        .collect()
}

/// What a child prints, collected as it comes.
#[derive(Default)]
struct Output {
    lines: Mutex<(Vec<String>, usize)>,
    more: Condvar,
}

impl Output {
    /// Starts to collect both streams of a child.
    fn collect(child: &mut Child) -> Arc<Output> {
        let output = Arc::new(Output::default());
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|s| Box::new(s) as _),
            child.stderr.take().map(|s| Box::new(s) as _),
        ];
        for stream in streams.into_iter().flatten() {
            let output = Arc::clone(&output);
            thread::spawn(move || output.read(stream));
        }
        output
    }

    fn read(&self, stream: Box<dyn Read + Send>) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            self.update(|(lines, _)| lines.push(line));
        }
        self.update(|(_, ended)| *ended += 1);
    }

    fn update(&self, change: impl FnOnce(&mut (Vec<String>, usize))) {
        change(
            &mut self
                .lines
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        self.more.notify_all();
    }

    /// Whether a line with `text` came before the child closed its output and before the timeout.
    fn wait_for(&self, text: &str, timeout: Duration) -> bool {
        let state = self
            .lines
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = |lines: &[String]| lines.iter().any(|line| line.contains(text));
        let waited = self
            .more
            .wait_timeout_while(state, timeout, |(lines, ended)| !found(lines) && *ended < 2);
        waited.is_ok_and(|(state, _)| found(&state.0))
    }

    fn text(&self) -> String {
        self.lines
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
            .join("\n")
    }
}
