//! One request to one of the replicas of a service, and its answer.

mod attempt;
mod framing;
mod headers;
mod outgoing;
mod tries;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::Random;
use http::response::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use attempt::{Answered, Attempt, Failure};
use framing::{Unclear, framing};
use outgoing::{Outgoing, ask_for_websocket, is_upgrade_to};
use tries::Tries;
use tunnel::Tunnel;

use crate::body::{AnswerBody, Lease, ProxyBody, empty, refusal};
use crate::replica::{Sender, Visit};
use crate::routes::Service;
use crate::stats::{Record, StatsRegistry};

/// Passes requests on. A trait, so that what is built on it is tested without connections.
#[async_trait]
pub trait Forward: Send + Sync + std::fmt::Debug {
    /// The answer of one of the replicas to a request whose URI is the path and query that the replica gets. Who may ask is checked
    /// already, and the caller's dstack token is not among the headers any more. Extensions of the request that matter:
    /// [`Client`](crate::client::Client), and hyper's `OnUpgrade`, without which a WebSocket handshake is an ordinary request.
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody>;
}

/// Passes requests on over HTTP/1.1 connections that are used again.
///
/// A replica that fails is left out at once, and the request goes to another one, at most three times, if that can do no harm:
/// the replica has certainly not got it, or the method is idempotent, and what was sent of the body is at most 64 KiB.
///
/// Answers of its own, all `{"detail": …}`:
///
/// | status | when |
/// |---|---|
/// | 400, 405, 501 | it is not clear where the request ends or whom it is for, or it is `CONNECT` |
/// | 408 | the client is silent in the middle of its request for as long as a replica may be |
/// | 502 | no replica can be reached, or what came was no answer |
/// | 503 | there is no replica |
/// | 504 | the replica is silent for too long |
///
/// An answer that breaks, or whose replica is silent for too long, breaks for the client as well.
#[derive(Debug)]
pub struct Forwarder {
    random: Random,
    stats: Arc<StatsRegistry>,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self::new(Random::system())
    }
}

impl Forwarder {
    /// Chooses replicas by these random numbers.
    pub fn new(random: Random) -> Self {
        Self {
            random,
            stats: Arc::default(),
        }
    }

    /// What is counted of the requests of each service.
    pub const fn stats(&self) -> &Arc<StatsRegistry> {
        &self.stats
    }

    /// The first answer that a replica begins.
    async fn answered(
        &self,
        service: &Service,
        outgoing: &mut Outgoing,
    ) -> Result<(Answered, Visit), Refusal> {
        let mut tries = Tries::default();
        let mut refused = NO_REPLICA;
        while let Some(choice) = tries.next(&service.replicas, &self.random) {
            let Some(replica) = service.replicas.get(choice.place) else {
                break;
            };
            let Some(mut visit) = Visit::begin(replica) else {
                tries.leave_out(choice.place);
                continue;
            };
            let attempt = Attempt {
                fresh: choice.fresh,
                repeatable: !choice.last,
                silence: service.read_timeout,
            };
            match attempt.make(&mut visit, outgoing).await {
                Ok(answered) => return Ok((answered, visit)),
                Err(failure) => {
                    refused = refusal_of(failure);
                    tries.note(choice.place, failure);
                    if !may_repeat(failure, outgoing) {
                        break;
                    }
                }
            }
        }
        Err(refused)
    }
}

#[async_trait]
impl Forward for Forwarder {
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let started = Instant::now();
        let mut outgoing = match Outgoing::new(request) {
            Ok(outgoing) => outgoing,
            Err(Unclear(status, detail)) => return refusal(status, detail),
        };
        let mut record = self.stats.begin(service.run_id, started);
        match self.answered(service, &mut outgoing).await {
            Ok(((response, sender), visit)) => {
                let (head, body) = response.into_parts();
                let answer = Answer {
                    head,
                    body,
                    sender,
                    visit,
                    record,
                };
                answer.pass_on(outgoing, service.read_timeout)
            }
            Err(Refusal(status, detail)) => {
                record.answered(status);
                drop(outgoing.body.settle()); // the rest of it is of no use
                refusal(status, detail)
            }
        }
    }
}

