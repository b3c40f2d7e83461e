//! The API as far as it is used. All kinds of things have the same calls: get, find by name, list, create, delete. Creations and removals
//! answer with an operation, of which is asked where it was begun.

use std::collections::HashMap;

use dstack_backend::{Env, Made};
use dstack_compute::config::NebiusCreds;
use dstack_compute::{Call, ComputeError};
use dstack_http::{ApiClient, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_system::Random;
use http::HeaderName;
use http::header::AUTHORIZATION;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::errors::{not_made, told};
use crate::grpc::{Code, Error, Refusal, call};
use crate::messages::{
    ById, ByName, Create, Estimate, Estimated, EstimatedResource, InstanceSpec, List, ListPlatforms,
    ListTenants, Metadata, Operation, Page, SoldPlatform, Stated, Thing,
};
use crate::token::{Account, Tokens};

/// Entries of a page; dstack 0.22.5 asks for 999.
const PAGE: i64 = 500;

/// More than any project has: an API that never says that a page is the last is not asked for ever.
const MOST_PAGES: usize = 500;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// A kind of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tenant,
    Project,
    Subnet,
    Instance,
    Disk,
    Cluster,
    PricingPolicy,
}

impl Kind {
    /// Version 1 of tenants and projects is there until December 2026.
    const fn service(self) -> &'static str {
        match self {
            Self::Tenant => "nebius.iam.v2.TenantService",
            Self::Project => "nebius.iam.v2.ProjectService",
            Self::Subnet => "nebius.vpc.v1.SubnetService",
            Self::Instance => "nebius.compute.v1.InstanceService",
            Self::Disk => "nebius.compute.v1.DiskService",
            Self::Cluster => "nebius.compute.v1.GpuClusterService",
            Self::PricingPolicy => "nebius.billing.v1.PricingPolicyService",
        }
    }

    const fn api(self) -> Api {
        match self {
            Self::Tenant | Self::Project => Api::Iam,
            Self::Subnet => Api::Vpc,
            Self::Instance | Self::Disk | Self::Cluster => Api::Compute,
            Self::PricingPolicy => Api::Billing,
        }
    }

    /// Whether one in this state is being removed.
    pub(crate) const fn is_ending(self, state: i32) -> bool {
        match self {
            Self::Instance => state == 7,
            Self::Disk => state == 4,
            Self::PricingPolicy => state == 3,
            Self::Project => state == 3,
            Self::Tenant | Self::Subnet | Self::Cluster => false,
        }
    }
}

/// A part of the API, at an address of its own.
#[derive(Debug, Clone, Copy)]
enum Api {
    Compute,
    Iam,
    Vpc,
    Billing,
    Calculator,
}

const COMPUTE: &str = "https://compute.api.nebius.cloud";
const IAM: &str = "https://cpl.iam.api.nebius.cloud";
const TOKENS: &str = "https://tokens.iam.api.nebius.cloud";
const VPC: &str = "https://vpc.api.nebius.cloud";
const CALCULATOR: &str = "https://api.calculator.billing-data-plane.api.nebius.cloud";
const BILLING: &str = "https://pricing-policies.billing-cpl.api.nebius.cloud";

/// What is noted of a thing that is being made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) made: Made,
    /// Empty: the answer with it was lost.
    pub(crate) operation: String,
}

impl Begun {
    /// Of which nothing was noted.
    pub(crate) const fn long_ago(id: String) -> Self {
        Self {
            made: Made::long_ago(id),
            operation: String::new(),
        }
    }
}

impl Thing {
    /// As its kind numbers its states; 0: it tells none.
    pub(crate) fn state(&self, kind: Kind) -> i32 {
        match kind {
            Kind::Cluster => 0,
            _ => Stated::decode(self.status.as_slice()).map_or(0, |stated| stated.state),
        }
    }
}

/// The API as one service account.
#[derive(Debug)]
pub(crate) struct Client {
    compute: ApiClient,
    iam: ApiClient,
    vpc: ApiClient,
    billing: ApiClient,
    calculator: ApiClient,
    tokens: Tokens,
    random: Random,
}

