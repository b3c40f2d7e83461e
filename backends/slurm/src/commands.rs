//! The commands of Slurm that are used, each as one script on the login node.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_system::Random;
use dstack_units::quoting::{shell_line, shell_word};
use tokio::time::timeout;

use crate::framing::{self, Answer};
use crate::jobs::{self, FORMAT, Job, JobState};
use crate::login::{LoginError, LoginNode};
use crate::login_keys;
use crate::nodes::{Node, read_nodes, read_partitions};

/// How long a command may take. Slurm itself gives up on a controller that is silent after ten seconds (`MessageTimeout`).
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// As much of what a failed command said is shown.
const MAX_SHOWN_CHARS: usize = 400;

/// What a shell says with this status: there is no such command.
const NO_COMMAND: u32 = 127;

/// What Slurm's commands say where nobody knows whether the controller has done what it was asked for, in lower case.
const UNCLEAR: &[&str] = &[
    "unable to contact slurm controller",
    "socket timed out",
    "communication connection failure",
    "communication shutdown failure",
    "communication send failure",
    "communication receive failure",
    "zero bytes were transmitted",
    "connection refused",
    "connection reset",
    "connection timed out",
    "transport endpoint",
    "temporarily unable to accept job",
    "slurm controller is in standby",
];

/// The commands of one cluster.
#[derive(Debug)]
pub(crate) struct Commands {
    /// Name of the cluster.
    cluster: String,
    login: Arc<dyn LoginNode>,
    random: Random,
    /// `squeue --only-job-state`, which asks the controller for less, is known there (since Slurm 24.05).
    knows_only_job_state: AtomicBool,
}

/// Why a command did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandError {
    Login(LoginError),
    /// It ended with another status than 0.
    Failed {
        status: u32,
        stderr: String,
    },
}

impl Commands {
    pub(crate) fn new(cluster: &str, login: Arc<dyn LoginNode>, random: Random) -> Self {
        Self {
            cluster: cluster.to_owned(),
            login,
            random,
            knows_only_job_state: AtomicBool::new(true),
        }
    }

    async fn answer(&self, script: impl FnOnce(&str) -> String) -> Result<Answer, LoginError> {
        let mark = format!("dstack-{}", self.random.uuid().simple());
        let script = framing::wrap(&mark, &script(&mark));
        let ran = timeout(COMMAND_LIMIT, self.login.run(&script)).await;
        let output = ran.unwrap_or_else(|_| {
            let text = format!("no answer within {} s", COMMAND_LIMIT.as_secs());
            Err(LoginError::Lost(text))
        })?;
        framing::read(&mark, &output).ok_or_else(|| {
            LoginError::Lost(match shown(&output.stderr).as_str() {
                "" => "the connection broke before a command had ended".to_owned(),
                stderr => format!("the login shell did not run a command to its end: {stderr}"),
            })
        })
    }

    async fn run(&self, script: impl FnOnce(&str) -> String) -> Result<String, CommandError> {
        let answer = self.answer(script).await.map_err(CommandError::Login)?;
        match answer.status {
            0 => Ok(answer.stdout),
            status => Err(CommandError::Failed {
                status,
                stderr: shown(&answer.stderr),
            }),
        }
    }

    async fn ask(&self, script: &str) -> Result<String, ComputeError> {
        let ran = self.run(|_| script.to_owned()).await;
        ran.map_err(|error| self.explain(&error))
    }

    /// What an error of a command that changes nothing means.
    pub(crate) fn explain(&self, error: &CommandError) -> ComputeError {
        let cluster = &self.cluster;
        match error {
            CommandError::Login(
                error @ (LoginError::Key(_) | LoginError::Denied(_) | LoginError::HostKey(_)),
            ) => ComputeError::Credentials(format!("cluster '{cluster}': {error}")),
            CommandError::Login(error) => ComputeError::Unclear(format!("cluster '{cluster}': {error}")),
            CommandError::Failed {
                status: NO_COMMAND,
                stderr,
            } => ComputeError::Configuration(format!(
                "cluster '{cluster}': the login node has no such command ({stderr}). Add the folder of Slurm's commands to PATH in the \
                 profile of the user"
            )),
            CommandError::Failed { status, stderr } => ComputeError::Unclear(format!(
                "cluster '{cluster}': a command ended with status {status}: {stderr}"
            )),
        }
    }

