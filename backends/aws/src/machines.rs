//! The life of a machine: an instance of EC2, and an Elastic IP where it has several network cards.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, look_by_place};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Marks, Removal, Resource,
    Sign, Step,
};
use dstack_model::runs::JobProvisioningData;
use serde::Deserialize;
use serde_json::json;

use crate::Aws;
use crate::client::{Form, Service};
use crate::ec2::{CapacityReservation, Done, Instance, InstanceTypes, Reservation, SpotRequests, SpotStatus};
use crate::images::ImageQuery;
use crate::network::{Place, places_to_try};
use crate::run_instances::{Choice, needs_address, run_instances};
use crate::tags::tags;

const MACHINE: &str = "instance";

/// What is noted before an instance is asked for. It is no piece of AWS.
const CHOICE: &str = "choice of the instance";

/// Pause while a machine starts, which takes less than a minute.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// What was looked up before was deleted since; or what was made just now is not known everywhere yet
/// ("Eventual consistency in the Amazon EC2 API").
const NOT_THERE: &[&str] = &[
    "InvalidAMIID.NotFound",
    "InvalidGroup.NotFound",
    "InvalidSubnetID.NotFound",
];

const SSH_PORT: i64 = 22;

/// From the notice to the end of a spot instance ("Spot Instance interruption notices").
const SPOT_NOTICE: Duration = Duration::from_secs(120);

/// What an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Jobs, with an agent.
    Jobs,
    /// A gateway: of a plain image, open to clients.
    Gateway {
        /// It is to be reached from everywhere.
        is_public: bool,
    },
}

impl Purpose {
    pub(crate) const fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway { .. })
    }
}

#[async_trait]
impl Lifecycle<Machine> for Aws {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        self.ensure_instance(want, Purpose::Jobs, call).await
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let signs = self.look_at_instances(known).await?;
        // Where jobs run, the agent is reached by its address as it was, as with dstack 0.22.5.
        let as_it_was = |sign| match sign {
            Sign::Moved(_) => Sign::Well,
            other => other,
        };
        Ok(signs.into_iter().map(|sign| sign.map(as_it_was)).collect())
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let region = known.site.as_str();
        let place = known.place.as_ref();
        let choice: Option<Choice> = call.made(CHOICE)?;
        let find = async || {
            let found = self.find_instance(region, &known.marks, choice.as_ref()).await?;
            Ok(found.map(|id| Made::now(id, call)))
        };
        // Of a row of dstack 0.22.5 only the place is known: it was made long ago.
        let made = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let delete = async |made: Made| {
            let told = self.terminate(region, &made.id).await?;
            Ok(told.unwrap_or_else(|| made.removal(call, Removal::Gone, ENDS_INTERVAL)))
        };
        let removal = call.unmake(MACHINE, made, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        // It can be given back only when nothing has it any more.
        let address = place.and_then(|place| allocation_id(place.backend_data.as_deref()));
        let removal = self.remove_address(region, &known.marks, address, call).await?;
        if removal == Removal::Gone {
            forget_choice(call).await?;
        }
        Ok(removal)
    }
}

/// The next attempt makes another choice.
async fn forget_choice(call: &Call<'_>) -> Result<(), ComputeError> {
    let gone = async |_: Choice| Ok(Removal::Gone);
    call.unmake(CHOICE, None, Duration::ZERO, async || Ok(None), gone)
        .await
        .map(drop)
}

/// Where a thing is that was made.
pub(crate) fn region_of<R: Resource<Site = String>>(known: &Known<R>) -> Option<&str> {
    known.place.as_ref().map(|_| known.site.as_str())
}

