//! Plays AWS for tests: EC2, Elastic Load Balancing, STS, IAM and Service Quotas, as far as the backend needs them, in one account.
//!
//! `api.json` has the vendor's service descriptions of those calls (botocore, API versions 2016-11-15, 2015-12-01, 2011-06-15,
//! 2010-05-08 and 2019-06-24) without prose. What they forbid is refused, and answers are written by them. Beyond them, the cloud behaves as the
//! vendor's user guides say: signatures are checked, tokens make calls that are carried out once, capacity is by zone and quotas by
//! vCPU, lists lag, and states change with time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)] // tests

mod addresses;
mod auth;
mod balancers;
mod description;
mod instances;
mod lists;
mod networks;
mod others;
mod state;
mod sts;
mod volumes;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use auth::{Key, Refusal, Scope};
use description::DESCRIPTION;
use state::{Cloud, End};
use sts::{Role, USER};

pub use state::{Reservation, Times};

/// A type of instances.
#[derive(Debug, Clone)]
pub struct Size {
    /// Its name, such as `t3.medium`.
    pub name: String,
    /// vCPUs, which count against quotas.
    pub vcpus: i64,
    /// Most EFA interfaces; 0: none.
    pub max_efa: u32,
}

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Aws(Arc<Shared>);

/// Gives each new instance, by its user data, a machine that can be reached at this address; `None`: there is none left.
pub type GiveMachine = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

struct Shared {
    key: Key,
    /// Those that the account may use.
    regions: Vec<String>,
    sizes: Vec<Size>,
    /// Unset: instances have addresses of nobody.
    give_machine: Option<GiveMachine>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// A call of the account.
struct Call<'a> {
    aws: &'a Aws,
    region: &'a str,
    /// By whose key it is signed.
    key_id: &'a str,
    input: Value,
    /// All that it was asked with.
    digest: String,
}

/// The answer by the names of the description's members.
type Answer = Result<Value, Problem>;

/// An answer of AWS that refuses a call: HTTP status, code and message as its APIs write them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    status: u16,
    code: String,
    message: String,
}

impl Problem {
    fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
        }
    }
}

impl Aws {
    /// A cloud whose account has this key, in these regions, with these types of instances.
    pub fn new(key_id: &str, secret: &str, regions: &[&str], sizes: Vec<Size>) -> Self {
        Self::with_times(key_id, secret, regions, sizes, state::USUAL)
    }

    /// As [`Aws::with_times`], with machines that somebody gives.
    pub fn with_machines(
        key_id: &str,
        secret: &str,
        regions: &[&str],
        sizes: Vec<Size>,
        times: Times,
        give_machine: GiveMachine,
    ) -> Self {
        Self::with_all(key_id, secret, regions, sizes, times, Some(give_machine))
    }

    /// As [`Aws::new`], in which things take so long.
    pub fn with_times(key_id: &str, secret: &str, regions: &[&str], sizes: Vec<Size>, times: Times) -> Self {
        Self::with_all(key_id, secret, regions, sizes, times, None)
    }

