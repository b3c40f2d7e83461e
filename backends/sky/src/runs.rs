//! The life of a container: a run of the other server, found by its name.
//!
//! A name has one run that is not finished, which is how it is made once. The container is gone when its run is finished and deleted: by
//! then the job has left its instance, which belongs to a fleet of the other server and stays as long as that wants.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, listed_signs, machine_place, one_line};
use dstack_compute::{
    Call, ComputeError, Container, ContainerRequest, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step,
};
use dstack_model::instances::SshConnectionParams;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use http::StatusCode;

use crate::Sky;
use crate::client::{Failure, Instance, Run};
use crate::errors::{ended, told};
use crate::home::Home;
use crate::requests::{SSH_PORT, run_spec};

/// Longest name of a run.
pub(crate) const NAME_LENGTH: usize = 41;

const RUN: &str = "run";

/// Who logs in to a container.
const USER: &str = "root";

/// Pause while a run starts or ends.
const INTERVAL: Duration = Duration::from_secs(10);

#[async_trait]
impl Lifecycle<Container> for Sky {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        let spec = run_spec(want, &name)?;
        self.note_home(call).await?;
        let create = async || {
            let run = match self.client.apply(&spec).await {
                Err(failure) => self.made_before(&name, failure).await?,
                Ok(run) => run,
            };
            Ok(Made::now(run.id, call))
        };
        let find = async || {
            let found = told(self.client.run_named(&name).await)?;
            Ok(found.map(|run| Made::now(run.id, call)))
        };
        let made: Made = call.make(RUN, LISTED_WITHIN, create, find).await?;
        let waiting = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: INTERVAL,
        };
        let Some(run) = told(self.client.run_named(&name).await)? else {
            return match made.is_new(call) {
                true => Ok(waiting("the run is listed".to_owned())),
                false => Err(ComputeError::Broken(
                    "the other server does not have the run any more".to_owned(),
                )),
            };
        };
        if is_over(&run) || is_ending(&run) {
            self.forget_offers();
            return Err(ended(reason(&run), why(&run)));
        }
        Ok(match reached(&run).map_err(ComputeError::Broken)? {
            Some(reached) => Step::Ready(self.place(&want.offer, run.id, reached)),
            None => waiting(format!("the run there is {}", state(&run))),
        })
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let listed = told(self.client.active_runs().await)?;
        let listed: HashMap<&str, &Run> = listed.iter().map(|run| (run.id.as_str(), run)).collect();
        // Of what is elsewhere nothing is known.
        let is_here = |place: &&JobProvisioningData| Home::of(place).is_none_or(|home| home == self.home);
        let here = |known: &Known<Container>| known.place.as_ref().filter(is_here).is_some();
        let placed: Vec<&JobProvisioningData> = known
            .iter()
            .filter_map(|known| known.place.as_ref().filter(is_here))
            .collect();
        let mut signs = listed_signs(
            placed,
            |place| listed.get(place.instance_id.as_str()).map(|run| (*run).clone()),
            async |place| told(self.client.run_of_id(&place.instance_id).await),
            |place, run| sign(place, run.as_ref()),
        )
        .await
        .into_iter();
        let told = known.iter().map(|known| match here(known) {
            true => signs.next().flatten(),
            false => None,
        });
        Ok(told.collect())
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = known.marks.name(NAME_LENGTH);
        let place = known.place.as_ref();
        self.check_home(place, call)?;
        let noted = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = async || {
            let found = told(self.client.run_named(&name).await)?;
            Ok(found.map(|run| Made::now(run.id, call)))
        };
        let delete = async |made: Made| Ok(made.removal(call, self.remove_run(&name).await?, INTERVAL));
        let removal = call.unmake(RUN, noted, LISTED_WITHIN, find, delete).await?;
        if removal == Removal::Gone {
            self.forget_home(call).await?;
        }
        Ok(removal)
    }
}

impl Sky {
    /// The server refuses a second run of the name: then there is one already, which nobody else makes.
    async fn made_before(&self, name: &str, failure: Failure) -> Result<Run, ComputeError> {
        let error = told::<Run>(Err(failure.clone()));
        if failure.error.status() != Some(StatusCode::BAD_REQUEST) {
            return error;
        }
        match self.client.run_named(name).await {
            Ok(Some(run)) if !is_over(&run) => Ok(run),
            Ok(_) => error,
            // It may be there.
            Err(_) => Err(ComputeError::Unclear(failure.error.to_string())),
        }
    }

