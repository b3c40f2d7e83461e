//! What the parts of a runner share: settings, logs, and where the job stands.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use dstack_agent_api::proof::Gate;
use dstack_agent_api::runner::{JobInfo, JobStatus, RunnerState, SubmitBody};
use dstack_sshd::SessionDefaults;
use dstack_system::accounts::Passwd;
use dstack_system::clock::SharedClock;
use dstack_system::{Random, Secret};

use crate::history::History;
use crate::inactivity::{Connections, Inactivity};
use crate::log::RunnerLog;
use crate::metrics::Collector;
use crate::spool::{NotSent, Spool};

/// How a runner was started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Logs and uploads.
    pub temp_dir: PathBuf,
    /// `/dstack`, or a private directory.
    pub state_dir: PathBuf,
    /// Whether the job may leave traces outside of `state_dir`: the line in `/etc/profile`, credentials in the home.
    pub touch_system: bool,
    /// Told to the user first of all.
    pub notices: Vec<String>,
    /// What HTTP requests must bring; `None`: nothing.
    pub token: Option<Secret>,
    /// Bytes on disk for logs that the server has not fetched.
    pub spool_limit: u64,
    /// Whether what goes through the network is of the job alone.
    pub own_network: bool,
    /// Accounts of the image.
    pub passwd: Passwd,
    /// Environment that jobs inherit.
    pub inherited_env: Vec<(String, String)>,
}

/// The job's SSH server, as far as the executor needs it.
pub trait JobSsh: Connections {
    /// The port it listens on.
    fn port(&self) -> u16;
    /// Lets this key log in, too.
    fn add_key(&self, line: &str);
}

/// Shared by API, executor and life cycle.
#[derive(Debug)]
pub struct Core {
    /// How the runner was started.
    pub settings: Settings,
    /// The clock of all timestamps.
    pub clock: SharedClock,
    /// The runner's own log.
    pub log: RunnerLog,
    /// Events for the server.
    pub spool: Spool,
    /// Raw output for watchers.
    pub history: History,
    /// Time without connections.
    pub inactivity: Inactivity,
    /// Resource usage; `None`: not available here.
    pub metrics: Option<Collector>,
    /// Environment and directory of SSH sessions.
    pub session: watch::Sender<SessionDefaults>,
    /// Lets in what is signed with the token of the settings.
    pub gate: Option<Gate>,
    phase: Mutex<Phase>,
    state: watch::Sender<RunnerState>,
    stop: watch::Sender<bool>,
    served: watch::Sender<Served>,
    watchers: AtomicUsize,
}

/// Somebody who reads the raw output; gone when this is dropped.
#[derive(Debug)]
pub struct Watching(Arc<Core>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Phase {
    submitted: Option<Submitted>,
    info: JobInfo,
}

/// A job that was handed over.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// What the server sent.
    pub body: Arc<SubmitBody>,
    /// When: the log quota counts from here.
    pub at: Instant,
}

/// Who has had the end of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// A pull with `has_more: false` was answered, or the last event was acknowledged.
    pub server: bool,
    /// A WebSocket got everything.
    pub watcher: bool,
    /// A WebSocket got everything, and no client is connected any more.
    pub left: bool,
    /// A server that acknowledges was here: it comes back for the rest, however long it stays away.
    pub expected: bool,
}

/// The request does not fit the runner's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

impl Core {
    /// A runner that waits for a job; its directories are made.
    pub fn create(settings: Settings, log: RunnerLog, clock: SharedClock) -> std::io::Result<Self> {
        let spool = Spool::create(
            &settings.temp_dir.join("spool"),
            settings.spool_limit,
            Arc::clone(&clock),
        )?;
        let history = History::create(
            &settings.temp_dir.join("job.log"),
            settings.spool_limit,
            Arc::clone(&clock),
        )?;
        let token = settings.token.clone();
        Ok(Self {
            gate: token.map(|token| Gate::new(token, Random::system())),
            metrics: Collector::detect(settings.own_network),
            settings,
            clock,
            log,
            spool,
            history,
            inactivity: Inactivity::default(),
            session: watch::Sender::default(),
            phase: Mutex::default(),
            state: watch::Sender::default(),
            stop: watch::Sender::new(false),
            served: watch::Sender::default(),
            watchers: AtomicUsize::new(0),
        })
    }

