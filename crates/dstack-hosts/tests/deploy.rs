//! Deployments to this machine, below a directory of the test: over an SSH server of this process, and over the real OpenSSH
//! where it is installed. Docker is a stub that answers for its version; the agent is `examples/stub-agent.rs`.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dstack_agent_api::shim::HostReport;
use dstack_agent_api::shim_client::ShimClient;
use dstack_hosts::deploy::{
    AgentFiles, DeployError, Deployer, Deployment, GatewayPaths, HostPaths, Outcome, Progress, Stage,
};
use dstack_hosts::pool::Pool;
use dstack_model::reach::Reach;
use support::{OpenSsh, Server, directory, free_port, new_key, tree};

/// What calls to agents must bring.
const TOKEN: &str = "the token of this instance";

/// A machine that is deployed to.
struct Machine {
    /// Programs that come before those of this machine.
    programs: PathBuf,
    root: tempfile::TempDir,
    port: u16,
    agent: PathBuf,
    /// For hosts that say to be of that kind; it runs here as well.
    arm64: PathBuf,
    /// What it says to be.
    arch: &'static str,
    mine: String,
    patience: Duration,
    send_limit: Duration,
}

impl Machine {
    fn new() -> Self {
        let root = directory();
        let path = |name: &str| root.path().join(name);
        for folder in ["bin", "lib", "etc", "ssh"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        let machine = Self {
            programs: path("bin"),
            arch: "x86_64",
            port: free_port(),
            agent: agent_with(root.path(), b""),
            arm64: agent_with(root.path(), b"for arm64"),
            mine: new_key().public.trim().to_owned(),
            patience: Duration::from_secs(20),
            send_limit: Duration::from_secs(20),
            root,
        };
        machine.program("docker", "echo 1.47");
        // As root only a stub of it is used; as another user it stands for the real one.
        machine.program(
            "sudo",
            "shift; echo 'sudo: unable to resolve host' >&2; exec \"$@\"",
        );
        let foreign = new_key().public;
        let others = new_key().public;
        let text = format!(
            "# mine\n{}\n{} # added by dstack\n{}",
            foreign.trim(),
            others.trim(),
            new_key().public.trim()
        );
        std::fs::write(machine.keys(), text).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn keys(&self) -> PathBuf {
        self.path("ssh/authorized_keys")
    }

    /// Puts a script before this machine's programs.
    fn program(&self, name: &str, text: &str) {
        let path = self.programs.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn search_path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.programs.display()
        )
    }

    async fn server(&self) -> Server {
        Server::with_env(vec![("PATH".to_owned(), self.search_path())]).await
    }

    fn deployer(&self, pool: Pool) -> Deployer {
        let text = |name: &str| self.path(name).display().to_string();
        let paths = HostPaths {
            programs: text("lib/dstack"),
            other_programs: vec![text("opt/dstack"), text("etc/dstack")],
            home: text("home"),
            other_homes: vec![text("opt/state")],
            unit: text("etc/dstack-shim.service"),
            systemd: text("no-systemd"),
            ssh: Some(text("ssh")),
            port: self.port,
            gateway: GatewayPaths {
                home: text("gateway"),
                ..GatewayPaths::default()
            },
            patience: self.patience,
            send_limit: self.send_limit,
        };
        let agents = AgentFiles {
            amd64: Some(self.agent.clone()),
            arm64: Some(self.arm64.clone()),
        };
        Deployer::with_paths(pool, agents, paths)
    }

    fn deployment(&self, reach: Reach, env: &[(&str, &str)]) -> Deployment {
        Deployment {
            reach,
            authorized_keys: vec![self.mine.clone()],
            token: TOKEN.into(),
            gpu_devices: Vec::new(),
            install_docker: false,
            env: env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    /// Ids of the processes of the loop and of the agents, by what they were started with.
    fn processes(&self) -> (Vec<i32>, Vec<i32>) {
        let (mut loops, mut agents) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let program = std::fs::read_link(entry.path().join("exe")).unwrap_or_default();
            if ["lib", "etc"]
                .iter()
                .any(|folder| program.starts_with(self.path(folder)))
            {
                agents.push(pid);
            } else if ["home", "opt/state"]
                .iter()
                .any(|home| line.trim() == format!("sh {}/shim-loop.sh", self.path(home).display()))
            {
                loops.push(pid);
            }
        }
        (loops, agents)
    }

    /// Files that are the same after each deployment.
    fn lasting(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut files = tree(self.root.path());
        files.retain(|(path, _)| {
            !path.ends_with("shim.log") && path.extension().is_none_or(|end| end != "pid")
        });
        files
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let (loops, agents) = self.processes();
        for pid in loops.into_iter().chain(agents) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// An agent's executable, made another one by what is appended.
fn agent_with(dir: &Path, appended: &[u8]) -> PathBuf {
    // target/debug/deps/THIS -> target/debug/examples/stub-agent
    let built = std::env::current_exe().unwrap();
    let built = built
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/stub-agent");
    let mut content = std::fs::read(built).unwrap();
    content.extend_from_slice(appended);
    let path = dir.join(format!("agent-{}", appended.len()));
    std::fs::write(&path, content).unwrap();
    path
}

/// All steps, what each did, and what the host has. Between two of them, all that is known is what is written down.
async fn deploy(
    machine: &Machine,
    pool: &Pool,
    deployment: &Deployment,
) -> Result<(Vec<String>, Reach, HostReport), DeployError> {
    let deployer = machine.deployer(pool.clone());
    let (mut progress, mut told) = (None, Vec::new());
    for _ in 0..8 {
        match deployer.step(deployment, progress).await? {
            Outcome::Underway { progress: next, done } => {
                told.push(done);
                let written = serde_json::to_string(&next).unwrap();
                progress = Some(serde_json::from_str(&written).unwrap());
            }
            Outcome::Ready {
                reach,
                shim_port,
                report,
                build,
                machine: _,
            } => {
                assert_eq!(shim_port, machine.port);
                assert_eq!(deployer.build(machine.arch).await, Some(build));
                return Ok((told, reach, *report));
            }
        }
    }
    panic!("no end: {told:?}")
}

/// Says this to whoever connects.
fn answers(listener: TcpListener, answer: &'static str) {
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

/// Up to a stage.
async fn until(deployer: &Deployer, deployment: &Deployment, stage: Stage) -> Progress {
    let mut progress = None;
    loop {
        let Outcome::Underway { progress: next, .. } = deployer.step(deployment, progress).await.unwrap()
        else {
            panic!("too far")
        };
        if next.next == stage {
            return next;
        }
        progress = Some(next);
    }
}

async fn from_nothing_and_back(machine: &Machine, pool: &Pool, reach: Reach) {
    let before = tree(machine.root.path());
    let deployment = machine.deployment(reach, &[("STUB_SAYS", "it's $HOME")]);
    let (told, pinned, report) = deploy(machine, pool, &deployment).await.unwrap();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(
        told[0].contains("no agent yet") && told[1].contains("was sent") && told[2].contains("was started"),
        "{told:?}"
    );
    assert_eq!(
        (report.host_info.cpus, report.notices[0].as_str()),
        (3, "it's $HOME")
    );
    assert_eq!(pinned.host.host_keys.len(), 1);
    assert_eq!(
        pool.live(),
        1,
        "the connection that looked is the one that is kept"
    );
    let (loops, agents) = machine.processes();
    assert_eq!((loops.len(), agents.len()), (1, 1));
    let keys = std::fs::read_to_string(machine.keys()).unwrap();
    assert!(
        keys.ends_with(&format!("test\n{} # added by dstack\n", machine.mine)),
        "{keys}"
    );
    let env = machine.path("home/shim.env");
    assert_eq!(
        std::fs::metadata(env).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let token = machine.path("home/shim.token");
    assert_eq!(std::fs::read_to_string(&token).unwrap(), TOKEN);
    assert_eq!(
        std::fs::metadata(token).unwrap().permissions().mode() & 0o777,
        0o600
    );

    // Once more: nothing is done twice.
    let lasting = machine.lasting();
    let (told, ..) = deploy(machine, pool, &deployment).await.unwrap();
    assert!(told[0].contains("agent 0.0.1 runs there"), "{told:?}");
    assert!(
        told[1].contains("is there") && told[2].contains("runs already"),
        "{told:?}"
    );
    assert_eq!(machine.processes(), (loops.clone(), agents.clone()));
    assert!(machine.lasting() == lasting);

    // Other variables: another agent, and one only.
    let changed = machine.deployment(deployment.reach.clone(), &[("STUB_SAYS", "changed")]);
    let (.., report) = deploy(machine, pool, &changed).await.unwrap();
    assert_eq!(report.notices[0], "changed");
    let (new_loops, new_agents) = machine.processes();
    assert_eq!((new_loops.len(), new_agents.len()), (1, 1));
    assert!(new_loops != loops && new_agents != agents);

    // An agent that dies is started again.
    let died = rustix::process::Pid::from_raw(new_agents[0]).unwrap();
    rustix::process::kill_process(died, rustix::process::Signal::KILL).unwrap();
    let (told, ..) = deploy(machine, pool, &changed).await.unwrap();
    // By the loop, where that was quicker.
    assert!(told[0].contains("no agent yet"), "{told:?}");
    let (_, agents) = machine.processes();
    assert_eq!((machine.processes().0.len(), agents.len()), (1, 1));
    assert_ne!(agents, new_agents);

    let deployer = machine.deployer(pool.clone());
    deployer
        .release(&machine.deployment(pinned.clone(), &[]))
        .await
        .unwrap();
    assert_eq!(machine.processes(), (Vec::new(), Vec::new()));
    let after = tree(machine.root.path());
    let names = |files: &[(PathBuf, _)]| files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after));
    let ended = |mut files: Vec<(PathBuf, Option<Vec<u8>>)>| {
        for (path, content) in &mut files {
            if *path == machine.keys() {
                content.as_mut().unwrap().push(b'\n');
            }
        }
        files
    };
    assert!(
        ended(before) == after,
        "the last line of the keys has its end now, and nothing else is left"
    );
    assert_eq!(pool.live(), 0);
    deployer.release(&machine.deployment(pinned, &[])).await.unwrap();
    assert!(tree(machine.root.path()) == after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_set_up_again_and_again_and_released() {
    let machine = Machine::new();
    let server = machine.server().await;
    from_nothing_and_back(&machine, &server.pool(), server.reach()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_ways_to_one_machine_are_known_as_such() {
    let machine = Machine::new();
    let (one, other) = (machine.server().await, machine.server().await);
    let (mine, others) = (machine.deployer(one.pool()), machine.deployer(other.pool()));
    let first = mine.machine(&one.reach()).await.unwrap();
    assert!(first.is_some());
    assert_eq!(others.machine(&other.reach()).await.unwrap(), first);
    // Another SSH server of the same machine, which this pool has no key for, cannot be asked.
    assert!(mine.machine(&other.reach()).await.is_err());
    // A machine that does not say what it is is nobody's twin.
    machine.program("cat", "exit 1");
    assert_eq!(mine.machine(&one.reach()).await, Ok(None));
}

/// It hangs: everything on the host is as it should be, and nothing comes from it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_connections_and_does_not_answer_is_started_again() {
    let mut machine = Machine::new();
    machine.patience = Duration::from_secs(3);
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    deploy(&machine, &pool, &deployment).await.unwrap();
    let hung = machine.processes().1;
    let stopped = rustix::process::Pid::from_raw(hung[0]).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(
        told[0].contains("does not answer: it is started again") && told[2].contains("was started"),
        "{told:?}"
    );
    let now = machine.processes().1;
    assert!(now.len() == 1 && now != hung, "{now:?} {hung:?}");
    // One that answers is left alone.
    deploy(&machine, &pool, &deployment).await.unwrap();
    assert_eq!(machine.processes().1, now);
}

/// On a slow line each step brings some of it, and none takes longer than a step may.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_in_as_many_steps_as_it_takes() {
    let mut machine = Machine::new();
    machine.send_limit = Duration::ZERO;
    let server = machine.server().await;
    let pool = server.pool();
    let (deployer, deployment) = (
        machine.deployer(pool.clone()),
        machine.deployment(server.reach(), &[]),
    );
    let mut progress = until(&deployer, &deployment, Stage::Push).await;
    let folder = machine.path("lib");
    let arrived = || {
        let files = tree(&folder);
        let parts = files
            .iter()
            .filter(|(path, _)| path.extension().is_some_and(|end| end == "part"));
        parts
            .filter_map(|(_, content)| content.as_ref())
            .map(Vec::len)
            .sum::<usize>()
    };
    for step in 1..=3 {
        let Outcome::Underway { progress: next, done } =
            deployer.step(&deployment, Some(progress)).await.unwrap()
        else {
            panic!("too far")
        };
        assert_eq!((next.next, done.as_str()), (Stage::Push, ""));
        assert_eq!(arrived(), step * 32 * 1024, "what has arrived is not sent again");
        progress = next;
    }
    machine.send_limit = Duration::from_secs(20);
    let deployer = machine.deployer(pool.clone());
    let Outcome::Underway { progress, done } = deployer.step(&deployment, Some(progress)).await.unwrap()
    else {
        panic!("too far")
    };
    assert_eq!(progress.next, Stage::Install);
    assert!(done.contains("the rest of the agent's file was sent"), "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_sudo_that_warns_it_is_the_same() {
    let machine = Machine::new();
    machine.program("id", "echo 1000");
    let server = machine.server().await;
    from_nothing_and_back(&machine, &server.pool(), server.reach()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_openssh_and_two_jumps_it_is_the_same() {
    let machine = Machine::new();
    let Some(open) = OpenSsh::start(&format!("SetEnv PATH={}", machine.search_path())).await else {
        return;
    };
    let mut reach = open.reach();
    from_nothing_and_back(&machine, &open.pool(), reach.clone()).await;
    reach.jumps = vec![reach.host.clone(), reach.host.clone()];
    let pool = open.pool();
    let deployment = machine.deployment(reach, &[]);
    let (_, pinned, _) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(pinned.hops().all(|hop| hop.host_keys.len() == 1));
    machine.deployer(pool).release(&deployment).await.unwrap();
}

/// As on systems that nobody may change: the agent goes where it can be executed, its state where it can be written, and all is found
/// there again.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_usual_folders_are_read_only_or_execute_nothing_has_its_agent_elsewhere() {
    let machine = Machine::new();
    for folder in ["opt", "home"] {
        std::fs::create_dir(machine.path(folder)).unwrap();
    }
    let mounts = [
        (machine.path("lib"), "ro"),
        (machine.path("home"), "ro"),
        (machine.path("opt"), "noexec"),
    ];
    let path = format!("SetEnv PATH={}", machine.search_path());
    let Some(open) = OpenSsh::start_with_mounts(&path, &mounts).await else {
        return;
    };
    let (pool, deployment) = (open.pool(), machine.deployment(open.reach(), &[]));
    let (told, pinned, _) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(told[2].contains("was started"), "{told:?}");
    let (loops, agents) = machine.processes();
    assert_eq!((loops.len(), agents.len()), (1, 1));
    let program = std::fs::read_link(format!("/proc/{}/exe", agents[0])).unwrap();
    assert_eq!(program.parent(), Some(machine.path("etc/dstack").as_path()));
    // Seen as the agent sees it.
    let seen = |name: &str| PathBuf::from(format!("/proc/{}/root{}", loops[0], machine.path(name).display()));
    let env = std::fs::read_to_string(seen("opt/state/shim.env")).unwrap();
    let home = format!("DSTACK_SHIM_HOME=\"{}\"", machine.path("opt/state").display());
    assert!(env.lines().any(|line| line == home), "{env}");

    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(
        told[0].contains("agent 0.0.1 runs there")
            && told[1].contains("is there")
            && told[2].contains("runs already"),
        "{told:?}"
    );
    let deployer = machine.deployer(pool);
    assert!(deployer.has_token(&deployment).await.unwrap());
    deployer.release(&machine.deployment(pinned, &[])).await.unwrap();
    assert_eq!(machine.processes(), (Vec::new(), Vec::new()));
    assert!(!machine.path("etc/dstack").exists());
    assert!(!deployer.has_token(&deployment).await.unwrap());
}

/// The driver of its GPUs is brought by what it does at its first start.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_jobs_get_gpus_by_their_nodes_is_used_once_those_are_there() {
    let machine = Machine::new();
    let server = machine.server().await;
    let gpu = machine.path("gpu0");
    let deployment = Deployment {
        gpu_devices: vec![gpu.display().to_string()],
        ..machine.deployment(server.reach(), &[])
    };
    // There is a driver, and nothing by which containers get its GPUs.
    machine.program("nvidia-smi", "exit 0");
    let error = deploy(&machine, &server.pool(), &deployment).await.unwrap_err();
    assert!(
        matches!(&error, DeployError::Transient(text) if text.contains("gpu0")),
        "{error}"
    );
    std::fs::write(gpu, "").unwrap();
    deploy(&machine, &server.pool(), &deployment).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_agent_takes_the_place_of_the_old_one() {
    let mut machine = Machine::new();
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    deploy(&machine, &pool, &deployment).await.unwrap();
    let old = machine.processes();
    machine.agent = agent_with(machine.root.path(), b"new");
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(
        told[1].contains("was sent") && told[2].contains("was started"),
        "{told:?}"
    );
    let new = machine.processes();
    assert_eq!((new.0.len(), new.1.len()), (1, 1));
    assert!(new != old);
    assert_eq!(std::fs::read_dir(machine.path("lib/dstack")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_arrived_before_a_cut_is_not_sent_again() {
    let mut machine = Machine::new();
    // Random bytes: gzip does not make them less.
    let random = dstack_system::Random::system();
    let noise: Vec<u8> = (0..250_000).flat_map(|_| random.bytes::<32>()).collect();
    machine.agent = agent_with(machine.root.path(), &noise);
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    let deployer = machine.deployer(pool.clone());
    let push = until(&deployer, &deployment, Stage::Push).await;
    let began = server.network.passed();
    for _ in 0..3 {
        let after = 1_000_000 + u64::from_le_bytes(random.bytes::<8>()) % 1_500_000;
        server.network.cut_after(after);
        server.network.slow_down();
        let error = deployer.step(&deployment, Some(push.clone())).await.unwrap_err();
        assert!(matches!(error, DeployError::Transient(_)), "{error}");
        server.network.mend();
    }
    let part = std::fs::read_dir(machine.path("lib/dstack")).unwrap().flatten();
    let part = part
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|end| end == "part"));
    assert!(std::fs::metadata(part.unwrap()).unwrap().len() > 100_000);
    let Outcome::Underway { progress, done } = deployer.step(&deployment, Some(push)).await.unwrap() else {
        panic!()
    };
    assert!(done.contains("the rest"), "{done}");
    assert_eq!(progress.next, Stage::Install);
    let sent = server.network.passed() - began;
    let packed = {
        use std::io::Write as _;
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&std::fs::read(&machine.agent).unwrap()).unwrap();
        gzip.finish().unwrap().len() as u64
    };
    // A cut loses what was under way: at most what the channel's windows hold.
    assert!(sent < packed + 3 * (3 << 20), "{sent} of {packed}");
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(told[1].contains("is there"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_begun_anew() {
    let machine = Machine::new();
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    let deployer = machine.deployer(pool.clone());
    let push = until(&deployer, &deployment, Stage::Push).await;
    deployer.step(&deployment, Some(push.clone())).await.unwrap();
    let whole = std::fs::read_dir(machine.path("lib/dstack"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let content = std::fs::read(&whole).unwrap();
    let part = PathBuf::from(format!("{}.gz.part", whole.display()));
    let packed_size = 100_000_000;
    for size in [0, 1000, packed_size] {
        std::fs::remove_file(&whole).unwrap();
        std::fs::write(&part, vec![7; size]).unwrap();
        let done = deployer.step(&deployment, Some(push.clone())).await.unwrap();
        assert!(matches!(done, Outcome::Underway { progress, .. } if progress.next == Stage::Install));
        assert!(std::fs::read(&whole).unwrap() == content && !part.exists());
    }
    // Whole by its name only.
    std::fs::write(&whole, "damaged").unwrap();
    deployer.step(&deployment, Some(push)).await.unwrap();
    assert!(std::fs::read(&whole).unwrap() == content);
    assert_eq!(
        std::fs::metadata(&whole).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(std::fs::read_dir(machine.path("lib/dstack")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_steps_take_the_host_key_that_was_seen_only() {
    let machine = Machine::new();
    let server = machine.server().await;
    let deployment = machine.deployment(server.reach(), &[]);
    let mut push = until(&machine.deployer(server.pool()), &deployment, Stage::Push).await;
    push.host_keys = vec![new_key().public.trim().to_owned()];
    let error = machine
        .deployer(server.pool())
        .step(&deployment, Some(push))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, DeployError::Transient(text) if text.contains("the host key is SHA256:")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_has_gone_is_brought_again() {
    let machine = Machine::new();
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    let deployer = machine.deployer(pool.clone());
    let install = until(&deployer, &deployment, Stage::Install).await;
    std::fs::remove_dir_all(machine.path("lib/dstack")).unwrap();
    let Outcome::Underway { progress, .. } = deployer.step(&deployment, Some(install)).await.unwrap() else {
        panic!()
    };
    assert_eq!(progress.next, Stage::Push);
    // What is not known any more begins anew.
    let old: Progress = serde_json::from_str(r#"{"next":"report","host_keys":[]}"#).unwrap();
    let Outcome::Underway { progress, .. } = deployer.step(&deployment, Some(old)).await.unwrap() else {
        panic!()
    };
    assert_eq!(progress.next, Stage::Push);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_start_says_why() {
    let mut machine = Machine::new();
    machine.patience = Duration::from_secs(1);
    let server = machine.server().await;
    let deployment = machine.deployment(server.reach(), &[("STUB_FAILS", "no \"engine\" here")]);
    let deployer = machine.deployer(server.pool());
    let report = until(&deployer, &deployment, Stage::Report).await;
    let error = deployer.step(&deployment, Some(report)).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("error: no \"engine\" here") && text.contains("nothing listens"),
        "{text}"
    );
    deployer.release(&deployment).await.unwrap();
    assert_eq!(machine.processes(), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_architecture_gets_its_agent() {
    let mut machine = Machine::new();
    machine.arch = "aarch64";
    machine.program("uname", "[ \"$1\" = -s ] && echo Linux || echo aarch64");
    let server = machine.server().await;
    let deployment = machine.deployment(server.reach(), &[]);
    let (told, _, report) = deploy(&machine, &server.pool(), &deployment).await.unwrap();
    assert!(told[0].contains("aarch64"), "{told:?}");
    let brought = std::fs::read_dir(machine.path("lib/dstack")).unwrap();
    let brought = brought.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let wanted = std::fs::read(&machine.arm64).unwrap();
    assert!(brought.collect::<Vec<_>>() == [wanted]);
    assert_eq!(report.host_info.cpus, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_another_instance_has_set_up_since_is_that_ones() {
    let machine = Machine::new();
    let server = machine.server().await;
    let (pool, first) = (server.pool(), machine.deployment(server.reach(), &[]));
    deploy(&machine, &pool, &first).await.unwrap();
    let second = Deployment {
        token: "that of another".into(),
        ..first.clone()
    };
    let (told, reach, _) = deploy(&machine, &pool, &second).await.unwrap();
    assert!(
        told[0].contains("an agent of another instance") && told[2].contains("was started"),
        "{told:?}"
    );
    let shim = ShimClient::new(pool.connector(reach, machine.port));
    for (token, answers) in [(&first.token, false), (&second.token, true)] {
        let answer = shim.clone().with_token(token.clone()).healthcheck().await;
        assert_eq!(answer.is_ok(), answers, "{answer:?}");
    }
    let deployer = machine.deployer(pool);
    let error = deployer.release(&first).await.unwrap_err();
    assert!(
        matches!(&error, DeployError::Refused(text) if text.contains("the agent of another instance")),
        "{error}"
    );
    assert!(!deployer.has_token(&first).await.unwrap() && deployer.has_token(&second).await.unwrap());
    assert_eq!((machine.processes().0.len(), machine.processes().1.len()), (1, 1));
    deployer.release(&second).await.unwrap();
    assert_eq!(machine.processes(), (Vec::new(), Vec::new()));
}

/// Whoever listens on the agent's port, and says to be an agent with another token.
#[tokio::test(flavor = "multi_thread")]
async fn what_answers_on_the_agents_port_does_not_keep_a_host_from_its_release() {
    let machine = Machine::new();
    let before = tree(machine.root.path()).len();
    let server = machine.server().await;
    let (pool, deployment) = (server.pool(), machine.deployment(server.reach(), &[]));
    deploy(&machine, &pool, &deployment).await.unwrap();
    let (loops, agents) = machine.processes();
    for pid in loops.into_iter().chain(agents) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    while machine.processes() != (Vec::new(), Vec::new()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let impostor = TcpListener::bind((Ipv4Addr::LOCALHOST, machine.port)).unwrap();
    let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 11\r\n\r\ndstack-shim";
    answers(impostor, answer);
    let deployer = machine.deployer(pool);
    assert!(deployer.has_token(&deployment).await.unwrap());
    deployer.release(&deployment).await.unwrap();
    assert_eq!(tree(machine.root.path()).len(), before);
}

/// systemd fails once, after the files are there.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_not_started_with_what_was_written_is_not_kept() {
    let machine = Machine::new();
    std::fs::create_dir(machine.path("no-systemd")).unwrap();
    // Runs the unit's command, as the only service that it has. As with the real one, what ran has ended, and has given its port
    // back, before the next is started.
    machine.program(
        "systemctl",
        &format!(
            "cd {}\ncase \"$*\" in\n\
             daemon-reload) if [ -e fails ]; then rm fails; echo 'Transport endpoint is not connected' >&2; exit 1; fi ;;\n\
             'show '*) echo \"MainPID=$(cat main.pid 2>/dev/null)\" ;;\n\
             'restart '* | 'stop '*)\n  \
             if [ -e main.pid ]; then\n    pid=$(cat main.pid); kill \"$pid\"; rm main.pid\n    \
             while grep -qs '^State:.[^Z]' /proc/\"$pid\"/status; do sleep 0.01; done\n  fi\n  \
             [ \"$1\" = restart ] || exit 0\n  \
             set -a; . home/shim.env; set +a\n  \"$DSTACK_SHIM_BINARY_PATH\" shim >/dev/null 2>&1 &\n  echo $! >main.pid ;;\n\
             esac",
            machine.root.path().display()
        ),
    );
    let server = machine.server().await;
    let (pool, first) = (server.pool(), machine.deployment(server.reach(), &[]));
    deploy(&machine, &pool, &first).await.unwrap();
    let second = Deployment {
        token: "that of another".into(),
        ..first.clone()
    };
    let deployer = machine.deployer(pool.clone());
    let install = until(&deployer, &second, Stage::Install).await;
    std::fs::write(machine.path("fails"), "").unwrap();
    let error = deployer.step(&second, Some(install)).await.unwrap_err();
    assert!(error.to_string().contains("daemon-reload failed"), "{error}");
    let (told, reach, _) = deploy(&machine, &pool, &second).await.unwrap();
    assert!(told[2].contains("was started"), "{told:?}");
    let (told, ..) = deploy(&machine, &pool, &second).await.unwrap();
    assert!(told[2].contains("runs already"), "{told:?}");
    let deployment = Deployment { reach, ..second };
    deployer.release(&deployment).await.unwrap();
    assert!(!machine.path("home").exists());
}

/// An agent of ours from before calls were signed: it knows its token as a bearer's only.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_knows_no_signatures_is_replaced() {
    let machine = Machine::new();
    let server = machine.server().await;
    let (pool, deployment) = (
        server.pool(),
        machine.deployment(server.reach(), &[("STUB_TAKES_BEARER", "1")]),
    );
    let deployer = machine.deployer(pool.clone());
    let report = until(&deployer, &deployment, Stage::Report).await;
    while machine.processes().1.is_empty()
        || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, machine.port)).is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(report.next, Stage::Report);
    assert!(deployer.has_token(&deployment).await.unwrap());
    let now = machine.deployment(server.reach(), &[]);
    let (told, ..) = deploy(&machine, &pool, &now).await.unwrap();
    assert!(
        told[0].contains("is to be started again") && told[2].contains("was started"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_dstack_0_22_5_is_asked_by_its_file() {
    let machine = Machine::new();
    let server = machine.server().await;
    let deployment = machine.deployment(server.reach(), &[("STUB_IS_REFERENCE", "1")]);
    let (.., report) = deploy(&machine, &server.pool(), &deployment).await.unwrap();
    assert_eq!((report.host_info.cpus, report.version.as_str()), (7, "0.0.1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_host_from_being_used_is_told_with_its_remedy() {
    let machine = Machine::new();
    let server = machine.server().await;
    let deployment = machine.deployment(server.reach(), &[]);
    let deployer = machine.deployer(server.pool());
    let told = async |deployment: &Deployment| deployer.step(deployment, None).await.unwrap_err();
    let has = |error: DeployError, text: &str| {
        assert!(
            matches!(&error, DeployError::Transient(told) if told.contains(text)),
            "{error}"
        );
    };
    machine.program("docker", "echo Cannot connect to the Docker daemon >&2; exit 1");
    has(
        told(&deployment).await,
        "does not answer: Cannot connect to the Docker daemon",
    );
    machine.program("docker", "echo WARNING: old >&2; echo 1.24");
    has(told(&deployment).await, "too old (API 1.24");
    // An agent that runs tasks as processes needs none.
    let process = machine.deployment(server.reach(), &[("DSTACK_SHIM_RUNTIME", "process")]);
    deployer.step(&process, None).await.unwrap();
    machine.program("docker", "echo 1.47");
    machine.program("date", "echo 1000000000");
    has(told(&deployment).await, "its clock is");
    std::fs::remove_file(machine.programs.join("date")).unwrap();
    machine.program("df", "echo /dev/x 100 100 0 100% /");
    has(told(&deployment).await, "make room");
    std::fs::remove_file(machine.programs.join("df")).unwrap();
    machine.program("id", "echo 1000");
    machine.program("sudo", "echo 'sudo: a password is required' >&2; exit 1");
    has(
        told(&deployment).await,
        "sudo: a password is required. Log in as root, or",
    );
    std::fs::remove_file(machine.programs.join("id")).unwrap();
    machine.program("uname", "[ \"$1\" = -s ] && echo FreeBSD || echo amd64");
    has(told(&deployment).await, "Linux only");
    machine.program("uname", "[ \"$1\" = -s ] && echo Linux || echo riscv64");
    let error = told(&deployment).await;
    assert!(
        matches!(&error, DeployError::Refused(text) if text.contains("riscv64")),
        "{error}"
    );
    std::fs::remove_file(machine.programs.join("uname")).unwrap();

    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, machine.port)).unwrap();
    machine.program(
        "ss",
        r#"echo 'LISTEN 0 5 127.0.0.1:1 0.0.0.0:* users:(("nginx",pid=7,fd=6))'"#,
    );
    answers(other, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    has(told(&deployment).await, "is taken by `nginx`");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_of_no_use_is_refused_for_good() {
    let machine = Machine::new();
    let server = machine.server().await;
    let pool = support::pool(&[(
        "k",
        "-----BEGIN DSA PRIVATE KEY-----\nAAAA\n-----END DSA PRIVATE KEY-----\n",
    )]);
    let error = machine
        .deployer(pool)
        .step(&machine.deployment(server.reach(), &[]), None)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, DeployError::Refused(text) if text.starts_with("Unsupported private SSH key type")),
        "{error}"
    );
}

impl Machine {
    /// Docker does not start, as if it were not there, until `apt-get` has brought it. Returns the file of calls to that and others.
    fn without_docker(&self) -> PathBuf {
        let (calls, docker) = (self.path("calls"), self.programs.join("docker"));
        self.program("docker", "exit 127");
        let (calls_text, docker) = (calls.display(), docker.display());
        self.program("dpkg", "exit 0");
        self.program("systemctl", &format!("echo \"systemctl $*\" >> {calls_text}"));
        self.program(
            "apt-get",
            &format!(
                "echo \"apt-get $*\" >> {calls_text}\ncase \"$*\" in *docker.io) printf '#!/bin/sh\\n[ \"$1\" = ps ] || echo 1.47\\n' > {docker} ;; esac"
            ),
        );
        calls
    }

    fn with_docker_installed(&self, reach: Reach) -> Deployment {
        Deployment {
            install_docker: true,
            ..self.deployment(reach, &[])
        }
    }
}

fn lines_of(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_is_installed_where_that_is_asked_for_and_it_is_missing() {
    let machine = Machine::new();
    let Some(open) = OpenSsh::start(&format!("SetEnv PATH={}", machine.search_path())).await else {
        return;
    };
    let (pool, calls) = (open.pool(), machine.without_docker());
    let error = deploy(&machine, &pool, &machine.deployment(open.reach(), &[])).await;
    assert!(error.unwrap_err().to_string().contains("Docker is installed"));
    assert_eq!(lines_of(&calls), Vec::<String>::new(), "nobody asked for it");

    let deployment = machine.with_docker_installed(open.reach());
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(
        told[0].starts_with("Docker was installed; the host can be used"),
        "{told:?}"
    );
    let made = lines_of(&calls);
    let installs = |calls: &[String]| calls.iter().filter(|call| call.contains(" install ")).count();
    assert!(
        made.contains(&"apt-get -q update".to_owned()) && installs(&made) == 1,
        "{made:?}"
    );
    // Once more: it is there.
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(told[0].starts_with("the host can be used"), "{told:?}");
    assert_eq!(lines_of(&calls), made);
    machine.deployer(pool).release(&deployment).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_docker_from_being_installed_is_told_and_tried_again() {
    let machine = Machine::new();
    let server = machine.server().await;
    let pool = server.pool();
    let calls = machine.without_docker();
    let works = std::fs::read_to_string(machine.programs.join("apt-get")).unwrap();
    machine.program(
        "apt-get",
        "case \"$*\" in *update) echo 'W: Failed to fetch http://archive.example/ubuntu' ;; *) echo 'E: Unable to locate package docker.io' \
         >&2; exit 100 ;; esac",
    );
    let deployment = machine.with_docker_installed(server.reach());
    let deployer = machine.deployer(pool.clone());
    let error = deployer.step(&deployment, None).await.unwrap_err();
    assert!(matches!(error, DeployError::Transient(_)), "{error:?}");
    for part in [
        "docker.io is not installed, and apt-get does not install it: E: Unable to locate package docker.io",
        "W: Failed to fetch http://archive.example/ubuntu",
        "choose an image that has Docker",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    machine.program("apt-get", works.trim_start_matches("#!/bin/sh\n"));
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(told[0].starts_with("Docker was installed"), "{told:?}");
    // A service that was not started is.
    machine.program("docker", "[ \"$1\" = --version ] || exit 1");
    let error = deployer.step(&deployment, None).await.unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
    let last = lines_of(&calls).pop().unwrap_or_default();
    assert_eq!(last, "systemctl --quiet enable --now docker");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_container_toolkit_comes_from_a_source_that_is_there() {
    let machine = Machine::new();
    let tools = [
        "nvidia-container-runtime-hook",
        "nvidia-container-cli",
        "nvidia-ctk",
    ];
    if tools.iter().any(|tool| Path::new("/usr/bin").join(tool).exists()) {
        eprintln!("skipped: this machine has the toolkit");
        return;
    }
    let server = machine.server().await;
    let (pool, calls) = (server.pool(), machine.without_docker());
    machine.program("nvidia-smi", "exit 0");
    let candidate = |version: &str| format!("printf 'nvidia-container-toolkit:\\n  Candidate: {version}\\n'");
    machine.program("apt-cache", &candidate("(none)"));
    let deployment = machine.with_docker_installed(server.reach());
    let deployer = machine.deployer(pool.clone());
    let error = deployer.step(&deployment, None).await.unwrap_err().to_string();
    assert!(
        error.contains("no NVIDIA Container Toolkit, and none of its package sources has one")
            && error.contains("choose an image"),
        "{error}"
    );
    machine.program("apt-cache", &candidate("1.17.8-1"));
    let tool = machine.programs.join("nvidia-ctk");
    let (tool, calls_text) = (tool.display(), calls.display());
    machine.program(
        "apt-get",
        &format!(
            "echo \"apt-get $*\" >> {calls_text}\ncase \"$*\" in *nvidia-container-toolkit) printf '#!/bin/sh\\necho daemon.json is broken; exit 1\\n' \
             > {tool}; chmod 755 {tool} ;; esac"
        ),
    );
    let error = deployer.step(&deployment, None).await.unwrap_err().to_string();
    assert!(
        error.contains("nvidia-ctk does not tell Docker of NVIDIA's runtime: daemon.json is broken"),
        "{error}"
    );
    // What was installed then is not all of it.
    machine.program("nvidia-ctk", &format!("echo \"nvidia-ctk $*\" >> {calls_text}"));
    let (told, ..) = deploy(&machine, &pool, &deployment).await.unwrap();
    assert!(
        told[0].starts_with("NVIDIA's container toolkit was installed; the host can be used"),
        "{told:?}"
    );
    let made = lines_of(&calls);
    assert_eq!(
        made.last().map(String::as_str),
        Some("systemctl restart docker"),
        "{made:?}"
    );
    deployer.step(&deployment, None).await.unwrap();
    assert_eq!(lines_of(&calls), made, "it is done once");
}
