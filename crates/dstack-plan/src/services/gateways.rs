//! What is to be told to a gateway so that it passes requests on as wanted (dstack 0.22.5: pipelines §13, state sync). Compared is what
//! it has with what it should have, by ids: nothing needs to be remembered of what was told before.

use std::collections::{BTreeMap, BTreeSet};

use dstack_units::{JobId, RunId};

/// A service as the gateway has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its run; `None`: registered by an old server, or unreadable.
    pub run: Option<RunId>,
    /// Name of its project.
    pub project: String,
    /// Name of its run.
    pub name: String,
    /// The jobs that get requests.
    pub jobs: BTreeSet<JobId>,
}

/// A service as the gateway should have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its run.
    pub run: RunId,
    /// Name of its project.
    pub project: String,
    /// Name of its run.
    pub name: String,
    /// The jobs that are to get requests.
    pub jobs: BTreeSet<JobId>,
}

/// What is to be told of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Name of its project, in small letters.
    pub project: String,
    /// Name of its run, in small letters.
    pub name: String,
    /// It goes, with its replicas.
    pub unregister: bool,
    /// The run as which it comes then, with the jobs that come with it. `None`: it does not come.
    pub register: Option<RunId>,
    /// Jobs that come.
    pub add: BTreeSet<JobId>,
    /// Jobs that go; without those of a service that goes.
    pub remove: BTreeSet<JobId>,
}

/// One service, as the gateway has it and as it should.
type Both<'a> = (Option<&'a Known>, Option<&'a Expected>);

/// What is to be told, for each service of which something is.
pub fn steps(known: &[Known], expected: &[Expected]) -> Vec<Step> {
    let mut all: BTreeMap<(String, String), Both<'_>> = BTreeMap::new();
    for known in known {
        all.entry(key(&known.project, &known.name)).or_default().0 = Some(known);
    }
    for expected in expected {
        all.entry(key(&expected.project, &expected.name)).or_default().1 = Some(expected);
    }
    let of_all = all
        .into_iter()
        .filter_map(|((project, name), (known, expected))| step((project, name), known, expected));
    of_all.collect()
}

/// Gateways know names in small letters only.
fn key(project: &str, name: &str) -> (String, String) {
    (project.to_lowercase(), name.to_lowercase())
}