    /// Takes a job; again until it runs.
    pub fn submit(&self, body: SubmitBody) -> Result<(), Conflict> {
        let mut phase = self.phase();
        if !matches!(self.state(), RunnerState::WaitSubmit | RunnerState::WaitRun) {
            return Err(Conflict);
        }
        phase.submitted = Some(Submitted {
            body: Arc::new(body),
            at: Instant::now(),
        });
        self.state.send_replace(RunnerState::WaitRun);
        Ok(())
    }

    /// Whether uploads are welcome.
    pub fn accepts_uploads(&self) -> Result<(), Conflict> {
        if self.state() == RunnerState::WaitRun {
            Ok(())
        } else {
            Err(Conflict)
        }
    }

    /// The job is to run now: only once.
    pub fn begin(&self) -> Result<Submitted, Conflict> {
        let phase = self.phase();
        if self.state() != RunnerState::WaitRun {
            return Err(Conflict);
        }
        let submitted = phase.submitted.clone().ok_or(Conflict)?;
        self.state.send_replace(RunnerState::ServeLogs);
        Ok(submitted)
    }

    /// What became known about the job.
    pub fn set_info(&self, info: JobInfo) {
        self.phase().info = info;
    }

    /// The executor returned; nothing follows.
    pub fn finish(&self) {
        self.spool.finish();
        self.history.finish();
        self.state.send_replace(RunnerState::WaitLogsFinished);
    }

    /// Where the runner stands.
    pub fn state(&self) -> RunnerState {
        *self.state.borrow()
    }

    /// Returns a receiver that is told of every change of [`Self::state`].
    pub fn watch_state(&self) -> watch::Receiver<RunnerState> {
        self.state.subscribe()
    }

    /// State and facts in one.
    pub fn status(&self) -> JobStatus {
        let phase = self.phase();
        JobStatus {
            state: self.state(),
            job_id: phase
                .submitted
                .as_ref()
                .map(|job| job.body.job_submission.id.clone())
                .unwrap_or_default(),
            working_dir: phase.info.working_dir.clone(),
            username: phase.info.username.clone(),
            last_updated: self.spool.progress().last,
        }
    }

    /// Stops the job if it runs.
    pub fn stop(&self) {
        if self.state() == RunnerState::ServeLogs {
            self.stop.send_replace(true);
        }
    }

    /// Becomes true when the job is to stop.
    pub fn watch_stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Everything up to here is stored by the server. Refused when it was never sent.
    pub fn ack(&self, timestamp: i64) -> Result<(), NotSent> {
        self.spool.ack(timestamp)?;
        let progress = self.spool.progress();
        if progress.finished && timestamp >= progress.last {
            self.served_server();
        }
        Ok(())
    }

    /// A server follows the stream: it acknowledges what it has stored.
    pub fn expect_server(&self) {
        self.served.send_modify(|served| served.expected = true);
    }

    /// The server has, or is being sent, the end of the logs.
    pub fn served_server(&self) {
        self.served.send_modify(|served| served.server = true);
    }

    /// Somebody begins to read the raw output.
    pub fn begin_watching(self: &Arc<Self>) -> Watching {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        Watching(Arc::clone(self))
    }

    /// Whether somebody reads the raw output now, and the server is one that wants to know.
    pub fn is_watched(&self) -> bool {
        self.served.borrow().expected && self.watchers.load(Ordering::Relaxed) > 0
    }

    /// No client that reads output is to be expected any more.
    pub fn clients_left(&self) {
        self.served.send_modify(|served| served.left = true);
    }

    /// A watcher has the end of the raw output.
    pub fn served_watcher(&self) {
        self.served.send_modify(|served| served.watcher = true);
    }

    /// Follows who has had the end.
    pub fn watch_served(&self) -> watch::Receiver<Served> {
        self.served.subscribe()
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error and its causes in one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    dstack_system::chain(error).to_string()
}
