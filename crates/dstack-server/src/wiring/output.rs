//! Output of jobs into the log store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dstack_engine::{Batch, EngineError, Output, Piece, Result};
use dstack_logs::{LogEntry, LogStore, LogStream, Producer, Source};
use dstack_store::Database;
use dstack_store::directory::projects;
use dstack_store::rows::JobRow;
use dstack_units::{ProjectId, Time};

/// Appends to the log store under the project's name.
#[derive(Debug)]
pub struct LogOutput {
    logs: Arc<dyn LogStore>,
    database: Database,
    names: Mutex<HashMap<ProjectId, String>>,
}

impl LogOutput {
    /// Into this store.
    pub fn new(logs: Arc<dyn LogStore>, database: Database) -> Self {
        Self {
            logs,
            database,
            names: Mutex::default(),
        }
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
        let project = projects::by_id(self.database.pool(), id).await?;
        let name = project.map_or_else(|| id.to_string(), |project| project.name);
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, name.clone());
        Ok(name)
    }

    async fn append_stream(
        &self,
        project: &str,
        job: &JobRow,
        producer: Producer,
        pieces: Vec<Piece>,
    ) -> Result<()> {
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
            .map_err(|error| EngineError::Logs(Box::new(error)))
    }
}

#[async_trait]
impl Output for LogOutput {
    async fn append(&self, job: &JobRow, batch: Batch) -> Result<()> {
        let project = self.project_name(job.project_id).await?;
        self.append_stream(&project, job, Producer::Job, batch.job)
            .await?;
        self.append_stream(&project, job, Producer::Runner, batch.runner)
            .await
    }
}
