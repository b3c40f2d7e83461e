//! The life of a container: a contract, which is named by its label.

use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, machine_place, one_line};
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Container, ContainerRequest, Known, LISTED_WITHIN, Lifecycle,
    Owned, OwnedKind, OwnedMark, Removal, Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::VastAi;
use crate::client::Instance;
use crate::requests::{Outcome, outcome, rent_request};

const CONTRACT: &str = "contract";

/// Longest label. The vendor names no limit; dstack 0.22.5 uses as many characters.
const NAME_LENGTH: usize = 60;

/// The user that is asked for.
const USER: &str = "root";

/// Pause while the image is pulled.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a contract is being ended: longer than a list of contracts is taken for true.
const ENDS_INTERVAL: Duration = Duration::from_secs(10);

/// Instances that are asked for one by one in a look, as the list does not have them: more have to wait for the next one.
const MOST_ASKED: usize = 10;

/// What a host says of a container that it cannot start.
const NOT_STARTED: &str = "OCI runtime create failed:";

/// What is noted of a contract.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Contract {
    made: Made,
    /// It was made, and does not start; why.
    #[serde(default)]
    refused: Option<String>,
}

fn of_id<'a>(listed: &'a [Instance], id: &str) -> Option<&'a Instance> {
    listed.iter().find(|instance| instance.id.to_string() == id)
}

#[async_trait]
impl Lifecycle<Container> for VastAi {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let body = rent_request(want, &name)?;
        let rent = || self.rent(&want.offer.instance.name, &body, call);
        let find = || self.find(&name, call);
        let contract: Contract = call.make(CONTRACT, LISTED_WITHIN, rent, find).await?;
        if let Some(why) = contract.refused {
            return Err(ComputeError::NoCapacity(why));
        }
        let waiting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let id = &contract.made.id;
        let instance = match of_id(&self.client.contracts().await?, id) {
            Some(instance) => instance.clone(),
            None if contract.made.is_new(call) => return Ok(waiting("the instance is listed")),
            None => self.client.instance(id).await?.ok_or_else(|| {
                ComputeError::Broken("Vast.ai does not have the instance any more".to_owned())
            })?,
        };
        if let Some(end) = end_of(&instance) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match address(&instance) {
            Some((hostname, port)) => Step::Ready(place(&want.offer, contract.made.id, hostname, port)),
            None => waiting(stage_of(&instance)),
        })
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let listed = self.client.contracts_now().await?;
        let mut asked = 0;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            // Lists change while their pages are read.
            let instance = match of_id(&listed, &place.instance_id) {
                Some(instance) => Ok(Some(instance.clone())),
                None if asked < MOST_ASKED => {
                    asked += 1;
                    self.client.instance(&place.instance_id).await
                }
                None => {
                    signs.push(None);
                    continue;
                }
            };
            let sign = match instance {
                Ok(Some(instance)) => Some(sign_of(place, &instance)),
                Ok(None) => Some(Sign::Lost(
                    "Vast.ai does not have the instance any more".to_owned(),
                )),
                // Of the others it is told how they are.
                Err(error) => {
                    tracing::debug!(instance.id = place.instance_id, %error, "Vast.ai does not tell how it is");
                    None
                }
            };
            signs.push(sign);
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let contract = place.map(|place| Contract {
            made: Made::long_ago(place.instance_id.clone()),
            refused: None,
        });
        let find = || self.find(&name, call);
        let delete = async |contract: Contract| {
            let told = self.destroy(&contract.made.id).await?;
            Ok(contract.made.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(CONTRACT, contract, LISTED_WITHIN, find, delete).await
    }
}

impl VastAi {
    async fn rent(&self, offer: &str, body: &Value, call: &Call<'_>) -> Result<Contract, ComputeError> {
        // It becomes a part of a path.
        if offer.is_empty() || !offer.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ComputeError::Refused(format!("{offer} is no offer of Vast.ai")));
        }
        let outcome = outcome(self.client.rent(offer, body).await?);
        if outcome.has_changed() {
            self.taken.note(offer, String::new());
        }
        let (id, refused) = match outcome {
            Outcome::Rented(id) => (id, None),
            Outcome::Stopped(id, why) => (id, Some(why)),
            Outcome::Refused(error) => return Err(error),
        };
        Ok(Contract {
            made: Made::now(id.to_string(), call),
            refused,
        })
    }

    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Contract>, ComputeError> {
        let found = self.client.labelled(name).await?;
        Ok(found.map(|instance| Contract {
            made: Made::now(instance.id.to_string(), call),
            refused: None,
        }))
    }

    pub(crate) async fn destroy(&self, id: &str) -> Result<Removal, ComputeError> {
        let is_listed = of_id(&self.client.contracts().await?, id).is_some();
        if !is_listed && self.client.instance(id).await?.is_none() {
            return Ok(Removal::Gone);
        }
        self.client.destroy(id).await?;
        let again = ENDS_INTERVAL;
        Ok(Removal::Underway { again })
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self.client.contracts_now().await?;
        let owned = |instance: &Instance| {
            let name = instance.label.clone()?;
            Some(Owned {
                kind: OwnedKind::Container,
                id: instance.id.to_string(),
                mark: OwnedMark::of_name(&name)?,
                name,
                region: String::new(),
                price: instance.dph_total,
                made_at: instance.start_date.and_then(time_of),
            })
        };
        Ok(all.iter().filter_map(owned).collect())
    }
}

