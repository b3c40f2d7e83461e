//! Sends requests whose prompts begin alike to the same replica, which then finds what it has computed of them in its cache.
//!
//! * `prompt` — what of a request makes its prompt, block by block.
//! * `memory` — which replicas have seen which beginnings.
//! * `body` — which requests are read for that, and how.

mod body;
mod memory;
mod prompt;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use dstack_system::Locked;
use dstack_units::RunId;

pub(crate) use body::{MAX_BODY_BYTES, Room};
pub(crate) use prompt::Prompt;

use crate::balance::Candidate;
use crate::replica::{Replica, Standing};
use crate::routes::Service;
use memory::Memory;

/// Most services whose prompts are remembered: of more, the one is forgotten whose last request came first.
const MAX_SERVICES: usize = 32;

/// What is remembered of the prompts of services.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    services: Locked<HashMap<RunId, Known>>,
    /// Bytes of requests that are read for their prompts now.
    read: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Known {
    memory: Memory,
    /// Its place in the order of all requests.
    asked: u64,
}

impl Prefixes {
    /// The place of the replica that has seen most of a prompt, and is not too busy; `None`: any will do.
    pub(crate) fn place_for(&self, service: &Service, prompt: &Prompt) -> Option<usize> {
        let candidates: Vec<Candidate> = service
            .replicas
            .iter()
            .enumerate()
            .map(|(place, replica)| Candidate::of(place, replica))
            .collect();
        let place_of = |id| service.replicas.iter().position(|replica| replica.id == id);
        let mut services = self.services.lock();
        let known = services.get_mut(&service.run_id)?;
        known.memory.longest(prompt, |owners| {
            let owners = owners.filter_map(place_of);
            least_busy(&candidates, owners)
        })
    }

    /// A replica gets a prompt.
    pub(crate) fn note(&self, service: &Service, prompt: &Prompt, replica: &Replica) {
        let mut services = self.services.lock();
        let last = services.values().map(|known| known.asked).max();
        if services.len() >= MAX_SERVICES && !services.contains_key(&service.run_id) {
            forget_oldest(&mut services);
        }
        let known = services.entry(service.run_id).or_default();
        known.asked = last.unwrap_or(0) + 1;
        known.memory.note(prompt, replica.id);
    }

    /// A replica did not answer a prompt.
    pub(crate) fn forget(&self, service: &Service, prompt: &Prompt, replica: &Replica) {
        if let Some(known) = self.services.lock().get_mut(&service.run_id) {
            known.memory.forget(prompt, replica.id);
        }
    }

    /// Whether something is remembered of a service.
    pub(crate) fn has_service(&self, run: RunId) -> bool {
        self.services.lock().contains_key(&run)
    }

    /// Forgets all of the prompts of a service.
    pub(crate) fn forget_service(&self, run: RunId) {
        self.services.lock().remove(&run);
    }
}

fn forget_oldest(services: &mut HashMap<RunId, Known>) {
    let oldest = services.iter().min_by_key(|(_, known)| known.asked);
    if let Some(run) = oldest.map(|(run, _)| *run) {
        services.remove(&run);
    }
}

/// The least busy one of these places whose replica works and is not too busy. What several have seen, others may as well: a new
/// replica would never get requests if all that begin alike stayed with those that have seen it.
fn least_busy(candidates: &[Candidate], places: impl Iterator<Item = usize>) -> Option<usize> {
    let fit = candidates
        .iter()
        .filter(|candidate| !matches!(candidate.standing, Standing::Out { .. }));
    let least = fit.clone().map(|candidate| candidate.load).min()?;
    let (count, total) = fit.fold((0, 0), |(count, total), candidate| {
        (count + 1, total + candidate.load)
    });
    let owners: Vec<&Candidate> = places.filter_map(|place| candidates.get(place)).collect();
    let is_shared = owners.len() > 1;
    let may_have_more = |candidate: &&Candidate| match is_shared {
        true => candidate.load <= least + 1,
        false => !is_too_busy(candidate.load, total, count),
    };
    owners
        .into_iter()
        .filter(|candidate| candidate.standing == Standing::Up)
        .filter(may_have_more)
        .min_by_key(|candidate| candidate.load)
        .map(|candidate| candidate.place)
}

/// Requests that a replica may have above its share, however few there are.
const SLACK: usize = 2;

