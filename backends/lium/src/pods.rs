//! The life of a container: its login to the image registry, its template, then the pod.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, machine_place, not_asked};
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Container, ContainerRequest, Known, LISTED_WITHIN, Lifecycle,
    RegistryLogin, Removal, Sign, Step,
};
use dstack_model::instances::SshConnectionParams;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use crate::Lium;
use crate::client::{Named, Pod};
use crate::rents::Rent;
use crate::requests::{is_id, not_made, refused, rent, template, told};

/// Longest name of anything, as dstack 0.22.5 has it.
pub(crate) const NAME_LENGTH: usize = 63;

const LOGIN: &str = "registry login";
const TEMPLATE: &str = "template";
pub(crate) const POD: &str = "pod";
/// A pod of dstack 0.22.5, found by its name.
const FOUND: &str = "found pod";

const USER: &str = "root";

/// Pause while a pod starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a pod of dstack 0.22.5 is not found.
const LOST_INTERVAL: Duration = Duration::from_secs(60);

/// States that a pod does not come back from.
const ENDS: &[&str] = &[
    "STOPPED",
    "FAILED",
    "CREATION_FAILED",
    "BROKEN",
    "REBOOT_FAILED",
    "DELETING",
    "DELETED",
];

/// What dstack 0.22.5 has stored of a pod, beside its id.
#[derive(Debug, Default, Deserialize)]
struct Stored {
    #[serde(default)]
    template_id: Option<String>,
    #[serde(default)]
    credential_id: Option<String>,
    #[serde(default)]
    pod_name: Option<String>,
    /// What it asked for the pod with, as long as it does not know what came of that: then the place has the pod's name for an id.
    #[serde(default)]
    rent_payload: Option<Value>,
    /// There is no pod.
    #[serde(default)]
    rent_failed: bool,
}

impl Stored {
    fn of(place: Option<&JobProvisioningData>) -> Self {
        let stored = place.and_then(|place| place.backend_data.as_deref());
        stored
            .and_then(|stored| serde_json::from_str(stored).ok())
            .unwrap_or_default()
    }
}

#[async_trait]
impl Lifecycle<Container> for Lium {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        // What can never be made costs no call.
        template(&want.workload, &name, None)?;
        rent(want, &name, "")?;
        let node = want.offer.instance.name.as_str();
        if !is_id(node) {
            return Err(refused(format!("{node} is no node of Lium")));
        }
        let login: Option<String> = match &want.workload.registry {
            Some(login) => {
                // It has no name by which it could be found: where the answer is lost, another one is made.
                let create = || self.create_login(login);
                Some(call.make(LOGIN, LISTED_WITHIN, create, async || Ok(None)).await?)
            }
            None => None,
        };
        let body = template(&want.workload, &name, login.as_deref())?;
        let create = async || {
            let made = self.client.create_template(&body).await;
            Ok(Made::now(made.map_err(|error| not_made(&error))?, call))
        };
        let find = || self.find_template(&name, call);
        let shape: Made = call.make(TEMPLATE, LISTED_WITHIN, create, find).await?;
        let key = Rent::chosen(self.kind.env.random.uuid().to_string(), call).await?;
        let body = rent(want, &name, &shape.id)?;
        let made = self.rent_once(node, &name, &key, &body, call).await?;
        let waiting = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: STARTS_INTERVAL,
        };
        let Some(pod) = self.listed_pod(&made.id).await? else {
            return match made.is_new(call) {
                true => Ok(waiting("the pod is listed")),
                false => Err(ComputeError::Broken(
                    "Lium does not have the pod any more".to_owned(),
                )),
            };
        };
        if let Some(end) = end_of(&pod) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match reached(&pod)? {
            Some(reached) => Step::Ready(place(&want.offer, made.id, reached)),
            None => waiting(pod.phase.as_deref().unwrap_or("the pod starts")),
        })
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let listed = told(self.client.pods().await)?;
        let listed: HashMap<String, Pod> = listed.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let sign = match listed.get(&place.instance_id) {
                Some(pod) => Some(sign_of(place, pod)),
                // Its id is not known.
                None if Stored::of(Some(place)).rent_payload.is_some() => None,
                None => match self.client.pod(&place.instance_id).await {
                    Ok(Some(pod)) => Some(sign_of(place, &pod)),
                    Ok(None) => Some(Sign::Lost("Lium does not have the pod any more".to_owned())),
                    // Of the others it is told how they are.
                    Err(error) => {
                        tracing::debug!(pod.id = place.instance_id, %error, "Lium does not tell how a pod is");
                        None
                    }
                },
            };
            signs.push(sign);
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        let stored = Stored::of(place);
        let known_by_id = place.filter(|_| !stored.rent_failed);
        let mut id = known_by_id.map(|place| place.instance_id.clone());
        if let (Some(_), Some(name), false) = (&stored.rent_payload, &stored.pod_name, stored.rent_failed) {
            let lost = || ComputeError::NotReady("Lium does not list the pod".to_owned());
            let find = async || {
                let found = self.find_pod(name, None, call).await.map_err(not_asked)?;
                found.ok_or_else(lost)
            };
            let found: Result<Made, _> = call.make_once(FOUND, find).await;
            // It may be made all the same.
            if let Err(ComputeError::NotReady(_)) = found {
                return Ok(Removal::Underway { again: LOST_INTERVAL });
            }
            id = Some(found?.id);
        }
        let pod = id.map(Made::long_ago);
        // Lists may be late.
        let find = async || match Rent::noted(call)? {
            Some(rent) => self.find_rented(None, &name, &rent, call).await,
            None => self.find_pod(&name, None, call).await,
        };
        let delete = async |pod: Made| Ok(pod.removal(call, self.delete_pod(&pod.id).await?, ENDS_INTERVAL));
        let removal = call.unmake(POD, pod, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        Rent::forget(call).await?;
        let shape = stored.template_id.map(Made::long_ago);
        let find = || self.find_template(&name, call);
        let delete = async |shape: Made| {
            let told = self.delete_template(&shape.id).await?;
            Ok(shape.removal(call, told, ENDS_INTERVAL))
        };
        let removal = call.unmake(TEMPLATE, shape, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        let delete = async |login: String| {
            told(self.client.delete_login(&login).await)?;
            Ok(Removal::Gone)
        };
        let nowhere = async || Ok(None);
        call.unmake(LOGIN, stored.credential_id, LISTED_WITHIN, nowhere, delete)
            .await
    }
}

