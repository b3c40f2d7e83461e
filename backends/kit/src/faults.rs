use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_system::Random;
use tokio::sync::Notify;

tokio::task_local! {
    /// What a control plane waits for that is to die while it makes a request.
    static DEATH: Arc<Notify>;
}

/// The same, of the control plane by whose death it ends.
pub(crate) async fn mortal<T>(death: &Arc<Notify>, call: impl Future<Output = T>) -> T {
    DEATH.scope(Arc::clone(death), call).await
}

/// The control plane dies whose request this is. Requests of others have no end.
pub(crate) async fn die<T>() -> T {
    let _ = DEATH.try_with(|death| death.notify_one());
    std::future::pending().await
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The cloud cannot be reached.
    NotSent,
    /// It is lost on the way there.
    Lost,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is carried out only so much later, and its caller has no answer.
    Late(Duration),
    /// The cloud answers with this status, and does nothing.
    Refused(u16),
    /// It is carried out, and the cloud answers with this status.
    DoneAndRefused(u16),
    /// It is carried out, and a gateway answers 503 with a pause, in words that vendors use for other things too.
    DoneAndBusy,
    /// It is carried out, and the answer is cut off in the middle.
    Malformed,
    /// It is carried out, and the answer comes only so much later: meanwhile others ask.
    SlowAnswer(Duration),
    /// The control plane is killed before it is sent.
    KilledBefore,
    /// The control plane is killed when it was carried out, before the answer comes.
    KilledAfter,
}

impl Fault {
    /// All that may happen to any request of a cloud that works on the whole.
    pub const ALL: &'static [Self] = &[
        Self::NotSent,
        Self::Lost,
        Self::AnswerLost,
        // Just within `CALL_LIMIT`, until which a call may take effect.
        Self::Late(Duration::from_secs(115)),
        Self::Refused(429),
        Self::Refused(500),
        Self::DoneAndRefused(502),
        Self::DoneAndBusy,
        Self::Malformed,
        Self::KilledBefore,
        Self::KilledAfter,
    ];
}

/// Which requests something happens to.
#[derive(Debug, Default)]
pub struct Faults {
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    sent: usize,
    /// From this request on, so many: what happens to them.
    planned: Option<(usize, usize, Fault)>,
    happened: bool,
    /// What happens to any request, and how often: one in so many.
    weather: Option<(Random, u64)>,
    /// What is part of the addresses of a region or cluster that is away.
    away: Option<String>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happens to the `nth` request from now (the first is 1).
    pub fn at(&self, nth: usize, fault: Fault) {
        self.from(nth, 1, fault);
    }

    /// Something happens to so many requests, from the `nth` from now on.
    pub fn from(&self, nth: usize, times: usize, fault: Fault) {
        let mut plan = self.lock();
        plan.sent = 0;
        plan.planned = Some((nth, times, fault));
        plan.happened = false;
    }

    /// From now on, anything happens to one request in so many, by chance.
    pub fn one_in(&self, requests: u64, random: Random) {
        self.lock().weather = Some((random, requests));
    }

    /// Nothing happens any more.
    pub fn none(&self) {
        let mut plan = self.lock();
        plan.planned = None;
        plan.weather = None;
    }

    /// Whether something has happened since it was planned.
    pub fn happened(&self) -> bool {
        self.lock().happened
    }

    /// No answer comes from addresses with this part (a region, the host of a cluster), from now on; `None`: all answer again.
    pub fn away(&self, part: Option<&str>) {
        self.lock().away = part.map(str::to_owned);
    }

    /// Whether no answer comes from this address.
    pub fn is_away(&self, address: &str) -> bool {
        let plan = self.lock();
        plan.away.as_ref().is_some_and(|part| address.contains(part))
    }

    /// What happens to the next request.
    pub(crate) fn next(&self) -> Option<Fault> {
        let mut plan = self.lock();
        plan.sent += 1;
        if let Some((random, requests)) = &plan.weather {
            let number = random.below(*requests * Fault::ALL.len() as u64);
            return Fault::ALL.get(usize::try_from(number).ok()?).copied();
        }
        let (from, times, fault) = plan.planned?;
        let is_due = (from..from.saturating_add(times)).contains(&plan.sent);
        plan.happened |= is_due;
        is_due.then_some(fault)
    }
}
