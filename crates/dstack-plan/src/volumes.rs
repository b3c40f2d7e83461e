//! Which network volumes a job gets, and where they let it be (dstack 0.22.5: scheduling §10).
//!
//! A job has mount points; each names one volume, or several of which it gets the first that is where the job is.

use std::collections::BTreeSet;

use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData, VolumeStatus};
use dstack_units::number::quote_list;
use serde::Serialize;

use crate::PlanError;
use crate::offers::AvailableOffers;

/// Where a volume can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Location {
    /// Backend that the volume is configured for.
    pub backend: BackendType,
    /// Its region in lower case; `None` where volumes have none and reach every region.
    pub region: Option<String>,
    /// Its zone in lower case, if it is bound to one.
    pub zone: Option<String>,
}

impl Location {
    /// Of a volume: the zone that it was made in counts more than the one that was asked for.
    pub fn of(configuration: &AnyVolumeConfiguration, made: Option<&VolumeProvisioningData>) -> Self {
        let made_in = made.and_then(|data| data.availability_zone.as_deref());
        Self {
            backend: configuration.backend(),
            region: configuration.region().map(str::to_lowercase),
            zone: made_in
                .or(configuration.availability_zone())
                .map(str::to_lowercase),
        }
    }

    /// Whether it can be used in a region of a backend, whatever its zone is.
    fn is_in(&self, backend: BackendType, region: &str) -> bool {
        self.backend == backend
            && self
                .region
                .as_ref()
                .is_none_or(|own| own.eq_ignore_ascii_case(region))
    }

    /// Whether it is in the zone, as far as it is bound to one.
    fn is_in_zone(&self, zone: &str) -> bool {
        self.zone
            .as_ref()
            .is_none_or(|own| own.eq_ignore_ascii_case(zone))
    }

    /// Whether one machine can have both: neither is bound to where the other is not.
    fn is_beside(&self, other: &Self) -> bool {
        let agree = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
        self.backend == other.backend && agree(&self.region, &other.region) && agree(&self.zone, &other.zone)
    }
}

/// Whether some volume can be used on an instance. One in a zone needs a volume of exactly that zone; one in none
/// takes any of the region.
pub fn reach_instance(volumes: &[Location], backend: BackendType, region: &str, zone: Option<&str>) -> bool {
    volumes.is_empty()
        || volumes.iter().any(|volume| {
            let of_zone = |zone: &str| {
                volume
                    .zone
                    .as_ref()
                    .is_some_and(|own| own.eq_ignore_ascii_case(zone))
            };
            volume.is_in(backend, region) && zone.is_none_or(of_zone)
        })
}

/// Whether some volume can be used where an offer is: in its region, and in one of its zones where both have some.
pub fn reach_offer(volumes: &[Location], offer: &Offer) -> bool {
    let in_a_zone = |volume: &Location| match &offer.availability_zones {
        Some(zones) => volume.zone.is_none() || zones.iter().any(|zone| volume.is_in_zone(zone)),
        None => true,
    };
    let is_reached = |volume: &Location| volume.is_in(offer.backend, &offer.region) && in_a_zone(volume);
    volumes.is_empty() || volumes.iter().any(is_reached)
}

/// The offer is to be made only in zones in which one of the volumes can be used.
pub(crate) fn narrow_zones(volumes: &[Location], offer: &mut Offer) {
    let (backend, region) = (offer.backend, offer.region.clone());
    let Some(zones) = &mut offer.availability_zones else {
        return;
    };
    if volumes.is_empty() {
        return;
    }
    let reaches = |zone: &str| {
        let mut there = volumes.iter().filter(|volume| volume.is_in(backend, &region));
        there.any(|volume| volume.is_in_zone(zone))
    };
    zones.retain(|zone| reaches(zone));
}