    /// Whether the controller answers.
    pub(crate) async fn ping(&self) -> Result<(), CommandError> {
        self.run(|_| "scontrol ping".to_owned()).await.map(drop)
    }

    pub(crate) async fn partitions(&self) -> Result<Vec<String>, ComputeError> {
        let said = self.ask("sinfo -h -o '%P'").await?;
        Ok(read_partitions(&said))
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>, ComputeError> {
        let said = self.ask("scontrol show -o node").await?;
        Ok(read_nodes(&said))
    }

    /// Those of a list of Slurm's, such as `node[1-2]`, in its order: that of `SLURM_NODEID`.
    pub(crate) async fn nodes_of(&self, list: &str) -> Result<Vec<Node>, ComputeError> {
        let script = format!("scontrol show -o {}", shell_word(&format!("node={list}")));
        Ok(read_nodes(&self.ask(&script).await?))
    }

    /// Addresses of names, as the login node resolves them. Names without an address are left out.
    pub(crate) async fn addresses(&self, names: &[&str]) -> Result<HashMap<String, IpAddr>, ComputeError> {
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        // Of several names, it says 2 if one of them has no address.
        let script = format!(
            "{} || [ $? = 2 ]",
            shell_line(["getent", "hosts"].iter().chain(names))
        );
        let said = self.ask(&script).await?;
        let mut found = HashMap::new();
        for line in said.lines() {
            let mut words = line.split_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse) else {
                continue;
            };
            for name in words {
                found.entry(name.to_owned()).or_insert(address);
            }
        }
        Ok(found)
    }

    /// Submits a job; its id. After a refusal, there is no such job.
    pub(crate) async fn submit(&self, batch: &str) -> Result<String, ComputeError> {
        let script = |mark: &str| format!("sbatch --parsable <<'{mark}-batch'\n{batch}{mark}-batch");
        let said = self.run(script).await.map_err(|error| self.refusal(&error))?;
        jobs::read_submitted(&said).ok_or_else(|| {
            let said = shown(&said);
            ComputeError::Unclear(format!("cluster '{}': sbatch named no job: {said}", self.cluster))
        })
    }

    /// What an error of `sbatch` means: all that the controller itself says is a refusal.
    fn refusal(&self, error: &CommandError) -> ComputeError {
        let CommandError::Failed { stderr, .. } = error else {
            return self.explain(error);
        };
        let text = stderr.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let is_answer = says(&["batch job submission failed", "unrecognized option", "invalid"]);
        if !is_answer || says(UNCLEAR) {
            return self.explain(error);
        }
        let details = format!("cluster '{}': {stderr}", self.cluster);
        if says(&[
            "node configuration is not available",
            "node count specification",
            "more processors requested",
        ]) {
            ComputeError::NoCapacity(details)
        } else if says(&["policy", "limit", "qos", "assoc"]) {
            ComputeError::NoQuota(details)
        } else {
            ComputeError::Refused(details)
        }
    }

