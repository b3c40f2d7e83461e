//! Services as the database has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::configurations::AnyModel;
use dstack_model::configurations::service::{self, ServiceConfiguration};
use dstack_model::runs::RunStatus;
use dstack_plan::services::{replicas, routers};
use dstack_proxy::{Balancing, ChatFormat, Model, Paths, Service, Split};
use dstack_store::queries::views::ListedRun;
use dstack_store::rows::{InstanceRow, JobRow, RunRow};
use dstack_store::{Database, StoreError};
use dstack_units::{InstanceId, RunId, Time};

use super::Inner;
use super::replicas::Place;
use super::rollouts;

/// What is stored of services.
#[derive(Debug)]
pub(super) struct Stored {
    runs: Vec<ListedRun>,
    jobs: Vec<JobRow>,
    instances: HashMap<InstanceId, InstanceRow>,
}

/// Reads what is stored of these runs.
pub(super) async fn read(database: &Database, runs: &[RunId]) -> Result<Stored, StoreError> {
    let services = database.services();
    let mut jobs = services.registered_jobs(runs).await?;
    // Of a replica of several nodes, the first one answers.
    jobs.retain(|job| job.job_num == 0);
    let instances: Vec<InstanceId> = jobs.iter().filter_map(|job| job.instance_id).collect();
    let instances = match instances.is_empty() {
        true => Vec::new(),
        false => services.instances(&instances).await?,
    };
    Ok(Stored {
        runs: database.views().runs(runs).await?,
        jobs,
        instances: instances.into_iter().map(|row| (row.id, row)).collect(),
    })
}

impl Stored {
    /// The services of these runs that have replicas, or may have none until requests come.
    pub(super) fn services(&self, inner: &Arc<Inner>) -> Vec<Service> {
        let of_run = |run: &ListedRun| self.service(inner, run);
        self.runs.iter().filter_map(of_run).collect()
    }

    /// Those of these runs whose replicas follow their requests.
    pub(super) fn scaled(&self) -> impl Iterator<Item = RunId> {
        let scales = |listed: &&ListedRun| {
            let service = listed.run.run_spec.configuration.service();
            service.is_some_and(replicas::scales) && !listed.run.status().is_finished()
        };
        self.runs.iter().filter(scales).map(|listed| listed.run.id)
    }

    /// Those of these runs whose replicas follow how busy they are.
    pub(super) fn strained(&self) -> impl Iterator<Item = RunId> {
        let follows = |listed: &&ListedRun| {
            let service = listed.run.run_spec.configuration.service();
            service.is_some_and(replicas::has_signals) && !listed.run.status().is_finished()
        };
        self.runs.iter().filter(follows).map(|listed| listed.run.id)
    }

    /// Those of these runs whose routers are told of their workers.
    pub(super) fn routed(&self) -> impl Iterator<Item = RunId> {
        let is_told = |listed: &&ListedRun| {
            let service = listed.run.run_spec.configuration.service();
            let status = listed.run.status();
            let lives = !status.is_finished() && status != RunStatus::Terminating;
            lives && service.is_some_and(routers::is_told_of_workers)
        };
        self.runs.iter().filter(is_told).map(|listed| listed.run.id)
    }

    fn service(&self, inner: &Arc<Inner>, listed: &ListedRun) -> Option<Service> {
        let configuration = listed.run.run_spec.configuration.service()?;
        if listed.run.gateway_id.is_some() {
            // Its requests go there alone.
            return None;
        }
        let jobs = self.jobs.iter().filter(|job| job.run_id == listed.run.id);
        let replicas: Vec<_> = jobs
            .filter_map(|job| {
                let port = job.job_spec.service_port?;
                let instance = job.instance_id.and_then(|id| self.instances.get(&id));
                let address = instance.and_then(|row| row.agent.as_deref());
                let connect = || inner.ports.connector(address, job, port);
                Some(inner.replicas.at(job, Place::of(job, address, port), connect))
            })
            .collect();
        let service = Service {
            starts_on_request: starts_on_request(&listed.run, configuration, inner.clock.now()),
            split: self.split(inner, &listed.run),
            replicas,
            ..described(listed, configuration, inner.read_timeout)
        };
        (service.starts_on_request || !service.replicas.is_empty()).then_some(service)
    }

    fn split(&self, inner: &Arc<Inner>, run: &RunRow) -> Option<Arc<Split>> {
        let jobs = self.jobs.iter().filter(|job| job.run_id == run.id);
        let planned = rollouts::split(run, jobs)?;
        let answered = inner.rollouts.lock().of(run.id, planned.deployment);
        Some(Arc::new(planned.routed(answered)))
    }
}

/// Whether requests start a replica of it. Its schedule may leave it no time for any.
fn starts_on_request(run: &RunRow, configuration: &ServiceConfiguration, now: Time) -> bool {
    let lives = !run.status().is_finished() && run.status() != RunStatus::Terminating;
    let is_due = run.next_triggered_at.is_none_or(|at| at <= now);
    lives && is_due && replicas::starts_on_request(configuration)
}

/// All but its replicas.
fn described(listed: &ListedRun, configuration: &ServiceConfiguration, read_timeout: Duration) -> Service {
    Service {
        run_id: listed.run.id,
        project: listed.project_name.clone(),
        run: listed.run.run_name.clone(),
        created: listed.run.submitted_at.to_jiff().as_second(),
        auth: configuration.auth,
        strip_prefix: configuration.strip_prefix,
        paths: match routers::router_group(configuration) {
            Some(_) => Paths::OfRouter,
            None => Paths::All,
        },
        read_timeout,
        shares_origin: true,
        starts_on_request: false,
        split: None,
        model: configuration.model.as_ref().map(model),
        balancing: match configuration.balancing {
            Some(service::Balancing::Prefix) => Balancing::Prefix,
            Some(service::Balancing::LeastRequests) | None => Balancing::LeastRequests,
        },
        replicas: Vec::new(),
    }
}

fn model(model: &AnyModel) -> Model {
    Model {
        name: model.name().to_owned(),
        format: match model {
            AnyModel::OpenAi(model) => ChatFormat::OpenAi {
                prefix: model.prefix.clone(),
            },
            // Both are there: services without them are refused.
            AnyModel::Tgi(model) => ChatFormat::Tgi {
                chat_template: model.chat_template.clone().unwrap_or_default(),
                eos_token: model.eos_token.clone().unwrap_or_default(),
            },
        },
    }
}
