//! What is still to come when offers are tried before all backends have answered.

use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use serde::Serialize;

use super::{AvailableOffers, Query};

/// A question that some backends had not answered when the offers of the others were taken.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Unanswered {
    /// What was asked.
    pub query: Query,
    /// Who had not answered.
    pub backends: Vec<BackendType>,
}

impl Unanswered {
    /// After offers for `query` were taken; `None`: all have answered.
    pub fn after(query: &Query, offers: &AvailableOffers) -> Option<Self> {
        (!offers.late.is_empty()).then(|| Self {
            query: query.clone(),
            backends: offers.late.clone(),
        })
    }

    /// What those offer that have answered meanwhile, of all that is known now (`late`: without these); at most `limit` are to be
    /// tried. With it goes what is then still unanswered.
    pub fn answered(
        &self,
        known: &[Offer],
        late: &[BackendType],
        limit: usize,
    ) -> (AvailableOffers, Option<Self>) {
        let is_late = |backend: &BackendType| late.contains(backend);
        let (still, answered): (Vec<BackendType>, Vec<BackendType>) =
            self.backends.iter().copied().partition(is_late);
        let new: Vec<Offer> = known
            .iter()
            .filter(|offer| answered.contains(&offer.backend))
            .cloned()
            .collect();
        // Beside a first instance only one backend is asked, of which nothing was taken before it had answered.
        let offers = AvailableOffers::select(&new, None, self.query.volumes(), limit).without(&still);
        let rest = Self::after(&self.query, &offers);
        (offers, rest)
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use dstack_model::profiles::Profile;
    use serde_json::json;

    use super::*;
    use crate::offers::tests::offer;
    use crate::volumes::Location;

    fn query() -> Query {
        let profile: Profile = decode_strict(&json!({"name": "any", "regions": ["here"]})).unwrap();
        let requirements = decode_strict(&json!({"resources": {}})).unwrap();
        Query::new(&profile, requirements).at(&[Location {
            backend: BackendType::Aws,
            region: Some("here".to_owned()),
            zone: None,
        }])
    }

    #[test]
    fn only_what_backends_offer_that_had_not_answered_is_new() {
        let query = Query {
            volumes: Vec::new(),
            ..query()
        };
        let (known, late) = (offer("aws", "p5", 1.0), offer("gcp", "a3", 2.0));
        let taken = AvailableOffers::select(std::slice::from_ref(&known), None, &[], 5);
        assert_eq!(Unanswered::after(&query, &taken), None);
        let taken = taken.without(&[BackendType::Gcp, BackendType::Lambda]);
        let unanswered = Unanswered::after(&query, &taken).unwrap();
        let all = [known, late.clone()];
        let (offers, rest) = unanswered.answered(&all, &[BackendType::Lambda], 5);
        assert_eq!((offers.best, offers.total), (vec![late.clone()], 1));
        assert_eq!(rest.as_ref().unwrap().backends, [BackendType::Lambda]);
        // The others again: what is known of those was taken.
        let (offers, rest) = rest.unwrap().answered(&all, &[BackendType::Gcp], 5);
        assert_eq!((offers.best, rest), (Vec::new(), None));
    }

    #[test]
    fn as_it_is_stored_it_asks_the_same() {
        let taken = AvailableOffers::default().without(&[BackendType::Gcp]);
        let unanswered = Unanswered::after(&query(), &taken).unwrap();
        let stored = serde_json::to_value(&unanswered).unwrap();
        assert_eq!(decode_strict::<Unanswered>(&stored).unwrap(), unanswered);
    }
}
