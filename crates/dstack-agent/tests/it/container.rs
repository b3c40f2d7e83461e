//! A container of a cloud, played by the engine: its first script, the agent that is brought into it over SSH, and a job.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::container::ContainerPaths;
use dstack_agent_api::runner::JobState;
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::shim::{RUNNER_HTTP_PORT, RUNNER_SSH_PORT};
use dstack_hosts::deploy::{
    AgentFiles, ContainerDeployment, ContainerOutcome, DeployError, Deployer, Progress,
};
use dstack_hosts::pool::{Keyring, Pool};
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_plan::bootstrap::Bootstrap;
use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_system::{Random, Secret};

use crate::docker::{address, engine};
use crate::real::{follow, submit};
use crate::support::{AGENT, status};

const IMAGE: &str = "dstack-test/openssh:1";
const TOKEN: &str = "the token of the job";

/// Opens everything with one key.
#[derive(Debug)]
struct OneKey(Secret);

#[async_trait]
impl Keyring for OneKey {
    async fn private_key(&self, _: &KeyRef) -> Result<Option<Secret>, String> {
        Ok(Some(self.0.clone()))
    }
}

fn docker(engine: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("docker");
    let output = command
        .env("DOCKER_HOST", engine)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("docker {arguments:?}: {}", text(&output.stderr))),
    }
}

/// A program of this machine with the libraries it is linked with.
fn copy_program(root: &Path, program: &str, to: &str) {
    let copy = |from: &Path, to: &Path| {
        fs_err::create_dir_all(to.parent().unwrap()).unwrap();
        fs_err::copy(from, to).unwrap();
    };
    copy(Path::new(program), &root.join(to.trim_start_matches('/')));
    let linked = Command::new("ldd").arg(program).output().unwrap();
    for word in String::from_utf8_lossy(&linked.stdout).split_whitespace() {
        if word.starts_with('/') && Path::new(word).exists() {
            copy(Path::new(word), &root.join(word.trim_start_matches('/')));
        }
    }
}