    fn place(
        &self,
        offer: &InstanceOfferWithAvailability,
        id: String,
        reached: Reached,
    ) -> JobProvisioningData {
        let (hostname, port, proxy) = reached;
        JobProvisioningData {
            dockerized: false,
            ssh_proxy: Some(proxy),
            backend_data: self.home.backend_data(),
            ..machine_place(offer, id, hostname, USER, port)
        }
    }

    /// Ends the run of that name, and then deletes it.
    pub(crate) async fn remove_run(&self, name: &str) -> Result<Removal, ComputeError> {
        let Some(run) = told(self.client.run_named(name).await)? else {
            return Ok(Removal::Gone);
        };
        if is_over(&run) {
            told(self.client.delete(name).await)?;
            return Ok(match told(self.client.run_named(name).await)? {
                None => Removal::Gone,
                Some(_) => Removal::Underway { again: INTERVAL },
            });
        }
        if !is_ending(&run) {
            told(self.client.abort(name).await)?;
        }
        Ok(Removal::Underway { again: INTERVAL })
    }
}

/// Whether a run is finished: its job has left the instance.
pub(crate) fn is_over(run: &Run) -> bool {
    matches!(run.status.as_str(), "terminated" | "failed" | "done")
}

fn is_ending(run: &Run) -> bool {
    run.status == "terminating"
}

/// What a run is at, for people.
fn state(run: &Run) -> String {
    let message = run.status_message.as_deref();
    one_line(message.filter(|text| !text.is_empty()).unwrap_or(&run.status))
}

/// Why the job of a run is over, or else the run.
fn reason(run: &Run) -> Option<&str> {
    let of_job = run.latest_job_submission.as_ref();
    let of_job = of_job.and_then(|job| job.termination_reason.as_deref());
    of_job.or(run.termination_reason.as_deref())
}

fn why(run: &Run) -> String {
    let said = run.latest_job_submission.as_ref();
    let said = said.and_then(|job| job.termination_reason_message.as_deref());
    let mut text = format!("the run of the other server is {}", one_line(&run.status));
    if let Some(reason) = reason(run) {
        text.push_str(": ");
        text.push_str(&one_line(reason));
    }
    if let Some(said) = said {
        text.push_str(", ");
        text.push_str(&one_line(said));
    }
    text
}

/// Where the SSH server of ours is reached, and through which other one.
type Reached = (String, i64, SshConnectionParams);

/// `None`: not yet.
///
/// # Errors
/// It never will be; why.
fn reached(run: &Run) -> Result<Option<Reached>, String> {
    let job = run
        .latest_job_submission
        .as_ref()
        .filter(|job| job.status == "running");
    let Some(job) = job else {
        return Ok(None);
    };
    let Some(instance) = &job.job_provisioning_data else {
        return Ok(None);
    };
    let Some(hostname) = instance.hostname.clone() else {
        return Ok(None);
    };
    let proxy = instance.ssh_proxy.as_ref();
    check_address(&hostname, &instance.username, instance.ssh_port)?;
    if let Some(proxy) = proxy {
        check_address(&proxy.hostname, &proxy.username, Some(proxy.port))?;
    }
    let port = i64::from(SSH_PORT);
    let itself = || SshConnectionParams {
        hostname: hostname.clone(),
        username: instance.username.clone(),
        port: instance.ssh_port.unwrap_or(22),
    };
    let here = "localhost".to_owned();
    if instance.dockerized {
        let mode = job
            .job_runtime_data
            .as_ref()
            .map(|data| data.network_mode.as_str());
        can_be_reached(instance, mode)?;
        // Its container has the network of the instance.
        return Ok(Some((here, port, itself())));
    }
    Ok(Some(match proxy {
        // In the network of that, as the SSH server of the other server's agent.
        Some(proxy) => (hostname, port, proxy.clone()),
        // Through the SSH server of the other server's agent, which is in the same container.
        None => (here, port, itself()),
    }))
}

/// It gets into the SSH configurations of users.
fn check_address(hostname: &str, username: &str, port: Option<i64>) -> Result<(), String> {
    let is_of = |text: &str, others: &[u8]| {
        !text.is_empty()
            && !text.starts_with('-')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    };
    let is_port = port.is_none_or(|port| (1..=65535).contains(&port));
    match is_of(hostname, b".:-_") && is_of(username, b".-_") && is_port {
        true => Ok(()),
        false => {
            Err("the other server says in a form that is not understood how the run is reached".to_owned())
        }
    }
}

