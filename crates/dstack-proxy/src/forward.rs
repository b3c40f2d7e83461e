//! One request to one of the replicas of a service, and its answer.

mod attempt;
mod framing;
mod headers;
mod outgoing;
mod tries;
mod tunnel;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::Random;
use dstack_units::RunId;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, sleep_until};

use attempt::{Answered, Attempt, Failure};
use framing::{Unclear, framing};
use outgoing::{Outgoing, ask_for_websocket, is_upgrade_to};
use tries::Tries;
use tunnel::Tunnel;
use waiting::Waiting;

use crate::access_log::Access;
use crate::body::{AnswerBody, Lease, ProxyBody, empty, refusal};
use crate::later::later;
use crate::limits::{Left, Limits, Permit};
use crate::media_type::is_of_type;
use crate::prefix::{MAX_BODY_BYTES, Prefixes, Prompt, Room};
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

/// Pause before a replica that was just started is asked again.
const UNTIL_IT_LISTENS: Duration = Duration::from_secs(1);

/// Starts replicas of services that have none until requests come.
#[async_trait]
pub trait Starter: Send + Sync + std::fmt::Debug {
    /// Asks for a replica of the service, and waits until one gets requests: the service as it is then. `None`: the service has gone.
    /// Whoever waits no more drops it.
    async fn start(&self, service: &Service) -> Option<Arc<Service>>;
}

/// Extension of an answer of the forwarder itself: no replica has got anything of the request, so that it may be sent to another
/// service without harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotReceived;

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
/// | 408 | the client is silent in the middle of its request for as long as a replica may be, or has let the replica wait for more than a minute, and less than 1 KiB has come per second of that |
/// | 502 | no replica can be reached, or what came was no answer |
/// | 503 | there is no replica, or as many requests are under way as the [`Limits`] allow |
/// | 504 | the replica is silent for too long |
///
/// A client that does not take its answer keeps the request under way, however long: nobody asks for the next piece then. What
/// bounds that are the [`Limits`], and the server's time limits for writing.
///
/// An answer that breaks, or whose replica is silent for too long, breaks for the client as well.
///
/// A 502 or 503 of its own has [`NotReceived`] among its extensions if that is certain.
#[derive(Debug)]
pub struct Forwarder {
    random: Random,
    stats: Arc<StatsRegistry>,
    left: Left,
    prefixes: Prefixes,
    /// `None`: services start no replicas when requests come.
    starter: Option<Arc<dyn Starter>>,
    logs_access: bool,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self::new(Random::system())
    }
}

impl Forwarder {
    /// Chooses replicas by these random numbers. As many requests as come may be under way.
    pub fn new(random: Random) -> Self {
        Self {
            random,
            stats: Arc::default(),
            left: Left::of(Limits::default()),
            prefixes: Prefixes::default(),
            starter: None,
            logs_access: false,
        }
    }

    /// No more requests than this are under way at once.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.left = Left::of(limits);
        self
    }

    /// Requests to services that start on requests wait for a replica that this one starts, as long as a replica may be silent.
    #[must_use]
    pub fn with_starter(mut self, starter: Arc<dyn Starter>) -> Self {
        self.starter = Some(starter);
        self
    }

    /// Whether a line of the log is written of each request when it is over, with the target [`TARGET`](crate::access_log::TARGET).
    #[must_use]
    pub const fn with_access_log(mut self, is_written: bool) -> Self {
        self.logs_access = is_written;
        self
    }

    /// What is counted of the requests of each service.
    pub const fn stats(&self) -> &Arc<StatsRegistry> {
        &self.stats
    }

    /// Nothing of a service's prompts is of use any more: it has no replicas.
    pub fn forget_prompts(&self, run: RunId) {
        self.prefixes.forget_service(run);
    }

    /// Whether memory is held for the prompts of a service.
    pub fn remembers_prompts(&self, run: RunId) -> bool {
        self.prefixes.has_service(run)
    }

    /// The first answer that a replica begins; `prompt`: what chooses the first one.
    async fn answered(
        &self,
        service: &Service,
        outgoing: &mut Outgoing,
        prompt: Option<&Prompt>,
    ) -> Result<(Answered, Visit), Refusal> {
        let mut tries = Tries::preferring(match prompt {
            Some(prompt) => self.prefixes.place_for(service, prompt),
            None => None,
        });
        let mut refused = NO_REPLICA;
        let split = service.split.as_deref();
        let side = split.map(|split| (split, split.side(outgoing.headers(), &self.random)));
        while let Some(choice) = tries.next_on(&service.replicas, &self.random, side) {
            let Some(replica) = service.replicas.get(choice.place) else {
                break;
            };
            let Some(mut visit) = Visit::begin(replica) else {
                tries.leave_out(choice.place);
                continue;
            };
            if let Some(prompt) = prompt {
                self.prefixes.note(service, prompt, replica);
            }
            let attempt = Attempt {
                fresh: choice.fresh,
                repeatable: !choice.last,
                silence: service.read_timeout,
            };
            let waiting = split.map(|split| Waiting::begin(split.tally(replica.id), &outgoing.body));
            let answered = attempt.make(&mut visit, outgoing).await;
            if let Some(waiting) = waiting {
                waiting.over();
            }
            if let Some(prompt) = prompt
                && answered
                    .as_ref()
                    .map_or(true, |(head, _)| is_overloaded(head.status()))
            {
                // Otherwise whoever is done soonest, since it answers nothing, would keep its conversations.
                self.prefixes.forget(service, prompt, replica);
            }
            match answered {
                Ok(answered) => return Ok((answered, visit)),
                Err(failure) => {
                    if let Some(split) = split.filter(|_| failure.is_of_replica()) {
                        split.tally(replica.id).failed();
                    }
                    refused = refusal_of(failure);
                    tries.note(choice.place, failure);
                    if !may_repeat(failure, outgoing) {
                        break;
                    }
                }
            }
        }
        Err(match tries.may_have_arrived() {
            true => refused,
            false => refused.not_received(),
        })
    }
}

