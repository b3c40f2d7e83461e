//! Randomness: the machine's in production, seeded in simulation.

use std::fmt;
use std::sync::Arc;

use dstack_units::Time;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use uuid::Uuid;

use crate::locked::Locked;

/// A shared source of random values.
#[derive(Clone)]
pub struct Random {
    // `None`: the operating system's generator through a thread-local one.
    seeded: Option<Arc<Locked<StdRng>>>,
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.seeded.is_some() {
            "Random(seeded)"
        } else {
            "Random(system)"
        })
    }
}

impl Random {
    /// Seeded by the operating system; fit for tokens and keys.
    pub fn system() -> Self {
        Self { seeded: None }
    }

    /// Repeats the same values for the same seed. Never for tokens or keys.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seeded: Some(Arc::new(Locked::new(StdRng::seed_from_u64(seed)))),
        }
    }

    #[allow(clippy::disallowed_methods)] // the one place
    fn with<T>(&self, draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
        match &self.seeded {
            Some(rng) => draw(&mut *rng.lock()),
            None => draw(&mut rand::rng()),
        }
    }

    /// A version 4 UUID.
    pub fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.bytes()).into_uuid()
    }

    /// A version 4 UUID whose first 48 bits are a time in milliseconds, so that later ones sort later: rows with
    /// such keys lie side by side in a database. 74 bits stay random: for ids, never for tokens.
    pub fn ordered_uuid(&self, at: Time) -> Uuid {
        let mut bytes: [u8; 16] = self.bytes();
        let millis = u64::try_from(at.as_millis()).unwrap_or(0);
        for (byte, of_time) in bytes.iter_mut().zip(millis.to_be_bytes().into_iter().skip(2)) {
            *byte = of_time;
        }
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Returns `N` random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.with(|rng| rng.fill_bytes(&mut bytes));
        bytes
    }

    /// An integer in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.with(|rng| rng.random_range(0..bound))
        }
    }

    /// A number in `0.0..1.0`.
    pub fn fraction(&self) -> f64 {
        self.with(|rng| rng.random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_ids_are_version_4_and_sort_by_time() {
        let random = Random::seeded(1);
        let ids: Vec<Uuid> = [5, 6, 1_700_000_000_000, 1_700_000_000_001]
            .map(|millis| random.ordered_uuid(Time::from_millis(millis)))
            .into();
        assert!(ids.is_sorted(), "{ids:?}");
        assert!(ids.iter().all(|id| id.get_version_num() == 4));
        assert_ne!(random.ordered_uuid(Time::EPOCH), random.ordered_uuid(Time::EPOCH));
    }

    #[test]
    fn same_seed_same_values() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        assert_eq!((a.uuid(), a.below(100)), (b.uuid(), b.below(100)));
        assert_ne!(a.uuid(), Random::seeded(8).uuid());
        assert_eq!(a.uuid().get_version_num(), 4);
    }
}
