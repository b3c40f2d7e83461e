//! A real Slurm on a host of a lab, which is login node and nodes in one. Containers are left out: a job's command runs on that host.

use dstack_emulator_slurm::real;
use dstack_tests::hosts::{Host, Lab};
use dstack_tests::parts::{self, Part};
use serde_json::{Value, json};

use crate::{Books, Cloud};

/// On the host.
const FOLDER: &str = "/tmp/slurm";

/// What slurmd wants of a host: that it knows its own name, and that control groups are either all new or as systemd has the old ones.
const NEEDS: &str = "echo 127.0.0.1 login >>/etc/hosts
    groups=/sys/fs/cgroup/systemd
    if [ -d /sys/fs/cgroup/memory ] && [ ! -d $groups ]; then
        mkdir $groups
        mount -t cgroup -o none,name=systemd cgroup $groups
    fi";

struct Cluster(Host<'static>);

impl Cluster {
    fn run(&self, command: &str) -> String {
        let script = format!("cd / && sh {FOLDER}.sh run {FOLDER} {command}");
        self.0.run(&script).unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.0.run(&format!("cat {FOLDER}/{name}")).unwrap()
    }
}

impl Books for Cluster {
    fn alive(&self) -> Vec<String> {
        let jobs = self.run(&format!("squeue -h -o '{}'", real::JOBS));
        let alive = real::alive(&jobs, &self.file("home/.ssh/authorized_keys"));
        alive.into_iter().map(|(_, name)| name).collect()
    }

    fn made(&self) -> usize {
        self.run("squeue -h -t all").lines().count()
    }
}

pub(crate) fn slurm() -> Part<Cloud> {
    for program in ["slurmctld", "slurmd", "sbatch", "munged"] {
        parts::program(program)?;
    }
    let (lab, ends) = Lab::for_ever()?;
    let host = lab.host("login", 2, &[])?;
    let script = include_str!("../../scripts/slurm.sh").replace('\'', r"'\''");
    host.run(&format!("set -e\n{NEEDS}\nprintf %s '{script}' >{FOLDER}.sh"))
        .unwrap();
    let start = format!(
        "cd / && sh {FOLDER}.sh start {FOLDER} {} || {{ tail -n 60 {FOLDER}/*.log >&2; exit 1; }}",
        host.address
    );
    let started = host.run(&start).unwrap();
    let port: u16 = started.trim().strip_prefix("port=").unwrap().parse().unwrap();
    let hostname = host.address.clone();
    let cluster = Cluster(host);
    let key = cluster.file("key");
    let config = |port: u16, key: &str| -> Value {
        json!({"type": "slurm", "clusters": [{
            "name": "hpc", "hostname": hostname, "port": port, "user": "root", "private_key": {"content": key}}]})
    };
    Ok(Cloud {
        name: "slurm",
        config: config(port, &key),
        // A key that opens another login node.
        wrong_config: config(port, &lab.private_key().unwrap()),
        wrong_fields: &["clusters", "private_key", "content"],
        secret: key.lines().nth(1).unwrap().to_owned(),
        files: None,
        endpoint: None,
        books: Box::new(cluster),
        offer: (&["--cpu", "2", "--memory", "4GB"], "node1"),
        made_for_two_runs: 2,
        lab: Some(ends),
    })
}
