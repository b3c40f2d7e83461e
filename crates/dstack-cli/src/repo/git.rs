//! Running the `git` program.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::error::{CliError, ErrorKind};

/// What git printed.
#[derive(Debug)]
pub struct Printed {
    /// Exit status 0.
    pub ok: bool,
    /// What it printed to standard output.
    pub stdout: Vec<u8>,
    /// What it printed to standard error.
    pub stderr: String,
}

impl Printed {
    /// Standard output as text, without the line end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

/// Runs git in a folder.
///
/// # Errors
/// There is no git program.
pub async fn run(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Printed, CliError> {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            CliError::new(ErrorKind::GitMissing, "the `git` program is not installed")
                .hint("install git, or pass `--no-repo` to run without a repository")
        }
        _ => CliError::caused_by(ErrorKind::GitMissing, "cannot run `git`", error),
    })?;
    Ok(Printed {
        ok: output.status.success(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
}
