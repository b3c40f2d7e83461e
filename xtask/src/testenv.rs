//! What the tests need around them: container engine, database, SSH, the Python CLI, a browser.
//!
//! Each part that cannot be had is reported with the tests that will be skipped for want of it; the tests
//! find the parts through `DSTACK_TEST_*` variables and skip themselves, with a reason, when one is unset.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exec::{is_root, run_quietly, step, succeeds, which};
use crate::postgres::{Durability, Postgres};
use crate::{layout, package, python, ui};
use anyhow::{Context, Result, bail};

/// The prepared surroundings. Dropping it stops what it started, and nothing else.
pub(crate) struct TestEnv {
    /// Variables for the tests.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// What could not be had: which tests are skipped, and why.
    pub(crate) missing: Vec<String>,
    postgres: Option<Postgres>,
    _docker: Option<DockerDaemon>,
}

impl TestEnv {
    pub(crate) fn prepare() -> TestEnv {
        let mut env = TestEnv::empty();
        env.programs();
        env.docker();
        env.start_postgres(Durability::None);
        env.python();
        env.browser();
        env.warn();
        env
    }

    /// What the tests of the web page need.
    pub(crate) fn for_page() -> TestEnv {
        let mut env = TestEnv::empty();
        env.browser();
        env.warn();
        env
    }

    /// What the measures need.
    pub(crate) fn for_measures() -> TestEnv {
        let mut env = TestEnv::empty();
        env.docker();
        env.start_postgres(Durability::Synced);
        env.note("measures beside nginx", package::ensure("nginx", "nginx"));
        env.warn();
        env
    }

    fn empty() -> TestEnv {
        TestEnv {
            variables: Vec::new(),
            missing: Vec::new(),
            postgres: None,
            _docker: None,
        }
    }

    fn warn(&self) {
        for line in &self.missing {
            println!("warning: {line}");
        }
    }

    /// Whether tests on PostgreSQL can run.
    pub(crate) fn has_postgres(&self) -> bool {
        self.postgres.is_some()
    }

    fn programs(&mut self) {
        let needed = [
            ("git", "git", "tests with git repositories"),
            (
                "ssh",
                "openssh-client",
                "tests of SSH connections and of the Python CLI",
            ),
            ("ssh-keygen", "openssh-client", "tests of SSH connections"),
            ("busybox", "busybox-static", "tests with containers"),
            ("ip", "iproute2", "tests with hosts of their own"),
            ("iptables", "iptables", "tests with hosts of their own"),
            ("sudo", "sudo", "tests with hosts of their own"),
            ("systemctl", "systemd", "tests with hosts of their own"),
            ("pgrep", "procps", "tests with hosts of their own"),
            ("nsenter", "util-linux", "tests with hosts of their own"),
            ("mpirun", "openmpi-bin", "tests with MPI"),
            ("sbatch", "slurm-wlm", "tests with a real Slurm"),
            ("munge", "munge", "tests with a real Slurm"),
        ];
        for (program, package, tests) in needed {
            self.note(tests, package::ensure(program, package));
        }
        self.note("tests with sshd", sshd());
    }

    fn docker(&mut self) {
        let started = DockerDaemon::ensure();
        let Some(daemon) = self.note("tests with containers", started) else {
            return;
        };
        let image = match &daemon {
            Some(daemon) => {
                self.variables.push(("DOCKER_HOST", daemon.host.clone()));
                Ok(())
            }
            None => import_image(),
        };
        if self.note("tests with containers", image).is_some() {
            self.variables.push(("DSTACK_TEST_IMAGE", IMAGE.to_owned()));
        }
        self._docker = daemon;
    }

    fn start_postgres(&mut self, durability: Durability) {
        let started = Postgres::start(durability);
        if let Some(postgres) = self.note("tests on PostgreSQL", started) {
            self.variables.push(("DSTACK_TEST_POSTGRES_URL", postgres.url()));
            self.postgres = Some(postgres);
        }
    }

    fn python(&mut self) {
        let environments = [
            (
                "venv",
                "requirements.txt",
                "DSTACK_TEST_PYTHON_ENV",
                "tests with the Python CLI",
            ),
            (
                "schemathesis",
                "schemathesis.txt",
                "DSTACK_TEST_SCHEMATHESIS",
                "tests with generated requests",
            ),
            (
                "aws",
                "aws.txt",
                "DSTACK_TEST_AWS_ENV",
                "tests with boto3 and moto",
            ),
            (
                "openai",
                "openai.txt",
                "DSTACK_TEST_OPENAI_ENV",
                "tests with the clients of OpenAI and of WebSockets",
            ),
        ];
        for (name, requirements, variable, tests) in environments {
            let requirements = layout::root().join("tests/python").join(requirements);
            let made = python::environment(name, &requirements);
            if let Some(folder) = self.note(tests, made) {
                self.variables.push((variable, folder.display().to_string()));
            }
        }
    }

