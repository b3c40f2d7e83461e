//! Simulated hosts: a shim and the runners of its tasks, with their own sense of time and their own faults.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::http::CALL_TIMEOUT;
use dstack_agent_api::runner::{
    GpuMetrics, JobInfo, JobState, JobStateEvent, JobStatus, LogEvent, Metrics, RunnerState, SubmitBody,
};
use dstack_agent_api::shim::{
    DcgmHealth, DcgmIncident, InstanceHealth, PortMapping, StreamEvent, TaskConfig, TaskInfo, TaskStatus,
    TaskTerminate, reason,
};
use dstack_agent_api::stream::{End, StreamLine, Tick};
use dstack_engine::agents::container::{ContainerShim, Link};
use dstack_engine::{AgentError, Agents, EventSource, Runner, Shim, TaskSource};
use dstack_model::runs::JobProvisioningData;
use dstack_plan::placement::HostRules;
use dstack_store::rows::AgentAddress;
use dstack_system::clock::SharedClock;
use dstack_system::{Random, Secret, task};
use dstack_units::{InstanceId, JobId, Time};
use tokio::sync::Notify;

use crate::servers::Caller;

/// What a job's commands do.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Lines that it prints.
    pub lines: usize,
    /// Pause before each line.
    pub pause: Duration,
    /// Its exit code.
    pub exit: i32,
    /// How much its only GPU does in percent; `None`: it has none, and is not measured.
    pub gpu: Option<i64>,
    /// Nobody is connected to it.
    pub alone: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            lines: 5,
            pause: Duration::from_millis(200),
            exit: 0,
            gpu: None,
            alone: false,
        }
    }
}

/// How unreliable the way to the agents is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Chance that a call fails before it reaches the agent.
    pub lost_call: f64,
    /// Chance that a call takes effect but its answer is lost.
    pub lost_answer: f64,
    /// Chance, per line, that a stream breaks.
    pub broken_stream: f64,
}

#[derive(Debug)]
struct Task {
    /// Where it is: no other machine tells of it.
    machine: String,
    info: TaskInfo,
    runner: RunnerSim,
}

#[derive(Debug, Default)]
struct RunnerSim {
    /// What calls must bring.
    token: Secret,
    state: RunnerState,
    events: Vec<StreamLine>,
    last: i64,
    /// How often the commands were started: must never exceed one.
    starts: usize,
    stopping: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct State {
    tasks: BTreeMap<String, Task>,
    /// Runs of commands by task: kept after removal, for invariants.
    starts: HashMap<String, usize>,
    /// What tasks were submitted with: kept after removal.
    submitted: HashMap<String, TaskConfig>,
    /// What runners were told when their job was handed to them, by task.
    told: HashMap<String, SubmitBody>,
    scripts: HashMap<String, Script>,
    /// When the runners of tasks were first asked to end their commands: kept after removal.
    stopped: BTreeMap<String, Time>,
    cut_off: bool,
    /// How often followers missed something, and are told everything again.
    lags: usize,
    /// Machines that are broken.
    lost: BTreeSet<String>,
    /// Machines on which no agent runs.
    without_agent: BTreeSet<String>,
    /// Machines whose agents take connections and answer after so long only; `None`: never.
    late: BTreeMap<String, Option<Duration>>,
    /// Machines by their other names.
    aliases: BTreeMap<String, String>,
    /// Machines of clouds come without an agent, which is brought to them over SSH.
    bare_machines: bool,
    /// Containers of clouds, whose scripts wait for the agent or have become it.
    containers: BTreeSet<String>,
    /// What another program says that listens where the agent of a machine does not run.
    impostors: BTreeMap<String, AgentError>,
    /// Machines to which the way may be kept open.
    reached: BTreeSet<String>,
    /// Host keys of machines that are not what they were, by machine.
    keys: BTreeMap<String, String>,
    /// What calls to shims must bring, by machine.
    shim_tokens: BTreeMap<String, Secret>,
    /// Disks of clouds that machines have, by machine and id, with their devices.
    disks: BTreeMap<(String, String), String>,
    /// Disks that tasks have mounted, by task.
    mounts: BTreeMap<String, Vec<MountedDisk>>,
    /// What must not happen to disks, and did.
    disorders: Vec<String>,
    /// Machines whose agents do not come to the end of their tasks in streams that are opened.
    never_synced: BTreeSet<String>,
    faults: Faults,
    health: InstanceHealth,
    /// How often it was asked for that.
    health_asked: usize,
}

/// A disk that a task has mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountedDisk {
    machine: String,
    id: String,
}

