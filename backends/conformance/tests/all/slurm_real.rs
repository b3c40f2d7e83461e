//! The same checks against a real Slurm of this machine, which `tests/scripts/slurm.sh` starts: in real time, over SSH.

#![allow(clippy::print_stdout)] // tests

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use dstack_backend_kit::{
    Cloud, Driver, EmulatedTransport, Emulator, Ledger, Subject, checks, env, group, requirements,
};
use dstack_compute::{ComputeError, ConfigureError, Container};
use dstack_emulator_slurm::real;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A cluster with two nodes, which ends with this.
#[derive(Debug)]
struct RealSlurm {
    dir: TempDir,
    port: u16,
    ledger: Ledger,
    /// What the ledger has: ids and names.
    known: Mutex<Vec<(String, String)>>,
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts/slurm.sh")
}

impl RealSlurm {
    /// Starts it; `None`: it cannot be had here, and why was printed.
    fn start() -> Option<Self> {
        let dir = tempfile::Builder::new()
            .prefix("dstack-test-slurm-")
            .tempdir()
            .unwrap();
        let started = Command::new("sh")
            .arg(script())
            .arg("start")
            .arg(dir.path())
            .output()
            .unwrap();
        let (stdout, stderr) = (text(&started.stdout), text(&started.stderr));
        if started.status.code() == Some(3) {
            println!("skipped: {}", stderr.trim());
            return None;
        }
        let slurm = |port| Self {
            dir,
            port,
            ledger: Ledger::default(),
            known: Mutex::default(),
        };
        let port = stdout
            .trim()
            .strip_prefix("port=")
            .and_then(|port| port.parse().ok());
        // What runs of it already is ended as well when it did not start.
        let slurm = slurm(port.unwrap_or_default());
        assert!(started.status.success() && port.is_some(), "{stdout}{stderr}");
        Some(slurm)
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new("sh")
            .arg(script())
            .arg("run")
            .arg(self.dir.path())
            .args(words)
            .output()
            .unwrap()
    }

    fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    }

    fn file(&self, name: &str) -> String {
        fs_err::read_to_string(self.dir.path().join(name)).unwrap()
    }

    /// Jobs that are not over, and keys that are let through.
    fn alive(&self) -> Vec<(String, String)> {
        let jobs = self.says(&["squeue", "-h", "-o", real::JOBS]);
        real::alive(&jobs, &self.file("home/.ssh/authorized_keys"))
    }
}