impl Aws {
    /// Makes an instance, unless it is made, and tells how far it is.
    pub(crate) async fn ensure_instance(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let made = match call.made::<Made>(MACHINE)? {
            Some(made) => made,
            None => self.launch(want, purpose, call).await?,
        };
        let region = &*want.offer.region;
        let found = self.client.instances_by_id(region, &[made.id.as_str()]).await;
        let found = found.map_err(|error| error.compute_error())?;
        let waits_for = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: STARTS_INTERVAL,
            })
        };
        let Some(instance) = found.first() else {
            return match made.is_new(call) {
                true => waits_for("the instance is listed"),
                false => Err(ComputeError::Broken(format!(
                    "AWS does not have the instance {} any more",
                    made.id
                ))),
            };
        };
        match state(instance) {
            State::Starts => waits_for("the instance starts"),
            State::Over(error) => Err(error),
            State::Runs => self.reached(want, purpose, instance, call).await,
        }
    }

    /// How instances are, also where their addresses are others than before.
    pub(crate) async fn look_at_instances(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        look_by_place(known, region_of, |region, known| self.signs_in(region, known)).await
    }

    /// How instances of a region are.
    async fn signs_in(
        &self,
        region: &str,
        known: Vec<&Known<Machine>>,
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let id = |known: &&'_ Known<Machine>| known.place.as_ref().map(|place| place.instance_id.clone());
        let ids: Vec<String> = known.iter().filter_map(id).collect();
        let texts: Vec<&str> = ids.iter().map(String::as_str).collect();
        let listed = self.client.instances_by_id(region, &texts).await;
        let listed = listed.map_err(|error| error.compute_error())?;
        let notices = self.spot_notices(region, &listed).await?;
        let found: HashMap<&str, &Instance> =
            listed.iter().map(|one| (one.instance_id.as_str(), one)).collect();
        let sign = |place: &JobProvisioningData| {
            let id = place.instance_id.as_str();
            sign_of(place, found.get(id).copied(), notices.get(id))
        };
        Ok(known
            .iter()
            .filter_map(|known| known.place.as_ref())
            .map(sign)
            .collect())
    }

    /// Asks for the instance in one zone after the other.
    async fn launch(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        call: &Call<'_>,
    ) -> Result<Made, ComputeError> {
        let region = &*want.offer.region;
        if call.asked_at(MACHINE).is_none() && !self.regions.iter().any(|known| known == region) {
            return Err(ComputeError::Configuration(format!(
                "the region {region} is not one of the backend's: add it to `regions`"
            )));
        }
        let mut tried = Vec::new();
        let mut refusal = None;
        loop {
            let choice: Choice = match call.made(CHOICE)? {
                Some(choice) => choice,
                None => {
                    let Some(choice) = self.choose(want, purpose, tried).await? else {
                        let none = || {
                            ComputeError::NoCapacity(format!(
                                "No eligible availability zones in {}",
                                want.offer.region
                            ))
                        };
                        return Err(refusal.unwrap_or_else(none));
                    };
                    call.choose(CHOICE, choice).await?
                }
            };
            let run = async || {
                let id = self.run(want, &choice).await?;
                Ok(Made::now(id, call))
            };
            match call.make_once(MACHINE, run).await {
                // Not as long as an earlier call, whose answer was lost, may have made it in this zone.
                Err(error @ ComputeError::NoCapacity(_)) if call.asked_at(MACHINE).is_none() => {
                    refusal = Some(error);
                    tried = choice.tried;
                    tried.push(choice.place.zone);
                    forget_choice(call).await?;
                }
                // What it names is gone, or not known everywhere yet.
                Err(error @ ComputeError::NotReady(_)) if call.asked_at(MACHINE).is_none() => {
                    forget_choice(call).await?;
                    return Err(error);
                }
                made => return made,
            }
        }
    }

    /// What an instance is made of, in the first zone that was not tried; `None`: there is none.
    async fn choose(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        tried: Vec<String>,
    ) -> Result<Option<Choice>, ComputeError> {
        let region = &*want.offer.region;
        let reservation = match &want.reservation {
            Some(id) => self.reservation(region, id).await?,
            None => None,
        };
        let is_public = match purpose {
            Purpose::Jobs => self.config.public_ips.unwrap_or(true),
            Purpose::Gateway { is_public } => is_public,
        };
        let network = self.network(region, is_public).await?;
        let reserved = reservation
            .as_ref()
            .and_then(|reservation| reservation.availability_zone.as_deref());
        let zones = want.offer.availability_zones.as_deref();
        let places = places_to_try(&network, zones, reserved, &tried);
        let Some(place) = places.first().map(|place| Place::clone(place)) else {
            return Ok(None);
        };
        let query = self.image_query(want, purpose)?;
        let image = self.image(region, &query).await?;
        let is_capacity_block = reservation
            .as_ref()
            .is_some_and(CapacityReservation::is_capacity_block);
        let tenancy = reservation.and_then(|reservation| reservation.tenancy);
        Ok(Some(Choice {
            token: self.kind.env.random.uuid().to_string(),
            place,
            tried,
            security_group: self
                .security_group(region, &network.vpc, &want.owner.project, purpose)
                .await?,
            image: image.image_id,
            root_device: image.root_device_name,
            max_efa: match purpose {
                Purpose::Jobs => self.max_efa(region, &want.offer.instance.name).await?,
                Purpose::Gateway { .. } => 0,
            },
            is_public,
            // What jobs may do in the account is none of a gateway's business.
            iam_instance_profile: self
                .config
                .iam_instance_profile
                .clone()
                .filter(|_| !purpose.is_gateway()),
            tenancy: tenancy.filter(|tenancy| tenancy != "default"),
            is_capacity_block,
            // Capacity blocks are close to each other anyway, and take no groups.
            placement_group: want.placement_group.clone().filter(|_| !is_capacity_block),
        }))
    }

    fn image_query(&self, want: &MachineRequest, purpose: Purpose) -> Result<ImageQuery, ComputeError> {
        match purpose {
            Purpose::Jobs => ImageQuery::of(&self.config, &want.offer.instance.resources),
            Purpose::Gateway { .. } => Ok(ImageQuery::of_gateway()),
        }
    }

    /// The id of the instance that was made for a choice, now or before.
    async fn run(&self, want: &MachineRequest, choice: &Choice) -> Result<String, ComputeError> {
        let region = &*want.offer.region;
        let tags = tags(&want.marks, &want.owner, self.config.tags.as_ref());
        let form = run_instances(want, choice, &tags);
        let error = match self.client.change::<Reservation>(region, form).await {
            Ok(made) => {
                let first = made.instances_set.item.into_iter().next();
                return first.map(|instance| instance.instance_id).ok_or_else(|| {
                    ComputeError::Unclear("AWS names no instance that it started".to_owned())
                });
            }
            Err(error) => error,
        };
        if error.is(&["IdempotentParameterMismatch"]) {
            // An earlier call has made it, of a configuration that has changed since then.
            let found = self.find_instance(region, &want.marks, Some(choice)).await?;
            return found.ok_or_else(|| {
                ComputeError::Unclear("AWS does not list the instance yet that it has made".to_owned())
            });
        }
        if error.is(NOT_THERE) {
            self.forget_lookups();
            return Err(ComputeError::NotReady(error.to_string()));
        }
        Err(error.compute_error())
    }

    /// An instance that an earlier call may have made.
    async fn find_instance(
        &self,
        region: &str,
        marks: &Marks,
        choice: Option<&Choice>,
    ) -> Result<Option<String>, ComputeError> {
        let form = Form::new("DescribeInstances");
        let form = match choice {
            Some(choice) => form.filter("client-token", [choice.token.as_str()]),
            None => with_marks(form, marks),
        };
        let found = self.client.instances(region, form).await;
        let mut found = found.map_err(|error| error.compute_error())?;
        // Those of earlier attempts are listed for an hour after their end.
        found.sort_by_key(|instance| instance.instance_state.name == "terminated");
        Ok(found.into_iter().next().map(|instance| instance.instance_id))
    }

    /// The place of an instance that runs, once it has an address.
    async fn reached(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        instance: &Instance,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let waits = || Step::Underway {
            seen: None,
            doing: "an address".to_owned(),
            again: STARTS_INTERVAL,
        };
        let choice: Option<Choice> = call.made(CHOICE)?;
        let is_public = choice.as_ref().is_none_or(|choice| choice.is_public);
        let own_address = choice.as_ref().is_some_and(needs_address);
        let (hostname, backend_data) = match (is_public, own_address) {
            (true, true) => match self.ensure_address(want, instance, call).await? {
                Some(address) => {
                    let data = json!({"eip_allocation_id": address.allocation_id}).to_string();
                    (Some(address.public_ip), Some(data))
                }
                None => return Ok(waits()),
            },
            (true, false) => (instance.ip_address.clone(), None),
            (false, _) => (instance.private_ip_address.clone(), None),
        };
        let Some(hostname) = hostname else {
            return Ok(waits());
        };
        let user = self.image_query(want, purpose)?.user;
        Ok(Step::Ready(place(
            want,
            instance,
            hostname,
            backend_data,
            user,
            is_public,
        )))
    }

    /// Most EFA interfaces of a type.
    async fn max_efa(&self, region: &str, instance_type: &str) -> Result<u32, ComputeError> {
        let fetch = async || {
            let form = Form::new("DescribeInstanceTypes")
                .filter("instance-type", [instance_type])
                .filter("network-info.efa-supported", ["true"]);
            let found = self.client.list::<InstanceTypes>(region, form).await;
            let found = found.map_err(|error| error.compute_error())?;
            let info = found.into_iter().next().and_then(|info| info.network_info);
            Ok(info
                .and_then(|info| info.efa_info)
                .map_or(0, |efa| efa.maximum_efa_interfaces))
        };
        Ok(*self.efa.get(format!("{region} {instance_type}"), fetch).await?)
    }

    /// Ends an instance, and tells how far that is; `None`: AWS does not know it.
    pub(crate) async fn terminate(&self, region: &str, id: &str) -> Result<Option<Removal>, ComputeError> {
        let underway = Removal::Underway { again: ENDS_INTERVAL };
        let found = self.client.instances_by_id(region, &[id]).await;
        let found = found.map_err(|error| error.compute_error())?;
        match found.first().map(|one| one.instance_state.name.as_str()) {
            Some("terminated") => return Ok(Some(Removal::Gone)),
            Some("shutting-down") => return Ok(Some(underway)),
            // What is not listed may be there all the same.
            _ => {}
        }
        let form = Form::new("TerminateInstances").list("InstanceId", [id]);
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => Ok(Some(underway)),
            Err(error) if error.is(&["InvalidInstanceID.NotFound"]) => Ok(None),
            Err(error) => Err(error.compute_error()),
        }
    }

    /// What AWS says of spot instances that it will take away, by instance.
    async fn spot_notices(
        &self,
        region: &str,
        instances: &[Instance],
    ) -> Result<HashMap<String, SpotStatus>, ComputeError> {
        let spot = instances
            .iter()
            .filter(|one| one.spot_instance_request_id.is_some());
        let ids: Vec<&str> = spot.map(|one| one.instance_id.as_str()).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let form = Form::new("DescribeSpotInstanceRequests")
            .filter("instance-id", ids)
            .filter("status-code", ["marked-for-termination"]);
        match self.client.list::<SpotRequests>(region, form).await {
            Ok(found) => {
                let notices = found
                    .into_iter()
                    .filter_map(|request| Some((request.instance_id?, request.status?)));
                Ok(notices.collect())
            }
            // dstack 0.22.5 does not ask for that permission: without it, the end comes without notice.
            Err(error) if error.is(&["UnauthorizedOperation"]) => {
                tracing::debug!(region, %error, "interruptions of spot instances are not foretold");
                Ok(HashMap::new())
            }
            Err(error) => Err(error.compute_error()),
        }
    }
}

