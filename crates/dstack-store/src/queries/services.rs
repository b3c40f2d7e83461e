//! Where requests to services go.

use dstack_units::{GatewayId, InstanceId, RunId};
use sqlx::any::AnyRow;

use super::Reads;
use super::select::Select;
use crate::entity::{read_column, select_sql};
use crate::rows::{InstanceRow, JobRow};
use crate::{Entity, Result};

/// Where requests to services go: see [`crate::Database::services`].
#[derive(Debug, Clone, Copy)]
pub struct Services<'a>(pub(crate) Reads<'a>);

impl Services<'_> {
    /// Runs that have jobs which get requests, and services that have not ended, in no order.
    pub async fn runs(self) -> Result<Vec<RunId>> {
        let query = Select::new(
            "SELECT t.run_id FROM jobs t WHERE t.status = 'running' AND t.registered = 1 \
             UNION SELECT r.id FROM runs r WHERE r.status NOT IN ('terminated', 'failed', 'done') \
             AND r.service_spec IS NOT NULL",
        );
        query
            .fetch(self.0)
            .await?
            .iter()
            .map(|row| read_column(row, 0, "jobs", "run_id"))
            .collect()
    }

    /// Runs that are published at a gateway and are not ending, in no order.
    pub async fn runs_at(self, gateway: GatewayId) -> Result<Vec<RunId>> {
        let mut query = Select::new("SELECT t.id FROM runs t");
        let gateway = query.bind(gateway);
        query.filter(format_args!(
            "t.gateway_id = {gateway} AND t.status NOT IN ('terminated', 'failed', 'done') AND t.status <> 'terminating'"
        ));
        let read = |row: &AnyRow| read_column(row, 0, "runs", "id");
        query.fetch_as(self.0, read).await
    }

    /// The jobs of these runs that get requests, by run and replica.
    pub async fn registered_jobs(self, runs: &[RunId]) -> Result<Vec<JobRow>> {
        let mut query = Select::new(select_sql::<JobRow>());
        let list = query.bind_list(runs.iter().copied());
        query.filter(format_args!(
            "t.run_id IN {list} AND t.status = 'running' AND t.registered = 1"
        ));
        query.push(" ORDER BY t.run_id, t.replica_num, t.id");
        query
            .fetch_as(self.0, |row| JobRow::read(row, self.0.keys()))
            .await
    }

    /// The running jobs of a run, by replica.
    pub async fn running_jobs(self, run: RunId) -> Result<Vec<JobRow>> {
        let mut query = Select::new(select_sql::<JobRow>());
        let run = query.bind(run);
        query.filter(format_args!("t.run_id = {run} AND t.status = 'running'"));
        query.push(" ORDER BY t.replica_num, t.id");
        query
            .fetch_as(self.0, |row| JobRow::read(row, self.0.keys()))
            .await
    }

    /// These instances, in no order.
    pub async fn instances(self, ids: &[InstanceId]) -> Result<Vec<InstanceRow>> {
        let mut query = Select::new(select_sql::<InstanceRow>());
        let list = query.bind_list(ids.iter().copied());
        query.filter(format_args!("t.id IN {list}"));
        query
            .fetch_as(self.0, |row| InstanceRow::read(row, self.0.keys()))
            .await
    }
}
