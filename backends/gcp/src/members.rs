//! Which machines are behind a load balancer: the instances of its group.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{Balancing, ComputeError, Known, LoadBalancer, LoadBalancers};
use dstack_model::gateways::GatewayReplicaProvisioningData;
use serde::Deserialize;
use serde_json::json;

use crate::Gcp;
use crate::client::{Outcome, full, last, plain};
use crate::errors::{GcpError, Told};
use crate::machines::Site;
use crate::pieces::{Piece, Stored};

/// Pause while machines are added, which takes some seconds.
const ADDS_INTERVAL: Duration = Duration::from_secs(5);

/// Pause while machines are taken out, which takes a minute or two.
const DRAINS_INTERVAL: Duration = Duration::from_secs(10);

/// An instance of a group.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Member {
    /// By its link: `https://…/zones/Z/instances/NAME`.
    #[serde(default)]
    instance: String,
}

/// How a group is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Change {
    Add,
    Remove,
}

impl Change {
    const fn method(self) -> &'static str {
        match self {
            Self::Add => "addInstances",
            Self::Remove => "removeInstances",
        }
    }

    fn underway(self) -> Balancing {
        let (doing, again) = match self {
            Self::Add => ("the load balancer takes the new machines", ADDS_INTERVAL),
            Self::Remove => (
                "requests end at the machines that the load balancer lets go of",
                DRAINS_INTERVAL,
            ),
        };
        Balancing::Underway {
            doing: doing.to_owned(),
            again,
        }
    }

    /// What was asked for is so already: the answer to an earlier call was lost.
    fn is_done(self, told: &Told) -> bool {
        match self {
            Self::Add => told.is(&["memberAlreadyExists", "MEMBER_ALREADY_EXISTS"]),
            // Also an instance that is gone.
            Self::Remove => told.status == 404 || told.message.contains("is not a member of"),
        }
    }
}

/// Changes of groups that this server has begun: by the path of the group, the name of the operation. Another server asks Google anew.
#[derive(Debug, Default)]
pub(crate) struct GroupChanges(Mutex<HashMap<(String, Change), String>>);

impl GroupChanges {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, Change), String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begun(&self, group: &str, change: Change) -> Option<String> {
        self.lock().get(&(group.to_owned(), change)).cloned()
    }

    fn begin(&self, group: &str, change: Change, operation: String) {
        self.lock().insert((group.to_owned(), change), operation);
    }

    fn end(&self, group: &str, change: Change) {
        self.lock().remove(&(group.to_owned(), change));
    }
}

/// A group of instances.
struct Group<'a> {
    /// `zones/us-central1-a`.
    scope: String,
    path: String,
    zone: &'a str,
}

#[async_trait]
impl LoadBalancers for Gcp {
    /// New machines are added before others are taken out, so that there are always some.
    ///
    /// A machine that was taken out has no new requests, and those that it is at have until the backend service's draining timeout to
    /// end. Google removes it from the group only after that, so nothing has to be waited for once that is done.
    async fn set_machines(
        &self,
        balancer: &Known<LoadBalancer>,
        machines: &[GatewayReplicaProvisioningData],
    ) -> Result<Balancing, ComputeError> {
        let Some(place) = &balancer.place else {
            return Err(ComputeError::NotReady(
                "the load balancer is not made yet".to_owned(),
            ));
        };
        let stored = Stored::read(place)?;
        let zone = plain(&stored.zone)?;
        let name = plain(stored.name_of(Piece::Group).unwrap_or_default())?;
        let group = Group {
            scope: format!("zones/{zone}"),
            path: format!("zones/{zone}/instanceGroups/{name}"),
            zone,
        };
        let wanted = names_in(zone, machines)?;
        let is_adding = self.is_underway(&group, Change::Add).await?;
        let is_removing = self.is_underway(&group, Change::Remove).await?;
        let members = self.members_of(&group).await?;
        let missing: Vec<&String> = wanted.difference(&members).collect();
        let surplus: Vec<&String> = members.difference(&wanted).collect();
        match () {
            () if is_adding => Ok(Change::Add.underway()),
            () if !missing.is_empty() => self.change(&group, Change::Add, &missing).await,
            () if is_removing => Ok(Change::Remove.underway()),
            () if !surplus.is_empty() => self.change(&group, Change::Remove, &surplus).await,
            () => Ok(Balancing::Set),
        }
    }
}

/// Names of machines that may be behind a load balancer whose group is in this zone.
fn names_in(
    zone: &str,
    machines: &[GatewayReplicaProvisioningData],
) -> Result<BTreeSet<String>, ComputeError> {
    let name = |machine: &GatewayReplicaProvisioningData| {
        let name = plain(&machine.instance_id)?;
        match zone_of(machine) {
            at if at == zone => Ok(name.to_owned()),
            at => Err(ComputeError::Refused(format!(
                "the machine {name} is in {at}, and the load balancer takes machines of {zone} only"
            ))),
        }
    };
    machines.iter().map(name).collect()
}