/// What carries these marks.
pub(crate) fn with_marks(form: Form, marks: &Marks) -> Form {
    marks.tags().iter().fold(form, |form, (key, value)| {
        form.filter(&format!("tag:{key}"), [value.as_str()])
    })
}

/// How far an instance is ("Instance lifecycle", EC2 User Guide).
#[derive(Debug, PartialEq)]
enum State {
    Starts,
    Runs,
    Over(ComputeError),
}

fn state(instance: &Instance) -> State {
    match instance.instance_state.name.as_str() {
        "running" => State::Runs,
        "shutting-down" | "terminated" | "stopping" | "stopped" => State::Over(end_of(instance)),
        // `pending`, and what comes after this version.
        _ => State::Starts,
    }
}

/// Why an instance is over. That there was no room for it, AWS may tell only afterwards.
fn end_of(instance: &Instance) -> ComputeError {
    let (code, message) = match &instance.state_reason {
        Some(reason) => (reason.code.as_str(), reason.message.as_str()),
        None => ("", ""),
    };
    let state = &instance.instance_state.name;
    match code {
        "Server.InsufficientInstanceCapacity" => ComputeError::NoCapacity(message.to_owned()),
        "Server.SpotInstanceTermination" | "Server.SpotInstanceShutdown" => {
            ComputeError::Broken(format!("AWS has taken the spot instance back ({message})"))
        }
        _ if message.is_empty() => ComputeError::Broken(format!("the instance is {state}")),
        _ => ComputeError::Broken(format!("the instance is {state}: {message}")),
    }
}

