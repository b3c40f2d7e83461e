//! Offers of the project's backends.

use std::sync::Arc;

use dstack_compute::Backend;
use dstack_engine::offer_cache::{able, ask, multinode_backends};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::Requirements;
use dstack_plan::offers::{Needs, Query, merge};
use dstack_units::ProjectId;
use futures_util::future::join_all;

use crate::error::{ApiError, Result};
use crate::state::Control;

/// What the backends of a project offer. Each is asked at most once for the same requirements.
#[derive(Debug)]
pub(in crate::handlers) struct OfferSource {
    backends: Vec<Arc<dyn Backend>>,
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    /// Place in the list of backends.
    backend: usize,
    requirements: Requirements,
    offers: Vec<Offer>,
}

impl OfferSource {
    /// Of a project.
    pub(in crate::handlers) async fn of_project(control: &Control, project: ProjectId) -> Result<Self> {
        let backends = control.backends.of_project(project).await;
        Ok(Self {
            backends: backends.map_err(ApiError::internal)?,
            answers: Vec::new(),
        })
    }

    /// Backends whose instances reach each other.
    pub(in crate::handlers) fn multinode_backends(&self) -> Vec<BackendType> {
        multinode_backends(&self.backends)
    }

    /// Whatever the backends that can do what is needed offer for these requirements, cheapest first.
    pub(in crate::handlers) async fn everything(
        &mut self,
        requirements: &Requirements,
        needs: Needs,
    ) -> Vec<&Offer> {
        let asked: Vec<usize> = (0..)
            .zip(&self.backends)
            .filter(|(_, backend)| able(needs, backend.capabilities()))
            .map(|(place, _)| place)
            .collect();
        self.ask(&asked, requirements).await;
        let answers = asked.iter().filter_map(|place| self.known(*place, requirements));
        merge(answers.map(|answer| answer.offers.as_slice())).collect()
    }

    /// Offers that count for a query, at most `limit` of them.
    pub(in crate::handlers) async fn offers(&mut self, query: &Query, limit: Option<usize>) -> Vec<Offer> {
        let asked: Vec<usize> = (0..)
            .zip(&self.backends)
            .filter(|(_, backend)| query.asks(backend.kind()) && able(query.needs, backend.capabilities()))
            .map(|(place, _)| place)
            .collect();
        self.ask(&asked, &query.requirements).await;
        let answers = asked
            .iter()
            .filter_map(|place| self.known(*place, &query.requirements));
        query.select(answers.map(|answer| answer.offers.as_slice()), limit)
    }

    fn known(&self, backend: usize, requirements: &Requirements) -> Option<&Answer> {
        self.answers
            .iter()
            .find(|answer| answer.backend == backend && answer.requirements == *requirements)
    }

    /// All at once, those that have not been asked this yet.
    async fn ask(&mut self, places: &[usize], requirements: &Requirements) {
        let unknown = places
            .iter()
            .filter(|place| self.known(**place, requirements).is_none());
        let asked = unknown.filter_map(|place| {
            let backend = self.backends.get(*place)?;
            Some(async move {
                Answer {
                    backend: *place,
                    requirements: requirements.clone(),
                    offers: ask(backend.as_ref(), requirements).await,
                }
            })
        });
        let answers = join_all(asked).await;
        self.answers.extend(answers);
    }
}
