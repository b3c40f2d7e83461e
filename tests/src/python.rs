//! The unmodified Python CLI in a home folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::parts::{Part, python_env};
use crate::server::Server;

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// `None`: ended by a signal.
    pub code: Option<i32>,
    /// Standard output and standard error, one after the other.
    pub text: String,
}

/// The `dstack` command of the Python package.
pub struct PythonCli {
    program: PathBuf,
    home: TempDir,
}

impl PythonCli {
    /// A fresh home folder; the CLI knows no server yet.
    pub fn new() -> Part<PythonCli> {
        let program = python_env()?.join("bin/dstack");
        let home = TempDir::with_prefix("dstack-test-cli-").map_err(|error| error.to_string())?;
        // Its time of last change tells when the CLI last looked for a newer version: it does so once a day,
        // on the network.
        let checked = home.path().join(".cache/.dstack/cli");
        fs_err::create_dir_all(&checked)
            .and_then(|()| fs_err::write(checked.join("last_check"), ""))
            .map_err(|error| error.to_string())?;
        Ok(PythonCli { program, home })
    }

    /// The folder commands run in; configuration files belong here.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Writes a file into [`PythonCli::folder`].
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

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Result<Ended> {
        let output = self.command(args).output().context("cannot run the Python CLI")?;
        let text = [output.stdout, output.stderr].concat();
        Ok(Ended {
            code: output.status.code(),
            text: String::from_utf8_lossy(&text).into_owned(),
        })
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