    /// Those of these jobs that Slurm still knows, which it does for a while (`MinJobAge`) after they are over.
    pub(crate) async fn jobs(&self, ids: &[&str]) -> Result<Vec<Job>, ComputeError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.list(&format!("-t all -j {}", ids.join(","))).await
    }

    /// Jobs of the user with this name, also those that are over.
    pub(crate) async fn jobs_named(&self, name: &str) -> Result<Vec<Job>, ComputeError> {
        let jobs = self
            .list(&format!(
                "-t all -u \"$(id -un)\" {}",
                shell_word(&format!("--name={name}"))
            ))
            .await?;
        Ok(jobs.into_iter().filter(|job| job.name == name).collect())
    }

    /// Jobs of the user that are not over.
    pub(crate) async fn own_jobs(&self) -> Result<Vec<Job>, ComputeError> {
        self.list("-u \"$(id -un)\"").await
    }

    async fn list(&self, which: &str) -> Result<Vec<Job>, ComputeError> {
        let script = format!("SLURM_TIME_FORMAT=%s squeue -h {which} -o '{FORMAT}'");
        let said = match self.run(|_| script).await {
            Err(error) if is_unknown_job(&error) => return Ok(Vec::new()),
            said => said.map_err(|error| self.explain(&error))?,
        };
        jobs::read_jobs(&said).ok_or_else(|| {
            let said = shown(&said);
            ComputeError::Unclear(format!(
                "cluster '{}': squeue does not list jobs: {said}",
                self.cluster
            ))
        })
    }

    /// The state of a job; `None`: Slurm does not know it any more.
    pub(crate) async fn state(&self, id: &str) -> Result<Option<JobState>, ComputeError> {
        if self.knows_only_job_state.load(Ordering::Relaxed) {
            match self
                .run(|_| format!("squeue -j {id} --only-job-state -h -o '%T'"))
                .await
            {
                Ok(said) => return Ok(read_state(&said)),
                Err(error) if is_unknown_job(&error) => return Ok(None),
                Err(CommandError::Failed { stderr, .. }) if stderr.contains("unrecognized option") => {
                    self.knows_only_job_state.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(self.explain(&error)),
            }
        }
        match self.run(|_| format!("squeue -j {id} -h -o '%T'")).await {
            Ok(said) => Ok(read_state(&said)),
            Err(error) if is_unknown_job(&error) => Ok(None),
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Cancels a job if it has this name: after Slurm has lost its state, ids begin anew. What became of that, lists tell.
    pub(crate) async fn cancel(&self, id: &str, name: &str) -> Result<(), ComputeError> {
        let script = format!("scancel {} {id}", shell_word(&format!("--name={name}")));
        match self.run(|_| script).await {
            Err(CommandError::Failed { ref stderr, status })
                if status != NO_COMMAND && !is_unclear(stderr) =>
            {
                Ok(())
            }
            ran => ran.map(drop).map_err(|error| self.explain(&error)),
        }
    }

    /// Lets keys through the login node as long as the job is there.
    pub(crate) async fn add_keys(&self, job_name: &str, keys: &[String]) -> Result<(), ComputeError> {
        let Some(script) = login_keys::add_script(job_name, keys) else {
            return Err(ComputeError::Refused("none of the public keys is one".to_owned()));
        };
        self.ask(&script).await.map(drop)
    }

    pub(crate) async fn remove_keys(&self, job_name: &str) -> Result<(), ComputeError> {
        self.ask(&login_keys::remove_script(job_name)).await.map(drop)
    }

    /// Names of jobs whose keys are let through.
    pub(crate) async fn jobs_with_keys(&self) -> Result<Vec<String>, ComputeError> {
        let said = self.ask(&login_keys::list_script()).await?;
        Ok(said
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect())
    }
}

fn read_state(said: &str) -> Option<JobState> {
    said.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(JobState::read)
}

/// An id that Slurm does not know any more is an error when it is the only one.
fn is_unknown_job(error: &CommandError) -> bool {
    matches!(error, CommandError::Failed { stderr, .. } if stderr.contains("Invalid job id specified"))
}

fn is_unclear(stderr: &str) -> bool {
    let text = stderr.to_ascii_lowercase();
    UNCLEAR.iter().any(|words| text.contains(words))
}

/// The end of what a command said, in one line.
fn shown(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let line = lines.join("; ");
    let start = line
        .char_indices()
        .rev()
        .nth(MAX_SHOWN_CHARS - 1)
        .map_or(0, |(at, _)| at);
    line.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::login::Output;

    /// Says the same to everything, with the marks of the script.
    #[derive(Debug)]
    struct Says {
        status: u32,
        stdout: &'static str,
        stderr: &'static str,
        scripts: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl LoginNode for Says {
        async fn run(&self, script: &str) -> Result<Output, LoginError> {
            let mark = script.split('\'').nth(3).unwrap();
            self.scripts.lock().unwrap().push(script.replace(mark, "MARK"));
            Ok(Output {
                status: Some(0),
                stdout: format!("Welcome\n{mark}\n{}\n{mark} {}\n", self.stdout, self.status),
                stderr: format!("{mark}\n{}", self.stderr),
            })
        }
    }

    fn commands(status: u32, stdout: &'static str, stderr: &'static str) -> (Commands, Arc<Says>) {
        let says = Arc::new(Says {
            status,
            stdout,
            stderr,
            scripts: Mutex::default(),
        });
        (
            Commands::new("c", Arc::clone(&says) as Arc<dyn LoginNode>, Random::seeded(1)),
            says,
        )
    }

    #[tokio::test]
    async fn a_submission_is_refused_only_by_the_controller() {
        let failed = |text: &str| format!("sbatch: error: Batch job submission failed: {text}");
        for (text, is_expected) in [
            (
                "Requested node configuration is not available",
                (|e| matches!(e, ComputeError::NoCapacity(_))) as fn(&_) -> bool,
            ),
            (
                "Job violates accounting/QOS policy (job submit limit, …)",
                |e| matches!(e, ComputeError::NoQuota(_)),
            ),
            ("Invalid partition name specified", |e| {
                matches!(e, ComputeError::Refused(_))
            }),
            (
                "Invalid account or account/partition combination specified",
                |e| matches!(e, ComputeError::Refused(_)),
            ),
            ("Unable to contact slurm controller (connect failure)", |e| {
                matches!(e, ComputeError::Unclear(_))
            }),
            ("Socket timed out on send/recv operation", |e| {
                matches!(e, ComputeError::Unclear(_))
            }),
        ] {
            let (commands, _) = commands(1, "", failed(text).leak());
            let error = commands.submit("#!/bin/sh\n").await.unwrap_err();
            assert!(
                is_expected(&error) && error.to_string().contains("cluster 'c'"),
                "{text}: {error:?}"
            );
        }
        let (killed, _) = commands(137, "", "Killed");
        assert!(matches!(
            killed.submit("").await.unwrap_err(),
            ComputeError::Unclear(_)
        ));
        let (without, _) = commands(127, "", "sh: 1: sbatch: not found");
        let error = without.submit("").await.unwrap_err();
        assert!(
            matches!(&error, ComputeError::Configuration(text) if text.contains("PATH")),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_slurm_without_only_job_state_is_asked_without_it_from_then_on() {
        let (commands, says) = commands(1, "", "squeue: unrecognized option '--only-job-state'");
        for _ in 0..2 {
            commands.state("7").await.unwrap_err();
        }
        let scripts = says.scripts.lock().unwrap();
        let with: Vec<bool> = scripts
            .iter()
            .map(|script| script.contains("--only-job-state"))
            .collect();
        assert_eq!(with, [true, false, false]);
    }

    #[tokio::test]
    async fn a_job_that_slurm_does_not_know_is_no_error() {
        let (commands, _) = commands(1, "", "slurm_load_jobs error: Invalid job id specified");
        assert_eq!(commands.state("7").await.unwrap(), None);
        assert_eq!(commands.jobs(&["7"]).await.unwrap(), []);
        let (lists_nothing, _) = self::commands(0, "\n", "");
        assert_eq!(lists_nothing.state("7").await.unwrap(), None);
    }

    #[tokio::test]
    async fn names_have_the_addresses_that_the_login_node_knows() {
        let (commands, says) = commands(0, "10.0.0.7       node7.example node7\nfe80::1 node8\nwhat\n", "");
        let found = commands.addresses(&["node7", "node8", "it's"]).await.unwrap();
        assert_eq!(found["node7"], "10.0.0.7".parse::<IpAddr>().unwrap());
        assert_eq!(found["node8"], "fe80::1".parse::<IpAddr>().unwrap());
        assert_eq!(found.get("it's"), None);
        let scripts = says.scripts.lock().unwrap();
        assert!(
            scripts[0].contains("getent hosts node7 node8 'it'\\''s'"),
            "{}",
            scripts[0]
        );
    }

    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl LoginNode for Silent {
        async fn run(&self, _: &str) -> Result<Output, LoginError> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_login_node_is_not_waited_for() {
        let commands = Commands::new("c", Arc::new(Silent), Random::seeded(1));
        let error = commands.partitions().await.unwrap_err();
        assert_eq!(
            error,
            ComputeError::Unclear("cluster 'c': no answer within 30 s".to_owned())
        );
    }
}
