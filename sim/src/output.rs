//! Simulated store of output, by the rule of the real one: a piece that is not newer than the last one is known.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use dstack_agent_api::runner::{SubmitBody, SubmitJobSpec};
use dstack_engine::peers::{cluster_info, placed_spec};
use dstack_engine::{
    Batch, Image, Inputs, InputsError, MachineInputs, Output, Result, RunJobs, SshKeys, StartInputs,
};
use dstack_model::runs::JobSpec;
use dstack_plan::services::replicas::Slot;
use dstack_store::JobSnapshot;
use dstack_store::rows::{FleetRow, GatewayRow, InstanceRow, JobRow, RunRow};
use dstack_system::Secret;
use dstack_units::{InstanceId, JobId, ProjectId};
use tokio::sync::Notify;

/// All output, by job.
#[derive(Debug, Default)]
pub struct SimOutput {
    jobs: Mutex<HashMap<JobId, (i64, String)>>,
    changed: Notify,
}

impl SimOutput {
    /// Ends when there is more. Whatever comes after this call counts, also before the answer is awaited.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// What a job printed.
    pub fn of(&self, job: JobId) -> String {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&job)
            .map(|(_, text)| text.clone())
            .unwrap_or_default()
    }
}

#[async_trait]
impl Output for SimOutput {
    async fn append(&self, job: &JobRow, batch: Batch) -> Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, text) = jobs.entry(job.id).or_default();
        for piece in batch.job {
            if piece.timestamp > *last {
                *last = piece.timestamp;
                text.push_str(&String::from_utf8_lossy(&piece.bytes));
            }
        }
        self.changed.notify_waiters();
        Ok(())
    }
}

/// What calls to the shim of a host bring.
pub fn shim_token(instance: InstanceId) -> Secret {
    Secret::new(format!("token of the host {instance}"))
}

/// Jobs that need nothing, but for a registry that may be away when they are made.
#[derive(Debug, Default)]
pub struct SimInputs {
    away: AtomicBool,
}

impl SimInputs {
    /// The registry stops answering, or answers again.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }
}

#[async_trait]
impl Inputs for SimInputs {
    async fn jobs(&self, run: &RunRow, replicas: &[Slot]) -> Result<Vec<JobSpec>, InputsError> {
        if self.away.load(Ordering::Relaxed) {
            return Err(InputsError::transient("the registry does not answer"));
        }
        let made = crate::scenario::jobs(&run.run_spec, replicas);
        made.map_err(|error| InputsError::Refused(error.to_string()))
    }
    async fn machine(&self, _: &InstanceRow, _: Option<&FleetRow>) -> Result<MachineInputs, InputsError> {
        Ok(MachineInputs::default())
    }
    async fn gateway(&self, _: &GatewayRow) -> Result<MachineInputs, InputsError> {
        Ok(MachineInputs::default())
    }
    async fn start(&self, job: &JobSnapshot, jobs: &RunJobs) -> Result<StartInputs, InputsError> {
        let spec = placed_spec(job, jobs)?;
        let env = spec.env.into_iter();
        let body = SubmitBody {
            job_spec: SubmitJobSpec {
                commands: spec.commands,
                env: env.map(|(name, value)| (name, Secret::new(value))).collect(),
                ..SubmitJobSpec::default()
            },
            cluster_info: cluster_info(job, jobs),
            ..SubmitBody::default()
        };
        Ok(StartInputs {
            body,
            ..StartInputs::default()
        })
    }
    async fn image(&self, _job: &JobSnapshot, has_efa: bool) -> Result<Image, InputsError> {
        let password = Secret::new("the password of the registry".to_owned());
        Ok(Image {
            name: match has_efa {
                true => "registry.example/image-with-efa".to_owned(),
                false => "registry.example/image".to_owned(),
            },
            credentials: Some(("somebody".to_owned(), password)),
            are_credentials_servers: false,
        })
    }
    async fn ssh_keys(&self, _job: &JobSnapshot) -> Result<SshKeys, InputsError> {
        Ok(SshKeys {
            container: vec!["ssh-ed25519 AAAA the project's".to_owned()],
            host: Vec::new(),
        })
    }
    async fn runner_token(&self, job: &JobSnapshot) -> Result<Secret, InputsError> {
        Ok(Secret::new(format!("token of {}", job.job.id)))
    }
    async fn shim_token(&self, _project: ProjectId, instance: InstanceId) -> Result<Secret, InputsError> {
        Ok(shim_token(instance))
    }
}