/// A network volume that a mount point names.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its name, unique in the project.
    pub name: &'a str,
    /// Whether it is made: only active ones can be mounted.
    pub status: VolumeStatus,
    /// Its deletion was asked for.
    pub to_be_deleted: bool,
    /// What was asked for.
    pub configuration: &'a AnyVolumeConfiguration,
    /// What its cloud made of it; `None`: nothing yet.
    pub made: Option<&'a VolumeProvisioningData>,
}

impl Candidate<'_> {
    fn location(&self) -> Location {
        Location::of(self.configuration, self.made)
    }
}

/// One list for each mount point: the volumes that it names, in its order.
pub type Mounts<'a> = [Vec<Candidate<'a>>];

/// What is said of a mount point whose volumes are not all there.
pub fn not_found(names: &[String]) -> String {
    format!("Volume {} not found", quote_list(names))
}

/// What is said of a mount point of which a volume is about to be deleted.
pub fn marked_for_deletion(names: &[String]) -> String {
    format!(
        "Volume {} is marked for deletion and cannot be attached",
        quote_list(names)
    )
}

/// Checks that a job can mount these volumes, each mount point one of those that it names.
///
/// # Errors
/// One is not active, or named twice; or no machine can have one of each mount point, for they are in different backends, regions or
/// zones. The texts are dstack 0.22.5's, but for that of zones.
pub fn check_mounts(mounts: &Mounts<'_>) -> Result<(), PlanError> {
    let places = |volumes: &[Candidate<'_>]| -> BTreeSet<(&'static str, Option<String>)> {
        let locations = volumes.iter().map(Candidate::location);
        locations
            .map(|place| (place.backend.as_str(), place.region))
            .collect()
    };
    let expected = mounts.first().map(|volumes| places(volumes));
    for volumes in mounts {
        if Some(places(volumes)) != expected {
            return Err(PlanError::new(
                "Volumes from different locations specified for different mount points",
            ));
        }
        if let Some(volume) = volumes
            .iter()
            .find(|volume| volume.status != VolumeStatus::Active)
        {
            return Err(PlanError::new(format!(
                "Cannot mount volumes that are not active: {}",
                volume.name
            )));
        }
    }
    let names: Vec<&str> = mounts.iter().flatten().map(|volume| volume.name).collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    if distinct.len() < names.len() {
        return Err(PlanError::new(
            "Cannot attach the same volume at different mount points",
        ));
    }
    if !are_together(mounts) {
        return Err(PlanError::new(
            "The volumes of different mount points are in different availability zones: no machine can have all of them",
        ));
    }
    Ok(())
}

/// Whether there is a zone in which each mount point has a volume.
pub fn are_together(mounts: &Mounts<'_>) -> bool {
    mounts.is_empty() || !together(mounts).is_empty()
}

/// Where a job can be that has these mount points; empty: it has none, and can be anywhere.
pub fn locations(mounts: &Mounts<'_>) -> Vec<Location> {
    let found = together(mounts);
    if !found.is_empty() {
        return found;
    }
    // Nowhere: they are refused when the run is submitted.
    let first = mounts.first().into_iter().flatten();
    first.map(Candidate::location).collect()
}

/// The places of the first mount point's volumes beside which there are volumes for all others.
fn together(mounts: &Mounts<'_>) -> Vec<Location> {
    let Some((first, others)) = mounts.split_first() else {
        return Vec::new();
    };
    let has = |volumes: &Vec<Candidate<'_>>, place: &Location| {
        volumes.iter().any(|volume| volume.location().is_beside(place))
    };
    let places = first.iter().map(Candidate::location);
    places
        .filter(|place| others.iter().all(|volumes| has(volumes, place)))
        .collect()
}

