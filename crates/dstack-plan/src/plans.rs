//! What a plan says: which jobs are planned together, which offers are shown (dstack 0.22.5: scheduling §8).

use std::hash::{Hash, Hasher};

use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobPlan, JobSpec};
use rustc_hash::FxHashSet;

use crate::offers::{available_first, merge};

/// Offers shown unless the client asks for another number.
pub const OFFERS_SHOWN: usize = 50;

/// How offers are shown.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// At most so many.
    pub limit: usize,
    /// Sort by falling price; available offers still come first.
    pub reverse: bool,
}

/// Most offers of a plan, those of all jobs together.
const OFFERS_OF_PLAN: usize = 20_000;

impl Shown {
    /// So that the plan of so many jobs does not become too large. The offers of each are counted all the same.
    #[must_use]
    pub fn among(self, jobs: usize) -> Self {
        let of_each = OFFERS_OF_PLAN.checked_div(jobs).unwrap_or(OFFERS_OF_PLAN);
        Self {
            limit: self.limit.min(of_each),
            ..self
        }
    }
}

/// Jobs that share their offers: those of one node group of a task, or of one replica group of a service. They follow
/// one another already; the first of each batch is the one that is planned.
pub fn batches(jobs: Vec<JobSpec>) -> Vec<Vec<JobSpec>> {
    let mut batches: Vec<Vec<JobSpec>> = Vec::new();
    for job in jobs {
        let alike = |other: &JobSpec| {
            other.node_group_index == job.node_group_index && other.replica_group == job.replica_group
        };
        match batches.last_mut() {
            Some(batch) if batch.last().is_some_and(alike) => batch.push(job),
            _ => batches.push(vec![job]),
        }
    }
    batches
}

/// Existing instances before new ones, then what is available first; by falling price if asked for.
pub fn in_order(instances: Vec<Offer>, new: Vec<Offer>, shown: Shown) -> Vec<Offer> {
    let mut offers = instances;
    offers.extend(new);
    if shown.reverse {
        offers.sort_by(|a, b| b.price.total_cmp(&a.price));
    }
    available_first(&mut offers);
    offers
}

/// The plan of one job; what no client may see is left out.
pub fn job_plan(mut job_spec: JobSpec, offers: &[Offer], shown: Shown) -> JobPlan {
    job_spec.ssh_key = None;
    JobPlan {
        job_spec,
        offers: offers.iter().take(shown.limit).cloned().collect(),
        total_offers: u64::try_from(offers.len()).unwrap_or(u64::MAX),
        max_price: max_price(offers),
    }
}

/// Returns the highest price of the offers; `None` when there are no offers.
pub fn max_price(offers: &[Offer]) -> Option<f64> {
    offers.iter().map(|offer| offer.price).reduce(f64::max)
}

/// Offers of several fleets as one list, in order. What is the same in everything is listed once: fleets may get the same
/// instances.
pub fn of_all_fleets(by_fleet: &[Vec<Offer>]) -> Vec<Offer> {
    let mut seen = FxHashSet::default();
    let mut lists: Vec<Vec<&Offer>> = Vec::new();
    for offers in by_fleet {
        lists.push(offers.iter().filter(|offer| seen.insert(Same(offer))).collect());
    }
    merge(lists).cloned().collect()
}

/// An offer that equals those that are the same in everything.
#[derive(PartialEq)]
struct Same<'a>(&'a Offer);

/// No price is NaN.
impl Eq for Same<'_> {}

impl Hash for Same<'_> {
    /// Of what tells nearly all of them apart.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Offer {
            backend,
            region,
            instance,
            price,
            ..
        } = self.0;
        (backend, region, &instance.name, price.to_bits()).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::instances::InstanceAvailability;
    use serde_json::json;

    use super::*;
    use crate::offers::tests::offer;
    use crate::placement::tests::run;

    #[test]
    fn offers_in_the_order_of_the_reference() {
        let busy = Offer {
            availability: InstanceAvailability::Busy,
            ..offer("aws", "busy", 1.0)
        };
        let order = |reverse| {
            let new = vec![offer("aws", "cheap", 0.5), offer("aws", "dear", 9.0)];
            let instances = vec![busy.clone(), offer("aws", "idle", 2.0)];
            let shown = Shown { limit: 2, reverse };
            let offers = in_order(instances, new, shown);
            offers
                .iter()
                .map(|offer| offer.instance.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(order(false), ["idle", "cheap", "dear", "busy"]);
        assert_eq!(order(true), ["dear", "idle", "cheap", "busy"]);
    }

    #[test]
    fn plans_are_cut_and_counted() {
        let (_, jobs) = run(json!({"type": "task", "commands": ["x"]}));
        let offers = [
            offer("aws", "a", 1.0),
            offer("aws", "b", 3.0),
            offer("aws", "c", 2.0),
        ];
        let shown = Shown {
            limit: 2,
            reverse: false,
        };
        let plan = job_plan(jobs[0].clone(), &offers, shown);
        assert_eq!(
            (plan.offers.len(), plan.total_offers, plan.max_price),
            (2, 3, Some(3.0))
        );
        assert_eq!(max_price(&[]), None);
    }

    #[test]
    fn plans_of_many_jobs_list_fewer_offers_of_each() {
        let shown = |limit, jobs| {
            let shown = Shown {
                limit,
                reverse: false,
            };
            shown.among(jobs).limit
        };
        assert_eq!(shown(10_000, 1), 10_000);
        assert_eq!(
            shown(OFFERS_SHOWN, 200),
            OFFERS_SHOWN,
            "those of usual runs stay as they are"
        );
        assert_eq!(shown(10_000, 2_000), 10);
        assert_eq!(shown(OFFERS_SHOWN, 0), OFFERS_SHOWN);
    }

    #[test]
    fn offers_of_several_fleets_are_listed_once() {
        let zoned = offer("aws", "a", 1.0);
        let anywhere = Offer {
            availability_zones: None,
            ..zoned.clone()
        };
        let one = vec![zoned.clone(), offer("aws", "dear", 3.0)];
        let two = vec![
            zoned.clone(),
            anywhere.clone(),
            offer("aws", "b", 2.0),
            zoned.clone(),
        ];
        let listed = of_all_fleets(&[one, two]);
        let expected = [zoned, anywhere, offer("aws", "b", 2.0), offer("aws", "dear", 3.0)];
        assert_eq!(listed, expected);
    }

    #[test]
    fn groups_are_planned_apart() {
        let groups = json!([{"nodes": 2, "commands": ["a"]}, {"nodes": 1, "commands": ["b"]}]);
        let (_, jobs) = run(json!({"type": "task", "groups": groups}));
        let sizes: Vec<usize> = batches(jobs).iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1]);
    }
}