fn sign_of(
    place: &JobProvisioningData,
    instance: Option<&Instance>,
    notice: Option<&SpotStatus>,
) -> Sign<JobProvisioningData> {
    let Some(instance) = instance else {
        return Sign::Lost("AWS does not have the instance any more".to_owned());
    };
    match (state(instance), notice) {
        (State::Over(error), _) => Sign::Lost(error.details()),
        (_, Some(notice)) => Sign::Ending {
            at: notice.update_time.map(|at| at + SPOT_NOTICE),
            why: match notice.message.is_empty() {
                true => "AWS takes the spot instance back".to_owned(),
                false => format!("AWS takes the spot instance back ({})", notice.message),
            },
        },
        _ => match moved_to(place, instance) {
            Some(address) => Sign::Moved(JobProvisioningData {
                hostname: Some(address.clone()),
                ..place.clone()
            }),
            None => Sign::Well,
        },
    }
}

/// The address of an instance, if it is another one than before: an Elastic IP was given to it, or taken from it.
fn moved_to<'a>(place: &JobProvisioningData, instance: &'a Instance) -> Option<&'a String> {
    let (public, private) = (&instance.ip_address, &instance.private_ip_address);
    let known = place.hostname.as_ref();
    let is_known = known.is_some() && [public, private].into_iter().any(|one| one.as_ref() == known);
    // Without an address it is between two.
    match is_known || state(instance) != State::Runs || !place.public_ip_enabled {
        true => None,
        false => public.as_ref(),
    }
}

