//! Capacity that was reserved, by this project or by one that shares it. Only such is taken as is for who names it.

use std::collections::HashMap;

use dstack_compute::ComputeError;
use dstack_model::instances::{InstanceAvailability, Resources};
use dstack_model::offers::InstanceOfferWithAvailability;
use serde::Deserialize;

use crate::Gcp;
use crate::client::{last, plain};
use crate::errors::GcpError;
use crate::instance::{accelerator, comes_with_gpus};

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reservation {
    name: String,
    #[serde(default)]
    self_link: String,
    #[serde(default)]
    specific_reservation: Specific,
    /// `placement`: the policy that machines of it have.
    #[serde(default)]
    resource_policies: HashMap<String, String>,
}

/// Numbers of 64 bits are texts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Specific {
    assured_count: String,
    in_use_count: String,
    instance_properties: Properties,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Properties {
    machine_type: String,
    guest_accelerators: Vec<Accelerator>,
    local_ssds: Vec<LocalSsd>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Accelerator {
    #[serde(default)]
    accelerator_type: String,
    #[serde(default)]
    accelerator_count: usize,
}

/// A disk of the host that machines of a reservation have.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LocalSsd {
    #[serde(default)]
    pub(crate) disk_size_gb: String,
    #[serde(default)]
    pub(crate) interface: String,
}

impl Reservation {
    /// How requests name it.
    pub(crate) fn path(&self, own_project: &str) -> String {
        let mut parts = self.self_link.split('/').skip_while(|part| *part != "projects");
        let project = parts.nth(1).unwrap_or(own_project);
        format!("projects/{project}/reservations/{}", self.name)
    }

    /// The policy that machines of it have.
    pub(crate) fn placement(&self) -> Option<&str> {
        self.resource_policies.get("placement").map(String::as_str)
    }

    pub(crate) fn local_ssds(&self) -> &[LocalSsd] {
        &self.specific_reservation.instance_properties.local_ssds
    }

    /// Whether machines of this type are of it.
    fn is_of(&self, machine_type: &str, resources: &Resources) -> bool {
        let properties = &self.specific_reservation.instance_properties;
        if last(&properties.machine_type) != machine_type {
            return false;
        }
        match (properties.guest_accelerators.as_slice(), resources.gpus.first()) {
            ([], None) => true,
            // GPUs that come with a type may not be named.
            ([], Some(_)) => comes_with_gpus(machine_type),
            ([one], Some(gpu)) => {
                let is_name = accelerator(gpu).is_none_or(|name| name == last(&one.accelerator_type));
                one.accelerator_count == resources.gpus.len() && is_name
            }
            _ => false,
        }
    }

    fn has_room(&self) -> bool {
        let number = |text: &str| text.parse::<i64>().unwrap_or(0);
        let specific = &self.specific_reservation;
        number(&specific.in_use_count) < number(&specific.assured_count)
    }
}

impl Gcp {
    /// A reservation by its zones: one of a name may be in several. Empty: there is none, or the account may not see it.
    pub(crate) async fn reservation(&self, name: &str) -> Result<HashMap<String, Reservation>, ComputeError> {
        let parts: Vec<&str> = name.split('/').collect();
        let (project, name) = match parts.as_slice() {
            [name] => (None, *name),
            ["projects", project, "reservations", name] => (Some(*project), *name),
            _ => return Ok(HashMap::new()),
        };
        if plain(name).is_err() || project.is_some_and(|project| plain(project).is_err()) {
            return Ok(HashMap::new());
        }
        let filter =
            format!("(name = \"{name}\") AND (status = \"READY\") AND (specificReservationRequired = true)");
        let found = self
            .client
            .aggregated::<Reservation>(project, "reservations", Some(&filter))
            .await;
        match found {
            Ok(found) => {
                let mut zones = HashMap::new();
                for (scope, reservation) in found {
                    zones.entry(last(&scope).to_owned()).or_insert(reservation);
                }
                Ok(zones)
            }
            Err(error) if error.is_missing() || error.is_forbidden() => {
                tracing::warn!(name, ?error, "a reservation is not to be seen");
                Ok(HashMap::new())
            }
            Err(error) => Err(GcpError::compute_error(error)),
        }
    }
}

/// An offer in the zones in which it is reserved, those first that have room; `None`: it is not.
pub(crate) fn reserved(
    mut offer: InstanceOfferWithAvailability,
    reservation: &HashMap<String, Reservation>,
) -> Option<InstanceOfferWithAvailability> {
    if offer.instance.resources.spot {
        return None;
    }
    let zones = offer.availability_zones.take().unwrap_or_default();
    let of_zone = |zone: &String| {
        let found = reservation.get(zone)?;
        found
            .is_of(&offer.instance.name, &offer.instance.resources)
            .then_some(found)
    };
    let with_room = |zone: &&String| of_zone(zone).is_some_and(Reservation::has_room);
    let free: Vec<String> = zones.iter().filter(with_room).cloned().collect();
    let all: Vec<String> = zones
        .iter()
        .filter(|zone| of_zone(zone).is_some())
        .cloned()
        .collect();
    if all.is_empty() {
        return None;
    }
    if free.is_empty() {
        offer.availability = InstanceAvailability::NotAvailable;
        offer.availability_zones = Some(all);
    } else {
        offer.availability_zones = Some(free);
    }
    Some(offer)
}