impl Client {
    /// # Errors
    /// The field of the credentials that cannot be used, and what is wrong with it.
    pub(crate) fn new(env: &Env, creds: &NebiusCreds) -> Result<Self, (&'static str, String)> {
        let account = Account::of(creds).map_err(|(field, why)| (field, why.to_owned()))?;
        let api = |base: &str| {
            let client = env.api(BackendType::Nebius, base, ApiLimits::default());
            client.map_err(|why| ("service_account_id", why))
        };
        Ok(Self {
            compute: api(COMPUTE)?,
            iam: api(IAM)?,
            vpc: api(VPC)?,
            billing: api(BILLING)?,
            calculator: api(CALCULATOR)?,
            tokens: Tokens::new(api(TOKENS)?, env, account),
            random: env.random.clone(),
        })
    }

    const fn api(&self, api: Api) -> (&'static str, &ApiClient) {
        match api {
            Api::Compute => ("compute", &self.compute),
            Api::Iam => ("iam", &self.iam),
            Api::Vpc => ("vpc", &self.vpc),
            Api::Billing => ("billing", &self.billing),
            Api::Calculator => ("calculator", &self.calculator),
        }
    }

    /// Fetches a token, unless there is one: what is noted before it is asked for does not wait for that.
    pub(crate) async fn prepare(&self) -> Result<(), ComputeError> {
        told(self.tokens.get(None).await.map(drop))
    }

    async fn ask<A: Message + Default>(
        &self,
        api: Api,
        method: &str,
        ask: &impl Message,
        key: Option<&str>,
    ) -> Result<A, Error> {
        let (name, api) = self.api(api);
        let mut refused = None;
        loop {
            let token = self.tokens.get(refused.as_ref()).await?;
            let bearer = format!("Bearer {}", token.expose());
            let begin = || {
                let request = api.post(method).header(AUTHORIZATION, &bearer);
                match key {
                    Some(key) => request.header(IDEMPOTENCY_KEY, key),
                    None => request,
                }
            };
            match call(name, begin, ask).await {
                // It may have been revoked.
                Err(Error::Status(Refusal {
                    code: Code::Unauthenticated,
                    ..
                })) if refused.is_none() => refused = Some(token),
                answer => return answer,
            }
        }
    }

    /// A change, which is made once however often it is sent.
    async fn change(&self, kind: Kind, verb: &str, ask: &impl Message) -> Result<Operation, Error> {
        let method = format!("{}/{verb}", kind.service());
        let key = self.random.uuid().to_string();
        self.ask(kind.api(), &method, ask, Some(&key)).await
    }

    /// `None`: the API says that there is none.
    pub(crate) async fn get<A: Message + Default>(
        &self,
        kind: Kind,
        id: &str,
    ) -> Result<Option<A>, ComputeError> {
        let (method, ask) = (format!("{}/Get", kind.service()), ById { id: id.to_owned() });
        told(known(self.ask(kind.api(), &method, &ask, None).await))
    }

    pub(crate) async fn named<A: Message + Default>(
        &self,
        kind: Kind,
        project: &str,
        name: &str,
    ) -> Result<Option<A>, ComputeError> {
        let method = format!("{}/GetByName", kind.service());
        let ask = ByName {
            parent_id: project.to_owned(),
            name: name.to_owned(),
        };
        told(known(self.ask(kind.api(), &method, &ask, None).await))
    }

    /// All of a kind in a project, or in a tenant.
    pub(crate) async fn list<A: Message + Default>(&self, kind: Kind, parent: &str) -> Result<Vec<A>, Error> {
        let method = format!("{}/List", kind.service());
        match kind {
            Kind::Tenant => {
                let ask = |page_token| ListTenants {
                    page_size: PAGE,
                    page_token,
                };
                self.pages(kind.api(), &method, ask).await
            }
            _ => {
                let ask = |page_token| List {
                    parent_id: parent.to_owned(),
                    page_size: PAGE,
                    page_token,
                };
                self.pages(kind.api(), &method, ask).await
            }
        }
    }

