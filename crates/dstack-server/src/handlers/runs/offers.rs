//! Offers of the project's backends.

use std::collections::BTreeMap;
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
/// How long it waits while nothing is offered that counts, as a plan without offers says that there are none. Backends that are asked
/// when that time is over have [`PATIENCE`].
const LONGEST: Duration = Duration::from_secs(20);
/// As long as each question has in any case, where others took most of the time.
const LEAST: Duration = Duration::from_millis(500);

/// Why offers are missing. What a cloud says itself may be about its account: that is for those who manage it, and logged.
const LATE: &str = "it has not answered yet. Ask again in a moment";
const FAILED: &str = "it answers with an error or not at all, as the server's log says";

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
    offers: std::result::Result<Vec<Offer>, &'static str>,
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
        self.ask(&asked, requirements, |offers| !offers.is_empty()).await;
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
        let counts = |offers: &[Offer]| offers.iter().any(|offer| query.counts(offer).is_ok());
        self.ask(&asked, &query.requirements, counts).await;
        let answers = asked
            .iter()
            .filter_map(|place| self.known(*place, &query.requirements));
        query.select(answers.map(Answer::offers), limit)
    }

    /// Of what backends not all is known, and why: a sentence each.
    pub(in crate::handlers) fn missing(&self) -> Vec<String> {
        let mut reasons = BTreeMap::new();
        for answer in &self.answers {
            let backend = self.backends.get(answer.backend);
            if let (Some(backend), Err(reason)) = (backend, &answer.offers) {
                reasons.entry(backend.kind()).or_insert(*reason);
            }
        }
        let sentence = |(kind, reason)| format!("Offers of {kind} are missing: {reason}");
        reasons.into_iter().map(sentence).collect()
    }

    fn known(&self, backend: usize, requirements: &Requirements) -> Option<&Answer> {
        self.answers
            .iter()
            .find(|answer| answer.backend == backend && answer.requirements == *requirements)
    }

    /// All at once, those that have not been asked this yet. `count`: whether there is one among offers that counts.
    async fn ask(&mut self, places: &[usize], requirements: &Requirements, count: impl Fn(&[Offer]) -> bool) {
        let mut asked: FuturesUnordered<Question> = places
            .iter()
            .filter(|place| self.known(**place, requirements).is_none())
            .filter_map(|place| Some(Question::new(*place, self.backends.get(*place)?, requirements)))
            .collect();
        let asked_at = Instant::now();
        loop {
            let mut known = places.iter().filter_map(|place| self.known(*place, requirements));
            let until = match known.any(|answer| count(answer.offers())) {
                // Who was late for an earlier plan, and has not answered since, keeps nobody waiting.
                true if self.are_all_late(&asked) => Instant::now(),
                // From the beginning of the plan on, however much is asked for it.
                true => (self.begun + PATIENCE).max(asked_at + LEAST),
                // Nor does who has kept this one waiting.
                false if self.have_all_been_missed(&asked) => self.begun + LONGEST,
                false => (self.begun + LONGEST).max(asked_at + PATIENCE),
            };
            match timeout_at(until, asked.next()).await {
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

    /// Whether this plan has already gone without answers of all of these.
    fn have_all_been_missed(&self, asked: &FuturesUnordered<Question>) -> bool {
        asked.iter().all(|question| {
            let mut answers = self.answers.iter();
            answers.any(|answer| answer.backend == question.backend && answer.offers.is_err())
        })
    }

    fn are_all_late(&self, asked: &FuturesUnordered<Question>) -> bool {
        asked.iter().all(|question| {
            let backend = self.backend(question);
            backend.is_none_or(|backend| self.late.is_awaited(backend))
        })
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
            offers: Err(LATE),
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
            offers: offers.map_err(|_| FAILED),
        })
    }
}

#[cfg(test)]
mod tests;