/// The Elastic IP of a machine, as dstack 0.22.5 notes it, too.
fn allocation_id(backend_data: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Data {
        eip_allocation_id: Option<String>,
    }
    let data: Data = serde_json::from_str(backend_data?).ok()?;
    data.eip_allocation_id
}

fn place(
    want: &MachineRequest,
    instance: &Instance,
    hostname: String,
    backend_data: Option<String>,
    username: String,
    public_ip_enabled: bool,
) -> JobProvisioningData {
    let offer = &want.offer;
    let placement = instance.placement.as_ref();
    JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: instance.instance_id.clone(),
        hostname: Some(hostname),
        internal_ip: instance.private_ip_address.clone(),
        public_ip_enabled,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: placement.and_then(|placement| placement.availability_zone.clone()),
        reservation: instance.capacity_reservation_id.clone(),
        price: offer.price,
        username,
        ssh_port: Some(SSH_PORT),
        dockerized: true,
        ssh_proxy: None,
        backend_data,
        gpu_driver: None,
    }
}

#[cfg(test)]
mod tests {
    use dstack_units::Time;

    use super::*;

    fn instance(state: &str, reason: Option<(&str, &str)>) -> Instance {
        let reason = reason.map_or_else(String::new, |(code, message)| {
            format!("<stateReason><code>{code}</code><message>{message}</message></stateReason>")
        });
        let text = format!(
            "<item><instanceId>i-1</instanceId><instanceState><name>{state}</name></instanceState>{reason}</item>"
        );
        quick_xml::de::from_str(&text).unwrap()
    }

