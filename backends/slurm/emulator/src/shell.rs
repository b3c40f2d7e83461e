//! As much of a shell as the scripts of a backend need: the frame around a command, the command, its here-document.

use std::process::Command;

use crate::{Slurm, commands};

/// What a script left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit status.
    pub status: u32,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

impl Said {
    pub(crate) fn of(stdout: impl Into<String>) -> Self {
        Self {
            status: 0,
            stdout: stdout.into(),
            stderr: String::new(),
        }
    }

    pub(crate) fn error(status: u32, stderr: impl Into<String>) -> Self {
        Self {
            status,
            stdout: String::new(),
            stderr: stderr.into(),
        }
    }
}

/// Runs the command in a framed script.
pub(crate) fn run(slurm: &Slurm, script: &str) -> Said {
    let inner = script
        .split_once("\n(\n")
        .and_then(|(_, rest)| rest.rsplit_once("\n)\n"));
    let Some((command, _)) = inner else {
        return Said::error(2, "sh: syntax error\n");
    };
    let (line, input) = match command.split_once(" <<'") {
        Some((line, rest)) => {
            let (mark, text) = rest.split_once("'\n").unwrap();
            (line, text.strip_suffix(mark).unwrap())
        }
        None => (command, ""),
    };
    let words = shell_words::split(line).unwrap_or_default();
    // Variables for the command, such as SLURM_TIME_FORMAT, come before it.
    let is_variable = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name.starts_with("SLURM_"))
    };
    let at = words.iter().take_while(is_variable).count();
    let said = words.get(at).and_then(|name| {
        let arguments: Vec<&str> = words[at + 1..].iter().map(String::as_str).collect();
        commands::run(slurm, name, &arguments, input)
    });
    let said = said.unwrap_or_else(|| really(slurm, command));
    frame(script, said.status, &said.stdout, &said.stderr)
}

/// A command that is not of Slurm.
fn really(slurm: &Slurm, command: &str) -> Said {
    let output = Command::new("sh")
        .args(["-c", command])
        .env("HOME", slurm.0.home.path())
        .output()
        .unwrap();
    Said {
        status: output
            .status
            .code()
            .and_then(|code| u32::try_from(code).ok())
            .unwrap_or(255),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// What the script says of its own around that of the command.
pub(crate) fn frame(script: &str, status: u32, stdout: &str, stderr: &str) -> Said {
    // The second word in quotes: that after the format.
    let mark = script.split('\'').nth(3).unwrap();
    Said {
        status: 0,
        stdout: format!("Last login: never\n{mark}\n{stdout}\n{mark} {status}\n"),
        stderr: format!("{mark}\n{stderr}"),
    }
}
