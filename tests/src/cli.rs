//! A `dstack` command in a home folder of its own: ours, or the unmodified Python one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::{NamedTempFile, TempDir};

use crate::parts::{self, Part};
use crate::server::{Server, eventually, signal};

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// `None`: ended by a signal.
    pub code: Option<i32>,
    /// Standard output and standard error, one after the other.
    pub text: String,
}

/// A command line with a fresh home folder; it knows no server until [`Cli::add_project`].
pub struct Cli {
    program: PathBuf,
    is_python: bool,
    home: TempDir,
}

impl Cli {
    /// The command line built from this workspace.
    pub fn ours() -> Part<Cli> {
        Cli::new(parts::dstack()?, false)
    }

    /// The unmodified Python command line 0.22.5.
    pub fn python() -> Part<Cli> {
        Cli::new(parts::python_env()?.join("bin/dstack"), true)
    }

    fn new(program: PathBuf, is_python: bool) -> Part<Cli> {
        let home = TempDir::with_prefix("dstack-test-cli-").map_err(|error| error.to_string())?;
        // The time of its last change tells the Python command line when it last looked for a newer version: it
        // does so once a day, on the network.
        let checked = home.path().join(".cache/.dstack/cli");
        fs_err::create_dir_all(&checked)
            .and_then(|()| fs_err::write(checked.join("last_check"), ""))
            .map_err(|error| error.to_string())?;
        Ok(Cli {
            program,
            is_python,
            home,
        })
    }

    /// Whether it is that of dstack 0.22.5.
    pub fn is_python(&self) -> bool {
        self.is_python
    }

    /// The folder commands run in; configuration files belong here.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Writes a file into [`Cli::folder`].
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs_err::write(self.folder().join(name), text)?)
    }

    /// `dstack project add` for project `main` of a server.
    pub fn add_project(&self, server: &Server) -> Result<Ended> {
        let (url, token) = (server.url(), server.token());
        self.run(&[
            "project", "add", "--name", "main", "--url", &url, "--token", token, "-y",
        ])
    }

    /// Knows this server from now on.
    ///
    /// # Panics
    /// It does not.
    pub fn knows(&self, server: &Server) {
        let added = self.add_project(server);
        assert!(
            added.as_ref().is_ok_and(|added| added.code == Some(0)),
            "{added:?}"
        );
    }

    /// Runs a command that must succeed; what it printed.
    ///
    /// # Panics
    /// It fails.
    pub fn succeeds(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert!(
            ended.as_ref().is_ok_and(|ended| ended.code == Some(0)),
            "dstack {}:\n{ended:?}",
            args.join(" ")
        );
        ended.map(|ended| ended.text).unwrap_or_default()
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Result<Ended> {
        let mut command = self.command(args);
        let output = command
            .output()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        let text = [output.stdout, output.stderr].concat();
        Ok(Ended {
            code: output.status.code(),
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }

    /// As `ssh NAME COMMAND` of a user: the command line has written how the job is reached. `None`: it failed.
    pub fn ssh(&self, name: &str, command: &str) -> Result<Option<String>> {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(self.folder().join(".dstack/ssh/config"));
        ssh.args(["-o", "BatchMode=yes", name, command]);
        let output = ssh.env("HOME", self.folder()).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.success().then_some(text))
    }

    /// Starts a command that runs until it is dropped.
    pub fn start(&self, args: &[&str]) -> Result<Background> {
        let output = NamedTempFile::new()?;
        let stream = output.reopen()?;
        let mut command = self.command(args);
        command.stdout(stream.try_clone()?).stderr(stream);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        Ok(Background { child, output })
    }

    /// A command that is not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.folder()).stdin(Stdio::null());
        for (name, value) in self.variables() {
            command.env(name, value);
        }
        command
    }

    /// The program, for a terminal ([`crate::terminal::Terminal`]).
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// What its environment differs in from ours.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("HOME", self.home.path().display().to_string()),
            ("COLUMNS", "200".into()),
        ]
    }
}

/// A command that runs until it is dropped.
pub struct Background {
    child: Child,
    output: NamedTempFile,
}

impl Background {
    /// What it has printed so far.
    pub fn text(&self) -> String {
        fs_err::read_to_string(self.output.path()).unwrap_or_default()
    }

    /// Sends it a signal, by its name without SIG.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until it has ended by itself.
    pub fn ended(&mut self, timeout: Duration) -> Result<Ended> {
        let status = eventually("the command ends", timeout, || Ok(self.child.try_wait()?))?;
        Ok(Ended {
            code: status.code(),
            text: self.text(),
        })
    }

    /// Fails when it has ended, with what it printed.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the command has ended ({status}):\n{}", self.text()),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The number of one that has ended may be that of another process already.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // Ctrl-C lets it take its SSH connection down; the run goes with the server.
        signal(self.child.id(), "INT");
        let ended = eventually("the command ends", Duration::from_secs(10), || {
            Ok(self.child.try_wait()?)
        });
        if ended.is_err() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