fn step(
    (project, name): (String, String),
    known: Option<&Known>,
    expected: Option<&Expected>,
) -> Option<Step> {
    // Another run of that name was there before.
    let stays = known.filter(|known| expected.is_some_and(|expected| known.run == Some(expected.run)));
    // The requests of one that ends are finished first.
    let ends = known.filter(|known| expected.is_none() && known.run.is_some() && !known.jobs.is_empty());
    let had = stays.or(ends).map(|known| known.jobs.clone()).unwrap_or_default();
    let wanted = expected.map(|expected| expected.jobs.clone()).unwrap_or_default();
    let step = Step {
        project,
        name,
        unregister: known.is_some() && stays.is_none() && ends.is_none(),
        register: expected.filter(|_| stays.is_none()).map(|expected| expected.run),
        add: &wanted - &had,
        remove: &had - &wanted,
    };
    let is_empty =
        !step.unregister && step.register.is_none() && step.add.is_empty() && step.remove.is_empty();
    (!is_empty).then_some(step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn jobs(numbers: &[u128]) -> BTreeSet<JobId> {
        numbers
            .iter()
            .map(|number| Uuid::from_u128(*number).into())
            .collect()
    }

    fn known(run: u128, name: &str, numbers: &[u128]) -> Known {
        Known {
            run: Some(Uuid::from_u128(run).into()),
            project: "main".to_owned(),
            name: name.to_owned(),
            jobs: jobs(numbers),
        }
    }

    fn expected(run: u128, name: &str, numbers: &[u128]) -> Expected {
        Expected {
            run: Uuid::from_u128(run).into(),
            project: "Main".to_owned(),
            name: name.to_owned(),
            jobs: jobs(numbers),
        }
    }

    #[test]
    fn what_is_as_wanted_is_left_alone_whatever_the_case_of_its_name() {
        assert_eq!(
            steps(&[known(1, "web", &[1, 2])], &[expected(1, "web", &[2, 1])]),
            []
        );
    }

    #[test]
    fn replicas_come_and_go() {
        let found = steps(&[known(1, "web", &[1, 2])], &[expected(1, "web", &[2, 3])]);
        let [step] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((step.unregister, step.register), (false, None));
        assert_eq!((&step.add, &step.remove), (&jobs(&[3]), &jobs(&[1])));
    }

    #[test]
    fn another_run_of_the_name_replaces_the_one_before() {
        let found = steps(&[known(1, "web", &[1])], &[expected(2, "web", &[7])]);
        let [step] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(step.unregister && step.register.is_some());
        assert_eq!((&step.add, &step.remove), (&jobs(&[7]), &jobs(&[])));
    }

    #[test]
    fn what_nobody_expects_goes_after_its_replicas() {
        let found = steps(&[known(1, "web", &[1])], &[]);
        assert_eq!((found[0].unregister, &found[0].remove), (false, &jobs(&[1])));
        let found = steps(&[known(1, "web", &[])], &[]);
        assert!(found[0].unregister && found[0].register.is_none() && found[0].remove.is_empty());
        // Whose it was is not known: nobody waits for it.
        let nobodys = Known {
            run: None,
            ..known(1, "web", &[1])
        };
        assert!(steps(&[nobodys], &[])[0].unregister);
    }

    fn services() -> impl Strategy<Value = Vec<(u8, u128, BTreeSet<u8>)>> {
        let service = (0_u8..4, 0_u128..3, proptest::collection::btree_set(0_u8..5, 0..4));
        proptest::collection::vec(service, 0..5)
    }

    proptest! {
        /// Whatever a gateway has, after the steps it has what is expected: in two rounds, as what ends goes after its replicas.
        #[test]
        fn after_the_steps_all_is_as_expected(has in services(), wants in services()) {
            let numbers = |jobs: &BTreeSet<u8>| jobs.iter().map(|job| u128::from(*job)).collect::<Vec<_>>();
            let by_name = |all: Vec<(u8, u128, BTreeSet<u8>)>| -> BTreeMap<String, (u128, Vec<u128>)> {
                let named = all.into_iter().map(|(name, run, jobs)| (name.to_string(), (run, numbers(&jobs))));
                named.collect()
            };
            let before = by_name(has);
            let before: Vec<Known> = before.iter().map(|(name, (run, jobs))| known(*run, name, jobs)).collect();
            let wanted = by_name(wants);
            let wanted: Vec<Expected> = wanted.iter().map(|(name, (run, jobs))| expected(*run, name, jobs)).collect();
            let once = after(&before, &steps(&before, &wanted));
            let twice = after(&once, &steps(&once, &wanted));
            prop_assert_eq!(steps(&twice, &wanted), []);
        }
    }

    /// What a gateway has once it was told.
    fn after(before: &[Known], steps: &[Step]) -> Vec<Known> {
        let mut all: BTreeMap<String, Known> = before
            .iter()
            .map(|known| (known.name.clone(), known.clone()))
            .collect();
        for step in steps {
            if step.unregister {
                all.remove(&step.name);
            }
            if let Some(run) = step.register {
                let new = Known {
                    run: Some(run),
                    project: step.project.clone(),
                    name: step.name.clone(),
                    jobs: BTreeSet::new(),
                };
                assert!(all.insert(step.name.clone(), new).is_none(), "{step:?}");
            }
            if let Some(service) = all.get_mut(&step.name) {
                service.jobs.extend(&step.add);
                service.jobs.retain(|job| !step.remove.contains(job));
            }
        }
        all.into_values().collect()
    }
}
