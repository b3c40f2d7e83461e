//! Which services of a model are asked, and in which order.

use std::sync::Arc;

use dstack_system::Random;

use super::failure::Failure;
use super::request::Endpoint;
use crate::routes::{ChatFormat, Model, Routes, Service};

/// The services of the project with a model of this name that can be asked for this.
///
/// # Errors
/// There is no such model, or it cannot be asked for this.
pub(super) fn services(
    routes: &Routes,
    project: &str,
    model: &str,
    endpoint: Endpoint,
) -> Result<Vec<Arc<Service>>, Failure> {
    let mut named = Vec::new();
    let mut exists = false;
    for service in routes.of_project(project) {
        let Some(found) = service.model.as_ref().filter(|found| found.name == model) else {
            continue;
        };
        exists = true;
        if answers(found, endpoint) {
            named.push(Arc::clone(service));
        }
    }
    match (exists, named.is_empty()) {
        (false, _) => Err(Failure::no_model(project, model)),
        (true, true) => Err(Failure::no_endpoint(model, endpoint.path())),
        (true, false) => Ok(named),
    }
}

fn answers(model: &Model, endpoint: Endpoint) -> bool {
    match model.format {
        ChatFormat::OpenAi { .. } => true,
        ChatFormat::Tgi { .. } => endpoint == Endpoint::ChatCompletions,
    }
}

/// Those that have replicas, in a random order in which each is as likely to be next as it has replicas; then one of those that start
/// one on a request.
pub(super) fn in_order(services: Vec<Arc<Service>>, random: &Random) -> Vec<Arc<Service>> {
    let (mut running, mut others): (Vec<_>, Vec<_>) =
        services.into_iter().partition(|service| service.has_replicas());
    others.retain(|service| service.starts_on_request);
    let mut ordered = Vec::new();
    while !running.is_empty() {
        let drawn = draw(&running, random);
        ordered.push(running.swap_remove(drawn));
    }
    // One start is waited for, and not one after the other.
    if !others.is_empty() {
        ordered.push(others.swap_remove(below(others.len(), random)));
    }
    ordered
}

fn below(bound: usize, random: &Random) -> usize {
    let drawn = random.below(u64::try_from(bound).unwrap_or(u64::MAX));
    usize::try_from(drawn).unwrap_or_default()
}

/// The service as it is now; none if it has gone, has no replica any more and starts none, or has another model.
pub(super) fn present(routes: &Routes, service: &Service) -> Option<Arc<Service>> {
    let mut present = routes.of_project(&service.project);
    let found = present.find(|found| found.run_id == service.run_id)?;
    let is_same = found.model == service.model && found.can_answer();
    is_same.then(|| Arc::clone(found))
}

fn draw(services: &[Arc<Service>], random: &Random) -> usize {
    let weight = |service: &Arc<Service>| u64::try_from(service.replicas.len()).unwrap_or(u64::MAX);
    let mut left = random.below(services.iter().map(weight).sum());
    for (at, service) in services.iter().enumerate() {
        match left.checked_sub(weight(service)) {
            Some(rest) => left = rest,
            None => return at,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::fake::openai_service;

    #[test]
    fn services_are_as_likely_to_be_first_as_they_have_replicas() {
        let of = |run: &str, replicas| Arc::new(openai_service(run, "m", replicas));
        let services = vec![of("one", 1), of("none", 0), of("three", 3)];
        let random = Random::seeded(1);
        let mut firsts = 0;
        for _ in 0..1000 {
            let ordered = in_order(services.clone(), &random);
            assert_eq!(ordered.len(), 2, "one without replicas is not asked");
            firsts += usize::from(ordered[0].run == "three");
        }
        assert!((680..820).contains(&firsts), "{firsts}");
    }

    #[test]
    fn one_that_would_have_to_start_comes_last() {
        let starting = |run: &str| {
            Arc::new(Service {
                starts_on_request: true,
                ..openai_service(run, "m", 0)
            })
        };
        let running = Arc::new(openai_service("running", "m", 1));
        let services = vec![starting("one"), running, starting("two")];
        let random = Random::seeded(1);
        let mut lasts = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let ordered = in_order(services.clone(), &random);
            assert_eq!((ordered.len(), ordered[0].run.as_str()), (2, "running"));
            lasts.insert(ordered[1].run.clone());
        }
        assert_eq!(lasts.len(), 2);
    }
}