/// For each mount point the volume that a job gets there: the first that can be used where the job is.
///
/// # Errors
/// None of them can.
pub fn choose<'a>(
    mounts: &Mounts<'a>,
    backend: BackendType,
    region: &str,
    zone: Option<&str>,
) -> Result<Vec<Candidate<'a>>, PlanError> {
    let reaches = |volume: &&Candidate<'_>| {
        let place = volume.location();
        place.is_in(backend, region) && zone.is_none_or(|zone| place.is_in_zone(zone))
    };
    let chosen = mounts.iter().map(|volumes| {
        let found = volumes.iter().find(reaches).copied();
        found.ok_or_else(|| {
            let names: Vec<&str> = volumes.iter().map(|volume| volume.name).collect();
            let zone = zone.map(|zone| format!(" ({zone})")).unwrap_or_default();
            PlanError::new(format!(
                "the volume {} is not there, or not in {region}{zone} of {backend}",
                names.join(" or ")
            ))
        })
    });
    chosen.collect()
}

/// The volumes of jobs for which something is to be made, and of what it is made then.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    /// For each job, for each of its mount points, the volume that it gets there.
    pub volumes: Vec<Vec<Candidate<'a>>>,
    /// The offers that are where all of these are, and that are made in the same way: a machine gets its volumes later than a
    /// container.
    pub offers: AvailableOffers,
    /// The other offers, cheapest first, each in the zones in which these volumes are not: where none of `offers` works, other
    /// volumes are chosen for these.
    pub elsewhere: Vec<Offer>,
}

