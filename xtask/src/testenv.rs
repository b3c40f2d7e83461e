//! What the tests need around them: container engine, database, SSH, the Python CLI.
//!
//! Each part that cannot be had is reported with the tests that will be skipped for want of it; the tests
//! find the parts through `DSTACK_TEST_*` variables and skip themselves, with a reason, when one is unset.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::exec::{is_root, run_quietly, step, succeeds, which};
use crate::postgres::Postgres;
use crate::{layout, package, python};

/// The prepared surroundings. Dropping it stops what it started, and nothing else.
pub(crate) struct TestEnv {
    /// Variables for the tests.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// What could not be had: which tests are skipped, and why.
    pub(crate) missing: Vec<String>,
    _postgres: Option<Postgres>,
    _docker: Option<DockerDaemon>,
}

impl TestEnv {
    pub(crate) fn prepare() -> TestEnv {
        let mut env = TestEnv {
            variables: Vec::new(),
            missing: Vec::new(),
            _postgres: None,
            _docker: None,
        };
        env.programs();
        env.docker();
        env.postgres();
        env.python_cli();
        for line in &env.missing {
            println!("warning: {line}");
        }
        env
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

    fn postgres(&mut self) {
        let started = Postgres::start();
        if let Some(postgres) = self.note("tests on PostgreSQL", started) {
            self.variables.push(("DSTACK_TEST_POSTGRES_URL", postgres.url()));
            self._postgres = Some(postgres);
        }
    }

    fn python_cli(&mut self) {
        let requirements = layout::root().join("tests/python/requirements.txt");
        let made = python::environment("venv", &requirements);
        if let Some(venv) = self.note("tests with the Python CLI", made) {
            self.variables
                .push(("DSTACK_TEST_PYTHON_ENV", venv.display().to_string()));
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

/// A container engine that we started because none answered.
struct DockerDaemon {
    folder: TempDir,
    host: String,
}

impl DockerDaemon {
    /// `None` when an engine answers already.
    fn ensure() -> Result<Option<DockerDaemon>> {
        if engine_answers() {
            return Ok(None);
        }
        if which("dockerd").is_none() {
            package::install("docker.io")?;
            if engine_answers() {
                return Ok(None);
            }
        }
        if !is_root() {
            bail!("no container engine answers, and only root can start dockerd");
        }
        step("starting dockerd");
        // Not below the target folder: the path of a socket may have 107 bytes at most.
        let folder = TempDir::with_prefix("dstack-test-docker-")?;
        let output = run_quietly(script("start").arg(folder.path()))?;
        let host = output.lines().find_map(|line| line.strip_prefix("DOCKER_HOST="));
        let host = host.context("dockerd.sh names no DOCKER_HOST")?.to_owned();
        Ok(Some(DockerDaemon { folder, host }))
    }
}

impl Drop for DockerDaemon {
    fn drop(&mut self) {
        succeeds(script("stop").arg(self.folder.path()));
    }
}

fn script(verb: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg(layout::root().join("tests/scripts/dockerd.sh"))
        .arg(verb);
    command
}

fn engine_answers() -> bool {
    succeeds(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]))
}

/// The image tests use: made of this machine's static busybox, so that no registry is needed.
const IMAGE: &str = "dstack-test/busybox:1";

/// Makes [`IMAGE`] in an engine that was there before us; `dockerd.sh` makes it in its own.
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