#[allow(clippy::cast_possible_truncation)] // a time of this epoch
fn time_of(seconds: f64) -> Option<Time> {
    (seconds > 0.0).then(|| Time::from_millis((seconds * 1000.0) as i64))
}

/// Why an instance will never work (again). A host that is `offline` may come back.
fn end_of(instance: &Instance) -> Option<String> {
    let states = [
        &instance.cur_state,
        &instance.intended_status,
        &instance.next_state,
    ];
    let said = instance.status_msg.as_deref().unwrap_or_default().trim();
    if states.iter().all(|state| state.as_deref() == Some("stopped")) {
        return Some(match instance.is_bid {
            true => "Vast.ai has stopped the instance: it was outbid, or the host wants its machine back"
                .to_owned(),
            false => "Vast.ai has stopped the instance".to_owned(),
        });
    }
    match instance.actual_status.as_deref() {
        Some("created") if said.contains(NOT_STARTED) => {
            Some(format!("the host cannot start the container: {}", one_line(said)))
        }
        Some("exited") => Some("the container has ended on Vast.ai".to_owned()),
        _ => None,
    }
}

/// What is waited for until an instance can be reached.
fn stage_of(instance: &Instance) -> &'static str {
    match instance.actual_status.as_deref() {
        Some("running") => "a port of the container",
        Some("loading" | "created") => "the image is pulled and the container starts",
        _ => "the host takes the instance over",
    }
}

/// Where the SSH server of a container is reached; `None`: not yet. Ports may come later than the address.
fn address(instance: &Instance) -> Option<(String, i64)> {
    if instance.actual_status.as_deref() != Some("running") {
        return None;
    }
    let port = instance.ports.get(format!("{CONTAINER_SSH_PORT}/tcp"))?;
    let port = port.as_array()?.first()?.get("HostPort")?;
    let port = port.as_i64().or_else(|| port.as_str()?.parse().ok())?;
    let host = instance.public_ipaddr.as_deref()?.trim();
    ((1..=65_535).contains(&port) && !host.is_empty()).then(|| (host.to_owned(), port))
}

/// How an instance is that was at this place.
fn sign_of(place: &JobProvisioningData, instance: &Instance) -> Sign<JobProvisioningData> {
    if let Some(end) = end_of(instance) {
        return Sign::Lost(end);
    }
    match address(instance) {
        Some((hostname, port))
            if place.hostname.as_deref() != Some(&hostname) || place.ssh_port != Some(port) =>
        {
            Sign::Moved(JobProvisioningData {
                hostname: Some(hostname),
                ssh_port: Some(port),
                ..place.clone()
            })
        }
        _ => Sign::Well,
    }
}

fn place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    hostname: String,
    port: i64,
) -> JobProvisioningData {
    JobProvisioningData {
        dockerized: false,
        ..machine_place(offer, id, hostname, USER, port)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(more: &Value) -> Instance {
        let mut value = json!({"id": 27_000_001, "actual_status": "running", "intended_status": "running",
            "cur_state": "running", "next_state": "running", "label": "dstack-x", "is_bid": false,
            "status_msg": "success, running dstackai/base", "public_ipaddr": "192.0.2.7\n",
            "ports": {"10022/tcp": [{"HostIp": "0.0.0.0", "HostPort": "20011"}, {"HostIp": "::", "HostPort": "20011"}]}});
        for (name, field) in more.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_instance_is_reached_when_its_port_is_known() {
        let reached = Some(("192.0.2.7".to_owned(), 20011));
        let port = |port: Value| json!({"ports": {"10022/tcp": [{"HostPort": port}]}});
        for (more, expected) in [
            (json!({}), reached.clone()),
            (port(json!(20011)), reached),
            (port(json!("0")), None),
            (port(json!(null)), None),
            (json!({"actual_status": "loading"}), None),
            (json!({"actual_status": null}), None),
            (json!({"ports": null}), None),
            (json!({"ports": {}}), None),
            (json!({"ports": {"10022/tcp": null}}), None),
            (json!({"ports": {"22/tcp": [{"HostPort": "1"}]}}), None),
            (json!({"public_ipaddr": " "}), None),
            (json!({"public_ipaddr": null}), None),
        ] {
            assert_eq!(address(&instance(&more)), expected, "{more}");
        }
    }

    #[test]
    fn what_is_over_is_told() {
        let stopped = json!({"actual_status": "exited", "cur_state": "stopped", "intended_status": "stopped",
            "next_state": "stopped", "is_bid": true});
        for (more, over) in [
            (json!({}), false),
            (stopped, true),
            (json!({"actual_status": "exited"}), true),
            // It starts again.
            (json!({"actual_status": "created", "cur_state": "stopped"}), false),
            (json!({"actual_status": "offline"}), false),
            (
                json!({"actual_status": "created", "status_msg": "Error: OCI runtime create failed: runc"}),
                true,
            ),
            (json!({"actual_status": "loading", "status_msg": null}), false),
        ] {
            assert_eq!(end_of(&instance(&more)).is_some(), over, "{more}");
        }
    }
}