/// Chooses the volumes of jobs before it is known which of the offers works: those for the first offer that is where each job finds
/// some. `jobs` has the mount points of each.
///
/// # Errors
/// No offer is where they all find some.
pub fn claim<'a>(jobs: &[Vec<Vec<Candidate<'a>>>], offers: &AvailableOffers) -> Result<Claim<'a>, PlanError> {
    let mut first_error = None;
    for offer in &offers.best {
        for zone in zones_to_try(jobs, offer) {
            let of_job = |mounts: &Vec<Vec<Candidate<'a>>>| {
                choose(mounts, offer.backend, &offer.region, zone.as_deref())
            };
            match jobs.iter().map(of_job).collect::<Result<Vec<_>, _>>() {
                Ok(volumes) => {
                    let (offers, elsewhere) = split(&volumes, offer, offers);
                    return Ok(Claim {
                        volumes,
                        offers,
                        elsewhere,
                    });
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    Err(first_error.unwrap_or_else(|| PlanError::new("no offer is where the volumes are")))
}

/// Zones in which the offer may be made, those of the volumes first, in the order in which the jobs name these. `None`: it is not
/// known in which, and no volume is bound to one.
fn zones_to_try(jobs: &[Vec<Vec<Candidate<'_>>>], offer: &Offer) -> Vec<Option<String>> {
    let offered = offer.availability_zones.as_deref();
    let is_offered = |zone: &String| {
        offered.is_none_or(|zones| zones.iter().any(|other| other.eq_ignore_ascii_case(zone)))
    };
    let named = jobs.iter().flatten().flatten();
    let named = named.filter_map(|volume| volume.location().zone);
    let all = named
        .filter(is_offered)
        .chain(offered.unwrap_or_default().iter().cloned());
    let all: Vec<Option<String>> = all.map(Some).collect();
    match all.is_empty() {
        true => vec![None],
        false => all,
    }
}

/// The offers that are where all of the volumes are, each only in zones in which these can be used; and all others, each with the
/// zones that are left of it.
fn split(
    volumes: &[Vec<Candidate<'_>>],
    chosen: &Offer,
    offers: &AvailableOffers,
) -> (AvailableOffers, Vec<Offer>) {
    let places: Vec<Location> = volumes.iter().flatten().map(Candidate::location).collect();
    let mut here = AvailableOffers {
        best: Vec::new(),
        ..offers.clone()
    };
    let mut elsewhere = Vec::new();
    for offer in &offers.best {
        let (usable, left) = split_offer(&places, chosen, offer);
        here.total -= usize::from(usable.is_none()).min(here.total);
        here.best.extend(usable);
        elsewhere.extend(left);
    }
    (here, elsewhere)
}

/// One offer in the zones in which all of the volumes can be used, if it is made as the chosen one is; and in those in which they
/// cannot.
fn split_offer(places: &[Location], chosen: &Offer, offer: &Offer) -> (Option<Offer>, Option<Offer>) {
    let is_reached = |place: &Location| reach_offer(std::slice::from_ref(place), offer);
    if offer.instance_runtime != chosen.instance_runtime || !places.iter().all(is_reached) {
        return (None, Some(offer.clone()));
    }
    let in_zones = |zones: Vec<String>| {
        (!zones.is_empty()).then(|| Offer {
            availability_zones: Some(zones),
            ..offer.clone()
        })
    };
    let all = offer.availability_zones.clone().filter(|zones| !zones.is_empty());
    let Some(zones) = all else {
        return (Some(offer.clone()), None);
    };
    let is_usable = |zone: &String| places.iter().all(|place| place.is_in_zone(zone));
    let (usable, left) = zones.into_iter().partition(is_usable);
    (in_zones(usable), in_zones(left))
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use dstack_model::instances::InstanceRuntime;
    use serde_json::json;

    use super::*;

    fn disk(region: &str, zone: &str) -> AnyVolumeConfiguration {
        let fields = json!({"type": "volume", "backend": "aws", "region": region, "availability_zone": zone, "size": "1GB"});
        decode_strict(&fields).unwrap()
    }

    fn candidate<'a>(name: &'a str, configuration: &'a AnyVolumeConfiguration) -> Candidate<'a> {
        Candidate {
            name,
            status: VolumeStatus::Active,
            to_be_deleted: false,
            configuration,
            made: None,
        }
    }

    fn offer(region: &str, zones: &[&str]) -> Offer {
        let resources =
            json!({"cpus": 1, "memory_mib": 1, "gpus": [], "spot": false, "disk": {"size_mib": 1}});
        let fields = json!({"backend": "aws", "instance": {"name": "small", "resources": resources}, "region": region, "price": 1,
            "availability": "available", "availability_zones": zones});
        decode_strict(&fields).unwrap()
    }

    #[test]
    fn of_several_volumes_a_job_gets_the_first_that_is_where_it_is() {
        let (a, b) = (disk("eu", "eu-a"), disk("eu", "eu-b"));
        let mounts = [vec![candidate("one", &a), candidate("other", &b)]];
        let chosen = |zone| choose(&mounts, BackendType::Aws, "EU", zone).map(|found| found[0].name);
        assert_eq!(chosen(Some("eu-a")).unwrap(), "one");
        assert_eq!(chosen(Some("eu-b")).unwrap(), "other");
        assert_eq!(chosen(None).unwrap(), "one");
        let error = chosen(Some("eu-c")).unwrap_err().to_string();
        assert_eq!(
            error,
            "the volume one or other is not there, or not in EU (eu-c) of aws"
        );
    }

    #[test]
    fn all_mount_points_are_in_one_zone_and_machines_are_made_there() {
        let (a, b, c) = (disk("eu", "eu-a"), disk("eu", "eu-b"), disk("eu", "eu-c"));
        let mounts = [
            vec![candidate("one", &a), candidate("other", &b)],
            vec![candidate("more", &b)],
        ];
        assert!(check_mounts(&mounts).is_ok());
        let places = locations(&mounts);
        assert_eq!(
            places,
            [Location::of(&b, None)],
            "the second mount point is in one zone only"
        );
        let mut found = offer("eu", &["eu-a", "eu-b"]);
        assert!(reach_offer(&places, &found));
        narrow_zones(&places, &mut found);
        assert_eq!(
            found.availability_zones.as_deref(),
            Some(&["eu-b".to_owned()][..])
        );
        assert!(!reach_offer(&places, &offer("eu", &["eu-a"])));
        assert!(!reach_offer(&places, &offer("us", &["eu-b"])));
        let apart = [vec![candidate("one", &a)], vec![candidate("more", &c)]];
        let error = check_mounts(&apart).unwrap_err().to_string();
        assert!(error.contains("different availability zones"), "{error}");
    }

    #[test]
    fn what_is_made_for_a_job_is_made_where_its_volumes_are() {
        let (a, b) = (disk("eu", "eu-a"), disk("eu", "eu-b"));
        let one = vec![vec![candidate("in-b", &b), candidate("in-a", &a)]];
        let container = Offer {
            instance_runtime: InstanceRuntime::Runner,
            ..offer("eu", &["eu-b"])
        };
        let of = |best: &[Offer]| AvailableOffers {
            best: best.to_vec(),
            total: 10,
            late: Vec::new(),
        };
        let offers = of(&[
            offer("us", &["us-a"]),
            offer("eu", &["eu-a", "eu-b"]),
            offer("eu", &["eu-a"]),
            container,
            offer("eu", &["eu-b"]),
        ]);
        let claimed = claim(std::slice::from_ref(&one), &offers).unwrap();
        assert_eq!(claimed.volumes[0][0].name, "in-b", "the first that it names");
        assert_eq!(
            claimed.offers.best,
            [offer("eu", &["eu-b"]), offer("eu", &["eu-b"])]
        );
        assert_eq!(claimed.offers.total, 7);
        // What is left has the other volume, and then nothing.
        let one = std::slice::from_ref(&one);
        let next = claim(one, &of(&claimed.elsewhere)).unwrap();
        assert_eq!(next.volumes[0][0].name, "in-a");
        assert_eq!(next.offers.best, [offer("eu", &["eu-a"]), offer("eu", &["eu-a"])]);
        let container = claim(one, &of(&next.elsewhere)).unwrap();
        assert_eq!(container.volumes[0][0].name, "in-b");
        assert_eq!(container.offers.best[0].instance_runtime, InstanceRuntime::Runner);
        assert!(claim(one, &of(&container.elsewhere)).is_err());
        let two = [one[0].clone(), vec![vec![candidate("more", &a)]]];
        let claimed = claim(&two, &offers).unwrap();
        let names: Vec<&str> = claimed.volumes.iter().flatten().map(|one| one.name).collect();
        assert_eq!(names, ["in-a", "more"], "both are beside each other");
        assert_eq!(
            claimed.elsewhere,
            [
                offer("us", &["us-a"]),
                offer("eu", &["eu-b"]),
                Offer {
                    instance_runtime: InstanceRuntime::Runner,
                    ..offer("eu", &["eu-b"])
                },
                offer("eu", &["eu-b"]),
            ]
        );
        let error = claim(&two, &of(&[offer("eu", &["eu-b"])])).unwrap_err();
        assert!(error.to_string().contains("not in eu (eu-b)"), "{error}");
        assert!(claim(&two, &of(&[])).is_err());
    }

    #[test]
    fn what_cannot_be_mounted_is_refused_in_the_words_of_the_reference() {
        let (here, there) = (disk("eu", "eu-a"), disk("us", "us-a"));
        let refused = |mounts: &Mounts<'_>| check_mounts(mounts).unwrap_err().to_string();
        let one = candidate("one", &here);
        assert_eq!(
            refused(&[vec![one], vec![candidate("far", &there)]]),
            "Volumes from different locations specified for different mount points"
        );
        assert_eq!(
            refused(&[vec![one], vec![one]]),
            "Cannot attach the same volume at different mount points"
        );
        let new = Candidate {
            status: VolumeStatus::Submitted,
            ..one
        };
        assert_eq!(
            refused(&[vec![new]]),
            "Cannot mount volumes that are not active: one"
        );
        assert!(check_mounts(&[]).is_ok() && locations(&[]).is_empty());
        assert_eq!(not_found(&["a".to_owned()]), "Volume ['a'] not found");
    }
}
