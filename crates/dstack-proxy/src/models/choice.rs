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

/// Those that have replicas, in a random order in which each is as likely to be next as it has replicas.
pub(super) fn in_order(mut services: Vec<Arc<Service>>, random: &Random) -> Vec<Arc<Service>> {
    services.retain(|service| !service.replicas.is_empty());
    let mut ordered = Vec::new();
    while !services.is_empty() {
        let drawn = draw(&services, random);
        ordered.push(services.swap_remove(drawn));
    }
    ordered
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
}
