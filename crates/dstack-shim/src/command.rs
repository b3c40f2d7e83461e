//! Running vendors' and system tools, behind a trait so that recorded outputs can stand in for them.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;

/// What a tool answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
}

impl Output {
    /// Whether the tool ended with exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// A tool that gave no answer at all.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Not found or not executable.
    #[error("cannot run {program}")]
    Start {
        /// Name of the program.
        program: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Killed after its time limit.
    #[error("{program} did not finish within {} s", limit.as_secs())]
    Timeout {
        /// Name of the program.
        program: String,
        /// Time after which it was killed.
        limit: Duration,
    },
}

/// Runs programs of the host; a double in tests.
#[async_trait]
pub trait Commands: Send + Sync {
    /// Runs `program` to its end, or kills it after `limit`.
    async fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<Output, CommandError>;
}

/// The machine's own tools.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemCommands;

#[async_trait]
impl Commands for SystemCommands {
    async fn run(&self, program: &str, args: &[&str], limit: Duration) -> Result<Output, CommandError> {
        let child = tokio::process::Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(limit, child).await {
            Ok(Ok(output)) => Ok(Output {
                code: output.status.code(),
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
            Ok(Err(source)) => Err(CommandError::Start {
                program: program.to_owned(),
                source,
            }),
            Err(_) => Err(CommandError::Timeout {
                program: program.to_owned(),
                limit,
            }),
        }
    }
}

#[cfg(test)]
pub(crate) mod recorded {
    //! Recorded answers by command line.

    use super::*;
    use std::collections::HashMap;
    use std::sync::Mutex;

    #[derive(Default)]
    pub(crate) struct Recorded {
        answers: HashMap<String, Vec<Output>>,
        asked: Mutex<Vec<String>>,
    }

    impl Recorded {
        /// Answers a command line; several answers are given in turn, the last one for ever.
        pub(crate) fn answer(mut self, line: &str, code: i32, stdout: &str) -> Self {
            let output = Output {
                code: Some(code),
                stdout: stdout.to_owned(),
                stderr: String::new(),
            };
            self.answers.entry(line.to_owned()).or_default().push(output);
            self
        }

        /// The command lines run so far.
        pub(crate) fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }
    }

    #[async_trait]
    impl Commands for Recorded {
        async fn run(&self, program: &str, args: &[&str], _limit: Duration) -> Result<Output, CommandError> {
            let line = std::iter::once(program)
                .chain(args.iter().copied())
                .collect::<Vec<_>>()
                .join(" ");
            let mut asked = self.asked.lock().unwrap();
            let before = asked.iter().filter(|known| **known == line).count();
            asked.push(line.clone());
            match self.answers.get(&line) {
                Some(answers) => Ok(answers[before.min(answers.len() - 1)].clone()),
                None => Err(CommandError::Start {
                    program: program.to_owned(),
                    source: std::io::Error::from(std::io::ErrorKind::NotFound),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn real_commands() {
        let output = SystemCommands
            .run(
                "sh",
                &["-c", "echo out; echo err >&2; exit 3"],
                Duration::from_secs(10),
            )
            .await
            .unwrap();
        assert_eq!(
            output,
            Output {
                code: Some(3),
                stdout: "out\n".into(),
                stderr: "err\n".into()
            }
        );
        assert!(matches!(
            SystemCommands
                .run("/no/such/tool", &[], Duration::from_secs(1))
                .await,
            Err(CommandError::Start { .. })
        ));
        assert!(matches!(
            SystemCommands
                .run("sleep", &["60"], Duration::from_millis(10))
                .await,
            Err(CommandError::Timeout { .. })
        ));
    }
}