/// Whether a replica has more than one and a half times its share of all requests under way, and some more.
const fn is_too_busy(load: usize, total: usize, count: usize) -> bool {
    2 * load * count > 3 * total + 2 * SLACK * count
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use dstack_system::Random;
    use dstack_units::JobId;
    use uuid::Uuid;

    use super::*;
    use crate::balance::choose;

    fn job(number: usize) -> JobId {
        JobId::new(Uuid::from_u128(number as u128))
    }

    /// So much of a conversation whose beginning all share.
    fn prompt(conversation: usize, turns: usize) -> Prompt {
        let system = "You are a helpful assistant that answers in short sentences. ".repeat(8);
        let said = |turn| serde_json::json!({"role": "user", "content": format!("{conversation} asks {turn}: {}", "why? ".repeat(60))});
        let mut messages = vec![serde_json::json!({"role": "system", "content": system})];
        messages.extend((0..turns).map(said));
        let body = serde_json::json!({"model": "m", "messages": messages}).to_string();
        Prompt::read(body.as_bytes()).unwrap()
    }

    /// Replicas, as far as they are chosen from.
    struct Replicas {
        loads: Vec<usize>,
        memory: Memory,
        random: Random,
    }

    impl Replicas {
        fn choose(&mut self, prompt: &Prompt) -> usize {
            let candidates: Vec<Candidate> = (0..)
                .zip(&self.loads)
                .map(|(place, load)| Candidate {
                    place,
                    load: *load,
                    standing: Standing::Up,
                })
                .collect();
            let place_of = |id| (0..candidates.len()).find(|place| job(*place) == id);
            let preferred = self.memory.longest(prompt, |owners| {
                least_busy(&candidates, owners.filter_map(place_of))
            });
            let place = preferred
                .or_else(|| choose(candidates.iter().copied(), |bound| self.random.below(bound)))
                .unwrap();
            self.memory.note(prompt, job(place));
            self.loads[place] += 1;
            place
        }
    }

    #[test]
    fn conversations_stay_where_they_began_and_no_replica_gets_too_much() {
        const CONVERSATIONS: usize = 64;
        const TURNS: usize = 12;
        let mut replicas = Replicas {
            loads: vec![0; 4],
            memory: Memory::default(),
            random: Random::seeded(7),
        };
        let order = Random::seeded(8);
        let mut turns = [0; CONVERSATIONS];
        let mut last = [None; CONVERSATIONS];
        let mut under_way = VecDeque::new();
        let (mut hits, mut followed, mut shares) = (0, 0, [0; 4]);
        while turns.iter().any(|turn| *turn < TURNS) {
            let drawn = usize::try_from(order.below(CONVERSATIONS as u64)).unwrap();
            let is_asking = under_way.iter().any(|(conversation, _)| *conversation == drawn);
            if turns[drawn] < TURNS && !is_asking {
                turns[drawn] += 1;
                let total: usize = replicas.loads.iter().sum();
                let place = replicas.choose(&prompt(drawn, turns[drawn]));
                // The one above the bound that was let in.
                let most = total * 3 / 8 + SLACK + 1;
                assert!(replicas.loads[place] <= most, "{:?}", replicas.loads);
                if let Some(before) = last[drawn].replace(place) {
                    followed += 1;
                    hits += usize::from(before == place);
                }
                shares[place] += 1;
                under_way.push_back((drawn, place));
            }
            if under_way.len() > 24 || is_asking {
                let (_, place) = under_way.pop_front().unwrap();
                replicas.loads[place] -= 1;
            }
        }
        assert!(hits * 100 >= followed * 90, "{hits} of {followed}");
        let all = CONVERSATIONS * TURNS;
        assert!(shares.iter().all(|share| *share > all / 16), "{shares:?}");
    }

    #[test]
    fn one_that_is_too_busy_is_left_and_the_next_one_learns_the_prompt() {
        let mut replicas = Replicas {
            loads: vec![0; 2],
            memory: Memory::default(),
            random: Random::seeded(1),
        };
        let first = replicas.choose(&prompt(1, 3));
        while replicas.loads[first] < 40 && replicas.loads[1 - first] == 0 {
            replicas.choose(&prompt(1, 3));
        }
        assert!(replicas.loads[first] <= 9, "{:?}", replicas.loads);
        replicas.loads = vec![0; 2];
        replicas.loads[first] = 1;
        assert_eq!(replicas.choose(&prompt(1, 3)), 1 - first, "both have seen it");
    }

    #[test]
    fn who_is_out_or_gone_is_not_preferred() {
        let candidate = |place, standing| Candidate {
            place,
            load: 0,
            standing,
        };
        let until = tokio::time::Instant::now();
        let all = [
            candidate(0, Standing::Out { until }),
            candidate(1, Standing::Due),
            candidate(2, Standing::Up),
        ];
        assert_eq!(least_busy(&all, [0, 1].into_iter()), None);
        assert_eq!(least_busy(&all, [0, 1, 2, 3].into_iter()), Some(2));
        let mut memory = Memory::default();
        memory.note(&prompt(1, 3), job(9));
        let place_of = |id| (id == job(1)).then_some(1);
        let preferred = memory.longest(&prompt(1, 3), |owners| {
            least_busy(&all, owners.filter_map(place_of))
        });
        assert_eq!(preferred, None);
    }
}