impl Lium {
    async fn create_login(&self, login: &RegistryLogin) -> Result<String, ComputeError> {
        let made = self.client.create_login(&login.username, login.password.expose());
        made.await.map_err(|error| not_made(&error))
    }

    async fn find_template(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = told(self.client.templates().await)?;
        let found = all.into_iter().find(|template| template.name == name);
        Ok(found.map(|template| Made::now(template.id, call)))
    }

    /// The list tells whether it is gone: of a single one, the API does not.
    pub(crate) async fn delete_template(&self, id: &str) -> Result<Removal, ComputeError> {
        told(self.client.delete_template(id).await)?;
        let is_there = |all: Vec<Named>| all.iter().any(|template| template.id == id);
        Ok(match is_there(told(self.client.templates().await)?) {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }

    /// One of this name that is there, on this node, where one is given.
    pub(crate) async fn find_pod(
        &self,
        name: &str,
        node: Option<&str>,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        let is_there = |pod: &Pod| match (node, pod.executor_id.as_deref()) {
            (Some(node), Some(other)) => other == node,
            _ => true,
        };
        let mut pods = told(self.client.pods().await)?.into_iter();
        let found = pods.find(|pod| pod.pod_name == name && is_there(pod) && !is_deleted(pod));
        Ok(found.map(|pod| Made::now(pod.id, call)))
    }

    /// As the last list has it, which all pods share that start or end.
    async fn listed_pod(&self, id: &str) -> Result<Option<Pod>, ComputeError> {
        let fetch = async || told(self.client.pods().await);
        let listed = self.listed.get(fetch).await?;
        match listed.iter().find(|pod| pod.id == id) {
            Some(pod) => Ok(Some(pod.clone())),
            None => self.pod(id).await,
        }
    }

    /// `None`: the API says that there is none, and does not list it either.
    async fn pod(&self, id: &str) -> Result<Option<Pod>, ComputeError> {
        if let Some(pod) = told(self.client.pod(id).await)? {
            return Ok(Some(pod));
        }
        let listed = told(self.client.pods().await)?;
        Ok(listed.into_iter().find(|pod| pod.id == id))
    }

    pub(crate) async fn delete_pod(&self, id: &str) -> Result<Removal, ComputeError> {
        let Some(pod) = self.listed_pod(id).await?.filter(|pod| !is_deleted(pod)) else {
            return Ok(Removal::Gone);
        };
        if pod.status.eq_ignore_ascii_case("DELETING") {
            return Ok(Removal::Underway { again: ENDS_INTERVAL });
        }
        match self.client.delete_pod(id).await {
            // It is being deleted already, or in a state in which it cannot be yet.
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => {}
            answer => told(answer)?,
        }
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }
}

/// Lium shows pods for a while after that.
pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.status.eq_ignore_ascii_case("DELETED")
}

/// Why a pod will never work (again).
fn end_of(pod: &Pod) -> Option<String> {
    let state = pod.status.to_ascii_uppercase();
    ENDS.contains(&state.as_str())
        .then(|| format!("Lium has the pod in state {state}"))
}

/// Where the SSH server of a container is reached, and through which other one.
type Reached = (String, i64, Option<SshConnectionParams>);

/// `None`: not yet.
fn reached(pod: &Pod) -> Result<Option<Reached>, ComputeError> {
    let command = pod
        .ssh_connect_cmd
        .as_deref()
        .filter(|command| !command.is_empty());
    let (true, Some(command)) = (pod.status.eq_ignore_ascii_case("RUNNING"), command) else {
        return Ok(None);
    };
    let wrong = || {
        ComputeError::Broken("Lium tells in a form that is not understood how the pod is reached".to_owned())
    };
    let (host, port) = ssh_address(command).ok_or_else(wrong)?;
    let mapped = pod.ports_mapping.as_ref();
    let mapped = mapped.and_then(|ports| ports.get(&CONTAINER_SSH_PORT.to_string()));
    Ok(Some(match mapped {
        Some(mapped) => (host, port_of(mapped).ok_or_else(wrong)?, None),
        // Through Lium's own server, into which the project's key may.
        None => {
            let proxy = SshConnectionParams {
                hostname: host,
                username: USER.to_owned(),
                port,
            };
            ("localhost".to_owned(), i64::from(CONTAINER_SSH_PORT), Some(proxy))
        }
    }))
}

fn port_of(value: &Value) -> Option<i64> {
    let port = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    (1..=65_535).contains(&port).then_some(port)
}

/// Host and port of `ssh root@203.0.113.90 -p 20022`, which is read and never run.
fn ssh_address(command: &str) -> Option<(String, i64)> {
    let mut words = command.split_whitespace();
    if words.next() != Some("ssh") {
        return None;
    }
    let (mut host, mut port) = (None, 22);
    while let Some(word) = words.next() {
        match word {
            "-p" => port = port_of(&Value::String(words.next()?.to_owned()))?,
            word => {
                let (user, name) = word.rsplit_once('@')?;
                let name = name.trim_matches(['[', ']']);
                host = Some(name).filter(|name| user == USER && !name.is_empty() && host.is_none());
            }
        }
    }
    Some((host?.to_owned(), port))
}

/// How a pod is that was at this place.
fn sign_of(place: &JobProvisioningData, pod: &Pod) -> Sign<JobProvisioningData> {
    if let Some(end) = end_of(pod) {
        return Sign::Lost(end);
    }
    match reached(pod) {
        Ok(Some((hostname, port, proxy)))
            if place.hostname.as_deref() != Some(&hostname)
                || place.ssh_port != Some(port)
                || place.ssh_proxy != proxy =>
        {
            Sign::Moved(JobProvisioningData {
                hostname: Some(hostname),
                ssh_port: Some(port),
                ssh_proxy: proxy,
                ..place.clone()
            })
        }
        _ => Sign::Well,
    }
}

fn place(offer: &InstanceOfferWithAvailability, id: String, reached: Reached) -> JobProvisioningData {
    let (hostname, port, ssh_proxy) = reached;
    JobProvisioningData {
        dockerized: false,
        ssh_proxy,
        ..machine_place(offer, id, hostname, USER, port)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(more: &Value) -> Pod {
        let mut value = json!({"id": "b7c1b0de", "pod_name": "dstack-x", "status": "RUNNING",
            "ssh_connect_cmd": "ssh root@203.0.113.90 -p 20022", "ports_mapping": {"22": 20022, "10022": 20023}});
        for (name, field) in more.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_is_reached_by_its_port_or_through_the_other_server() {
        let direct = Some(("203.0.113.90".to_owned(), 20023, None));
        assert_eq!(reached(&pod(&json!({}))).unwrap(), direct);
        let as_text = json!({"ports_mapping": {"10022": "20023"}});
        assert_eq!(reached(&pod(&as_text)).unwrap(), direct);
        for ports in [json!(null), json!({"22": 20022})] {
            let (host, port, proxy) = reached(&pod(&json!({"ports_mapping": ports}))).unwrap().unwrap();
            let proxy = proxy.unwrap();
            assert_eq!((host.as_str(), port), ("localhost", 10022));
            assert_eq!((proxy.hostname.as_str(), proxy.port), ("203.0.113.90", 20022));
        }
        for more in [
            json!({"status": "PENDING"}),
            json!({"ssh_connect_cmd": null}),
            json!({"ssh_connect_cmd": ""}),
        ] {
            assert_eq!(reached(&pod(&more)).unwrap(), None, "{more}");
        }
        for command in [
            "ssh ubuntu@203.0.113.90",
            "curl root@203.0.113.90",
            "ssh root@",
            "ssh root@a -p x",
            "ssh root@a root@b",
        ] {
            assert!(
                reached(&pod(&json!({"ssh_connect_cmd": command}))).is_err(),
                "{command}"
            );
        }
        assert_eq!(
            ssh_address("ssh root@[2001:db8::1]"),
            Some(("2001:db8::1".to_owned(), 22))
        );
    }

    #[test]
    fn what_is_over_is_told() {
        for (status, over) in [
            ("PENDING", false),
            ("running", false),
            ("REBOOTING", false),
            ("creation_failed", true),
            ("DELETING", true),
        ] {
            assert_eq!(
                end_of(&pod(&json!({"status": status}))).is_some(),
                over,
                "{status}"
            );
        }
    }
}