impl State {
    /// The shim mounts what a task names, and can do so only when it is there.
    fn mount(&mut self, machine: &str, config: &TaskConfig) {
        for volume in &config.volumes {
            let disk = MountedDisk {
                machine: machine.to_owned(),
                id: volume.volume_id.clone(),
            };
            let device = self.disks.get(&(disk.machine.clone(), disk.id.clone()));
            if device.is_none() || device != volume.device_name.as_ref() {
                let wrong = format!(
                    "{} was mounted as {:?} on {machine}, which has {device:?}",
                    disk.id, volume.device_name
                );
                self.disorders.push(wrong);
            }
            if self.mounts.values().flatten().any(|other| other.id == disk.id) {
                self.disorders.push(format!("{} is mounted twice", disk.id));
            }
            if !config.volume_mounts.iter().any(|mount| mount.name == volume.name) {
                self.disorders
                    .push(format!("{} is mounted nowhere in the container", disk.id));
            }
            self.mounts.entry(config.id.clone()).or_default().push(disk);
        }
    }
}

/// One simulated host.
#[derive(Debug, Clone)]
pub struct Hosts {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    caller: Option<Arc<Caller>>,
    clock: SharedClock,
    random: Random,
}

impl Hosts {
    /// A host without tasks.
    pub fn new(clock: SharedClock, random: Random) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            caller: None,
            clock,
            random,
        }
    }

    /// The same hosts, as they are called by one of several servers.
    pub(crate) fn called_by(&self, caller: &Arc<Caller>) -> Self {
        Self {
            caller: Some(Arc::clone(caller)),
            ..self.clone()
        }
    }

    /// Something is about to be changed there.
    fn acts(&self, what: &str) {
        if let Some(caller) = &self.caller {
            caller.acts(what);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when something here changes. Whatever changes after this call counts, also before the answer is awaited.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// What the commands of the jobs of a run do.
    pub fn script(&self, run_name: &str, script: Script) {
        self.lock().scripts.insert(run_name.to_owned(), script);
    }

    /// Sets how unreliable the way to the agents is.
    pub fn faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Cuts the host off the server, or connects it again.
    pub fn cut_off(&self, cut: bool) {
        self.lock().cut_off = cut;
        self.changed.notify_waiters();
    }

    /// Whoever follows tasks was too slow: all are told again, on the same stream.
    pub fn lag(&self) {
        self.lock().lags += 1;
        self.changed.notify_waiters();
    }

    /// The machine of an instance of a cloud breaks: it never answers again.
    pub fn lose(&self, instance: InstanceId) {
        self.lose_hosts(&[instance.to_string()]);
    }

    /// Hosts of SSH fleets break at one moment, by their names: they never answer again.
    pub fn lose_hosts(&self, names: &[String]) {
        self.lock().lost.extend(names.iter().cloned());
        self.changed.notify_waiters();
    }

    /// A container is there, at this address.
    pub(crate) fn begin_container(&self, address: &str) {
        let mut state = self.lock();
        state.lost.remove(address);
        state.containers.insert(address.to_owned());
    }

    /// A container is there no more, and what ran in it has ended.
    pub(crate) fn end_container(&self, address: &str) {
        let mut state = self.lock();
        if state.containers.remove(address) {
            state.lost.insert(address.to_owned());
            state.tasks.retain(|_, task| task.machine != address);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// A container is started again: its runner is gone, and its script waits for another one.
    pub fn restart_container(&self, address: &str) {
        self.lock().tasks.retain(|_, task| task.machine != address);
        self.changed.notify_waiters();
    }

    /// Whether the script of a container can be reached.
    pub(crate) fn has_container(&self, address: &str) -> bool {
        let state = self.lock();
        state.containers.contains(address) && !state.cut_off
    }

    /// The script of a container becomes the runner of a job, unless it has. What its commands do is looked up by the name of the
    /// instance.
    pub(crate) fn run_container(&self, address: &str, instance: &str, job: &str, token: Secret) {
        let mut state = self.lock();
        if !state.containers.contains(address) || state.tasks.contains_key(job) {
            return;
        }
        let script = state.scripts.get(instance).copied().unwrap_or_default();
        state.scripts.insert(job.to_owned(), script);
        let info = TaskInfo {
            id: job.to_owned(),
            status: TaskStatus::Running,
            ..TaskInfo::default()
        };
        let task = Task {
            machine: address.to_owned(),
            info,
            runner: RunnerSim {
                token,
                ..RunnerSim::default()
            },
        };
        state.tasks.insert(job.to_owned(), task);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The shim of a machine answers calls with this token only from now on; `None`: it is gone.
    pub fn shim_token(&self, machine: &str, token: Option<Secret>) {
        let mut state = self.lock();
        match token {
            Some(token) => state.shim_tokens.insert(machine.to_owned(), token),
            None => state.shim_tokens.remove(machine),
        };
    }

    fn is_lost(&self, machine: &str) -> bool {
        self.lock().lost.contains(machine)
    }

    /// The agent of a machine does not run any more, and what its tasks do goes on; or it runs again.
    pub fn agent_runs(&self, machine: &str, runs: bool) {
        let mut state = self.lock();
        match runs {
            true => state.without_agent.remove(machine),
            false => state.without_agent.insert(machine.to_owned()),
        };
        drop(state);
        self.changed.notify_waiters();
    }

    /// The agent of a machine takes connections, and answers after so long only from now on (`None`: never); or at once.
    pub fn agent_is_late(&self, machine: &str, by: Option<Option<Duration>>) {
        let mut state = self.lock();
        match by {
            Some(late) => state.late.insert(machine.to_owned(), late),
            None => state.late.remove(machine),
        };
        drop(state);
        self.changed.notify_waiters();
    }

    /// Streams of the agent of a machine that are opened from now on never say that all tasks are told; or do again.
    pub fn never_synced(&self, machine: &str, never: bool) {
        let mut state = self.lock();
        match never {
            true => state.never_synced.insert(machine.to_owned()),
            false => state.never_synced.remove(machine),
        };
    }

    /// Whether the agent of a machine answers nothing.
    pub(crate) fn is_mute(&self, machine: &str) -> bool {
        self.lock().late.get(machine) == Some(&None)
    }

    /// Waits until the agent of a machine answers, at most so long.
    async fn answer(&self, machine: &str, patience: Duration) -> Result<(), AgentError> {
        let late = self.lock().late.get(machine).copied();
        let Some(late) = late else { return Ok(()) };
        let late = late.filter(|late| *late <= patience);
        tokio::time::sleep(late.unwrap_or(patience)).await;
        match late {
            Some(_) => Ok(()),
            None => Err(AgentError::NoAnswer(format!(
                "no answer within {} s",
                patience.as_secs()
            ))),
        }
    }

    /// A machine has another name as well.
    pub fn alias(&self, name: &str, machine: &str) {
        self.lock().aliases.insert(name.to_owned(), machine.to_owned());
    }

    /// The machine of this name.
    pub(crate) fn named(&self, name: &str) -> String {
        let state = self.lock();
        state
            .aliases
            .get(name)
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }

    /// The container of a job is killed from outside: its runner says nothing more, and the agent of the machine tells of it.
    pub fn kill_container(&self, job: JobId) {
        if let Some(task) = self.lock().tasks.get_mut(&job.to_string()) {
            task.info.status = TaskStatus::Terminated;
            reason::CONTAINER_EXITED_WITH_ERROR.clone_into(&mut task.info.termination_reason);
        }
        self.changed.notify_waiters();
    }

    /// Whether the runner of a job was asked to end its commands.
    pub fn was_stopped(&self, job: JobId) -> bool {
        self.stopped_at(job).is_some()
    }

    /// When the runner of a job was first asked to end its commands.
    pub fn stopped_at(&self, job: JobId) -> Option<Time> {
        let state = self.lock();
        state.stopped.get(&job.to_string()).copied()
    }

    /// Machines of clouds come without an agent from now on: it is brought to them over SSH.
    pub fn bare_machines(&self) {
        self.lock().bare_machines = true;
    }

    /// Machines to which the way may still be kept open.
    pub fn reached(&self) -> BTreeSet<String> {
        self.lock().reached.clone()
    }

    /// While the agent of a machine does not run, another program answers in its place.
    pub fn impersonate(&self, machine: &str, answer: AgentError) {
        self.lock().impostors.insert(machine.to_owned(), answer);
    }

    /// Whose agent a machine has, by what lies there for root.
    pub(crate) fn has_token(&self, machine: &str, token: &Secret) -> bool {
        let state = self.lock();
        let found = state.shim_tokens.get(machine);
        found.is_some_and(|found| found.expose() == token.expose())
    }

    /// Whether no agent runs on a machine.
    pub(crate) fn lacks_agent(&self, machine: &str) -> bool {
        self.lock().without_agent.contains(machine)
    }

    /// A machine shows another host key from now on, and is not reached by who wants the one that it had.
    pub(crate) fn change_key(&self, machine: &str, key: &str) {
        self.lock().keys.insert(machine.to_owned(), key.to_owned());
        self.changed.notify_waiters();
    }

    /// Why the agent of a machine does not answer who wants this host key, if it does not.
    fn silence(&self, machine: &str, key: Option<&String>) -> Option<AgentError> {
        if self.is_lost(machine) {
            return Some(AgentError::Unreachable("no route to host".to_owned()));
        }
        let shown = self.lock().keys.get(machine).cloned();
        if shown.is_some_and(|shown| key.is_some_and(|wanted| *wanted != shown)) {
            return Some(AgentError::Unreachable("the host key is another".to_owned()));
        }
        let state = self.lock();
        let nothing = || AgentError::NotRunning("nothing listens on port 10998".to_owned());
        let impostor = state.impostors.get(machine).cloned();
        let is_without = state.without_agent.contains(machine);
        is_without.then(|| impostor.unwrap_or_else(nothing))
    }

    /// What DCGM says of the GPUs from now on, as a code of its own; `None`: there is no DCGM.
    pub fn health(&self, code: Option<i64>) {
        let incident = |health| DcgmIncident {
            health,
            error_message: "GPU 0 is not well".to_owned(),
            ..DcgmIncident::default()
        };
        self.lock().health = InstanceHealth {
            dcgm: code.map(|code| DcgmHealth {
                overall_health: code,
                incidents: Some(code)
                    .filter(|code| *code > 0)
                    .map(incident)
                    .into_iter()
                    .collect(),
            }),
        };
    }

    /// How often the shim was asked how its GPUs are.
    pub fn health_asked(&self) -> usize {
        self.lock().health_asked
    }

    /// A machine has a disk.
    pub(crate) fn plug(&self, machine: &str, disk: &str, device: &str) {
        let at = (machine.to_owned(), disk.to_owned());
        self.lock().disks.insert(at, device.to_owned());
    }

    /// A machine does not have a disk any more; what is on a machine that is gone is of no interest.
    pub(crate) fn unplug(&self, machine: &str, disk: &str, is_gone: bool) {
        let mut state = self.lock();
        state.disks.remove(&(machine.to_owned(), disk.to_owned()));
        if is_gone {
            state
                .mounts
                .retain(|_, disks| disks.iter().all(|mounted| mounted.machine != machine));
        }
        if state.mounts.values().flatten().any(|mounted| mounted.id == disk) {
            state
                .disorders
                .push(format!("{disk} was detached while it was mounted"));
        }
    }

    /// A disk is about to be taken; by force: whoever has mounted it has lost it.
    pub(crate) fn unmount(&self, disk: &str, force: bool) {
        let has = |disks: &Vec<MountedDisk>| disks.iter().any(|mounted| mounted.id == disk);
        if force {
            self.lock().mounts.retain(|_, disks| !has(disks));
        }
    }

    /// Whether a task has mounted a disk.
    pub(crate) fn is_mounted(&self, machine: &str, disk: &str) -> bool {
        let state = self.lock();
        let mut mounted = state.mounts.values().flatten();
        mounted.any(|one| one.machine == machine && one.id == disk)
    }

    /// What must not happen to disks, and did.
    pub fn disorders(&self) -> Vec<String> {
        self.lock().disorders.clone()
    }

    /// Disks that tasks have mounted.
    pub fn mounted(&self) -> Vec<String> {
        let state = self.lock();
        let mounted = state.mounts.values().flatten();
        mounted.map(|disk| disk.id.clone()).collect()
    }

    /// Tasks that exist now.
    pub fn tasks(&self) -> usize {
        self.lock().tasks.len()
    }

    /// How often the commands of each task were started.
    pub fn starts(&self) -> HashMap<String, usize> {
        self.lock().starts.clone()
    }

    /// What the task of a job was submitted with.
    pub fn submitted(&self, job: JobId) -> Option<TaskConfig> {
        self.lock().submitted.get(&job.to_string()).cloned()
    }

    /// What the runner of a job was told of it, of its commands and of the other nodes.
    pub fn told(&self, job: JobId) -> Option<SubmitBody> {
        self.lock().told.get(&job.to_string()).cloned()
    }

    /// A call that may be lost on its way, or whose answer may be.
    fn call<T>(&self, work: impl FnOnce(&mut State) -> Result<T, AgentError>) -> Result<T, AgentError> {
        let (lost_call, lost_answer) = (self.random.fraction(), self.random.fraction());
        let mut state = self.lock();
        let unreachable = || AgentError::Unreachable("connection refused".to_owned());
        if state.cut_off || lost_call < state.faults.lost_call {
            return Err(unreachable());
        }
        let result = work(&mut state);
        let lost = lost_answer < state.faults.lost_answer;
        drop(state);
        self.changed.notify_waiters();
        if lost {
            Err(AgentError::Unreachable("connection reset".to_owned()))
        } else {
            result
        }
    }

    fn stream_breaks(&self) -> bool {
        let dice = self.random.fraction();
        let state = self.lock();
        state.cut_off || dice < state.faults.broken_stream
    }

    /// Brings a submitted task up: preparing, pulling, running.
    fn start_container(&self, id: String) {
        let hosts = self.clone();
        task::spawn("simulated container", async move {
            for status in [
                TaskStatus::Preparing,
                TaskStatus::Pulling,
                TaskStatus::Creating,
                TaskStatus::Running,
            ] {
                tokio::time::sleep(Duration::from_millis(hosts.random.below(400))).await;
                let mut state = hosts.lock();
                let Some(task) = state.tasks.get_mut(&id) else {
                    return;
                };
                if task.info.status == TaskStatus::Terminated {
                    return;
                }
                task.info.status = status;
                if status == TaskStatus::Running {
                    let port = |host, container| PortMapping { host, container };
                    task.info.ports = Some(vec![port(40_022, 10_022), port(40_999, 10_999)]);
                }
                drop(state);
                hosts.changed.notify_waiters();
            }
        });
    }

    fn emit(&self, id: &str, make: impl FnOnce(i64) -> StreamLine) -> bool {
        let now = self.clock.now().as_millis();
        let mut state = self.lock();
        let Some(task) = state.tasks.get_mut(id) else {
            return false;
        };
        if task.info.status == TaskStatus::Terminated {
            return false;
        }
        let timestamp = (task.runner.last + 1).max(now);
        task.runner.last = timestamp;
        task.runner.events.push(make(timestamp));
        drop(state);
        self.changed.notify_waiters();
        true
    }

    fn stopping(&self, id: &str) -> bool {
        self.lock().tasks.get(id).is_none_or(|task| task.runner.stopping)
    }

    /// Runs the commands of a task.
    fn run_commands(&self, id: String, script: Script) {
        let hosts = self.clone();
        task::spawn("simulated commands", async move {
            let state = |timestamp, state, exit_status| {
                StreamLine::State(JobStateEvent {
                    timestamp,
                    state,
                    exit_status,
                    ..JobStateEvent::default()
                })
            };
            hosts.emit(&id, |t| state(t, JobState::Running, None));
            let mut stopped = false;
            for number in 0..script.lines {
                tokio::time::sleep(script.pause).await;
                if hosts.stopping(&id) {
                    stopped = true;
                    break;
                }
                let message = format!("line {number}\n").into_bytes();
                if !hosts.emit(&id, |timestamp| StreamLine::Log(LogEvent { timestamp, message })) {
                    return;
                }
            }
            let last = match (stopped, script.exit) {
                (true, _) => (JobState::Terminated, None),
                (false, 0) => (JobState::Done, Some(0)),
                (false, code) => (JobState::Failed, Some(code)),
            };
            hosts.emit(&id, |t| state(t, last.0, last.1));
            let mut guard = hosts.lock();
            if let Some(task) = guard.tasks.get_mut(&id) {
                task.runner.ended = true;
                task.runner.state = RunnerState::WaitLogsFinished;
            }
            drop(guard);
            hosts.changed.notify_waiters();
        });
    }
}

fn refused(status: u16, message: &str) -> AgentError {
    AgentError::Refused {
        status,
        message: message.to_owned(),
    }
}

impl Agents for Hosts {
    fn shim(&self, address: &AgentAddress, token: Option<Secret>) -> Arc<dyn Shim> {
        self.lock().reached.insert(machine(address));
        let called = self.named(&machine(address));
        if let AgentAddress::Container { runner_port, job, .. } = address {
            let runner = SimRunner {
                hosts: self.clone(),
                machine: machine(address),
                id: job.to_string(),
                token: Secret::default(),
            };
            let link = SimLink {
                hosts: self.clone(),
                machine: machine(address),
                job: job.to_string(),
            };
            let (runner, link) = (Arc::new(runner), Arc::new(link));
            return Arc::new(ContainerShim::new(*job, *runner_port, runner, link));
        }
        Arc::new(SimShim {
            hosts: self.clone(),
            machine: called,
            key: address
                .reach()
                .and_then(|reach| reach.host.host_keys.first().cloned()),
            token: token.unwrap_or_default(),
        })
    }
    fn runner(&self, address: &AgentAddress, job: JobId, _port: u16, token: Secret) -> Arc<dyn Runner> {
        Arc::new(SimRunner {
            hosts: self.clone(),
            machine: self.named(&machine(address)),
            id: job.to_string(),
            token,
        })
    }
    fn forget(&self, address: &AgentAddress) {
        self.lock().reached.remove(&machine(address));
    }
    fn address(&self, instance: InstanceId, place: &JobProvisioningData) -> Option<AgentAddress> {
        let comes_with_agent = place.dockerized && !self.lock().bare_machines;
        comes_with_agent.then(|| AgentAddress::Local {
            runtime: "docker".to_owned(),
            host: instance.to_string(),
            rules: HostRules::default(),
        })
    }
}

/// By which the machines of a cloud are told apart.
fn machine(address: &AgentAddress) -> String {
    match address {
        AgentAddress::Local { host, .. } => host.clone(),
        AgentAddress::Ssh { reach, .. } | AgentAddress::Container { reach, .. } => reach.host.host.clone(),
    }
}

#[derive(Debug)]
struct SimShim {
    hosts: Hosts,
    machine: String,
    /// The host key that the machine has to show.
    key: Option<String>,
    token: Secret,
}

impl SimShim {
    fn call<T>(&self, work: impl FnOnce(&mut State) -> Result<T, AgentError>) -> Result<T, AgentError> {
        if let Some(silence) = self.hosts.silence(&self.machine, self.key.as_ref()) {
            return Err(silence);
        }
        self.hosts
            .call(|state| match state.shim_tokens.get(&self.machine) {
                Some(token) if token.expose() != self.token.expose() => Err(refused(401, "another token")),
                _ => work(state),
            })
    }
}

#[async_trait]
impl Shim for SimShim {
    async fn submit(&self, config: &TaskConfig) -> Result<(), AgentError> {
        self.hosts.acts("submit a task");
        let id = config.id.clone();
        let created = self.call(|state| {
            if state.tasks.contains_key(&id) {
                return Err(refused(409, "already submitted"));
            }
            state.mount(&self.machine, config);
            state.submitted.insert(id.clone(), config.clone());
            let run = config.name.rsplitn(3, '-').nth(2).unwrap_or_default();
            let script = state.scripts.get(run).copied().unwrap_or_default();
            state.scripts.insert(id.clone(), script);
            let info = TaskInfo {
                id: id.clone(),
                container_name: config.name.clone(),
                ..TaskInfo::default()
            };
            state.tasks.insert(
                id.clone(),
                Task {
                    machine: self.machine.clone(),
                    info,
                    runner: RunnerSim {
                        token: config.runner_token.clone(),
                        ..RunnerSim::default()
                    },
                },
            );
            Ok(())
        });
        // Started even when the answer was lost.
        let exists = self
            .hosts
            .lock()
            .tasks
            .get(&id)
            .is_some_and(|task| task.info.status == TaskStatus::Pending);
        if exists && !matches!(created, Err(AgentError::Refused { .. })) {
            self.hosts.start_container(id);
        }
        created
    }

    async fn terminate(&self, id: &str, order: &TaskTerminate) -> Result<(), AgentError> {
        self.hosts.acts("terminate a task");
        self.call(|state| {
            let task = state.tasks.get_mut(id).ok_or_else(|| refused(404, "not found"))?;
            task.info.status = TaskStatus::Terminated;
            task.info.termination_reason.clone_from(&order.termination_reason);
            state.mounts.remove(id);
            Ok(())
        })
    }

    async fn remove(&self, id: &str) -> Result<(), AgentError> {
        self.hosts.acts("remove a task");
        self.call(|state| match state.tasks.get(id).map(|task| task.info.status) {
            None => Err(refused(404, "not found")),
            Some(TaskStatus::Terminated) => {
                state.tasks.remove(id);
                Ok(())
            }
            Some(_) => Err(refused(409, "not terminated")),
        })
    }

    async fn watch(&self) -> Result<Box<dyn TaskSource>, AgentError> {
        self.hosts.answer(&self.machine, CALL_TIMEOUT).await?;
        let (lags, synced) =
            self.call(|state| Ok((state.lags, state.never_synced.contains(&self.machine))))?;
        Ok(Box::new(SimTasks {
            hosts: self.hosts.clone(),
            machine: self.machine.clone(),
            key: self.key.clone(),
            told: BTreeMap::new(),
            synced,
            lags,
        }))
    }

    async fn answers_within(&self, patience: Duration) -> Result<(), AgentError> {
        self.hosts.answer(&self.machine, patience).await?;
        self.call(|_| Ok(()))
    }

    async fn health(&self) -> Result<InstanceHealth, AgentError> {
        self.call(|state| {
            state.health_asked += 1;
            Ok(state.health.clone())
        })
    }
}

/// The connection to a container.
#[derive(Debug)]
struct SimLink {
    hosts: Hosts,
    machine: String,
    job: String,
}

#[async_trait]
impl Link for SimLink {
    async fn broken(&self) -> AgentError {
        loop {
            let changed = Arc::clone(&self.hosts.changed);
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let runs = self.hosts.lock().tasks.contains_key(&self.job);
            if !runs || self.hosts.is_lost(&self.machine) || self.hosts.stream_breaks() {
                return AgentError::Unreachable("the connection broke".to_owned());
            }
            notified.await;
        }
    }
}

struct SimTasks {
    hosts: Hosts,
    machine: String,
    key: Option<String>,
    told: BTreeMap<String, TaskInfo>,
    synced: bool,
    lags: usize,
}

impl SimTasks {
    fn next_change(&mut self) -> Option<StreamEvent> {
        let state = self.hosts.lock();
        if state.lags != self.lags {
            self.lags = state.lags;
            self.told.clear();
            self.synced = false;
        }
        let mut here = state.tasks.values().filter(|task| task.machine == self.machine);
        let changed = here.find(|task| self.told.get(&task.info.id) != Some(&task.info));
        if let Some(task) = changed {
            self.told.insert(task.info.id.clone(), task.info.clone());
            return Some(StreamEvent::Task(task.info.clone()));
        }
        if !self.synced {
            self.synced = true;
            return Some(StreamEvent::Synced);
        }
        let gone = self
            .told
            .keys()
            .find(|id| !state.tasks.contains_key(*id))
            .cloned()?;
        self.told.remove(&gone);
        Some(StreamEvent::Removed { id: gone })
    }
}

#[async_trait]
impl TaskSource for SimTasks {
    async fn next(&mut self) -> Result<Option<StreamEvent>, AgentError> {
        loop {
            let changed = Arc::clone(&self.hosts.changed);
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let is_late = self.hosts.lock().late.contains_key(&self.machine);
            let is_silent = self.hosts.silence(&self.machine, self.key.as_ref()).is_some();
            if is_late || is_silent || self.hosts.stream_breaks() {
                return Err(AgentError::Unreachable("stream broke".to_owned()));
            }
            if let Some(change) = self.next_change() {
                return Ok(Some(change));
            }
            notified.await;
        }
    }
}

#[derive(Debug)]
struct SimRunner {
    hosts: Hosts,
    machine: String,
    id: String,
    token: Secret,
}

impl SimRunner {
    fn with<T>(&self, work: impl FnOnce(&mut RunnerSim) -> Result<T, AgentError>) -> Result<T, AgentError> {
        if self.hosts.is_lost(&self.machine) {
            return Err(AgentError::Unreachable("no route to host".to_owned()));
        }
        self.hosts.call(|state| match state.tasks.get_mut(&self.id) {
            Some(task) if task.info.status == TaskStatus::Running && task.runner.token != self.token => {
                Err(refused(401, "Unauthorized"))
            }
            Some(task) if task.info.status == TaskStatus::Running => work(&mut task.runner),
            None if state.containers.contains(&self.machine) => {
                Err(AgentError::NotRunning("nothing listens on port 10999".to_owned()))
            }
            _ => Err(AgentError::Unreachable("connection refused".to_owned())),
        })
    }
}

#[async_trait]
impl Runner for SimRunner {
    async fn healthcheck(&self) -> Result<(), AgentError> {
        self.with(|_| Ok(()))
    }

    async fn job(&self) -> Result<JobStatus, AgentError> {
        self.with(|runner| {
            Ok(JobStatus {
                state: runner.state,
                last_updated: runner.last,
                ..JobStatus::default()
            })
        })
    }

    async fn submit(&self, body: &SubmitBody) -> Result<(), AgentError> {
        self.hosts.acts("submit a job");
        self.with(|runner| match runner.state {
            RunnerState::WaitSubmit | RunnerState::WaitRun => {
                runner.state = RunnerState::WaitRun;
                Ok(())
            }
            _ => Err(refused(409, "conflict")),
        })?;
        self.hosts.lock().told.insert(self.id.clone(), body.clone());
        Ok(())
    }

    async fn upload_archive(&self, _id: &str, _archive: &[u8]) -> Result<(), AgentError> {
        self.with(|_| Ok(()))
    }

    async fn upload_code(&self, _code: Vec<u8>) -> Result<(), AgentError> {
        self.with(|_| Ok(()))
    }

    async fn run(&self) -> Result<Option<JobInfo>, AgentError> {
        self.hosts.acts("run a job");
        let mut started = false;
        let answer = self.with(|runner| {
            if runner.state != RunnerState::WaitRun {
                return Err(refused(409, "conflict"));
            }
            runner.state = RunnerState::ServeLogs;
            runner.starts += 1;
            started = true;
            Ok(Some(JobInfo {
                working_dir: "/w".to_owned(),
                username: "root".to_owned(),
            }))
        });
        if started {
            let mut state = self.hosts.lock();
            *state.starts.entry(self.id.clone()).or_default() += 1;
            let script = state.scripts.get(&self.id).copied().unwrap_or_default();
            drop(state);
            self.hosts.run_commands(self.id.clone(), script);
        }
        answer
    }

    async fn stop(&self) -> Result<(), AgentError> {
        self.hosts.acts("stop a job");
        let now = self.hosts.clock.now();
        self.hosts.lock().stopped.entry(self.id.clone()).or_insert(now);
        self.with(|runner| {
            runner.stopping = true;
            Ok(())
        })
    }

    async fn ack(&self, timestamp: i64) -> Result<(), AgentError> {
        self.hosts.acts("acknowledge output");
        self.with(|runner| {
            runner
                .events
                .retain(|line| line.event_timestamp().is_none_or(|at| at > timestamp));
            Ok(())
        })
    }

    async fn metrics(&self) -> Result<Option<Metrics>, AgentError> {
        self.with(|_| Ok(()))?;
        let script = self.hosts.lock().scripts.get(&self.id).copied();
        let gpu = script.and_then(|script| script.gpu);
        Ok(gpu.map(|percent| Metrics {
            timestamp_micro: self.hosts.clock.now().as_micros(),
            gpus: vec![GpuMetrics {
                gpu_util_percent: percent,
                ..GpuMetrics::default()
            }],
            ..Metrics::default()
        }))
    }

    async fn follow(&self, cursor: i64) -> Result<Box<dyn EventSource>, AgentError> {
        self.with(|_| Ok(()))?;
        let script = self.hosts.lock().scripts.get(&self.id).copied();
        Ok(Box::new(SimEvents {
            hosts: self.hosts.clone(),
            machine: self.machine.clone(),
            id: self.id.clone(),
            cursor,
            alone: script.is_some_and(|script| script.alone),
            followed_since: self.hosts.clock.now(),
        }))
    }
}

/// Signs of life of a job that nobody is connected to.
const TICK_EVERY: Duration = Duration::from_secs(5);

struct SimEvents {
    hosts: Hosts,
    machine: String,
    id: String,
    cursor: i64,
    alone: bool,
    followed_since: Time,
}

impl SimEvents {
    fn tick(&self) -> StreamLine {
        let alone_for = self.hosts.clock.now().since(self.followed_since);
        StreamLine::Tick(Tick {
            timestamp: self.cursor,
            no_connections_secs: i64::try_from(alone_for.as_secs()).unwrap_or(i64::MAX),
        })
    }

    fn next_line(&mut self) -> Option<Option<StreamLine>> {
        let state = self.hosts.lock();
        let Some(task) = state
            .tasks
            .get(&self.id)
            .filter(|task| task.info.status == TaskStatus::Running)
        else {
            return Some(None);
        };
        let next = task
            .runner
            .events
            .iter()
            .find(|line| line.event_timestamp().is_some_and(|at| at > self.cursor));
        if let Some(line) = next {
            self.cursor = line.event_timestamp().unwrap_or(self.cursor);
            return Some(Some(line.clone()));
        }
        task.runner.ended.then_some(Some(StreamLine::End(End {
            timestamp: task.runner.last,
        })))
    }
}

#[async_trait]
impl EventSource for SimEvents {
    async fn next(&mut self) -> Result<Option<StreamLine>, AgentError> {
        loop {
            let changed = Arc::clone(&self.hosts.changed);
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.hosts.is_lost(&self.machine) || self.hosts.stream_breaks() {
                return Err(AgentError::Unreachable("stream broke".to_owned()));
            }
            if let Some(line) = self.next_line() {
                return Ok(line);
            }
            tokio::select! {
                () = notified => {}
                () = tokio::time::sleep(TICK_EVERY), if self.alone => return Ok(Some(self.tick())),
            }
        }
    }
}
