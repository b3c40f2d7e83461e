//! Offers of the project's backends.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use dstack_compute::Backend;
use dstack_engine::offer_cache::{able, ask, multinode_backends};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::Requirements;
use dstack_plan::offers::{Needs, Query, merge};
use dstack_units::ProjectId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::error::{ApiError, Result};
use crate::late_offers::LateOffers;
use crate::state::Control;

/// How long a plan waits for backends while others have something to offer: those that have not answered are left out, and named.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How long it waits while nothing at all is offered: a plan without offers says that there are none.
const LONGEST: Duration = Duration::from_secs(20);

/// What the backends of a project offer. Each is asked at most once for the same requirements.
#[derive(Debug)]
pub(in crate::handlers) struct OfferSource {
    project: ProjectId,
    backends: Vec<Arc<dyn Backend>>,
    answers: Vec<Answer>,
    late: LateOffers,
    /// When the first question may have been asked.
    begun: Instant,
}

#[derive(Debug)]
struct Answer {
    /// Place in the list of backends.
    backend: usize,
    requirements: Requirements,
    /// Or why there are none, for people.
    offers: std::result::Result<Vec<Offer>, String>,
}

impl Answer {
    fn offers(&self) -> &[Offer] {
        self.offers.as_deref().unwrap_or_default()
    }
}

impl OfferSource {
    /// Of a project.
    pub(in crate::handlers) async fn of_project(control: &Control, project: ProjectId) -> Result<Self> {
        let backends = control.backends.of_project(project).await;
        Ok(Self {
            project,
            backends: backends.map_err(ApiError::internal)?,
            answers: Vec::new(),
            late: control.late_offers.clone(),
            begun: Instant::now(),
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
        merge(answers.map(Answer::offers)).collect()
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
        query.select(answers.map(Answer::offers), limit)
    }

    /// Of what backends nothing is known, and why, in sentences.
    pub(in crate::handlers) fn missing(&self) -> BTreeSet<String> {
        let missing = self.answers.iter().filter_map(|answer| {
            let reason = answer.offers.as_ref().err()?;
            let kind = self.backends.get(answer.backend)?.kind();
            Some(format!("The offers of {kind} are missing: {reason}"))
        });
        missing.collect()
    }

    fn known(&self, backend: usize, requirements: &Requirements) -> Option<&Answer> {
        self.answers
            .iter()
            .find(|answer| answer.backend == backend && answer.requirements == *requirements)
    }

    /// All at once, those that have not been asked this yet.
    async fn ask(&mut self, places: &[usize], requirements: &Requirements) {
        let mut asked: FuturesUnordered<Question> = places
            .iter()
            .filter(|place| self.known(**place, requirements).is_none())
            .filter_map(|place| Some(Question::new(*place, self.backends.get(*place)?, requirements)))
            .collect();
        // From the beginning of the plan on, however much is asked for it.
        while let Some(patience) = self.patience(places, requirements, &asked) {
            match timeout_at(self.begun + patience, asked.next()).await {
                Ok(Some(answer)) => self.answers.push(answer),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        for question in asked {
            self.answers.push(question.unanswered());
            if let Some(backend) = self.backend(&question) {
                self.late.await_answer(backend, question.answer);
            }
        }
    }

    /// How long a plan waits for these questions; `None`: no longer.
    fn patience(
        &self,
        places: &[usize],
        requirements: &Requirements,
        asked: &FuturesUnordered<Question>,
    ) -> Option<Duration> {
        let mut known = places.iter().filter_map(|place| self.known(*place, requirements));
        if !known.any(|answer| !answer.offers().is_empty()) {
            return Some(LONGEST);
        }
        // Who was late for an earlier plan, and has not answered since, keeps nobody waiting.
        let is_late = |question: &Question| {
            let backend = self.backend(question);
            backend.is_none_or(|backend| self.late.is_awaited(backend))
        };
        let all_are_late = !asked.is_empty() && asked.iter().all(is_late);
        (!all_are_late).then_some(PATIENCE)
    }

    fn backend(&self, question: &Question) -> Option<(ProjectId, BackendType)> {
        let backend = self.backends.get(question.backend)?;
        Some((self.project, backend.kind()))
    }
}

type AnswerOf = Pin<Box<dyn Future<Output = std::result::Result<Vec<Offer>, String>> + Send>>;

/// A backend that is being asked what it offers.
struct Question {
    /// Place in the list of backends.
    backend: usize,
    requirements: Requirements,
    answer: AnswerOf,
}

impl Question {
    fn new(place: usize, backend: &Arc<dyn Backend>, requirements: &Requirements) -> Self {
        let (backend, asked) = (Arc::clone(backend), requirements.clone());
        Self {
            backend: place,
            requirements: requirements.clone(),
            answer: Box::pin(async move { ask(backend.as_ref(), &asked).await }),
        }
    }

    /// What is said meanwhile.
    fn unanswered(&self) -> Answer {
        Answer {
            backend: self.backend,
            requirements: self.requirements.clone(),
            offers: Err(
                "it has not answered yet. They are shown as soon as it has: ask again in a moment".to_owned(),
            ),
        }
    }
}

impl Future for Question {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Answer> {
        let answer = self.answer.as_mut().poll(context);
        answer.map(|offers| Answer {
            backend: self.backend,
            requirements: self.requirements.clone(),
            offers,
        })
    }
}

#[cfg(test)]
mod tests;
