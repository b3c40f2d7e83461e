//! Output of jobs into the log store.

mod quota;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dstack_engine::{Batch, EngineError, Output, Piece, Result};
use dstack_logs::{LogEntry, LogStore, LogStream, Producer, Source};
use dstack_store::Database;
use dstack_store::rows::JobRow;
use dstack_system::clock::SharedClock;
use dstack_units::{JobId, ProjectId, Time};

use self::quota::Used;
use crate::live::Live;
use crate::state::Data;

/// Appends to the log store under the project's name, up to each job's quota.
#[derive(Debug)]
pub struct LogOutput {
    logs: Arc<dyn LogStore>,
    /// Tells of it.
    live: Live,
    database: Database,
    clock: SharedClock,
    /// Bytes per job, producer and hour; `None`: as many as come.
    quota: Option<u64>,
    names: Mutex<HashMap<ProjectId, String>>,
    used: Mutex<HashMap<(JobId, Producer), Used>>,
}

impl LogOutput {
    /// Into the server's store. `quota` is in bytes per job and hour; 0: none.
    pub fn new(data: &Data, quota: u64) -> Self {
        Self {
            logs: Arc::clone(&data.logs),
            live: data.live.clone(),
            database: data.database.clone(),
            clock: Arc::clone(&data.clock),
            quota: Some(quota).filter(|quota| *quota > 0),
            names: Mutex::default(),
            used: Mutex::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, HashMap<(JobId, Producer), Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn project_name(&self, id: ProjectId) -> Result<String> {
        let known = self
            .names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .cloned();
        if let Some(name) = known {
            return Ok(name);
        }
        // A project's name never changes while it has runs.
        let project = self.database.projects().by_id(id).await?;
        let name = project.map_or_else(|| id.to_string(), |project| project.name);
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, name.clone());
        Ok(name)
    }

    /// What of the pieces fits into the quota, and how much is used then. The runner has the same quota, but it runs in the
    /// container of the job.
    fn within_quota(&self, job: &JobRow, producer: Producer, pieces: Vec<Piece>) -> (Vec<Piece>, Used) {
        let used = self.used().get(&(job.id, producer)).copied().unwrap_or_default();
        match self.quota {
            Some(quota) => {
                let age = self.clock.now().since(job.submitted_at);
                used.admit(quota, age, pieces)
            }
            None => (pieces, used),
        }
    }

    async fn append_stream(
        &self,
        project: &str,
        job: &JobRow,
        producer: Producer,
        pieces: Vec<Piece>,
    ) -> Result<()> {
        let (pieces, used) = self.within_quota(job, producer, pieces);
        if pieces.is_empty() {
            return Ok(());
        }
        let stream = LogStream {
            project: project.to_owned(),
            run: job.run_name.clone(),
            job: job.id,
            producer,
        };
        let entries = pieces
            .into_iter()
            .map(|piece| LogEntry {
                timestamp: Time::from_millis(piece.timestamp),
                source: Source::Stdout,
                message: piece.bytes.into(),
            })
            .collect();
        self.logs
            .append(&stream, entries)
            .await
            .map_err(|error| EngineError::Logs(Box::new(error)))?;
        // What could not be stored comes again.
        self.used().insert((job.id, producer), used);
        Ok(())
    }
}

#[async_trait]
impl Output for LogOutput {
    async fn append(&self, job: &JobRow, batch: Batch) -> Result<()> {
        let project = self.project_name(job.project_id).await?;
        self.append_stream(&project, job, Producer::Job, batch.job)
            .await?;
        self.append_stream(&project, job, Producer::Runner, batch.runner)
            .await?;
        self.live.output_stored(job.project_id, job.run_id);
        Ok(())
    }

    fn release(&self, job: JobId) {
        self.logs.release(job);
    }

    fn forget(&self, job: JobId) {
        self.used().retain(|(of, _), _| *of != job);
    }
}