    /// What is sold in the region of a project.
    pub(crate) async fn platforms(&self, project: &str) -> Result<Vec<SoldPlatform>, Error> {
        let ask = |page_token| ListPlatforms {
            page_size: PAGE,
            page_token,
            parent_id: project.to_owned(),
        };
        let method = "nebius.compute.v1.PlatformService/List";
        self.pages(Api::Compute, method, ask).await
    }

    /// What a machine costs in dollars an hour, as the calculator tells it: empty where it tells nothing.
    pub(crate) async fn hourly_cost(&self, project: &str, spec: &InstanceSpec) -> Result<String, Error> {
        let create = Create {
            metadata: Some(Metadata {
                parent_id: project.to_owned(),
                ..Metadata::default()
            }),
            spec: spec.encode_to_vec(),
        };
        let ask = Estimate {
            resource_spec: Some(EstimatedResource {
                compute_instance_spec: Some(create),
            }),
        };
        let method = "nebius.billing.v1alpha1.CalculatorService/Estimate";
        let told: Estimated = self.ask(Api::Calculator, method, &ask, None).await?;
        let cost = told.hourly_cost.and_then(|cost| cost.general?.total);
        Ok(cost.map(|cost| cost.cost).unwrap_or_default())
    }

    /// All pages of a list.
    async fn pages<A: Message + Default, Q: Message>(
        &self,
        api: Api,
        method: &str,
        ask: impl Fn(String) -> Q,
    ) -> Result<Vec<A>, Error> {
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let page: Page = self.ask(api, method, &ask(next), None).await?;
            all.extend(page.items.iter().filter_map(|item| {
                let read = A::decode(item.as_slice());
                read.inspect_err(|error| tracing::warn!(method, %error, "Nebius lists what cannot be read"))
                    .ok()
            }));
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            next = page.next_page_token;
        }
        Err(Error::Http(dstack_http::ApiError::Malformed {
            api: "Nebius".to_owned(),
            details: format!("a list of more than {MOST_PAGES} pages"),
        }))
    }

    pub(crate) async fn create(
        &self,
        kind: Kind,
        project: &str,
        name: &str,
        labels: HashMap<String, String>,
        spec: &impl Message,
        call: &Call<'_>,
    ) -> Result<Begun, ComputeError> {
        let ask = Create {
            metadata: Some(Metadata {
                parent_id: project.to_owned(),
                name: name.to_owned(),
                labels,
                ..Metadata::default()
            }),
            spec: spec.encode_to_vec(),
        };
        let operation = self
            .change(kind, "Create", &ask)
            .await
            .map_err(|error| not_made(&error))?;
        match operation.resource_id.as_str() {
            // It is looked for.
            "" => Err(ComputeError::Unclear(
                "Nebius does not name what it makes".to_owned(),
            )),
            _ => Ok(Begun {
                made: Made::now(operation.resource_id, call),
                operation: operation.id,
            }),
        }
    }

    /// Begins to remove one.
    pub(crate) async fn delete(&self, kind: Kind, id: &str) -> Result<(), Error> {
        let ask = ById { id: id.to_owned() };
        known(self.change(kind, "Delete", &ask).await).map(drop)
    }

    /// What came of an operation; `None`: the API does not have it, yet or any more, or it is not known which it was.
    pub(crate) async fn operation(
        &self,
        kind: Kind,
        operation: &str,
    ) -> Result<Option<Operation>, ComputeError> {
        if operation.is_empty() {
            return Ok(None);
        }
        let ask = ById {
            id: operation.to_owned(),
        };
        let method = "nebius.common.v1.OperationService/Get";
        told(known(self.ask(kind.api(), method, &ask, None).await))
    }
}

/// What the API itself says is not there, is none.
fn known<A>(answer: Result<A, Error>) -> Result<Option<A>, Error> {
    match answer {
        Err(error) if error.is_missing() => Ok(None),
        answer => answer.map(Some),
    }
}
