//! What is told of a job that no existing instance can take.

use super::{Candidate, Wants};

/// How many instances are named before "and … more".
pub(crate) const NAMED: usize = 3;

/// Of a job for which none of `total` instances is both suitable and free; the first [`NAMED`] of them are given.
pub(crate) fn message<'a>(
    wants: &Wants<'_>,
    candidates: impl Iterator<Item = &'a Candidate<'a>>,
    total: usize,
) -> String {
    let params = &wants.profile().params;
    let headline = if params.instances.is_some() {
        "Failed to use specified instances"
    } else if params.fleets.is_some() {
        "Failed to use specified fleets"
    } else {
        "No matching fleet found"
    };
    if total == 0 {
        return format!("{headline}. The project has no fleet with an instance");
    }
    let why = |candidate: &Candidate<'_>| {
        let reason = match wants.share_of(candidate) {
            Ok(_) => "is busy".to_owned(),
            Err(unfit) => unfit.to_string(),
        };
        format!("{} {reason}", candidate.instance_name)
    };
    let mut reasons: Vec<String> = candidates.map(why).collect();
    if total > reasons.len() {
        reasons.push(format!("and {} more", total - reasons.len()));
    }
    format!("{headline}. {}", reasons.join("; "))
}
