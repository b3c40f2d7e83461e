//! Jobs as `squeue` lists them (<https://slurm.schedmd.com/squeue.html>).

use dstack_units::Time;

/// What is asked for with `-o`: id, state, number of nodes, time of submission, partition, nodes, reason, name.
pub(crate) const FORMAT: &str = "%A|%T|%D|%V|%P|%N|%r|%j";

/// A job of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) state: JobState,
    /// Number of nodes that it asked for or has.
    pub(crate) nodes: usize,
    pub(crate) submitted_at: Option<Time>,
    /// That in which it runs.
    pub(crate) partition: String,
    /// Its nodes as Slurm writes them: `node[1-2]`.
    pub(crate) node_list: String,
    /// Why it waits or has ended.
    pub(crate) reason: String,
    pub(crate) name: String,
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobState {
    /// Waits for nodes.
    Pending,
    /// Has nodes, which are being started.
    Configuring,
    Running,
    /// What it started is being ended.
    Ending,
    /// It is over; the state.
    Over(String),
    /// A state that came after this version.
    Other(String),
}

impl JobState {
    /// From `%T`.
    pub(crate) fn read(text: &str) -> Self {
        match text {
            "PENDING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "RESV_DEL_HOLD" | "SPECIAL_EXIT" => {
                Self::Pending
            }
            "CONFIGURING" => Self::Configuring,
            "RUNNING" | "SUSPENDED" | "STOPPED" | "RESIZING" | "SIGNALING" => Self::Running,
            "COMPLETING" | "STAGE_OUT" => Self::Ending,
            "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "LAUNCH_FAILED"
            | "NODE_FAIL" | "OUT_OF_MEMORY" | "PREEMPTED" | "RECONFIG_FAIL" | "REVOKED" | "TIMEOUT" => {
                Self::Over(text.to_owned())
            }
            other => Self::Other(other.to_owned()),
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl Job {
    /// Why it runs no more, for people.
    pub(crate) fn end(&self) -> Option<String> {
        let because = match self.reason.as_str() {
            "" | "None" => String::new(),
            reason => format!(" ({reason})"),
        };
        match &self.state {
            JobState::Over(state) => Some(format!("the Slurm job {} is over: {state}{because}", self.id)),
            JobState::Ending => Some(format!("the Slurm job {} ends{because}", self.id)),
            _ => None,
        }
    }
}

/// All jobs of a list in [`FORMAT`]; `None`: it is no such list.
pub(crate) fn read_jobs(text: &str) -> Option<Vec<Job>> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(read_job)
        .collect()
}

fn read_job(line: &str) -> Option<Job> {
    let mut fields = line.splitn(8, '|');
    let mut next = || fields.next().map(|field| field.trim().to_owned());
    let id = next().filter(|id| is_id(id))?;
    let state = JobState::read(&next()?);
    let nodes = next()?.parse().unwrap_or(1);
    // As of `SLURM_TIME_FORMAT=%s`; of versions that do not know it, no time.
    let submitted_at = next()?
        .parse()
        .ok()
        .and_then(|seconds: i64| seconds.checked_mul(1000))
        .map(Time::from_millis);
    Some(Job {
        id,
        state,
        nodes,
        submitted_at,
        partition: next()?,
        node_list: next()?,
        reason: next()?,
        name: next()?,
    })
}

/// The id that `sbatch --parsable` prints: `id[;cluster]`.
pub(crate) fn read_submitted(text: &str) -> Option<String> {
    let last = text.lines().rfind(|line| !line.trim().is_empty())?;
    let id = last.trim().split(';').next()?;
    is_id(id).then(|| id.to_owned())
}

/// Whether a text is the id of a job, and thus fit for a command.
pub(crate) fn is_id(text: &str) -> bool {
    (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read() {
        // As Slurm 22.05.8 says it.
        let jobs = read_jobs(
            "4|FAILED|1|1795595857|cpu||BadConstraints|dstack-x\n1|RUNNING|2|1795595857|cpu|node[1-2]|None|a|b\n",
        )
        .unwrap();
        assert_eq!(
            jobs[0].end().unwrap(),
            "the Slurm job 4 is over: FAILED (BadConstraints)"
        );
        let expected = Job {
            id: "1".to_owned(),
            state: JobState::Running,
            nodes: 2,
            submitted_at: Some(Time::from_millis(1_795_595_857_000)),
            partition: "cpu".to_owned(),
            node_list: "node[1-2]".to_owned(),
            reason: "None".to_owned(),
            name: "a|b".to_owned(),
        };
        assert_eq!((jobs[1].end(), &jobs[1]), (None, &expected));
        assert_eq!(read_jobs("\n"), Some(Vec::new()));
        assert_eq!(read_jobs("slurm_load_jobs error"), None);
    }

    #[test]
    fn the_id_of_a_new_job_is_read() {
        assert_eq!(read_submitted("17\n").unwrap(), "17");
        assert_eq!(read_submitted("17;cluster\n").unwrap(), "17");
        assert_eq!(read_submitted("hello\n17\n\n").unwrap(), "17");
        for wrong in ["", "17 x", "-u root", "Submitted batch job 17"] {
            assert_eq!(read_submitted(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn new_states_are_neither_running_nor_over() {
        assert_eq!(JobState::read("DREAMING"), JobState::Other("DREAMING".to_owned()));
        assert!(JobState::read("NODE_FAIL").is_over());
    }

    proptest! {
        #[test]
        fn odd_lists_do_no_harm(text in "[0-9|A-Z\n]{0,40}|\\PC{0,40}") {
            for job in read_jobs(&text).into_iter().flatten() {
                prop_assert!(is_id(&job.id));
            }
        }
    }
}
