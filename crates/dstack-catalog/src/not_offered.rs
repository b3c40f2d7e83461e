//! What vendors sell and nobody is offered: told in the log, once for each.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// So many are remembered; those after them are told no more.
const MAX_TOLD: usize = 1_000;

static TOLD: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// Warns that something that a vendor sells is not offered: `what` is its name at the vendor, `why` the reason, for people. Lists are read
/// every few minutes: each thing is told once.
pub fn tell_not_offered(vendor: &str, what: &str, why: &str) {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if is_new(&mut told, vendor, what) {
        tracing::warn!(vendor, what, why, "something that a vendor sells is not offered");
    }
}

fn is_new(told: &mut BTreeSet<(String, String)>, vendor: &str, what: &str) -> bool {
    told.len() < MAX_TOLD && told.insert((vendor.to_owned(), what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_not_too_many() {
        let mut told = BTreeSet::new();
        assert!(is_new(&mut told, "Crusoe", "GB200") && is_new(&mut told, "Vultr", "GB200"));
        assert!(!is_new(&mut told, "Crusoe", "GB200"));
        let more = (0..2 * MAX_TOLD).filter(|one| is_new(&mut told, "Lium", &one.to_string()));
        assert_eq!(more.count(), MAX_TOLD - 2);
    }
}
