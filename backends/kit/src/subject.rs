use dstack_compute::{Backend, Known, Lifecycle, Machine, MachineRequest, Marks, Owner, Resource};
use dstack_model::instances::InstanceAvailability;
use uuid::Uuid;

use crate::Cloud;

/// A kind of things that a backend makes, as the checks ask for it.
pub struct Subject<R: Resource> {
    /// The life cycle of the backend.
    pub lifecycle: fn(&dyn Backend) -> Option<&dyn Lifecycle<R>>,
    /// What is asked for.
    pub want: R::Want,
    /// What it carries.
    pub marks: Marks,
    /// Where it is asked for.
    pub site: R::Site,
    /// What is wrong with a place; `None`: nothing.
    pub problem: fn(&R::Place) -> Option<String>,
}

impl<R: Resource> Subject<R> {
    /// What is known of it.
    pub fn known(&self, place: Option<R::Place>) -> Known<R> {
        Known {
            marks: self.marks.clone(),
            site: self.site.clone(),
            place,
        }
    }
}

/// Marks of an installation, as the engine makes them.
pub fn marks(cloud: &Cloud, name: &str) -> Marks {
    let id = || cloud.env.random.uuid();
    Marks {
        installation: Uuid::from_u128(0x1234_5678_9abc_4def_8012_3456_789a_bcde).into(),
        key: cloud.env.random.ordered_uuid(cloud.env.clock.now()),
        name: name.to_owned(),
        project: id().into(),
    }
}

/// The cheapest machine that the backend has.
pub async fn machine(cloud: &Cloud) -> Subject<Machine> {
    let offers = cloud.open().offers(&Cloud::requirements()).await.unwrap();
    let offer = offers.into_iter().find(|offer| {
        let is_there = cloud.region.is_none_or(|region| &*offer.region == region);
        is_there && offer.availability != InstanceAvailability::NotAvailable
    });
    let offer = offer.expect("the backend offers something");
    // Longer than any cloud takes.
    let marks = marks(cloud, &format!("a-fleet-with-a-name-{}-0", "x".repeat(80)));
    Subject {
        lifecycle: |backend| backend.machines(),
        site: offer.region.to_string(),
        want: MachineRequest {
            marks: marks.clone(),
            owner: Owner {
                project: "main".to_owned(),
                user: "somebody".to_owned(),
                tags: [("team".to_owned(), "vision".to_owned())].into(),
            },
            reservation: None,
            offer,
            authorized_keys: vec![
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampleEx dstack"
                    .to_owned(),
            ],
            placement_group: None,
        },
        marks,
        problem: |place| {
            let unset = [
                (place.hostname.is_none(), "hostname"),
                (place.ssh_port.is_none(), "ssh_port"),
                (place.username.is_empty(), "username"),
                (place.instance_id.is_empty(), "instance_id"),
                (!place.dockerized, "dockerized"),
            ];
            let unset: Vec<&str> = unset
                .iter()
                .filter(|(unset, _)| *unset)
                .map(|(_, name)| *name)
                .collect();
            (!unset.is_empty()).then(|| format!("{} not set", unset.join(", ")))
        },
    }
}
