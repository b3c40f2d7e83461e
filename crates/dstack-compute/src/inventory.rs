//! What a cloud says that we have in it: more than is known costs money of which nobody knows.

use std::fmt;

use dstack_units::{InstallationId, Time};
use uuid::Uuid;

use crate::{ComputeError, Marks, NameCode};

/// What a cloud says that it has with our marks, and where it does not say that.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// All that the regions have that tell.
    pub owned: Vec<Owned>,
    /// Regions that do not tell. Nothing is concluded from what is missing there.
    pub missing: Vec<MissingRegion>,
}

/// A region that does not tell what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRegion {
    /// Its name, as in [`Owned::region`].
    pub region: String,
    /// Why; `None`: it is closed to the account and not configured, where nobody expects an answer.
    pub error: Option<ComputeError>,
}

impl Inventory {
    /// Of a cloud that tells all or nothing.
    pub const fn whole(owned: Vec<Owned>) -> Self {
        Self {
            owned,
            missing: Vec::new(),
        }
    }

    /// All of it; regions that are closed to the account have nothing.
    ///
    /// # Errors
    /// Why a region does not tell.
    pub fn into_whole(self) -> Result<Vec<Owned>, ComputeError> {
        match self.missing.into_iter().find_map(|missing| missing.error) {
            Some(error) => Err(error),
            None => Ok(self.owned),
        }
    }
}

/// One thing in a cloud that carries our marks.
#[derive(Debug, Clone, PartialEq)]
pub struct Owned {
    /// What it is.
    pub kind: OwnedKind,
    /// By what the cloud knows it.
    pub id: String,
    /// Its name there; empty: it has none.
    pub name: String,
    /// Whose it is.
    pub mark: OwnedMark,
    /// Region; empty where there are none.
    pub region: String,
    /// Dollars an hour, if the cloud says so.
    pub price: Option<f64>,
    /// When it was made, if the cloud says so.
    pub made_at: Option<Time>,
}

/// What a thing in a cloud is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnedKind {
    /// See [`Machine`](crate::Machine).
    Machine,
    /// See [`Container`](crate::Container).
    Container,
    /// See [`Group`](crate::Group).
    Group,
    /// See [`Volume`](crate::Volume).
    Volume,
    /// See [`Placement`](crate::Placement).
    Placement,
    /// Of a gateway.
    Gateway,
    /// See [`LoadBalancer`](crate::LoadBalancer).
    LoadBalancer,
    /// A piece of one of the others, such as an address or a registry record; what it is, for people.
    Piece(&'static str),
}

impl fmt::Display for OwnedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "machine",
            Self::Container => "container",
            Self::Group => "group",
            Self::Volume => "volume",
            Self::Placement => "placement group",
            Self::Gateway => "gateway",
            Self::LoadBalancer => "load balancer",
            Self::Piece(what) => what,
        })
    }
}

/// Whose a thing is, by its tags, or by its name where a cloud has no tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnedMark {
    /// By its tags.
    Tags {
        /// The installation.
        installation: InstallationId,
        /// Key of the request.
        key: Uuid,
    },
    /// By the code in its name.
    Name(NameCode),
}

impl OwnedMark {
    /// Reads the tags that [`Marks::tags`] gives; `None`: they are not of this kind.
    pub fn of_tags<'a>(tag: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        Some(Self::Tags {
            installation: tag(crate::INSTALLATION_TAG)?.parse().ok()?,
            key: tag(crate::KEY_TAG)?.parse().ok()?,
        })
    }

    /// Reads a name that [`Marks::name`] gives; `None`: it is not of this kind.
    pub fn of_name(name: &str) -> Option<Self> {
        NameCode::read(name).map(Self::Name)
    }

    /// Whether it is of this installation.
    pub fn is_of(&self, installation: InstallationId) -> bool {
        match self {
            Self::Tags { installation: of, .. } => *of == installation,
            Self::Name(code) => code.is_of(installation),
        }
    }

    /// Whether it was made for a request with these marks.
    pub fn is_for(&self, marks: &Marks) -> bool {
        match self {
            Self::Tags { installation, key } => *installation == marks.installation && *key == marks.key,
            Self::Name(code) => *code == marks.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_marks_is_known_by_them() {
        let marks = Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: "train-0-0".to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        };
        let other = Marks {
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ac".parse().unwrap(),
            ..marks.clone()
        };
        let tags = marks.tags();
        let tag = |name: &str| {
            tags.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.as_str())
        };
        for mark in [OwnedMark::of_tags(tag), OwnedMark::of_name(&marks.name(40))] {
            let mark = mark.unwrap();
            assert!(mark.is_of(marks.installation) && mark.is_for(&marks));
            assert!(!mark.is_for(&other));
            assert!(!mark.is_of("0f8fad5b-d9cb-469f-a165-70867728950f".parse().unwrap()));
        }
        assert_eq!(OwnedMark::of_tags(|_| None), None);
    }
}