impl Forwarder {
    /// The service once it has a replica; `None`: it has one, or gets none by requests.
    async fn started(&self, service: &Service) -> Option<Result<Arc<Service>, Refusal>> {
        let starter = self.starter.as_ref()?;
        if !service.starts_on_request || service.has_replicas() {
            return None;
        }
        let started = tokio::time::timeout(service.read_timeout, starter.start(service));
        Some(match started.await {
            Ok(Some(service)) => Ok(service),
            Ok(None) => Err(NO_REPLICA.not_received()),
            Err(_) => Err(NOT_STARTED.not_received()),
        })
    }

    /// A replica that was just started may get requests before it listens: until then it is asked again.
    async fn first_answer(
        &self,
        service: &Service,
        outgoing: &mut Outgoing,
        prompt: Option<&Prompt>,
        listens_by: Instant,
    ) -> Result<(Answered, Visit), Refusal> {
        loop {
            let answered = self.answered(service, outgoing, prompt).await;
            let next = Instant::now() + UNTIL_IT_LISTENS;
            match answered {
                Err(refused)
                    if refused.not_received.is_some() && service.has_replicas() && next < listens_by =>
                {
                    sleep_until(next).await;
                }
                answered => return answered,
            }
        }
    }

    /// `listens_by`: replicas have until then to listen.
    async fn pass_on(
        &self,
        service: &Service,
        mut request: UnderWay,
        listens_by: Option<Instant>,
    ) -> Response<ProxyBody> {
        let prompt = match request.prompt(service.read_timeout).await {
            Ok(prompt) => prompt,
            Err(failure) => return request.refuse(refusal_of(failure)),
        };
        let (outgoing, prompt) = (&mut request.outgoing, prompt.as_ref());
        let answered = match listens_by {
            Some(by) => self.first_answer(service, outgoing, prompt, by).await,
            None => self.answered(service, outgoing, prompt).await,
        };
        match answered {
            Ok(((response, sender), visit)) => {
                let (head, body) = response.into_parts();
                let UnderWay {
                    outgoing,
                    mut record,
                    permit,
                    ..
                } = request;
                record.answered_by(visit.replica().id);
                record.count_for(
                    service
                        .split
                        .as_ref()
                        .map(|split| split.tally(visit.replica().id)),
                );
                let answer = Answer {
                    head,
                    body,
                    sender,
                    visit,
                    record,
                    permit,
                };
                answer.pass_on(outgoing, service)
            }
            Err(refused) => request.refuse(refused),
        }
    }
}

#[async_trait]
impl Forward for Forwarder {
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let started = Instant::now();
        let access = self
            .logs_access
            .then(|| Access::new(service, request.method(), request.uri(), request.extensions()));
        let room = self.prefixes.room_for(service, &request);
        let outgoing = match Outgoing::new(request) {
            Ok(outgoing) => outgoing,
            Err(Unclear(status, detail)) => return Refusal::of(status, detail).response(),
        };
        let mut record = self.stats.begin(service.run_id, started);
        record.log(access);
        let Some(permit) = self.left.take(outgoing.upgrade.is_some()) else {
            return refuse(TOO_MANY.not_received(), record, outgoing);
        };
        let mut request = UnderWay {
            outgoing,
            record,
            permit,
            room,
        };
        match self.started(service).await {
            None => self.pass_on(service, request, None).await,
            Some(Ok(service)) => {
                request.record.waited_for_start();
                let listens_by = later(started, service.read_timeout);
                self.pass_on(&service, request, Some(listens_by)).await
            }
            Some(Err(refused)) => request.refuse(refused),
        }
    }
}