    fn browser(&mut self) {
        self.note("tests of the web page", ui::prepare());
        let there = package::ensure("chromium", "chromium")
            .and_then(|()| which("chromium").context("chromium is not on the path"));
        if let Some(program) = self.note("tests of the web page in a browser", there) {
            let program = program.display().to_string();
            self.variables.push(("DSTACK_TEST_CHROMIUM", program));
        }
    }

    /// Passes a result on, noting a failure together with the tests it costs.
    fn note<T>(&mut self, tests: &str, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| self.missing.push(format!("{tests} will be skipped: {error:#}")))
            .ok()
    }
}

/// sshd runs as a system service elsewhere; tests start their own from this program.
fn sshd() -> Result<()> {
    if which("sshd").is_some() || PathBuf::from("/usr/sbin/sshd").is_file() {
        return Ok(());
    }
    package::install("openssh-server")
}

/// The container engine of the tests. Root gets one of its own, so that nothing of the tests is ever left in the
/// engine of the machine; others use the engine that answers.
struct DockerDaemon {
    host: String,
    /// Whether it was there before us: then it also stays.
    found: bool,
}

/// Tests that run without `cargo xtask test` start the engine in the same folder. A short path: that of a socket may
/// have 107 bytes at most.
const DOCKER_FOLDER: &str = "/tmp/dstack-test-docker";

impl DockerDaemon {
    /// `None`: the machine's engine is to be used.
    fn ensure() -> Result<Option<DockerDaemon>> {
        if !is_root() {
            return if engine_answers(None) {
                Ok(None)
            } else {
                bail!("no container engine answers, and only root can start one")
            };
        }
        if which("dockerd").is_none() {
            package::install("docker.io")?;
        }
        let host = format!("unix://{DOCKER_FOLDER}/docker.sock");
        let found = engine_answers(Some(&host));
        if !found {
            step("starting a container engine");
        }
        run_quietly(script("start").arg(DOCKER_FOLDER))?;
        Ok(Some(DockerDaemon { host, found }))
    }
}

impl Drop for DockerDaemon {
    fn drop(&mut self) {
        if !self.found {
            succeeds(script("stop").arg(DOCKER_FOLDER));
            // The engine's files belong to its containers' users; what cannot be removed stays for the next run.
            fs_err::remove_dir_all(DOCKER_FOLDER).ok();
        }
    }
}

fn script(verb: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg(layout::root().join("tests/scripts/dockerd.sh"))
        .arg(verb);
    command
}

fn engine_answers(host: Option<&str>) -> bool {
    let mut command = Command::new("docker");
    command.args(["version", "--format", "{{.Server.Version}}"]);
    succeeds(command.envs(host.map(|host| ("DOCKER_HOST", host))))
}

/// The image tests use: made of this machine's static busybox, so that no registry is needed.
const IMAGE: &str = "dstack-test/busybox:1";

/// Makes [`IMAGE`] in the machine's engine; `dockerd.sh` makes it in its own.
fn import_image() -> Result<()> {
    if succeeds(Command::new("docker").args(["image", "inspect", IMAGE])) {
        return Ok(());
    }
    step(&format!("importing the test image {IMAGE}"));
    let busybox = which("busybox").context("no busybox to make a test image of")?;
    let folder = tempfile::tempdir()?;
    let rootfs = folder.path().join("rootfs");
    for dir in ["bin", "etc", "tmp", "root"] {
        fs_err::create_dir_all(rootfs.join(dir))?;
    }
    fs_err::copy(&busybox, rootfs.join("bin/busybox"))?;
    let applets = run_quietly(Command::new(&busybox).arg("--list"))?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        fs_err::os::unix::fs::symlink("busybox", rootfs.join("bin").join(applet))?;
    }
    fs_err::write(rootfs.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs_err::write(rootfs.join("etc/group"), "root:x:0:\n")?;
    import(&rootfs, IMAGE)?;
    // Nothing to run in it: what an image without a shell looks like.
    import(&rootfs.join("etc"), "dstack-test/empty:1")
}

fn import(root: &Path, image: &str) -> Result<()> {
    let archive = root.with_extension("tar");
    run_quietly(
        Command::new("tar")
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(root)
            .arg("."),
    )?;
    run_quietly(Command::new("docker").arg("import").arg(&archive).arg(image))?;
    Ok(fs_err::remove_file(archive)?)
}
