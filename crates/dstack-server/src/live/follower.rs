//! One stream of events: begins where its client was, and ends when its token is not good for it any more.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use dstack_model::changes::{Changed, Changes, FollowChangesQuery};
use dstack_system::Secret;
use futures_util::stream;
use tokio::time::{Instant, sleep_until};

use super::interest::{Interest, Scope};
use super::recent::{Batch, MAX_GATHERED, Since};
use super::{Live, Place};
use crate::access::{Caller, Freshness, is_admin};
use crate::api::Call;
use crate::error::{ApiError, Result};
use crate::handlers::projects::projects_seen;
use crate::state::AppState;

/// A stream on which nothing happens says so after this time: proxies give up connections that are silent for a minute. Its
/// token is looked at then, too.
const SILENCE: Duration = Duration::from_secs(15);

/// How long a client is to wait before it comes again.
const RETRY: Duration = Duration::from_secs(2);

/// Proxies that gather answers are told not to: nginx, and those who took the name over from it.
const NO_BUFFERING: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-accel-buffering"),
    HeaderValue::from_static("no"),
);

/// Answers with a stream of events.
///
/// # Errors
/// 403 when there is no such project that the caller may see, 429 when there are too many followers.
pub(crate) async fn follow(call: &Call, query: FollowChangesQuery) -> Result<Response<Body>> {
    let asked = Asked {
        state: Arc::clone(&call.state),
        token: call.token()?.clone(),
        query,
    };
    let epoch = asked.state.auth.access.epoch();
    let interest = asked.interest(call.caller()?).await?;
    let live = &asked.state.data.live;
    let place = live.enter(interest.clone())?;
    let follower = Follower {
        begin: Some(Begin::after(live, &place, call.last_event_id())),
        at: live.last(),
        epoch,
        interest,
        place,
        quiet_until: Instant::now() + SILENCE,
        checked_until: Instant::now() + SILENCE,
        asked,
    };
    let events = stream::unfold(follower, |follower| async move {
        let (event, follower) = follower.next().await?;
        Some((Ok::<_, Infallible>(event), follower))
    });
    let mut response = Sse::new(events).into_response();
    let (name, value) = NO_BUFFERING;
    response.headers_mut().insert(name, value);
    Ok(response)
}

/// What a client asked for, and with which token.
struct Asked {
    state: Arc<AppState>,
    token: Secret,
    query: FollowChangesQuery,
}

impl Asked {
    /// What the caller wants to hear of, and may.
    async fn interest(&self, caller: &Caller) -> Result<Interest> {
        let is_limited = caller
            .token
            .as_ref()
            .is_some_and(|token| token.project_id.is_some());
        let database = &self.state.data.database;
        let project = match &self.query.project_name {
            None => None,
            Some(name) => {
                let found = self.state.auth.access.project(name, Freshness::Cached).await?;
                let seen = found.filter(|project| {
                    project.row.name == *name
                        && project.is_member(&caller.user)
                        && caller.reaches(project.row.id)
                });
                Some(seen.ok_or(ApiError::Denied)?.row.id)
            }
        };
        let scope = match is_admin(&caller.user) && !is_limited {
            true => Scope::Server,
            false => {
                let seen = projects_seen(database, caller).await?;
                Scope::Projects(seen.iter().map(|row| row.id).collect())
            }
        };
        Ok(Interest {
            user: caller.user.id,
            scope,
            project,
            run: self.query.run_id,
            fleet: self.query.fleet_id,
        })
    }

    /// Who has the token now; `None`: nobody.
    async fn caller(&self) -> Result<Option<Caller>> {
        let (access, now) = (&self.state.auth.access, self.state.data.clock.now());
        access.caller(self.token.expose(), now, Freshness::Cached).await
    }
}

/// How a stream begins.
enum Begin {
    /// What came after this batch follows.
    At(u64),
    /// Nobody knows what came since the client was here last.
    Anew(u64),
}

impl Begin {
    fn after(live: &Live, place: &Place, named: Option<&str>) -> Self {
        let Some(named) = named else {
            return Self::At(live.last());
        };
        match live.number(named).map(|number| (number, place.since(number))) {
            Some((number, Since::Batches(_))) => Self::At(number),
            Some((_, Since::Unknown(last))) => Self::Anew(last),
            None => Self::Anew(live.last()),
        }
    }
}