/// Whether a replica has answered so because it cannot compute anything now.
fn is_overloaded(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// A request that is counted, and has one of the places that there are for requests.
struct UnderWay {
    outgoing: Outgoing,
    record: Record,
    permit: Permit,
    /// It is read for its prompt; until it is answered.
    room: Option<Room>,
}

impl UnderWay {
    /// The prompt by which its replica is chosen, if it is; read within this time.
    async fn prompt(&mut self, limit: Duration) -> Result<Option<Prompt>, Failure> {
        if self.room.is_none() {
            return Ok(None);
        }
        let gathered = self.outgoing.body.gather(MAX_BODY_BYTES);
        match tokio::time::timeout(limit, gathered).await {
            Ok(Ok(bytes)) => Ok(Prompt::read(&bytes)),
            Ok(Err(error)) => {
                tracing::debug!(error = %dstack_system::chain(error.as_ref()), "a request has broken off");
                Err(Failure::ClientBroken)
            }
            Err(_) => Err(Failure::ClientSilent),
        }
    }

    fn refuse(self, refused: Refusal) -> Response<ProxyBody> {
        refuse(refused, self.record, self.outgoing)
    }
}

fn refuse(refused: Refusal, mut record: Record, outgoing: Outgoing) -> Response<ProxyBody> {
    record.answered(refused.status);
    drop(outgoing.body.settle()); // the rest of it is of no use
    refused.response()
}

/// An answer of the proxy itself.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    status: StatusCode,
    detail: &'static str,
    not_received: Option<NotReceived>,
    /// It may be asked again in a second.
    again_soon: bool,
}

impl Refusal {
    const fn of(status: StatusCode, detail: &'static str) -> Self {
        Self {
            status,
            detail,
            not_received: None,
            again_soon: false,
        }
    }

    /// No replica has got the request.
    fn not_received(mut self) -> Self {
        let of_replicas = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE];
        self.not_received = of_replicas.contains(&self.status).then_some(NotReceived);
        self
    }

    fn response(self) -> Response<ProxyBody> {
        let mut response = refusal(self.status, self.detail);
        if let Some(marker) = self.not_received {
            response.extensions_mut().insert(marker);
        }
        if self.again_soon {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

const NO_REPLICA: Refusal = Refusal::of(StatusCode::SERVICE_UNAVAILABLE, "The service has no replicas");
const NOT_STARTED: Refusal = Refusal {
    again_soon: true,
    ..Refusal::of(
        StatusCode::SERVICE_UNAVAILABLE,
        "No replica of the service has become ready in time",
    )
};
const TOO_MANY: Refusal = Refusal {
    again_soon: true,
    ..Refusal::of(
        StatusCode::SERVICE_UNAVAILABLE,
        "Too many requests to services are under way",
    )
};
const FAILED: Refusal = Refusal::of(StatusCode::BAD_GATEWAY, "Error requesting upstream");

const fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Unreachable | Failure::NotSent | Failure::Closed | Failure::Broken => FAILED,
        Failure::Silent => Refusal::of(StatusCode::GATEWAY_TIMEOUT, "Timed out requesting upstream"),
        Failure::ClientSilent => Refusal::of(StatusCode::REQUEST_TIMEOUT, "Timed out reading the request"),
        Failure::ClientBroken => Refusal::of(StatusCode::BAD_REQUEST, "The request has broken off"),
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
    permit: Permit,
}

impl Answer {
    fn pass_on(mut self, outgoing: Outgoing, service: &Service) -> Response<ProxyBody> {
        let silence = service.read_timeout;
        if service.shares_origin {
            headers::spare_origin(&mut self.head.headers);
        }
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
            permit,
        } = self;
        let sent = outgoing.body.settle();
        let lease = Lease {
            sender,
            visit,
            sent,
            record,
            keep_alive,
            permit,
        };
        Response::from_parts(head, body_to_client(body, lease, silence))
    }

    /// What came is no answer.
    fn refused(mut self) -> Response<ProxyBody> {
        self.visit.failed();
        self.record.answered(FAILED.status);
        FAILED.response()
    }

    fn upgrade(mut self, client: OnUpgrade, replica: OnUpgrade, silence: Duration) -> Response<ProxyBody> {
        headers::to_client(&mut self.head.headers, framing::Framing::Unsaid);
        ask_for_websocket(&mut self.head.headers);
        self.begin();
        let Self {
            head,
            visit,
            record,
            permit,
            ..
        } = self;
        Tunnel {
            client,
            replica,
            visit,
            record,
            silence,
            permit,
        }
        .start();
        Response::from_parts(head, empty())
    }

    fn begin(&mut self) {
        self.record.answered(self.head.status);
        if self.head.status.is_success() && is_of_type(&self.head.headers, "text/event-stream") {
            self.record.streams();
        }
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
