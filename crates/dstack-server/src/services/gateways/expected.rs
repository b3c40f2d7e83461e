//! What a gateway should have: the services that are published there, and their replicas.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dstack_agent_api::gateway::{OpenAiOptions, RegisterEntrypoint, RegisterService, ServiceOptions, Split};
use dstack_model::configurations::service::ServiceConfiguration;
use dstack_model::gateways::AnyGatewayCertificate;
use dstack_plan::services::gateways as plan;
use dstack_plan::services::routers::router_group;
use dstack_proxy::split::ALL;
use dstack_store::queries::views::ListedRun;
use dstack_store::rows::{AgentAddress, InstanceRow, JobRow};
use dstack_store::{Database, StoreError};
use dstack_system::Secret;
use dstack_units::{GatewayId, InstanceId, JobId, RunId};
use url::Url;

use super::Rules;
use crate::services::rollouts;

/// A service, as the database has it.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) listed: ListedRun,
    /// The jobs that are to get requests.
    pub(super) replicas: HashMap<JobId, Replica>,
}

/// A job that is to get requests.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) job: JobRow,
    /// How its agent is reached; `None`: not at all.
    pub(super) address: Option<AgentAddress>,
}

/// All that a gateway should have.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// By run.
    pub(super) services: HashMap<RunId, Service>,
    /// Whether its replicas speak TLS themselves, and no load balancer before them.
    pub(super) has_tls: bool,
}

/// Reads it; nothing, where the gateway is gone.
pub(super) async fn read(database: &Database, gateway: GatewayId) -> Result<Expected, StoreError> {
    let Some(row) = database.gateways().by_id(gateway).await? else {
        return Ok(Expected::default());
    };
    let certificate = &row.configuration.certificate;
    let mut expected = Expected {
        has_tls: matches!(certificate, Some(AnyGatewayCertificate::LetsEncrypt(_))),
        ..Expected::default()
    };
    let services = database.services();
    let runs = services.runs_at(gateway).await?;
    if runs.is_empty() {
        return Ok(expected);
    }
    let mut jobs = services.registered_jobs(&runs).await?;
    // Of a replica of several nodes, the first one answers.
    jobs.retain(|job| job.job_num == 0);
    let ids: Vec<InstanceId> = jobs.iter().filter_map(|job| job.instance_id).collect();
    let instances = match ids.is_empty() {
        true => Vec::new(),
        false => services.instances(&ids).await?,
    };
    let instances: HashMap<InstanceId, InstanceRow> =
        instances.into_iter().map(|row| (row.id, row)).collect();
    for listed in database.views().runs(&runs).await? {
        let service = Service {
            listed,
            replicas: HashMap::new(),
        };
        expected.services.insert(service.listed.run.id, service);
    }
    for job in jobs {
        let instance = job.instance_id.and_then(|id| instances.get(&id));
        let address = instance.and_then(|row| row.agent.as_deref()).cloned();
        if let Some(service) = expected.services.get_mut(&job.run_id) {
            service.replicas.insert(job.id, Replica { job, address });
        }
    }
    Ok(expected)
}

impl Expected {
    /// Services whose replicas follow their requests, by the names of project and run in small letters.
    pub(super) fn scaled(&self) -> HashMap<(String, String), RunId> {
        let scales = |service: &&Service| {
            let groups = service.configuration().map(ServiceConfiguration::replica_groups);
            groups.into_iter().flatten().any(|group| group.scaling.is_some())
        };
        let scaled = self.services.values().filter(scales).map(|service| {
            let listed = &service.listed;
            let name = (
                listed.project_name.to_lowercase(),
                listed.run.run_name.to_lowercase(),
            );
            (name, listed.run.id)
        });
        scaled.collect()
    }

    /// Where models are answered, with the names of their projects in small letters.
    pub(super) fn entrypoints(&self, rules: &Rules) -> Vec<(String, RegisterEntrypoint)> {
        let mut found = BTreeMap::new();
        for service in self.services.values() {
            if let Some(entrypoint) = service.entrypoint(rules, self.has_tls) {
                let project = service.listed.project_name.to_lowercase();
                found.insert((project, entrypoint.domain.clone()), entrypoint);
            }
        }
        let named = found
            .into_iter()
            .map(|((project, _), entrypoint)| (project, entrypoint));
        named.collect()
    }

    /// As it is compared, of a gateway that splits requests so by now. New replicas are not among those that it should have before it
    /// knows that they are.
    pub(super) fn planned(&self, splits: &HashMap<RunId, Split>) -> Vec<plan::Expected> {
        let service = |service: &Service| {
            let run = service.listed.run.id;
            let (wanted, present) = (service.split(), splits.get(&run));
            let jobs = service.replicas.keys().copied();
            plan::Expected {
                run,
                project: service.listed.project_name.clone(),
                name: service.listed.run.run_name.clone(),
                jobs: jobs
                    .filter(|job| rollouts::may_be_told(*job, wanted.as_ref(), present))
                    .collect::<BTreeSet<JobId>>(),
            }
        };
        self.services.values().map(service).collect()
    }

    /// Whether requests to one of its services are split.
    pub(super) fn has_splits(&self) -> bool {
        self.services.values().any(|service| service.split().is_some())
    }

