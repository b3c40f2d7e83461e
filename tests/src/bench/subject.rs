//! What is measured: our programs, or the reference's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::server::Setup;

/// An implementation: its one program is server and command line.
#[derive(Debug, Clone)]
pub struct Subject {
    pub program: PathBuf,
    /// Our agent; the reference has none of its own to start here.
    pub agent: Option<PathBuf>,
    /// The Python the reference is installed in.
    pub python: Option<PathBuf>,
}

impl Subject {
    pub fn ours(program: PathBuf, agent: PathBuf) -> Subject {
        Subject {
            program,
            agent: Some(agent),
            python: None,
        }
    }

    /// The reference in a Python environment.
    pub fn reference(environment: &Path) -> Subject {
        Subject {
            program: environment.join("bin/dstack"),
            agent: None,
            python: Some(environment.join("bin/python")),
        }
    }

    pub fn is_ours(&self) -> bool {
        self.agent.is_some()
    }

    /// A server that runs nothing on this machine, as the reference does not.
    pub fn server(&self) -> Setup {
        let setup = Setup::new(&self.program).variable("COLUMNS", "200");
        match &self.agent {
            Some(agent) => setup
                .variable("DSTACK_AGENT_PATH", agent.display().to_string())
                .argument("--no-local"),
            None => setup,
        }
    }

    /// A server that runs jobs on this machine as plain processes, or in containers.
    pub fn local_server(&self, runtime: &str) -> Result<Setup> {
        let agent = self
            .agent
            .as_ref()
            .context("only ours runs jobs on this machine")?;
        Ok(Setup::new(&self.program)
            .variable("DSTACK_AGENT_PATH", agent.display().to_string())
            .variable("DSTACK_LOCAL_RUNTIME", runtime))
    }

    /// How long the program takes for a command, in seconds.
    pub fn time(&self, args: &[&str], home: &Path) -> Result<f64> {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("HOME", home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let start = Instant::now();
        let status = command
            .status()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        if !status.success() {
            bail!("{} {} failed", self.program.display(), args.join(" "));
        }
        Ok(start.elapsed().as_secs_f64())
    }
}
