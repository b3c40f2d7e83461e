//! What can be had of the other server: what it would offer for the same requirements in its project's fleets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dstack_backend::Cached;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime, InstanceType};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Sky;
use crate::client::{Fleet, Project};
use crate::errors::told;
use crate::place::Place;

/// The type of the other server's own backends of this kind, which are never asked: they may lead back here.
const OWN_KIND: &str = "dstack";

/// Backends whose containers show one port only, which the other server's own agent has.
const ONE_PORT: &[&str] = &["kubernetes"];

/// Hosts of SSH fleets.
const HOSTS: &str = "remote";

/// Answers that are kept for different requirements.
const MOST_KEPT: usize = 32;

/// Pause before the other server is asked again for offers of backends that it waits for itself, and for how long it is asked: with
/// its own wait of two and a half seconds that is less than the twenty seconds after which a backend is left out.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const ASKED_FOR: Duration = Duration::from_secs(8);

/// How long an answer is kept that does not have what backends offer for which the other server still waits.
const INCOMPLETE_LIFETIME: Duration = Duration::from_secs(30);

/// What the other server has said it offers, by what it was asked.
pub(crate) type Kept = std::collections::HashMap<String, Arc<Cached<Vec<Offer>>>>;

/// An offer of the other server, as far as it is used.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Offer {
    backend: String,
    instance: InstanceType,
    region: String,
    price: f64,
    availability: InstanceAvailability,
    #[serde(default = "one")]
    total_blocks: u32,
}

const fn one() -> u32 {
    1
}

impl Sky {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        // What the other server has of its own account is not ours to name.
        if requirements.reservation.is_some() {
            return Ok(Vec::new());
        }
        let wanted = wanted(requirements);
        let kept = self.kept(&wanted.to_string());
        let may_be_more = AtomicBool::new(false);
        let offers = kept
            .get(async || self.ask_for_offers(wanted, &may_be_more).await)
            .await?;
        if may_be_more.into_inner() {
            kept.hold_for(INCOMPLETE_LIFETIME);
        }
        Ok(distinct(offers.iter().filter_map(|offer| self.as_ours(offer))))
    }

    fn kept(&self, asked: &str) -> Arc<Cached<Vec<Offer>>> {
        let mut kept = self.lock_offers();
        if let Some(kept) = kept.get(asked) {
            return Arc::clone(kept);
        }
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        let fresh = Arc::new(Cached::of_offers(&self.kind.env));
        kept.insert(asked.to_owned(), Arc::clone(&fresh));
        fresh
    }

    /// Runs are placed in fleets: their offers are asked for, and not those that the project could have with another fleet.
    async fn ask_for_offers(
        &self,
        mut configuration: Value,
        may_be_more: &AtomicBool,
    ) -> Result<Vec<Offer>, ComputeError> {
        let fleets = told(self.client.fleets().await)?;
        let fleets: Vec<Fleet> = fleets.into_iter().filter(is_active).collect();
        let backends = self.backends_of(&told(self.client.project().await)?, &fleets);
        if fleets.is_empty() || backends.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(fields) = configuration.as_object_mut() {
            fields.insert("fleets".to_owned(), json!(references(&fleets)));
            fields.insert("backends".to_owned(), json!(backends));
        }
        let asked = json!({"configuration": configuration});
        let begun = Instant::now();
        let (mut offers, mut are_awaited) = told(self.client.offers(&asked).await)?;
        while are_awaited && begun.elapsed() < ASKED_FOR {
            tokio::time::sleep(ASK_AGAIN).await;
            (offers, are_awaited) = told(self.client.offers(&asked).await)?;
        }
        may_be_more.store(are_awaited, Ordering::Relaxed);
        // An odd one hides no other.
        let offers = offers.into_iter();
        Ok(offers
            .filter_map(|offer| serde_json::from_value(offer).ok())
            .collect())
    }

    /// Which of its backends are asked. All are named, so that it never asks those of its own that are other servers.
    fn backends_of(&self, project: &Project, fleets: &[Fleet]) -> Vec<String> {
        let mut names: Vec<String> = project
            .backends
            .iter()
            .map(|backend| backend.name.clone())
            .collect();
        // Imported fleets may be of backends that the project does not have.
        if let Some(wanted) = &self.backends {
            names.clone_from(wanted);
        } else if fleets
            .iter()
            .any(|fleet| fleet.spec.configuration.ssh_config.is_some())
        {
            names.push(HOSTS.to_owned());
        }
        names.retain(|name| can_be_used(name));
        names
    }

    /// `None`: it is none of ours.
    fn as_ours(&self, offer: &Offer) -> Option<InstanceOfferWithAvailability> {
        let is_wanted = |wanted: &Vec<String>| wanted.contains(&offer.backend);
        // Shares of an instance are behind a network of their own, in which only the agent is reached.
        let fits = can_be_used(&offer.backend)
            && self.backends.as_ref().is_none_or(is_wanted)
            && offer.total_blocks <= 1
            && offer.price.is_finite();
        let place = Place {
            backend: offer.backend.clone(),
            region: offer.region.clone(),
        };
        fits.then(|| InstanceOfferWithAvailability {
            backend: BackendType::Dstack,
            instance: Arc::new(offer.instance.clone()),
            region: place.to_string().into(),
            price: offer.price,
            backend_data: Arc::default(),
            availability: availability(offer.availability),
            availability_zones: None,
            instance_runtime: InstanceRuntime::Runner,
            blocks: 1,
            total_blocks: 1,
            group_size: None,
        })
    }
}

/// Whether offers of this backend of the other server can be ours.
pub(crate) fn can_be_used(backend: &str) -> bool {
    backend != OWN_KIND && !ONE_PORT.contains(&backend)
}

fn is_active(fleet: &Fleet) -> bool {
    fleet.status == "active"
}

fn references(fleets: &[Fleet]) -> Vec<String> {
    let reference = |fleet: &Fleet| match fleet.project_name.as_str() {
        "" => fleet.name.clone(),
        project => format!("{project}/{}", fleet.name),
    };
    fleets.iter().map(reference).collect()
}

/// A task with these requirements, as far as offers depend on it. What it runs does not matter.
fn wanted(requirements: &Requirements) -> Value {
    let mut configuration = json!({
        "type": "task",
        "image": "scratch",
        "user": "root",
        "commands": [":"],
        "resources": requirements.resources,
        "spot_policy": match requirements.spot {
            Some(true) => "spot",
            Some(false) => "on-demand",
            None => "auto",
        },
    });
    if let (Some(price), Some(fields)) = (requirements.max_price, configuration.as_object_mut()) {
        fields.insert("max_price".to_owned(), json!(price));
    }
    configuration
}

/// Instances that are there already are theirs, and may be in use by whoever is first.
const fn availability(theirs: InstanceAvailability) -> InstanceAvailability {
    match theirs {
        InstanceAvailability::Idle => InstanceAvailability::Available,
        InstanceAvailability::Busy => InstanceAvailability::NotAvailable,
        other => other,
    }
}

/// Several instances of one type in one region are one offer: the first, which is available if one is.
fn distinct(
    offers: impl Iterator<Item = InstanceOfferWithAvailability>,
) -> Vec<InstanceOfferWithAvailability> {
    let mut seen = std::collections::HashSet::new();
    offers
        .filter(|offer| {
            let resources = &offer.instance.resources;
            seen.insert((
                Arc::clone(&offer.region),
                offer.instance.name.clone(),
                resources.spot,
                offer.price.to_bits(),
            ))
        })
        .collect()
}