fn zone_of(machine: &GatewayReplicaProvisioningData) -> String {
    let data = machine.backend_data.as_deref();
    let site = data.and_then(|data| serde_json::from_str::<Site>(data).ok());
    let zone = site
        .map(|site| site.zone)
        .or_else(|| machine.availability_zone.clone());
    zone.unwrap_or_default()
}

impl Gcp {
    /// Whether a change of the group, which this server has begun, is still being carried out.
    async fn is_underway(&self, group: &Group<'_>, change: Change) -> Result<bool, ComputeError> {
        let Some(operation) = self.group_changes.begun(&group.path, change) else {
            return Ok(false);
        };
        let outcome = self.client.failure(&group.scope, &operation).await?;
        if matches!(outcome, Outcome::Underway) {
            return Ok(true);
        }
        self.group_changes.end(&group.path, change);
        match outcome {
            Outcome::Failed(told) if !change.is_done(&told) => Err(match told.over() {
                // An operation that Google itself has failed at is asked for again.
                ComputeError::NoCapacity(text) => ComputeError::Unclear(text),
                error => error,
            }),
            _ => Ok(false),
        }
    }

    async fn members_of(&self, group: &Group<'_>) -> Result<BTreeSet<String>, ComputeError> {
        let listed = self
            .client
            .members(&format!("{}/listInstances", group.path))
            .await;
        match listed {
            Ok(members) => Ok(members.iter().map(|one| last(&one.instance).to_owned()).collect()),
            Err(error) if error.is_missing() => Err(ComputeError::Broken(format!(
                "Google does not have the instance group {} any more",
                last(&group.path)
            ))),
            Err(error) => Err(GcpError::compute_error(error)),
        }
    }

    async fn change(
        &self,
        group: &Group<'_>,
        change: Change,
        names: &[&String],
    ) -> Result<Balancing, ComputeError> {
        let project = &self.client.project;
        let link = |name: &&String| full(project, &format!("zones/{}/instances/{name}", group.zone));
        let links = names.iter().map(link);
        let body = json!({"instances": links.map(|link| json!({"instance": link})).collect::<Vec<_>>()});
        let path = format!("{}/{}", group.path, change.method());
        match self.client.act(&path, &[], Some(&body)).await {
            Ok(operation) => {
                let operation = last(&operation.name).to_owned();
                self.group_changes.begin(&group.path, change, operation);
            }
            Err(error) if error.told().is_some_and(|told| change.is_done(told)) || error.is_not_ready() => {}
            Err(error) => return Err(error.compute_error()),
        }
        Ok(change.underway())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::client::Operation;

    fn told(status: u16, code: &str, message: &str) -> Told {
        let operation = json!({"name": "o", "status": "DONE", "httpErrorStatusCode": status,
            "error": {"errors": [{"code": code, "message": message}]}});
        let operation: Operation = serde_json::from_value(operation).unwrap();
        Told::of_operation(&operation).unwrap()
    }

    #[test]
    fn what_is_so_already_is_done() {
        let member = told(
            400,
            "memberAlreadyExists",
            "Resource 'projects/p/zones/z/instances/i' is already a member of 'projects/p/zones/z/instanceGroups/g'.",
        );
        let stranger = told(
            400,
            "invalid",
            "Resource 'projects/p/zones/z/instances/i' is not a member of 'projects/p/zones/z/instanceGroups/g'.",
        );
        let gone = told(
            404,
            "notFound",
            "The resource 'projects/p/zones/z/instances/i' was not found",
        );
        let of = |told: &Told| [Change::Add, Change::Remove].map(|change| change.is_done(told));
        assert_eq!(of(&member), [true, false]);
        assert_eq!(of(&stranger), [false, true]);
        assert_eq!(of(&gone), [false, true]);
        assert_eq!(of(&told(400, "invalid", "m")), [false, false]);
    }

    #[test]
    fn machines_are_in_the_zone_of_the_group() {
        let machine = |zone: Option<&str>, data: Option<Value>| GatewayReplicaProvisioningData {
            instance_id: "i".to_owned(),
            ip_address: "203.0.113.1".to_owned(),
            region: "r".to_owned(),
            availability_zone: zone.map(str::to_owned),
            backend_data: data.map(|data| data.to_string()),
        };
        let in_zone = json!({"zone": "r-a"});
        for right in [
            machine(Some("r-a"), Some(in_zone.clone())),
            // As dstack 0.22.5 stores it.
            machine(None, Some(in_zone.clone())),
            machine(Some("r-a"), None),
        ] {
            assert_eq!(names_in("r-a", &[right]).unwrap(), ["i".to_owned()].into());
        }
        for wrong in [machine(None, None), machine(Some("r-b"), None)] {
            let error = names_in("r-a", &[wrong]).unwrap_err();
            assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
        }
        let odd = GatewayReplicaProvisioningData {
            instance_id: "../i".to_owned(),
            ..machine(Some("r-a"), None)
        };
        names_in("r-a", &[odd]).unwrap_err();
    }
}
