//! Offers that were tried for a new instance, and what is told when none worked.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;

use super::refusal::{no_offers, with_advice};

/// Offers tried for one instance (`DSTACK_SERVER_MAX_OFFERS_TRIED` of dstack 0.22.5).
pub const MAX_OFFERS_TRIED: usize = 25;

/// Different errors that are told.
const ERRORS_TOLD: usize = 3;
/// Characters of each.
const ERROR_LENGTH: usize = 200;

/// A kind of error, and the first offer that failed with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `<type> in <backend>/<region>`.
    pub offer: String,
    /// What the cloud said.
    pub error: String,
}

impl Failure {
    /// Of an offer.
    pub fn new(offer: &Offer, error: &str) -> Self {
        Self {
            offer: format!("{} in {}/{}", offer.instance.name, offer.backend, offer.region),
            error: error.chars().take(ERROR_LENGTH).collect(),
        }
    }
}

/// Keeps the first offer of each error.
pub fn add_failure(failures: &mut Vec<Failure>, failure: Failure) {
    if failures.iter().all(|known| known.error != failure.error) {
        failures.push(failure);
    }
}

/// What is told when `tried` of `total` offers of a fleet were tried in vain, in the words of dstack 0.22.5.
pub fn all_failed(fleet: &str, tried: usize, total: usize, failures: &[Failure]) -> String {
    if total == 0 {
        return with_advice(&no_offers(fleet));
    }
    let limit = if tried < total {
        " (attempt limit reached)"
    } else {
        ""
    };
    with_advice(&format!(
        "Failed to provision in fleet '{fleet}': tried {tried} of {total} offers{limit}, all failed.\n\
         Errors: {}",
        told(failures)
    ))
}

/// What is told of an instance that a fleet wanted for itself, when none of `total` offers worked: the words of dstack
/// 0.22.5, and after them what the clouds said.
pub fn none_for_fleet(total: usize, failures: &[Failure]) -> String {
    if total == 0 {
        return "No offers found".to_owned();
    }
    match told(failures) {
        errors if errors.is_empty() => "All offers failed".to_owned(),
        errors => format!("All offers failed: {errors}"),
    }
}

/// The first few, each with its offer.
fn told(failures: &[Failure]) -> String {
    let mut told: Vec<String> = failures
        .iter()
        .take(ERRORS_TOLD)
        .map(|failure| format!("{}: {}", failure.offer, failure.error))
        .collect();
    if failures.len() > told.len() {
        told.push(format!("and {} more", failures.len() - told.len()));
    }
    told.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offers::tests::offer;

    #[test]
    fn equal_errors_are_told_once_with_the_first_offer() {
        let mut failures = Vec::new();
        for (name, error) in [
            ("m5.large", "no capacity"),
            ("t3.large", "no capacity"),
            ("c5", "quota."),
        ] {
            add_failure(&mut failures, Failure::new(&offer("aws", name, 1.0), error));
        }
        let text = all_failed("cloud", 3, 3, &failures);
        let region = offer("aws", "c5", 1.0).region;
        assert_eq!(
            text,
            format!(
                "Failed to provision in fleet 'cloud': tried 3 of 3 offers, all failed.\nErrors: m5.large in \
                 aws/{region}: no capacity; c5 in aws/{region}: quota.\n\
                 See https://dstack.ai/docs/guides/troubleshooting/#provisioning-fails"
            )
        );
    }

    #[test]
    fn many_errors_are_counted_and_long_ones_cut() {
        let mut failures = Vec::new();
        for number in 0..5 {
            let error = format!("{number}{}", "x".repeat(300));
            add_failure(&mut failures, Failure::new(&offer("aws", "m5", 1.0), &error));
        }
        let text = all_failed("cloud", 25, 28, &failures);
        assert!(
            text.contains("tried 25 of 28 offers (attempt limit reached)"),
            "{text}"
        );
        assert!(text.contains("; and 2 more."), "{text}");
        assert!(!text.contains(&"x".repeat(200)), "{text}");
    }

    #[test]
    fn no_offers_are_told_as_such() {
        assert_eq!(
            all_failed("cloud", 0, 0, &[]),
            "No offers matching the run requirements in fleet 'cloud'.\n\
             See https://dstack.ai/docs/guides/troubleshooting/#provisioning-fails"
        );
    }

    #[test]
    fn fleets_are_told_as_well() {
        assert_eq!(none_for_fleet(0, &[]), "No offers found");
        assert_eq!(none_for_fleet(1, &[]), "All offers failed");
        let offer = offer("aws", "m5", 1.0);
        let failures = [Failure::new(&offer, "no capacity")];
        assert_eq!(
            none_for_fleet(1, &failures),
            format!("All offers failed: m5 in aws/{}: no capacity", offer.region)
        );
    }
}