impl Drop for RealSlurm {
    fn drop(&mut self) {
        let stopped = Command::new("sh")
            .arg(script())
            .arg("stop")
            .arg(self.dir.path())
            .output();
        if !stopped.is_ok_and(|stopped| stopped.status.success()) {
            println!("the daemons in {} were not stopped", self.dir.path().display());
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Emulator for RealSlurm {
    /// There is none.
    fn router(&self) -> Router {
        Router::new()
    }

    fn ledger(&self) -> &Ledger {
        let now = self.alive();
        let mut known = self.known.lock().unwrap();
        for (id, name) in now.iter().filter(|one| !known.contains(one)) {
            self.ledger.made("piece", id, name);
        }
        for (id, _) in known.iter().filter(|one| !now.contains(one)) {
            self.ledger.removed(id);
        }
        *known = now;
        &self.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        let state = if sold_out { "state=drain" } else { "state=resume" };
        self.says(&["scontrol", "update", "nodename=node[1-2]", state, "reason=test"]);
    }

    fn lag(&self, _: Duration) {}

    /// All processes of jobs are killed: Slurm sees that they have failed.
    fn lose_all(&self) {
        self.says(&["scancel", "--user=root", "--signal=KILL", "--full"]);
        let until_gone = "for i in $(seq 200); do [ -z \"$(squeue -h)\" ] && exit 0; sleep 0.1; done; exit 1";
        self.says(&["sh", "-c", until_gone]);
    }
}

fn config(slurm: &RealSlurm, key: &str) -> Value {
    json!({"type": "slurm", "clusters": [{
        "name": "real", "hostname": "127.0.0.1", "port": slurm.port, "user": "root", "private_key": {"content": key},
        "gpu_partitions": [{"gpu": "A100:80GB", "partitions": ["gpu"]}],
    }]})
}

fn cloud(slurm: &Arc<RealSlurm>) -> Cloud {
    let emulator: Arc<dyn Emulator> = Arc::clone(slurm) as Arc<dyn Emulator>;
    let transport = EmulatedTransport::new(emulator.router());
    let env = env(Arc::new(transport.clone()));
    Cloud {
        kind: dstack_backend_slurm::kind(env.clone()),
        emulator,
        transport,
        env,
        config: config(slurm, &slurm.file("key")),
        refused: Vec::new(),
        region: None,
    }
}

/// A container that leaves a file, so that it is seen to have run.
async fn container(cloud: &Cloud, slurm: &RealSlurm) -> Subject<Container> {
    let mut subject = dstack_backend_kit::container(cloud).await;
    let proof = slurm.dir.path().join("it's here");
    let quoted = proof.display().to_string().replace('\'', "'\\''");
    subject.want.workload.registry = None;
    subject.want.workload.script = format!("grep ^sshd: /etc/passwd >'{quoted}'\nexec sleep 600");
    subject
}

async fn appears(slurm: &RealSlurm, name: &str) -> String {
    for _ in 0..100 {
        if let Ok(text) = fs_err::read_to_string(slurm.dir.path().join(name))
            && text.ends_with('\n')
        {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{name} did not appear: {}", slurm.says(&["squeue", "-t", "all"]));
}

/// One cluster for all: it takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_slurm_is_used_as_the_emulated_one_is() {
    let Some(slurm) = RealSlurm::start() else {
        return;
    };
    let slurm = Arc::new(slurm);
    let cloud = cloud(&slurm);
    a_configuration_is_checked(&cloud, &slurm).await;
    nodes_are_offered(&cloud).await;

    let subject = container(&cloud, &slurm).await;
    checks::whole_life(&cloud, &subject).await;
    assert_eq!(
        appears(&slurm, "it's here").await,
        "sshd:x:0:0:sshd:/run/sshd:/usr/sbin/nologin\n"
    );
    let options = slurm.file("srun.log");
    for option in [
        "--container-image=registry.example#team/image:1",
        "--container-remap-root",
        "--no-container-mount-home",
    ] {
        assert!(options.lines().any(|line| line == option), "{option}: {options}");
    }
    // Named ones stay on their nodes.
    assert!(!options.contains("--container-name"), "{options}");

    a_job_with_gpus_has_the_node_that_has_them(&cloud, &slurm).await;
    checks::whole_life(&cloud, &group(&cloud, 2).await).await;
    checks::loss(&cloud, &container(&cloud, &slurm).await).await;
    let error = Driver::new(&cloud)
        .make(&group(&cloud, 3).await)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ComputeError::NoCapacity(text) if text.ends_with("as it is (PartitionNodeLimit)")),
        "{error:?}"
    );
    checks::sold_out(&cloud, &container(&cloud, &slurm).await).await;
    cloud.emulator.sell_out(false);
    a_changed_host_key_is_refused(&cloud, &slurm).await;
}

async fn a_configuration_is_checked(cloud: &Cloud, slurm: &RealSlurm) {
    cloud.configure(&cloud.config).await.unwrap();
    // Another key than those that may log in.
    let other = config(slurm, &slurm.file("host_key"));
    let error = cloud.configure(&other).await.unwrap_err();
    let ConfigureError::Credentials { fields, details } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(fields[1], ["clusters", "0", "private_key", "content"]);
    assert!(
        details
            .as_ref()
            .unwrap()
            .contains("permission denied (publickey)"),
        "{details:?}"
    );
    let other = config(slurm, "no key");
    let error = cloud.configure(&other).await.unwrap_err();
    assert!(matches!(error, ConfigureError::Credentials { .. }), "{error:?}");
}

async fn nodes_are_offered(cloud: &Cloud) {
    let offers = cloud.offers(&Cloud::requirements()).await;
    let names: Vec<&str> = offers.iter().map(|offer| offer.instance.name.as_str()).collect();
    assert_eq!(names, ["node1", "node2"]);
    assert_eq!(offers[1].availability_zones.as_ref().unwrap(), &["cpu"]);
}

async fn a_job_with_gpus_has_the_node_that_has_them(cloud: &Cloud, slurm: &RealSlurm) {
    let mut subject = container(cloud, slurm).await;
    let gpus = requirements(&json!({"resources": {"cpu": "2..", "memory": "1GB..", "gpu": "A100:2"}}));
    subject.want.offer = cloud.offers(&gpus).await.remove(0);
    subject.want.requirements = gpus;
    let driver = Driver::new(cloud);
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(place.instance_type.name, "node2");
    assert_eq!(place.availability_zone.as_deref(), Some("gpu"));
    assert_eq!(place.hostname.as_deref(), Some("localhost"));
    assert_eq!(place.internal_ip.as_deref(), Some("127.0.0.1"));
    let gres = slurm.says(&["scontrol", "show", "-o", "node=node2"]);
    assert!(gres.contains("AllocTRES=cpu=2,mem=1G"), "{gres}");
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(slurm.alive(), []);
}

/// The backend that has seen the first key sees that it is another one.
async fn a_changed_host_key_is_refused(cloud: &Cloud, slurm: &RealSlurm) {
    let backend = cloud.open();
    backend.inventory().await.unwrap();
    let dir = slurm.dir.path();
    slurm.says(&[
        "sh",
        "-c",
        &format!(
            "rm {0}/host_key*; ssh-keygen -q -t ed25519 -N '' -f {0}/host_key",
            dir.display()
        ),
    ]);
    // Read once: sshd takes the file away while it starts anew.
    let sshd = slurm.file("sshd.pid").trim().to_owned();
    slurm.says(&["kill", "-HUP", &sshd]);
    // Connections outlive the server that they began at: those are ended until one has met the new key.
    let connections = format!("kill $(ps -o pid= --ppid {sshd}) 2>/dev/null || true");
    let mut last = None;
    for _ in 0..300 {
        slurm.says(&["sh", "-c", &connections]);
        match backend.inventory().await {
            Err(error @ ComputeError::Credentials(_)) => {
                let text = error.to_string();
                assert!(
                    text.contains("the host key is SHA256:") && text.contains(", and was SHA256:"),
                    "{text}"
                );
                return;
            }
            other => last = Some(other),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("{last:?}");
}