/// An image with this machine's OpenSSH, busybox, and a package manager that can install the one without a network.
fn make_image(engine: &str) -> Result<(), String> {
    let found = |program: &str| {
        let folders = ["/usr/sbin", "/usr/bin", "/bin", "/sbin"];
        let mut paths = folders.iter().map(|folder| format!("{folder}/{program}"));
        paths
            .find(|path| Path::new(path).exists())
            .ok_or_else(|| format!("{program} is not installed"))
    };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    copy_program(root, &found("sshd")?, "/usr/sbin/sshd");
    copy_program(root, &found("ssh-keygen")?, "/usr/bin/ssh-keygen");
    copy_program(root, &found("busybox")?, "/bin/busybox");
    // Where sshd consists of several programs.
    for part in ["sshd-session", "sshd-auth"] {
        let path = format!("/usr/lib/openssh/{part}");
        if Path::new(&path).exists() {
            copy_program(root, &path, &path);
        }
    }
    // The agent of a test is no static one.
    copy_program(root, AGENT, "/tmp/agent");
    fs_err::remove_file(root.join("tmp/agent")).unwrap();
    let applets = Command::new("busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        if applet != "busybox" {
            fs_err::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
    }
    for folder in ["etc", "root", "opt", "var"] {
        fs_err::create_dir_all(root.join(folder)).unwrap();
    }
    let etc = |name: &str, text: &str| fs_err::write(root.join("etc").join(name), text).unwrap();
    etc(
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n",
    );
    etc("group", "root:x:0:\nnogroup:x:65534:\n");
    // Locked, as in some images.
    etc(
        "shadow",
        "root:!locked::0:99999:7:::\nsshd:!:19000:0:99999:7:::\n",
    );
    let apt = root.join("usr/bin/apt-get");
    fs_err::write(
        &apt,
        "#!/bin/sh\n[ \"$1\" = install ] || exit 0\necho \"installing $*, LD_PRELOAD=$LD_PRELOAD\"\ncp /opt/sshd /usr/sbin/sshd\n",
    )
    .unwrap();
    fs_err::set_permissions(&apt, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let archive = dir.path().with_extension("tar");
    let tar = Command::new("tar")
        .arg("-C")
        .arg(root)
        .arg("-cf")
        .arg(&archive)
        .arg(".")
        .status();
    assert!(tar.unwrap().success());
    let made = docker(engine, &["import", archive.to_str().unwrap(), IMAGE]);
    fs_err::remove_file(&archive).unwrap();
    made.map(drop)
}

/// A container, removed when dropped.
struct Running {
    engine: String,
    id: String,
    project: KeyPair,
    user: KeyPair,
}

impl Drop for Running {
    fn drop(&mut self) {
        docker(&self.engine, &["rm", "-f", &self.id]).ok();
    }
}

impl Running {
    /// `None`, with the reason on stderr, where there is no engine or no OpenSSH. `before` runs before the script.
    fn start(before: &str) -> Option<Self> {
        let engine = engine()?;
        static MADE: std::sync::OnceLock<Result<(), String>> = std::sync::OnceLock::new();
        if let Err(reason) = MADE.get_or_init(|| make_image(&engine)) {
            eprintln!("skipped: {reason}");
            return None;
        }
        let key = || generate_ed25519(&Random::system(), "test").unwrap();
        let (project, user) = (key(), key());
        let keys = [&project, &user].map(|key| key.public.trim().to_owned());
        let script = Bootstrap::new(keys.to_vec()).script();
        let text = format!("{before}\n{script}");
        let id = docker(&engine, &["run", "-d", IMAGE, "/bin/sh", "-c", &text]).unwrap();
        Some(Self {
            engine,
            id,
            project,
            user,
        })
    }

    fn reach(&self) -> Reach {
        let host = Hop {
            host: address(&self.engine, &self.id),
            port: RUNNER_SSH_PORT,
            user: "root".to_owned(),
            keys: vec![KeyRef::Project {
                project: uuid::Uuid::nil().into(),
            }],
            host_keys: Vec::new(),
        };
        Reach {
            jumps: Vec::new(),
            host,
        }
    }

    fn deployment(&self) -> ContainerDeployment {
        ContainerDeployment {
            reach: self.reach(),
            paths: ContainerPaths::default(),
            runner_port: RUNNER_HTTP_PORT,
            token: TOKEN.into(),
        }
    }

    fn exec(&self, command: &str) -> String {
        docker(&self.engine, &["exec", &self.id, "/bin/sh", "-c", command]).unwrap()
    }

    fn logs(&self) -> String {
        let mut command = Command::new("docker");
        let output = command
            .env("DOCKER_HOST", &self.engine)
            .args(["logs", &self.id])
            .output();
        let output = output.unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

fn pool(key: &KeyPair) -> Pool {
    Pool::new(Arc::new(OneKey(key.private.clone())))
}

/// The agent without what is only for debuggers: it has to be sent.
fn agent(dir: &Path) -> std::path::PathBuf {
    let stripped = dir.join("dstack-agent");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(AGENT).status();
    match strip {
        Ok(status) if status.success() => stripped,
        _ => AGENT.into(),
    }
}

/// The way to the runner once it answers. Each step is cut off once before it is made, each time later.
async fn bring(deployer: &Deployer, deployment: &ContainerDeployment) -> (Reach, Vec<String>) {
    let (mut progress, mut told): (Option<Progress>, Vec<String>) = (None, Vec::new());
    for attempt in 1..200 {
        let cut_off = Duration::from_millis(40 * attempt);
        let step = deployer.container_step(deployment, progress.clone());
        tokio::time::timeout(cut_off, step).await.ok();
        match deployer.container_step(deployment, progress.clone()).await {
            Ok(ContainerOutcome::Underway { progress: now, done }) => {
                progress = Some(now);
                told.push(done);
            }
            Ok(ContainerOutcome::Ready { reach }) => return (reach, told),
            // There is no event for an SSH server that begins to listen in a container.
            Err(DeployError::Transient(error)) => {
                told.push(error);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => panic!("{error}: {told:?}"),
        }
    }
    panic!("the runner does not answer: {told:?}");
}

/// The host key that is shown to a user, and the name of process 1 of the container.
async fn attached(pool: &Pool, reach: &Reach) -> (String, String) {
    let connection = pool.connection(reach).await.unwrap();
    let output = connection
        .exec("echo $HOME; cat /proc/1/cmdline | tr '\\0' ' '", b"")
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (connection.host_key_line().to_owned(), said)
}

#[tokio::test]
async fn a_job_in_a_container_of_a_cloud() {
    let Some(container) = Running::start("export LD_PRELOAD=/lib/none.so") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (project, user) = (pool(&container.project), pool(&container.user));
    let files = AgentFiles {
        amd64: Some(agent(dir.path())),
        arm64: None,
    };
    let deployer = Deployer::new(project.clone(), files);
    let deployment = container.deployment();

    // Until its script is there, nobody answers.
    let mut first = None;
    for _ in 0..300 {
        first = user.connection(&deployment.reach).await.ok();
        if first.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(first.is_some(), "{}", container.logs());
    let (before, said) = attached(&user, &deployment.reach).await;
    assert!(
        said.starts_with("/root\n") && said.contains("/bin/sh -c"),
        "{said}"
    );

    let (reach, told) = bring(&deployer, &deployment).await;
    assert!(
        told.iter().any(|done| done == "the runner was started"),
        "{told:?}"
    );
    user.forget(&deployment.reach);
    assert_eq!(
        reach.host.host_keys,
        [before.as_str()],
        "pinned at the first contact"
    );
    // The runner took over: the same key, and it serves SSH itself.
    let (after, said) = attached(&user, &reach).await;
    assert_eq!(after, before);
    assert!(said.contains("runner --log-level info start"), "{said}");
    let connection = project.connection(&reach).await.unwrap();
    assert_eq!(connection.host_key_line(), before);
    assert_eq!(
        container.exec("ls /var/lib/dstack; ps | grep -c '[s]shd.*sshd_config' || true"),
        "authorized_keys\nhost_key\nhost_key.pub\nsshd.log\nsshd_config\ntaken\n0",
        "the token is gone, and so is sshd"
    );

    // Repeated by a server that does not know that it was done.
    let (again, _) = bring(&deployer, &deployment).await;
    assert_eq!(again, reach);

    let open = RunnerClient::new(project.connector(reach.clone(), RUNNER_HTTP_PORT));
    assert_eq!(status(open.job().await), Some(401));
    let runner = open.with_token(TOKEN.into());
    submit(
        &runner,
        "echo \"hello from $(id -un)\"; echo \"preload $LD_PRELOAD\"; env",
    )
    .await;
    let (output, state, code) = follow(&runner).await;
    assert_eq!((state, code), (JobState::Done, Some(0)), "{output}");
    assert!(output.contains("hello from root\n"), "{output}");
    assert!(output.contains("preload /lib/none.so\n"), "{output}");
    assert!(!output.contains(TOKEN), "{output}");
    assert!(!container.logs().contains(TOKEN));
    // The runner is process 1: with it the container ends.
    docker(&container.engine, &["kill", "-s", "TERM", &container.id]).unwrap();
    assert_eq!(
        docker(&container.engine, &["wait", &container.id]).unwrap(),
        "0",
        "{}",
        container.logs()
    );
}

/// In a run of another server: its agent has the usual ports and folders, and keeps them. Whoever is at the container finds ours by the
/// usual port of the API all the same.
#[tokio::test]
async fn a_job_beside_another_agent() {
    let before = "mkdir -p /dstack/ssh /tmp/runner && echo theirs > /dstack/ssh/keys && echo theirs > /tmp/runner/job.log\n\
        mkdir -p /var/lib/dstack && for file in authorized_keys host_key taken; do echo theirs > /var/lib/dstack/$file; done\n\
        nc -l -p 10022 </dev/null & nc -l -p 10999 </dev/null &\n\
        export DSTACK_BOOTSTRAP_SSH_PORT=10023 DSTACK_BOOTSTRAP_HTTP_PORT=10997 DSTACK_BOOTSTRAP_RUNNER_DIR=/var/lib/dstack-inner";
    let Some(container) = Running::start(before) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let project = pool(&container.project);
    let files = AgentFiles {
        amd64: Some(agent(dir.path())),
        arm64: None,
    };
    let deployer = Deployer::new(project.clone(), files);
    let mut deployment = container.deployment();
    deployment.reach.host.port = 10_023;
    let (reach, _) = bring(&deployer, &deployment).await;
    let open = RunnerClient::new(project.connector(reach.clone(), RUNNER_HTTP_PORT));
    let runner = open.with_token(TOKEN.into());
    submit(&runner, "echo \"hello from $(id -un)\"; env").await;
    let (output, state, code) = follow(&runner).await;
    assert_eq!((state, code), (JobState::Done, Some(0)), "{output}");
    assert!(
        output.contains("hello from root\n") && !output.contains("DSTACK_BOOTSTRAP"),
        "{output}"
    );
    assert_eq!(
        container.exec("cat /dstack/ssh/keys /tmp/runner/job.log /var/lib/dstack/*; ls /var/lib/dstack /tmp/runner; netstat -ltn | grep -c ':10022 \\|:10999 '"),
        "theirs\ntheirs\ntheirs\ntheirs\ntheirs\n/tmp/runner:\njob.log\n\n/var/lib/dstack:\nauthorized_keys\nhost_key\ntaken\n2",
        "{}",
        container.logs()
    );
}

/// The image has no sshd, and a package manager. The container is started again once the runner is there: a new one is waited for,
/// and the key is the old one.
#[tokio::test]
async fn openssh_is_installed_and_a_container_that_starts_again_has_its_host_key() {
    let hide = "[ -f /opt/sshd ] || mv /usr/sbin/sshd /opt/sshd; export LD_LIBRARY_PATH=/nowhere";
    let Some(container) = Running::start(hide) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let project = pool(&container.project);
    let files = AgentFiles {
        amd64: Some(agent(dir.path())),
        arm64: None,
    };
    let deployer = Deployer::new(project.clone(), files);
    let (reach, _) = bring(&deployer, &container.deployment()).await;
    let logs = container.logs();
    assert!(
        logs.contains("openssh-server is being installed") && logs.contains("installing install -y"),
        "{logs}"
    );
    project.forget(&reach);
    docker(&container.engine, &["restart", "-t", "0", &container.id]).unwrap();
    let (again, told) = bring(&deployer, &container.deployment()).await;
    assert_eq!(again.host.host_keys, reach.host.host_keys);
    assert!(
        told.iter().any(|done| done == "the agent's file is there"),
        "{told:?}"
    );
}

#[test]
fn an_image_without_any_sshd_is_told_at_once() {
    let Some(engine) = engine() else { return };
    let script = Bootstrap::new(vec!["ssh-ed25519 AAAA".to_owned()]).script();
    let run = Command::new("docker")
        .env("DOCKER_HOST", &engine)
        .args(["run", "--rm", "dstack-test/busybox:1", "/bin/sh", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(11), "{run:?}");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        said.contains("no sshd in the image") && said.contains("use an image that has openssh-server"),
        "{said}"
    );
}