/// Whether the container of a machine can be.
fn can_be_reached(instance: &Instance, network_mode: Option<&str>) -> Result<(), String> {
    if instance.ssh_proxy.is_some() {
        return Err(
            "the host of the run is behind a head node, through which only its own server can go: \
             leave its fleet out of the other project"
                .to_owned(),
        );
    }
    match network_mode {
        Some("bridge") => Err(
            "the container of the run has a network of its own, in which it cannot be reached: the other server \
             has to give jobs that have a whole instance the network of that (DSTACK_SERVER_JOB_NETWORK_MODE=2, \
             the default), and its fleets no blocks"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// How a container is whose run is this; `None`: it is gone.
fn sign(place: &JobProvisioningData, run: Option<&Run>) -> Sign<JobProvisioningData> {
    let Some(run) = run else {
        return Sign::Lost("the other server does not have the run any more".to_owned());
    };
    if is_over(run) || is_ending(run) {
        return Sign::Lost(why(run));
    }
    match reached(run) {
        Ok(Some((hostname, port, proxy)))
            if place.hostname.as_deref() != Some(&hostname)
                || place.ssh_port != Some(port)
                || place.ssh_proxy.as_ref() != Some(&proxy) =>
        {
            Sign::Moved(JobProvisioningData {
                hostname: Some(hostname),
                ssh_port: Some(port),
                ssh_proxy: Some(proxy),
                ..place.clone()
            })
        }
        _ => Sign::Well,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run(job: &Value) -> Run {
        serde_json::from_value(json!({"id": "r", "status": "running", "latest_job_submission": job})).unwrap()
    }

    fn proxy(hostname: &str, port: i64) -> SshConnectionParams {
        SshConnectionParams {
            hostname: hostname.to_owned(),
            username: "ubuntu".to_owned(),
            port,
        }
    }

    #[test]
    fn a_container_is_reached_through_what_the_other_server_goes_through() {
        let job = |instance: Value, mode: &str| {
            let mut all =
                json!({"backend": "aws", "hostname": "203.0.113.5", "username": "ubuntu", "ssh_port": 2222});
            all.as_object_mut()
                .unwrap()
                .extend(instance.as_object().unwrap().clone());
            reached(&run(
                &json!({"status": "running", "job_provisioning_data": all, "job_runtime_data": {"network_mode": mode}}),
            ))
        };
        let through = Some(("localhost".to_owned(), 10_023, proxy("203.0.113.5", 2222)));
        assert_eq!(job(json!({"dockerized": true}), "host"), Ok(through.clone()));
        assert_eq!(job(json!({"dockerized": false}), "host"), Ok(through));
        let jump = json!({"hostname": "login", "username": "ubuntu", "port": 22});
        let beside = Some(("203.0.113.5".to_owned(), 10_023, proxy("login", 22)));
        assert_eq!(
            job(json!({"dockerized": false, "ssh_proxy": jump}), "host"),
            Ok(beside)
        );
        assert!(job(json!({"dockerized": true}), "bridge").is_err());
        assert!(job(json!({"dockerized": true, "ssh_proxy": jump}), "host").is_err());
        assert_eq!(job(json!({"hostname": null}), "host"), Ok(None));
        assert_eq!(reached(&run(&json!({"status": "pulling"}))), Ok(None));
        assert_eq!(reached(&run(&Value::Null)), Ok(None));
    }

    #[test]
    fn what_is_over_is_told_apart() {
        let over = |reason: &str| {
            let mut run = run(&json!({"status": "failed", "termination_reason": reason,
                "termination_reason_message": "Failed to provision\nin fleet"}));
            run.status = "failed".to_owned();
            ended(super::reason(&run), why(&run))
        };
        assert_eq!(
            over("failed_to_start_due_to_no_capacity"),
            ComputeError::NoCapacity(
                "the run of the other server is failed: failed_to_start_due_to_no_capacity, Failed to provision in fleet"
                    .to_owned()
            )
        );
        assert!(matches!(
            over("container_exited_with_error"),
            ComputeError::Broken(_)
        ));
    }
}