/// An answer of the proxy itself.
#[derive(Debug, Clone, Copy)]
struct Refusal(StatusCode, &'static str);

const NO_REPLICA: Refusal = Refusal(StatusCode::SERVICE_UNAVAILABLE, "The service has no replicas");
const FAILED: Refusal = Refusal(StatusCode::BAD_GATEWAY, "Error requesting upstream");

const fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Unreachable | Failure::NotSent | Failure::Closed | Failure::Broken => FAILED,
        Failure::Silent => Refusal(StatusCode::GATEWAY_TIMEOUT, "Timed out requesting upstream"),
        Failure::ClientSilent => Refusal(StatusCode::REQUEST_TIMEOUT, "Timed out reading the request"),
        Failure::ClientBroken => Refusal(StatusCode::BAD_REQUEST, "The request has broken off"),
    }
}

/// Whether the request can be sent again without harm.
fn may_repeat(failure: Failure, outgoing: &Outgoing) -> bool {
    match failure {
        Failure::Unreachable | Failure::NotSent => outgoing.body.is_whole(),
        Failure::Closed | Failure::Broken => outgoing.is_idempotent() && outgoing.body.is_whole(),
        Failure::Silent | Failure::ClientSilent | Failure::ClientBroken => false,
    }
}

/// An answer that a replica has begun.
struct Answer {
    head: Parts,
    body: Incoming,
    sender: Sender,
    visit: Visit,
    record: Record,
}

impl Answer {
    fn pass_on(mut self, outgoing: Outgoing, silence: Duration) -> Response<ProxyBody> {
        let upgraded = self.head.extensions.remove::<OnUpgrade>();
        if let Some(replica) = upgraded {
            return match outgoing.upgrade {
                Some(client) if is_upgrade_to(&self.head.headers, "websocket") => {
                    self.upgrade(client, replica, silence)
                }
                // It speaks a protocol that nobody asked for.
                _ => self.refused(),
            };
        }
        let Ok(framing) = framing(self.head.version, &self.head.headers) else {
            return self.refused();
        };
        let keep_alive = headers::kept_alive(&self.head.headers);
        headers::to_client(&mut self.head.headers, framing);
        self.begin();
        let Self {
            head,
            body,
            sender,
            visit,
            record,
        } = self;
        let sent = outgoing.body.settle();
        let lease = Lease {
            sender,
            visit,
            sent,
            record,
            keep_alive,
        };
        Response::from_parts(head, body_to_client(body, lease, silence))
    }

    /// What came is no answer.
    fn refused(mut self) -> Response<ProxyBody> {
        self.visit.failed();
        self.record.answered(FAILED.0);
        refusal(FAILED.0, FAILED.1)
    }

    fn upgrade(mut self, client: OnUpgrade, replica: OnUpgrade, silence: Duration) -> Response<ProxyBody> {
        headers::to_client(&mut self.head.headers, framing::Framing::Unsaid);
        ask_for_websocket(&mut self.head.headers);
        self.begin();
        let Self {
            head, visit, record, ..
        } = self;
        Tunnel {
            client,
            replica,
            visit,
            record,
            silence,
        }
        .start();
        Response::from_parts(head, empty())
    }

    fn begin(&mut self) {
        self.record.answered(self.head.status);
        // What the client's connection speaks is the server's to say.
        self.head.version = Version::HTTP_11;
    }
}

fn body_to_client(body: Incoming, lease: Lease, silence: Duration) -> ProxyBody {
    if body.is_end_stream() {
        lease.complete();
        return empty();
    }
    AnswerBody::new(body, lease, silence).boxed_unsync()
}
