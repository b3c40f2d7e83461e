//! The job's environment, and the files that bring it to login shells and MPI.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use dstack_agent_api::runner::{ClusterInfo, SubmitBody};

/// Variables of a process.
pub type Env = BTreeMap<String, String>;

/// The runner's own variables that no job may see.
const OWN: [&str; 2] = [crate::TOKEN_VARIABLE, crate::OWN_NETWORK_VARIABLE];

/// Paths that show up in the environment; all absolute.
#[derive(Debug, Clone, Copy)]
pub struct Paths<'a> {
    /// Home of the job's user.
    pub home: &'a Path,
    /// Working directory of the job.
    pub working_dir: &'a Path,
    /// Where the repo is.
    pub repo_dir: &'a Path,
    /// MPI host file.
    pub hostfile: &'a Path,
}

/// The job's environment. Precedence, low to high: the runner's own (the image's), `DSTACK_*`, secrets, the job's.
pub fn job_env(
    own: impl IntoIterator<Item = (String, String)>,
    submit: &SubmitBody,
    paths: Paths<'_>,
) -> Env {
    let mut env: Env = own
        .into_iter()
        .filter(|(name, _)| !OWN.contains(&name.as_str()))
        .collect();
    env.extend(dstack_variables(submit, paths));
    let exposed = submit.secrets.iter().chain(&submit.job_spec.env);
    env.extend(exposed.map(|(name, value)| (name.clone(), value.expose().to_owned())));
    // A process cannot be given these at all.
    env.retain(|name, value| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    env.retain(|name, _| !is_bash_function(name));
    env.insert("HOME".to_owned(), paths.home.display().to_string());
    env
}

fn dstack_variables(submit: &SubmitBody, paths: Paths<'_>) -> Vec<(String, String)> {
    let (spec, cluster) = (&submit.job_spec, &submit.cluster_info);
    let run_spec = &submit.run.run_spec;
    [
        ("DSTACK_RUN_ID", submit.run.id.clone()),
        ("DSTACK_JOB_ID", submit.job_submission.id.clone()),
        ("DSTACK_RUN_NAME", run_spec.run_name.clone()),
        ("DSTACK_REPO_ID", run_spec.repo_id.clone()),
        ("DSTACK_REPO_DIR", paths.repo_dir.display().to_string()),
        ("DSTACK_WORKING_DIR", paths.working_dir.display().to_string()),
        ("DSTACK_NODES_IPS", cluster.job_ips.join("\n")),
        ("DSTACK_MASTER_NODE_IP", cluster.master_job_ip.clone()),
        ("DSTACK_NODE_RANK", spec.job_num.to_string()),
        ("DSTACK_NODES_NUM", spec.jobs_per_replica.to_string()),
        ("DSTACK_GPUS_PER_NODE", cluster.gpus_per_job.to_string()),
        (
            "DSTACK_GPUS_NUM",
            gpus_num(spec.jobs_per_replica, cluster).to_string(),
        ),
        ("DSTACK_MPI_HOSTFILE", paths.hostfile.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn gpus_num(nodes: i64, cluster: &ClusterInfo) -> i64 {
    if cluster.gpus_per_node.is_empty() {
        nodes.saturating_mul(cluster.gpus_per_job)
    } else {
        cluster
            .gpus_per_node
            .iter()
            .fold(0, |sum: i64, gpus| sum.saturating_add(*gpus))
    }
}

/// A function exported by bash (`BASH_FUNC_name%%`, old `BASH_FUNC_name()`).
fn is_bash_function(name: &str) -> bool {
    name.starts_with("BASH_FUNC_") && (name.ends_with("%%") || name.ends_with("()"))
}

/// Variables that a login shell has of its own.
const SHELL_OWNED: [&str; 7] = ["HOSTNAME", "USER", "HOME", "SHELL", "SHLVL", "PWD", "_"];

/// The part of the environment that logins get, too.
pub fn shared_with_logins(env: &Env) -> impl Iterator<Item = (&str, &str)> {
    env.iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, _)| !SHELL_OWNED.contains(name) && is_identifier(name))
}

fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// A script that brings the job's environment into a login shell.
pub fn profile(env: &Env) -> String {
    let mut script = String::new();
    for (name, value) in shared_with_logins(env) {
        let _ = writeln!(script, "export {name}='{}'", value.replace('\'', r"'\''"));
    }
    script.push_str("cd \"$DSTACK_WORKING_DIR\"\n");
    script
}

/// The numbers of GPUs and addresses do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{gpus} nodes have GPU counts but {ips} nodes have addresses")]
pub struct HostfileError {
    gpus: usize,
    ips: usize,
}

/// `<ip> slots=<gpus>` for each node; empty while an address is unknown.
pub fn hostfile(cluster: &ClusterInfo) -> Result<String, HostfileError> {
    let ips = &cluster.job_ips;
    if ips.iter().any(String::is_empty) {
        return Ok(String::new());
    }
    let gpus = if cluster.gpus_per_node.is_empty() {
        vec![cluster.gpus_per_job; ips.len()]
    } else {
        cluster.gpus_per_node.clone()
    };
    if gpus.len() != ips.len() {
        return Err(HostfileError {
            gpus: gpus.len(),
            ips: ips.len(),
        });
    }
    let line = |(ip, gpus): (&String, i64)| {
        if gpus > 0 {
            format!("{ip} slots={gpus}\n")
        } else {
            format!("{ip}\n")
        }
    };
    Ok(ips.iter().zip(gpus).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit() -> SubmitBody {
        serde_json::from_value(serde_json::json!({
            "run": {"id": "r", "run_spec": {"run_name": "name", "repo_id": "repo"}},
            "job_submission": {"id": "j"},
            "job_spec": {"job_num": 1, "jobs_per_replica": 2,
                "env": {"A": "job", "B": "job", "DSTACK_RUN_NAME": "mine", "BASH_FUNC_x%%": "()", "HOME": "/no"}},
            "cluster_info": {"job_ips": ["10.0.0.1", "10.0.0.2"], "master_job_ip": "10.0.0.1", "gpus_per_job": 4,
                "gpus_per_node": [4, 8]},
            "secrets": {"B": "secret", "S": "secret"}
        }))
        .unwrap()
    }

    fn paths() -> Paths<'static> {
        Paths {
            home: Path::new("/home/app"),
            working_dir: Path::new("/work"),
            repo_dir: Path::new("/work/repo"),
            hostfile: Path::new("/dstack/mpi/hostfile"),
        }
    }

    #[test]
    fn precedence() {
        let own = [
            ("A", "image"),
            ("PATH", "/bin"),
            ("BASH_FUNC_y()", "x"),
            ("DSTACK_RUNNER_TOKEN", "t"),
            ("DSTACK_RUNNER_OWN_NETWORK", "1"),
            ("DSTACK_JOB_ID", "x"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = job_env(own, &submit(), paths());
        let expected = [
            ("A", "job"),
            ("B", "job"),
            ("DSTACK_GPUS_NUM", "12"),
            ("DSTACK_GPUS_PER_NODE", "4"),
            ("DSTACK_JOB_ID", "j"),
            ("DSTACK_MASTER_NODE_IP", "10.0.0.1"),
            ("DSTACK_MPI_HOSTFILE", "/dstack/mpi/hostfile"),
            ("DSTACK_NODES_IPS", "10.0.0.1\n10.0.0.2"),
            ("DSTACK_NODES_NUM", "2"),
            ("DSTACK_NODE_RANK", "1"),
            ("DSTACK_REPO_DIR", "/work/repo"),
            ("DSTACK_REPO_ID", "repo"),
            ("DSTACK_RUN_ID", "r"),
            ("DSTACK_RUN_NAME", "mine"),
            ("DSTACK_WORKING_DIR", "/work"),
            ("HOME", "/home/app"),
            ("PATH", "/bin"),
            ("S", "secret"),
        ];
        assert_eq!(
            env,
            expected
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
    }

    #[test]
    fn profiles_quote_and_leave_out() {
        let env = [
            ("A", "it's"),
            ("HOME", "/x"),
            ("_", "x"),
            ("a-b", "x"),
            ("1A", "x"),
            ("_B", "two\nlines"),
        ];
        let env = env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(
            profile(&env),
            "export A='it'\\''s'\nexport _B='two\nlines'\ncd \"$DSTACK_WORKING_DIR\"\n"
        );
    }

    #[test]
    fn hostfiles() {
        let mut cluster = submit().cluster_info;
        assert_eq!(
            hostfile(&cluster).unwrap(),
            "10.0.0.1 slots=4\n10.0.0.2 slots=8\n"
        );
        cluster.gpus_per_node = vec![0];
        assert!(hostfile(&cluster).is_err());
        cluster.gpus_per_node.clear();
        cluster.gpus_per_job = 0;
        assert_eq!(hostfile(&cluster).unwrap(), "10.0.0.1\n10.0.0.2\n");
        cluster.job_ips = vec!["10.0.0.1".into(), String::new()];
        assert_eq!(hostfile(&cluster).unwrap(), "");
    }
}
