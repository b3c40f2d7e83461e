//! One attempt to have a request answered by a replica.

use std::pin::pin;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::{Instant, timeout_at};

use super::outgoing::Outgoing;
use crate::body::{RequestBody, Sendable};
use crate::later::later;
use crate::replica::{Sender, Visit};

/// How an attempt is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Over a new connection.
    pub(crate) fresh: bool,
    /// Another one may follow.
    pub(crate) repeatable: bool,
    /// As long as the replica may be silent.
    pub(crate) silence: Duration,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The replica has certainly not got the request: it cannot be reached.
    Unreachable,
    /// The replica has certainly not got the request: a connection that was used before is closed.
    NotSent,
    /// A connection that was used before has been closed instead of an answer.
    Closed,
    /// The connection broke, or what came was no answer.
    Broken,
    /// The replica is silent.
    Silent,
    /// The client does not send the rest of its request.
    ClientSilent,
    /// The client's request broke off.
    ClientBroken,
}

impl Failure {
    /// The replica is to blame: not its client, nor a connection that was closed in between.
    pub(crate) const fn is_of_replica(self) -> bool {
        matches!(self, Self::Unreachable | Self::Broken | Self::Silent)
    }

    /// The replica has certainly not got the request.
    pub(crate) const fn is_not_received(self) -> bool {
        matches!(self, Self::Unreachable | Self::NotSent)
    }
}

/// The head of an answer, and the connection that it comes over.
pub(crate) type Answered = (Response<Incoming>, Sender);

impl Attempt {
    /// Sends the request, and waits for the head of the answer.
    pub(crate) async fn make(self, visit: &mut Visit, outgoing: &mut Outgoing) -> Result<Answered, Failure> {
        let made = self.exchange(visit, outgoing).await;
        match &made {
            Ok(_) => visit.answered(),
            Err(Failure::Unreachable | Failure::Broken) => visit.failed(),
            Err(_) => {}
        }
        made
    }

    async fn exchange(self, visit: &Visit, outgoing: &mut Outgoing) -> Result<Answered, Failure> {
        let (mut sender, reused) = self.connection(visit, outgoing).await?;
        let keep = self.repeatable && outgoing.is_idempotent();
        let sent = sender.try_send_request(outgoing.attempt(keep));
        let answered = head(sent, &outgoing.body, self.silence).await?;
        match answered {
            Ok(response) => Ok((response, sender)),
            Err(error) => Err(failure(error, reused, outgoing)),
        }
    }

    /// A connection, and whether it was used before. Those of upgrades are their own.
    async fn connection(self, visit: &Visit, outgoing: &Outgoing) -> Result<(Sender, bool), Failure> {
        let replica = visit.replica();
        let fresh = self.fresh || outgoing.upgrade.is_some();
        let once = !(outgoing.is_idempotent() && self.repeatable);
        if let Some(sender) = (!fresh).then(|| replica.pool().take(once)).flatten() {
            return Ok((sender, true));
        }
        let opened = replica.open().await;
        opened.map(|sender| (sender, false)).map_err(|error| {
            tracing::debug!(%error, replica = %replica.id, "a replica cannot be reached");
            Failure::Unreachable
        })
    }
}

type Head = Result<Response<Incoming>, TrySendError<http::Request<RequestBody>>>;

/// The head of the answer, for which the replica has time since it was given the last piece of the request.
async fn head(sent: impl Future<Output = Head>, body: &Sendable, silence: Duration) -> Result<Head, Failure> {
    let started = Instant::now();
    let over = || later(body.progress().unwrap_or(started), silence);
    let mut sent = pin!(sent);
    loop {
        let deadline = over();
        if let Ok(head) = timeout_at(deadline, sent.as_mut()).await {
            return Ok(head);
        }
        if over() <= Instant::now() {
            return Err(match body.waits_for_client() {
                true => Failure::ClientSilent,
                false => Failure::Silent,
            });
        }
    }
}

/// What it means that a connection brought no answer.
fn failure(
    mut error: TrySendError<http::Request<RequestBody>>,
    reused: bool,
    outgoing: &mut Outgoing,
) -> Failure {
    let not_sent = error.take_message();
    let error = error.into_error();
    tracing::debug!(%error, reused, "a replica has not answered");
    if outgoing.body.is_broken() {
        return Failure::ClientBroken;
    }
    if outgoing.body.is_slow() {
        return Failure::ClientSilent;
    }
    if let Some(request) = not_sent {
        outgoing.take_back(request);
        return match reused {
            true => Failure::NotSent,
            false => Failure::Unreachable,
        };
    }
    match reused && !error.is_parse() {
        true => Failure::Closed,
        false => Failure::Broken,
    }
}