/// What a look at the rights brought.
#[derive(Debug, PartialEq, Eq)]
enum Rights {
    Same,
    /// The client may see something else than before.
    Changed,
}

struct Follower {
    asked: Asked,
    place: Place,
    begin: Option<Begin>,
    /// The last batch that was told, or did not concern the client.
    at: u64,
    /// Of the rights as they were looked up last.
    epoch: u64,
    /// What the client wants to hear of, and may by those rights.
    interest: Interest,
    /// Then the client is told that nothing happens.
    quiet_until: Instant,
    /// Then its token is looked at, whatever happens: tokens expire without anybody changing anything.
    checked_until: Instant,
}

impl Follower {
    /// The next event; `None`: the stream ends.
    async fn next(mut self) -> Option<(Event, Self)> {
        let event = match self.begin.take() {
            Some(begin) => Some(self.begun(&begin)),
            None => self.wait().await,
        };
        self.quiet_until = Instant::now() + SILENCE;
        Some((event?, self))
    }

    fn begun(&mut self, begin: &Begin) -> Event {
        let (number, name) = match begin {
            Begin::At(number) => (*number, "hello"),
            Begin::Anew(last) => (*last, "reset"),
        };
        self.at = number;
        self.event(name).retry(RETRY).data("{}")
    }

    async fn wait(&mut self) -> Option<Event> {
        loop {
            if self.live().is_stopped() {
                return None;
            }
            if self.asked.state.auth.access.epoch() != self.epoch || Instant::now() >= self.checked_until {
                // Seldom, and with room of its own only then: thousands of followers wait here.
                if Box::pin(self.heed_rights()).await? == Rights::Changed {
                    // What came to be seen, or is seen no more, is in no batch that was admitted.
                    self.at = self.live().last();
                    return Some(self.event("reset").data("{}"));
                }
            }
            match self.place.since(self.at) {
                Since::Unknown(last) => {
                    self.at = last;
                    return Some(self.event("reset").data("{}"));
                }
                Since::Batches(batches) => {
                    self.at = batches.last().map_or(self.at, |last| last.number);
                    let changed = self.concerning(&batches);
                    if changed.len() > MAX_GATHERED {
                        return Some(self.event("reset").data("{}"));
                    }
                    if !changed.is_empty() {
                        return self.changes(changed);
                    }
                }
            }
            tokio::select! {
                () = self.place.wake.notified() => {}
                () = sleep_until(self.quiet_until.min(self.checked_until)) => {
                    if Instant::now() < self.checked_until {
                        return Some(Event::default().comment(""));
                    }
                }
            }
        }
    }

    /// Looks up anew what the caller may see; `None`: nothing any more, or it cannot be looked up now.
    async fn heed_rights(&mut self) -> Option<Rights> {
        let epoch = self.asked.state.auth.access.epoch();
        let asked = &self.asked;
        let looked_up = self.live().look_up(async {
            let caller = asked.caller().await.ok()??;
            asked.interest(&caller).await.ok()
        });
        let interest = looked_up.await?;
        self.epoch = epoch;
        self.checked_until = Instant::now() + SILENCE;
        if interest == self.interest {
            return Some(Rights::Same);
        }
        self.place.see(interest.clone());
        self.interest = interest;
        Some(Rights::Changed)
    }

    /// Of what these batches tell, what concerns the client.
    fn concerning(&self, batches: &[Arc<Batch>]) -> BTreeSet<Changed> {
        let changed = batches.iter().flat_map(|batch| batch.changed.iter());
        changed
            .filter(|changed| self.interest.admits(changed))
            .copied()
            .collect()
    }

    fn changes(&self, changed: BTreeSet<Changed>) -> Option<Event> {
        let changes = changed.into_iter().collect();
        self.event("changes").json_data(Changes { changes }).ok()
    }

    fn event(&self, name: &str) -> Event {
        Event::default().event(name).id(self.live().name(self.at))
    }

    fn live(&self) -> &Live {
        &self.asked.state.data.live
    }
}
