//! Plays a Slurm cluster as its login node shows it (commands and texts of Slurm 22.05 and 24.11), for tests.
//!
//! Of the scripts that a backend sends, commands of Slurm are answered here. What else there is, a real shell runs, with a home of its
//! own: what stands in `authorized_keys` afterwards is read from there.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod commands;
pub mod real;
mod shell;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use dstack_backend_kit::{Emulator, Ledger};
use tempfile::TempDir;
use tokio::time::Instant;

pub use shell::Said;

/// How long a job waits for free nodes.
const STARTS: Duration = Duration::from_secs(5);

/// How long a cancelled job takes to end.
const ENDS: Duration = Duration::from_secs(3);

/// How long Slurm knows a job that is over (`MinJobAge`).
const REMEMBERED: Duration = Duration::from_secs(300);

/// A node, with the partitions that it is in.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name, which has a number at its end.
    pub name: String,
    /// Names of partitions.
    pub partitions: Vec<String>,
    /// Number of GPUs.
    pub gpus: usize,
}

/// A cluster, and the user on its login node.
#[derive(Debug, Clone)]
pub struct Slurm(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    nodes: Vec<Node>,
    /// `squeue --only-job-state` is known.
    is_new: bool,
    home: TempDir,
    ledger: Ledger,
    state: Mutex<State>,
    begun: Instant,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    /// Names of jobs in `authorized_keys`.
    keys: Vec<String>,
    is_full: bool,
    lag: Duration,
}

#[derive(Debug, Clone)]
struct Job {
    id: String,
    name: String,
    partitions: Vec<String>,
    nodes: Vec<String>,
    made_at: Instant,
    listed_at: Instant,
    /// When it begins to end.
    cancelled_at: Option<Instant>,
    /// A node has broken.
    lost_at: Option<Instant>,
    /// It never starts.
    waits: bool,
}

impl Job {
    fn state(&self) -> &'static str {
        match self.cancelled_at {
            _ if self.lost_at.is_some() => "NODE_FAIL",
            Some(at) if at.elapsed() >= ENDS || self.waits => "CANCELLED",
            Some(_) => "COMPLETING",
            None if self.waits || self.made_at.elapsed() < STARTS => "PENDING",
            None => "RUNNING",
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state(), "NODE_FAIL" | "CANCELLED")
    }

    fn is_forgotten(&self) -> bool {
        let over_at = self.lost_at.or(self.cancelled_at);
        self.is_over() && over_at.is_some_and(|at| at.elapsed() >= REMEMBERED)
    }

    fn reason(&self) -> &'static str {
        match self.state() {
            "PENDING" => "Resources",
            _ => "None",
        }
    }
}

impl Slurm {
    /// A cluster with these nodes. A new Slurm knows options that an old one does not.
    pub fn new(nodes: Vec<Node>, is_new: bool) -> Self {
        Self(Arc::new(Shared {
            nodes,
            is_new,
            home: tempfile::tempdir().unwrap(),
            ledger: Ledger::default(),
            state: Mutex::default(),
            begun: Instant::now(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script of a backend's.
    pub fn run(&self, script: &str) -> Said {
        let said = shell::run(self, script);
        self.settle();
        said
    }

    /// What a script says whose command does not reach the controller.
    pub fn fail(&self, script: &str) -> Said {
        let text = "slurm_load error: Unable to contact slurm controller (connect failure)\n";
        shell::frame(script, 1, "", text)
    }

    /// What is over costs nothing any more; keys are what stands in the file.
    fn settle(&self) {
        let file = self.0.home.path().join(".ssh/authorized_keys");
        let text = fs_err::read_to_string(file).unwrap_or_default();
        let names = text
            .lines()
            .filter_map(|line| line.split_once(" dstack-job="))
            .map(|(_, name)| name);
        let mut now: Vec<String> = names.map(str::to_owned).collect();
        now.dedup();
        let mut state = self.lock();
        let id = |name: &String| format!("keys of {name}");
        for name in now.iter().filter(|name| !state.keys.contains(name)) {
            self.0.ledger.made("keys", id(name), name);
        }
        for name in state.keys.iter().filter(|name| !now.contains(name)) {
            self.0.ledger.removed(&id(name));
        }
        state.keys = now;
        for job in state.jobs.iter().filter(|job| job.is_over()) {
            self.0.ledger.removed(&job.id);
        }
        state.jobs.retain(|job| !job.is_forgotten());
    }
}

impl Emulator for Slurm {
    /// There is none.
    fn router(&self) -> Router {
        Router::new()
    }

    fn ledger(&self) -> &Ledger {
        self.settle();
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().is_full = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        for job in &mut self.lock().jobs {
            if !job.is_over() {
                job.lost_at = Some(Instant::now());
            }
        }
        self.settle();
    }
}