    fn with_all(
        key_id: &str,
        secret: &str,
        regions: &[&str],
        sizes: Vec<Size>,
        times: Times,
        give_machine: Option<GiveMachine>,
    ) -> Self {
        Self(Arc::new(Shared {
            key: Key {
                id: key_id.to_owned(),
                secret: secret.to_owned(),
                session_token: None,
                is_over: false,
            },
            regions: regions.iter().map(|region| (*region).to_owned()).collect(),
            sizes,
            give_machine,
            ledger: Ledger::default(),
            state: Mutex::new(Cloud::new(times)),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A zone takes so many more instances.
    pub fn set_free(&self, zone: &str, instances: usize) {
        self.lock().free.insert(zone.to_owned(), instances);
    }

    /// What was made for a token before is made again for it: that long ago it was.
    pub fn forget_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// A quota, in vCPUs, by its code.
    pub fn set_quota(&self, code: &str, vcpus: f64) {
        self.lock().quotas.insert(code.to_owned(), vcpus);
    }

    /// The key may not make this call, such as `ec2:RunInstances`.
    pub fn deny(&self, call: &str) {
        self.lock().denied.insert(call.to_owned());
    }

    /// A policy or the account's own settings close the region: its calls are answered as those of a region that is not enabled.
    pub fn close_region(&self, region: &str) {
        self.lock().closed_regions.insert(region.to_owned());
    }

    /// All regions of the account can be used again.
    pub fn open_regions(&self) {
        self.lock().closed_regions.clear();
    }

    /// There is an instance profile of this name.
    pub fn add_profile(&self, name: &str) {
        self.lock().profiles.insert(name.to_owned());
    }

    /// Somebody has reserved capacity.
    pub fn add_reservation(&self, reservation: Reservation) {
        self.lock().reservations.push(reservation);
    }

    /// All spot instances are to be taken back, and their owners are told.
    pub fn interrupt_spot(&self) {
        for instance in &mut self.lock().instances {
            if instance.spot_request.is_some() && instance.end.is_none() {
                instance.interrupted_at = Some(Instant::now());
            }
        }
    }

    /// What is there now is not in the books: tests look at what is made later.
    pub fn write_off(&self) {
        for entry in self.0.ledger.alive() {
            self.0.ledger.removed(&entry.id);
        }
    }

    /// Parameters with which instances were made: image, user data, interfaces, for a look at what was asked for.
    pub fn instances(&self) -> Vec<Value> {
        let cloud = self.lock();
        let shown = cloud.instances.iter().map(|one| {
            json!({"id": one.id, "zone": one.zone, "image": one.image, "user_data": one.user_data, "size": one.size,
                "placement_group": one.placement_group, "reservation": one.reservation, "spot": one.spot_request.is_some(),
                "interfaces": one.interfaces, "tags": one.tags, "state": one.state(cloud.times).0})
        });
        shown.collect()
    }

    /// Parameters with which load balancers and their listeners were made, for a look at what was asked for.
    pub fn load_balancers(&self) -> Vec<Value> {
        balancers::shown(&self.lock())
    }

    /// Ids of the machines in a region to which load balancers send requests.
    pub fn targets(&self, region: &str) -> Vec<String> {
        balancers::targets(&self.lock(), region)
    }

    /// Names of all security groups.
    pub fn security_groups(&self) -> Vec<String> {
        let cloud = self.lock();
        cloud
            .security_groups
            .iter()
            .map(|group| group.name.clone())
            .collect()
    }

    /// Session tokens that requests were signed with.
    pub fn session_tokens(&self) -> Vec<String> {
        self.lock().session_tokens.iter().cloned().collect()
    }

    /// Some account has this role, which whom its trust policy names may assume.
    pub fn add_role(&self, arn: &str, trust_policy: Value) {
        let role = Role {
            arn: arn.to_owned(),
            trust_policy,
        };
        self.lock().roles.push(role);
    }

    /// There is no such role any more. Its sessions go on.
    pub fn remove_role(&self, arn: &str) {
        self.lock().roles.retain(|role| role.arn != arn);
    }

    /// No policy allows the account's key anything but to assume roles.
    pub fn set_roles_only(&self) {
        self.lock().has_roles_only = true;
    }

    /// The roles that were assumed, and the names of their sessions.
    pub fn sessions(&self) -> Vec<(String, String)> {
        let cloud = self.lock();
        let sessions = cloud.sessions.iter();
        sessions
            .map(|session| (session.role.clone(), session.name.clone()))
            .collect()
    }

    /// All sessions are over, before the end that was said of them, as soon as one makes this call, such as `ec2:RunInstances`.
    pub fn end_sessions_at(&self, call: &str) {
        self.lock().sessions_end_at = Some(call.to_owned());
    }

    /// Whether the call has been made at which sessions were to end.
    pub fn sessions_have_ended(&self) -> bool {
        self.lock().sessions_end_at.is_none()
    }

    /// Somebody deletes all security groups.
    pub fn delete_security_groups(&self) {
        self.lock().security_groups.clear();
    }

    fn settle(&self) {
        let gone = self.lock().settle();
        for id in gone {
            self.0.ledger.removed(&id);
        }
    }

    fn answer(&self, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Response {
        let request_id = format!("{:08x}-0000-4000-8000-000000000000", body.len());
        let scope = match auth::check(&self.keys(), uri, headers, body) {
            Ok(scope) => scope,
            Err(refusal) => return refused(&refusal, &request_id),
        };
        if let Some(token) = headers.get("x-amz-security-token") {
            let token = String::from_utf8_lossy(token.as_bytes()).into_owned();
            self.lock().session_tokens.insert(token);
        }
        self.settle();
        let (action, fields) = match read_call(&scope, headers, body) {
            Ok(call) => call,
            Err(problem) => return written(&scope.service, &problem, &request_id),
        };
        if self.ends_sessions(&scope, &action) {
            return refused(&Refusal::Expired(scope), &request_id);
        }
        let signed_at = headers["x-amz-date"].to_str().unwrap();
        let answer = self.carry_out(&scope, &action, &fields, body, signed_at);
        self.settle();
        match answer {
            Ok(answer) if scope.service == "servicequotas" => (
                [(header::CONTENT_TYPE, "application/x-amz-json-1.1")],
                answer.to_string(),
            )
                .into_response(),
            Ok(answer) => {
                let text = DESCRIPTION.write(&scope.service, &action, &answer, &request_id);
                ([(header::CONTENT_TYPE, "text/xml;charset=UTF-8")], text).into_response()
            }
            Err(problem) => written(&scope.service, &problem, &request_id),
        }
    }

    /// Whether all sessions have ended just now, with the one that this call is made in.
    fn ends_sessions(&self, scope: &Scope, action: &str) -> bool {
        let mut cloud = self.lock();
        let call = format!("{}:{action}", scope.service);
        let is_now =
            scope.key_id != self.0.key.id && cloud.sessions_end_at.take_if(|at| *at == call).is_some();
        if is_now {
            cloud.sessions.iter_mut().for_each(sts::Session::end);
        }
        is_now
    }

    /// Those of the account and of its sessions.
    fn keys(&self) -> Vec<Key> {
        let cloud = self.lock();
        let sessions = cloud.sessions.iter().map(sts::Session::key);
        sessions.chain([self.0.key.clone()]).collect()
    }

    fn carry_out(
        &self,
        scope: &Scope,
        action: &str,
        fields: &[(String, String)],
        body: &[u8],
        signed_at: &str,
    ) -> Answer {
        let service = scope.service.as_str();
        let is_closed = self.lock().closed_regions.contains(&scope.region) && action != "DescribeRegions";
        if matches!(service, "ec2" | "elasticloadbalancing")
            && (is_closed || !self.0.regions.contains(&scope.region))
        {
            return Err(Problem::new(
                401,
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            ));
        }
        let may_assume_only = scope.key_id == self.0.key.id && self.lock().has_roles_only;
        if self.lock().denied.contains(&format!("{service}:{action}"))
            || (may_assume_only && service != "sts")
        {
            return Err(denied(service, action));
        }
        let input = match service {
            "servicequotas" => serde_json::from_slice(body)
                .map_err(|_| Problem::new(400, "SerializationException", "not JSON"))?,
            _ => DESCRIPTION.read(service, action, fields)?,
        };
        let mut sorted: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        sorted.sort();
        let call = Call {
            aws: self,
            region: &scope.region,
            key_id: &scope.key_id,
            input,
            digest: sorted.join("\n"),
        };
        let mut cloud = self.lock();
        match (service, action) {
            ("ec2", action) => ec2(&mut cloud, action, &call),
            ("elasticloadbalancing", action) => balancers::elb(&mut cloud, action, &call),
            ("sts", action) => sts::sts(&mut cloud, action, &call, signed_at),
            ("iam", _) => others::get_instance_profile(&cloud, &call),
            _ => others::get_service_quota(&cloud, &call),
        }
    }
}

fn ec2(cloud: &mut Cloud, action: &str, call: &Call<'_>) -> Answer {
    match action {
        "RunInstances" => instances::run(cloud, call),
        "DescribeInstances" => instances::describe(cloud, call),
        "TerminateInstances" => instances::terminate(cloud, call),
        "DescribeSpotInstanceRequests" => instances::describe_spot_requests(cloud, call),
        "DescribeInstanceTypes" => instances::describe_types(call),
        "DescribeCapacityReservations" => others::describe_reservations(cloud, call),
        "DescribeImages" => others::describe_images(call),
        "DescribeAvailabilityZones" => others::describe_zones(call),
        "DescribeRegions" => Ok(others::describe_regions(call)),
        "CreatePlacementGroup" => others::create_placement_group(cloud, call),
        "DescribePlacementGroups" => others::describe_placement_groups(cloud, call),
        "DeletePlacementGroup" => others::delete_placement_group(cloud, call),
        "DescribeVpcs" => networks::describe_vpcs(call),
        "DescribeSubnets" => networks::describe_subnets(call),
        "DescribeRouteTables" => networks::describe_route_tables(call),
        "DescribeSecurityGroups" => networks::describe_security_groups(cloud, call),
        "CreateSecurityGroup" => networks::create_security_group(cloud, call),
        "AuthorizeSecurityGroupIngress" => networks::authorize(cloud, call, false),
        "AuthorizeSecurityGroupEgress" => networks::authorize(cloud, call, true),
        "AllocateAddress" => addresses::allocate(cloud, call),
        "AssociateAddress" => addresses::associate(cloud, call),
        "DescribeAddresses" => addresses::describe(cloud, call),
        "DisassociateAddress" => addresses::disassociate(cloud, call),
        "ReleaseAddress" => addresses::release(cloud, call),
        "CreateVolume" => volumes::create(cloud, call),
        "DescribeVolumes" => volumes::describe(cloud, call),
        "AttachVolume" => volumes::attach(cloud, call),
        "DetachVolume" => volumes::detach(cloud, call),
        "DeleteVolume" => volumes::delete(cloud, call),
        other => panic!("{other} is described and not played"),
    }
}

/// Action and parameters of a call.
fn read_call(
    scope: &Scope,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(String, Vec<(String, String)>), Problem> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if scope.service == "servicequotas" {
        let target = header("x-amz-target").and_then(|target| target.strip_prefix("ServiceQuotasV20190624."));
        let is_json = header("content-type") == Some("application/x-amz-json-1.1");
        let target = target.filter(|_| is_json);
        let target = target.ok_or_else(|| Problem::new(400, "UnknownOperationException", ""))?;
        return Ok((target.to_owned(), Vec::new()));
    }
    let fields: Vec<(String, String)> = url::form_urlencoded::parse(body).into_owned().collect();
    let field = |name: &str| {
        fields
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    let is_form =
        header("content-type").is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    let version = DESCRIPTION.version(&scope.service);
    match field("Action") {
        Some(action) if is_form && field("Version").as_deref() == Some(version) => Ok((action, fields)),
        _ => Err(Problem::new(
            400,
            "InvalidAction",
            "Action and Version of this service are required",
        )),
    }
}

fn denied(service: &str, action: &str) -> Problem {
    let code = match service {
        "ec2" => "UnauthorizedOperation",
        "servicequotas" => "AccessDeniedException",
        _ => "AccessDenied",
    };
    Problem::new(
        403,
        code,
        format!(
            "You are not authorized to perform this operation. User: {USER} is not authorized to perform: \
             {service}:{action} on resource: * because no identity-based policy allows the {service}:{action} action"
        ),
    )
}

fn refused(refusal: &Refusal, request_id: &str) -> Response {
    let of_ec2 = || {
        Problem::new(
            401,
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
        )
    };
    let (service, problem) = match refusal {
        Refusal::Missing => (
            "sts",
            Problem::new(
                403,
                "MissingAuthenticationToken",
                "Request is missing Authentication Token",
            ),
        ),
        Refusal::Incomplete => (
            "sts",
            Problem::new(400, "IncompleteSignature", "Authorization header is incomplete"),
        ),
        Refusal::UnknownKey(scope) | Refusal::WrongSignature(scope) if scope.service == "ec2" => {
            ("ec2", of_ec2())
        }
        Refusal::UnknownKey(scope) => (
            scope.service.as_str(),
            Problem::new(
                403,
                match scope.service.as_str() {
                    "servicequotas" => "UnrecognizedClientException",
                    _ => "InvalidClientTokenId",
                },
                "The security token included in the request is invalid.",
            ),
        ),
        Refusal::Expired(scope) => {
            let code = match scope.service.as_str() {
                "ec2" => "RequestExpired",
                "servicequotas" => "ExpiredTokenException",
                _ => "ExpiredToken",
            };
            let status = if scope.service == "sts" { 403 } else { 400 };
            let text = "The security token included in the request is expired";
            (scope.service.as_str(), Problem::new(status, code, text))
        }
        Refusal::WrongSignature(scope) => (
            scope.service.as_str(),
            Problem::new(
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.",
            ),
        ),
    };
    written(service, &problem, request_id)
}

/// As each protocol writes errors.
fn written(service: &str, problem: &Problem, request_id: &str) -> Response {
    let Problem {
        status,
        code,
        message,
    } = problem;
    let status = StatusCode::from_u16(*status).unwrap();
    let (kind, text) = match service {
        "servicequotas" => (
            "application/x-amz-json-1.1",
            json!({"__type": code, "Message": message}).to_string(),
        ),
        "ec2" => (
            "text/xml;charset=UTF-8",
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>\
                 </Error></Errors><RequestID>{request_id}</RequestID></Response>"
            ),
        ),
        _ => (
            "text/xml",
            format!(
                "<ErrorResponse xmlns=\"https://{service}.amazonaws.com/doc/\"><Error><Type>Sender</Type><Code>{code}</Code>\
                 <Message>{message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
            ),
        ),
    };
    (status, [(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn call(State(aws): State<Aws>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    aws.answer(&uri, &headers, &body)
}

impl Emulator for Aws {
    fn router(&self) -> Router {
        Router::new().route("/", post(call)).with_state(self.clone())
    }

    fn ledger(&self) -> &Ledger {
        self.settle();
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().sold_out = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        let mut cloud = self.lock();
        for instance in &mut cloud.instances {
            instance.end.get_or_insert(End {
                at: Instant::now(),
                code: "Server.InternalError",
                message: "Server.InternalError: Internal error",
            });
        }
        for volume in &mut cloud.volumes {
            volume.has_failed = true;
        }
    }
}
