//! The providers and their fixed order.

use std::fmt;

/// A provider of offers.
///
/// The order of the variants is the order in which equal prices of different providers are listed: the providers
/// queried live first, then the published ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Provider {
    Crusoe,
    Daytona,
    Digitalocean,
    Hotaisle,
    Jarvislabs,
    Lium,
    Seeweb,
    Vastai,
    Vultr,
    Aws,
    Azure,
    Verda,
    Gcp,
    Lambdalabs,
    Nebius,
    Oci,
    Runpod,
    Cloudrift,
    /// None that a catalogue has: rows that a backend has made of its vendor's answers.
    Private,
}

impl Provider {
    /// How many providers a catalogue may have.
    pub const COUNT: usize = 18;

    /// Every provider that a catalogue may have, in the order of equal prices.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Crusoe,
        Self::Daytona,
        Self::Digitalocean,
        Self::Hotaisle,
        Self::Jarvislabs,
        Self::Lium,
        Self::Seeweb,
        Self::Vastai,
        Self::Vultr,
        Self::Aws,
        Self::Azure,
        Self::Verda,
        Self::Gcp,
        Self::Lambdalabs,
        Self::Nebius,
        Self::Oci,
        Self::Runpod,
        Self::Cloudrift,
    ];

    /// The providers whose catalogue is published as a file.
    pub fn offline() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|provider| !provider.is_online())
    }

    /// The providers of which a folder may have a file: the published ones, and Crusoe, whose API tells no prices.
    pub fn in_folders() -> impl Iterator<Item = Self> {
        Self::offline().chain([Self::Crusoe])
    }

    /// The providers asked when a query runs.
    pub fn online() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|provider| provider.is_online())
    }

    /// Whether the provider is asked when a query runs, instead of having a published file.
    pub fn is_online(self) -> bool {
        self <= Self::Vultr
    }

    /// The id of the provider, as in file names and filters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crusoe => "crusoe",
            Self::Daytona => "daytona",
            Self::Digitalocean => "digitalocean",
            Self::Hotaisle => "hotaisle",
            Self::Jarvislabs => "jarvislabs",
            Self::Lium => "lium",
            Self::Seeweb => "seeweb",
            Self::Vastai => "vastai",
            Self::Vultr => "vultr",
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::Verda => "verda",
            Self::Gcp => "gcp",
            Self::Lambdalabs => "lambdalabs",
            Self::Nebius => "nebius",
            Self::Oci => "oci",
            Self::Runpod => "runpod",
            Self::Cloudrift => "cloudrift",
            Self::Private => "private",
        }
    }

    /// The provider of that name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let lower = name.to_lowercase();
        Self::ALL.into_iter().find(|provider| provider.name() == lower)
    }

    /// Position in [`Provider::ALL`]; that of [`Provider::Private`] comes after all of them.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for Provider {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_names_agree() {
        for (at, provider) in Provider::ALL.into_iter().enumerate() {
            assert_eq!(provider.index(), at);
            assert_eq!(
                Provider::from_name(&provider.name().to_uppercase()),
                Some(provider)
            );
        }
        assert_eq!((Provider::online().count(), Provider::offline().count()), (9, 9));
        assert_eq!(Provider::from_name("datacrunch"), None);
    }
}