    fn at(hostname: &str) -> JobProvisioningData {
        let place = json!({"backend": "aws", "instance_type": {"name": "t3.micro", "resources": {"cpus": 2, "memory_mib": 1024,
            "gpus": [], "spot": false}}, "instance_id": "i-1", "hostname": hostname, "region": "us-east-1", "price": 0.01,
            "username": "ubuntu", "ssh_port": 22, "dockerized": true});
        dstack_model::decode::decode_strict(&place).unwrap()
    }

    #[test]
    fn an_instance_that_has_another_address_has_moved() {
        let mut instance = instance("running", None);
        instance.ip_address = Some("192.0.2.1".to_owned());
        instance.private_ip_address = Some("172.31.0.1".to_owned());
        for known in ["192.0.2.1", "172.31.0.1"] {
            assert_eq!(sign_of(&at(known), Some(&instance), None), Sign::Well, "{known}");
        }
        instance.ip_address = Some("192.0.2.2".to_owned());
        let Sign::Moved(place) = sign_of(&at("192.0.2.1"), Some(&instance), None) else {
            panic!("it is at another address");
        };
        assert_eq!(place.hostname.as_deref(), Some("192.0.2.2"));
        instance.ip_address = None;
        assert_eq!(
            sign_of(&at("192.0.2.1"), Some(&instance), None),
            Sign::Well,
            "between two"
        );
    }

    fn notice(at: Option<Time>) -> SpotStatus {
        SpotStatus {
            code: "marked-for-termination".to_owned(),
            message: "m".to_owned(),
            update_time: at,
        }
    }

    #[test]
    fn how_an_instance_is_by_its_state() {
        for (name, is_over) in [
            ("pending", false),
            ("running", false),
            ("new-in-this-year", false),
            ("shutting-down", true),
            ("terminated", true),
            ("stopping", true),
            ("stopped", true),
        ] {
            let sign = sign_of(&at("192.0.2.1"), Some(&instance(name, None)), None);
            assert_eq!(matches!(sign, Sign::Lost(_)), is_over, "{name}: {sign:?}");
        }
        assert!(matches!(sign_of(&at("192.0.2.1"), None, None), Sign::Lost(_)));
    }

    #[test]
    fn why_an_instance_is_over_is_told() {
        for (reason, expected) in [
            (
                Some(("Server.InsufficientInstanceCapacity", "no room")),
                ComputeError::NoCapacity("no room".to_owned()),
            ),
            (
                Some(("Server.SpotInstanceTermination", "m")),
                ComputeError::Broken("AWS has taken the spot instance back (m)".to_owned()),
            ),
            (
                Some(("Client.VolumeLimitExceeded", "too many volumes")),
                ComputeError::Broken("the instance is terminated: too many volumes".to_owned()),
            ),
            (
                None,
                ComputeError::Broken("the instance is terminated".to_owned()),
            ),
        ] {
            assert_eq!(state(&instance("terminated", reason)), State::Over(expected));
        }
    }

    #[test]
    fn a_spot_instance_ends_two_minutes_after_the_notice() {
        let (place, at) = (self::at("192.0.2.1"), Time::from_millis(1_000));
        let sign = sign_of(&place, Some(&instance("running", None)), Some(&notice(Some(at))));
        let ending = Sign::Ending {
            at: Some(Time::from_millis(121_000)),
            why: "AWS takes the spot instance back (m)".to_owned(),
        };
        assert_eq!(sign, ending);
        let over = sign_of(&place, Some(&instance("terminated", None)), Some(&notice(None)));
        assert!(matches!(over, Sign::Lost(_)), "{over:?}");
    }

    #[test]
    fn addresses_are_read_from_rows_of_before() {
        assert_eq!(
            allocation_id(Some(r#"{"eip_allocation_id": "eipalloc-1", "later": 1}"#)).as_deref(),
            Some("eipalloc-1")
        );
        for none in [
            None,
            Some(""),
            Some("null"),
            Some("{}"),
            Some(r#"{"eip_allocation_id": null}"#),
        ] {
            assert_eq!(allocation_id(none), None);
        }
    }
}
