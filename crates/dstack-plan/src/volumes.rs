//! Where network volumes let a job be (dstack 0.22.5: scheduling §10).
//!
//! Only the volumes of the first mount point are looked at: those of the others must be in the same places.

use std::collections::BTreeSet;

use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, Volume, VolumeProvisioningData, VolumeStatus};

use crate::PlanError;

/// Where a volume can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// Whether it can be used in a region of a backend; zones are left to the backend.
    pub fn is_in(&self, backend: BackendType, region: &str) -> bool {
        self.backend == backend
            && self
                .region
                .as_ref()
                .is_none_or(|own| own.eq_ignore_ascii_case(region))
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

/// Whether some volume can be used where an offer is. Zones are left to the backend.
pub fn reach_offer(volumes: &[Location], backend: BackendType, region: &str) -> bool {
    volumes.is_empty() || volumes.iter().any(|volume| volume.is_in(backend, region))
}

/// What is checked before volumes are attached; one list for each mount point.
///
/// # Errors
/// Not active, in different places, or used twice. The texts are dstack 0.22.5's.
pub fn check_attachable(mount_points: &[Vec<&Volume>]) -> Result<(), PlanError> {
    let places = |volumes: &[&Volume]| -> BTreeSet<(&'static str, String)> {
        volumes
            .iter()
            .map(|volume| {
                let place = Location::of(&volume.configuration, volume.provisioning_data.as_ref());
                (place.backend.as_str(), place.region.unwrap_or_default())
            })
            .collect()
    };
    let Some(first) = mount_points.first() else {
        return Ok(());
    };
    let expected = places(first);
    let mut names = BTreeSet::new();
    let mut twice = false;
    for volumes in mount_points {
        if places(volumes) != expected {
            return Err(PlanError::new(
                "Volumes from different locations specified for different mount points",
            ));
        }
        for volume in volumes {
            if volume.status != VolumeStatus::Active {
                return Err(PlanError::new(format!(
                    "Cannot mount volumes that are not active: {}",
                    volume.name
                )));
            }
            twice |= !names.insert(&volume.name);
        }
    }
    if twice {
        return Err(PlanError::new(
            "Cannot attach the same volume at different mount points",
        ));
    }
    Ok(())
}
