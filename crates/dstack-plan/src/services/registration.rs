//! Which replicas of a service get requests.

use dstack_model::configurations::service::ServiceConfiguration;

use super::routers::router_group;

/// Whether requests to the service go to jobs of this group and number: to the first node of each replica and, where a group
/// routes requests to the others, to that group alone.
pub fn gets_requests(service: &ServiceConfiguration, name: &str, job_num: i64) -> bool {
    let is_of_router = router_group(service).is_none_or(|group| group.name.as_deref() == Some(name));
    job_num == 0 && is_of_router
}

/// A replica that runs, and that requests may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its probes have succeeded once.
    pub ready: bool,
    /// It gets requests.
    pub registered: bool,
    /// One of its probes has failed too often since.
    pub failing: bool,
}

/// Which of the replicas change, by their place: whether they get requests from now on.
///
/// Those that fail get none as long as another one does well. Where none does, nobody knows which of them answers: whoever gets
/// requests goes on, and if nobody does, those that were ready get some, first those that have not failed too often.
pub fn changes(replicas: &[Standing]) -> Vec<(usize, bool)> {
    let any = |wanted: fn(&Standing) -> bool| replicas.iter().any(wanted);
    let which = |wanted: fn(&Standing) -> bool, registered: bool| {
        let found = replicas.iter().enumerate().filter(|(_, replica)| wanted(replica));
        found.map(|(place, _)| (place, registered)).collect()
    };
    if any(|replica| replica.registered && !replica.failing) {
        return which(|replica| replica.registered && replica.failing, false);
    }
    if any(|replica| replica.registered) {
        return Vec::new();
    }
    if any(|replica| replica.ready && !replica.failing) {
        return which(|replica| replica.ready && !replica.failing, true);
    }
    which(|replica| replica.ready, true)
}

/// The same where others do well that take all their requests: those that fail get none.
pub fn changes_beside(replicas: &[Standing]) -> Vec<(usize, bool)> {
    let does_well = |replica: &Standing| replica.ready && !replica.failing;
    let is_served = replicas
        .iter()
        .any(|replica| replica.registered && does_well(replica));
    let change = |(place, replica): (usize, &Standing)| match replica.registered {
        true => replica.failing.then_some((place, false)),
        false => (!is_served && does_well(replica)).then_some((place, true)),
    };
    replicas.iter().enumerate().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const WELL: Standing = Standing {
        ready: true,
        registered: true,
        failing: false,
    };
    const FAILS: Standing = Standing {
        failing: true,
        ..WELL
    };
    const EJECTED: Standing = Standing {
        registered: false,
        ..FAILS
    };
    const NOT_READY: Standing = Standing {
        ready: false,
        ..EJECTED
    };

    #[test]
    fn who_fails_gets_no_requests_while_another_one_does_well() {
        assert_eq!(changes(&[WELL, FAILS, WELL]), [(1, false)]);
        assert_eq!(changes(&[FAILS, EJECTED]), [], "never the last");
        assert_eq!(changes(&[FAILS, FAILS]), []);
        assert_eq!(changes(&[EJECTED, NOT_READY, EJECTED]), [(0, true), (2, true)]);
        let recovers = Standing {
            registered: false,
            ..WELL
        };
        assert_eq!(changes(&[EJECTED, recovers]), [(1, true)]);
        assert_eq!(
            changes(&[WELL, recovers]),
            [],
            "once it has succeeded often enough"
        );
        assert_eq!(changes(&[WELL, NOT_READY]), []);
        assert_eq!(changes_beside(&[FAILS, EJECTED, NOT_READY]), [(0, false)]);
        assert_eq!(changes_beside(&[EJECTED, recovers]), [(1, true)]);
        assert_eq!(changes_beside(&[WELL, recovers]), changes(&[WELL, recovers]));
        assert_eq!(changes(&[NOT_READY]), []);
    }

    #[test]
    fn where_there_is_a_router_it_alone_gets_requests() {
        let group = |name: &str, router: Option<&str>| {
            let mut group = json!({"name": name, "replicas": 1, "commands": ["serve"]});
            if let Some(kind) = router {
                group["router"] = json!({ "type": kind });
            }
            group
        };
        let service = |groups: [serde_json::Value; 2]| -> ServiceConfiguration {
            decode_strict(&json!({"type": "service", "port": 8000, "groups": groups})).unwrap()
        };
        let routed = service([group("router", Some("smg")), group("worker", None)]);
        let plain = service([group("a", None), group("b", None)]);
        assert!(gets_requests(&routed, "router", 0));
        assert!(!gets_requests(&routed, "worker", 0));
        assert!(gets_requests(&plain, "b", 0));
        assert!(!gets_requests(&plain, "b", 1));
    }

    proptest! {
        /// However probes go, a service of which somebody got requests has somebody who gets them, and nothing goes round.
        #[test]
        fn somebody_always_gets_requests(all in proptest::collection::vec(any::<(bool, bool, bool)>(), 0..8)) {
            let all = all.into_iter().map(|(ready, registered, failing)| Standing {
                ready: ready || registered,
                registered,
                failing,
            });
            let mut all: Vec<Standing> = all.collect();
            let before = all.iter().any(|one| one.ready);
            for (place, registered) in changes(&all) {
                all[place].registered = registered;
            }
            prop_assert_eq!(all.iter().any(|one| one.registered), before);
            prop_assert_eq!(changes(&all), vec![]);
        }
    }
}