    /// Services of a gateway that has these, whose requests are to be split in another way than it does. A split outlives its roll-out
    /// until those replicas have left that it keeps requests from.
    pub(super) fn resplit(
        &self,
        known: &[plan::Known],
        splits: &HashMap<RunId, Split>,
    ) -> Vec<(RunId, (String, String), Option<Split>)> {
        let changed = self.services.iter().filter_map(|(run, service)| {
            let known = known.iter().find(|known| known.run == Some(*run))?;
            let wanted = match (service.split(), splits.get(run)) {
                (None, Some(present)) => until_left(present, &service.leaving(known)),
                (wanted, _) => wanted,
            };
            let listed = &service.listed;
            let name = (
                listed.project_name.to_lowercase(),
                listed.run.run_name.to_lowercase(),
            );
            (wanted.as_ref() != splits.get(run)).then_some((*run, name, wanted))
        });
        changed.collect()
    }
}

/// How requests are split after a roll-out while these replicas leave: by themselves, those that got a share at most would be replicas
/// like all others until they have left.
fn until_left(present: &Split, leaving: &BTreeSet<String>) -> Option<Split> {
    let new: BTreeSet<String> = present.new.intersection(leaving).cloned().collect();
    if !new.is_empty() {
        return Some(Split {
            new,
            share: 0,
            header: None,
            ..present.clone()
        });
    }
    (present.share >= ALL && !leaving.is_empty()).then(|| present.clone())
}

impl Service {
    /// Replicas that the gateway has, and that are to get no requests any more.
    fn leaving(&self, known: &plan::Known) -> BTreeSet<String> {
        let leaving = known.jobs.iter().filter(|job| !self.replicas.contains_key(job));
        leaving.map(|job| rollouts::told_id(*job)).collect()
    }

    /// How its requests are to be split.
    fn split(&self) -> Option<Split> {
        let jobs = self.replicas.values().map(|replica| &replica.job);
        rollouts::split(&self.listed.run, jobs).map(rollouts::Planned::told)
    }

    fn configuration(&self) -> Option<&ServiceConfiguration> {
        self.listed.run.run_spec.configuration.service()
    }

    /// Scheme and host name of its URL.
    fn place(&self) -> Option<(bool, String)> {
        let spec = self.listed.run.service_spec.as_deref()?;
        let url = Url::parse(&spec.url).ok()?;
        Some((url.scheme() == "https", url.host_str()?.to_owned()))
    }

    /// As it is registered. The gateway speaks TLS where no load balancer does: `has_tls`.
    ///
    /// # Errors
    /// What is stored of it is not what a service at a gateway has.
    pub(super) fn registration(
        &self,
        rules: &Rules,
        has_tls: bool,
        key: Secret,
    ) -> Result<RegisterService, String> {
        let unusable = || "the URL of the service cannot be used: apply it again".to_owned();
        let (https, domain) = self.place().ok_or_else(unusable)?;
        let configuration = self.configuration().ok_or_else(unusable)?;
        let model = configuration.model.as_ref().map(serde_json::to_value).transpose();
        let model = model.map_err(|error| error.to_string())?;
        let limits = configuration.rate_limits.iter().map(serde_json::to_value);
        let limits: Result<Vec<_>, _> = limits.collect();
        Ok(RegisterService {
            id: self.listed.run.id.uuid().simple().to_string(),
            run_name: self.listed.run.run_name.clone(),
            domain,
            https: https && has_tls,
            auth: configuration.auth,
            client_max_body_size: rules.max_body_size,
            read_timeout: rules.read_timeout.as_secs(),
            options: ServiceOptions {
                openai: model.map(|model| OpenAiOptions { model }),
            },
            ssh_private_key: key,
            rate_limits: limits.map_err(|error| error.to_string())?,
            has_router_replica: router_group(configuration).is_some(),
            balancing: configuration.balancing.map(|balancing| balancing.to_string()),
        })
    }

    /// Where the models of its project are answered; `None`: it has none.
    fn entrypoint(&self, rules: &Rules, has_tls: bool) -> Option<RegisterEntrypoint> {
        self.configuration()?.model.as_ref()?;
        let (https, domain) = self.place()?;
        let (_, parent) = domain.split_once('.')?;
        Some(RegisterEntrypoint {
            domain: format!("gateway.{parent}"),
            https: https && has_tls,
            read_timeout: rules.read_timeout.as_secs(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_split_stays_until_those_have_left_that_it_keeps_requests_from() {
        let split = |new: &[&str], share| Split {
            deployment: 2,
            new: ids(new),
            share,
            header: None,
        };
        for (present, leaving, left) in [
            (
                split(&["canary", "other"], 1_000),
                vec!["canary"],
                Some(split(&["canary"], 0)),
            ),
            (split(&["canary"], 0), vec!["canary"], Some(split(&["canary"], 0))),
            (split(&["green"], ALL), vec!["blue"], Some(split(&["green"], ALL))),
            // Old ones that leave got requests all the time.
            (split(&["canary"], 1_000), vec!["old"], None),
            (split(&["canary"], 1_000), vec![], None),
            (split(&["green"], ALL), vec![], None),
        ] {
            assert_eq!(
                until_left(&present, &ids(&leaving)),
                left,
                "{present:?} {leaving:?}"
            );
        }
    }
}
