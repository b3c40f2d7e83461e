//! Calls of AWS: the query protocol of EC2, STS and IAM (parameters as a form, answers in XML), and JSON 1.1 of Service Quotas.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dstack_backend::Env;
use dstack_compute::config::{AwsConfig, AwsRole};
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::HeaderName;
use http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::configure::regions;
use crate::errors::AwsError;
use crate::keys::{OwnKeys, RoleSessions, Session};
use crate::signing::{AccessKey, SigV4};
use crate::sts::{AssumedRole, Caller, assume_role, caller_identity};

/// Most that a page of a list may have of everything (`DescribeRouteTables` has the lowest bound).
const PAGE: &str = "100";

/// More pages than any list has: an API that always has another one is broken.
const MAX_PAGES: usize = 1000;

/// A service of AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    Ec2,
    Sts,
    Iam,
    /// Elastic Load Balancing of the second version: application load balancers.
    Elb,
    /// Service Quotas, which speaks JSON and not the query protocol.
    Quotas,
}

impl Service {
    /// As signatures and policies have it, and host names begin.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Sts => "sts",
            Self::Iam => "iam",
            Self::Elb => "elasticloadbalancing",
            Self::Quotas => "servicequotas",
        }
    }

    const fn version(self) -> &'static str {
        match self {
            Self::Ec2 => "2016-11-15",
            Self::Sts => "2011-06-15",
            Self::Iam => "2010-05-08",
            Self::Elb => "2015-12-01",
            Self::Quotas => "",
        }
    }

    /// Where it is.
    fn base(self, region: &str) -> String {
        let is_china = region.starts_with("cn-");
        let domain = if is_china {
            "amazonaws.com.cn"
        } else {
            "amazonaws.com"
        };
        match self {
            // It has one place in each partition.
            Self::Iam if region.starts_with("us-gov-") => "https://iam.us-gov.amazonaws.com".to_owned(),
            Self::Iam if is_china => format!("https://iam.{region}.{domain}"),
            Self::Iam => format!("https://iam.{domain}"),
            _ => format!("https://{}.{region}.{domain}", self.name()),
        }
    }
}

/// The region of those calls that are not about one, which all regions of the same partition have in common.
pub(crate) fn home_region(regions: &[String]) -> &'static str {
    let first = regions.first().map(String::as_str).unwrap_or_default();
    match first {
        region if region.starts_with("cn-") => "cn-north-1",
        region if region.starts_with("us-gov-") => "us-gov-west-1",
        _ => "us-east-1",
    }
}

/// A call of the query protocol.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    action: &'static str,
    fields: Vec<(String, String)>,
    filters: usize,
}

impl Form {
    pub(crate) fn new(action: &'static str) -> Self {
        Self {
            action,
            fields: Vec::new(),
            filters: 0,
        }
    }

    pub(crate) fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Unset: nothing is added.
    pub(crate) fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// `Name.1`, `Name.2`, ...
    pub(crate) fn list<'a>(self, name: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        let values = values.into_iter().enumerate();
        values.fold(self, |form, (at, value)| {
            form.with(format!("{name}.{}", at + 1), value)
        })
    }

    /// What is listed has one of these values.
    pub(crate) fn filter<'a>(mut self, name: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        self.filters += 1;
        let prefix = format!("Filter.{}", self.filters);
        self.with(format!("{prefix}.Name"), name)
            .list(&format!("{prefix}.Value"), values)
    }

    /// What is made carries these tags.
    pub(crate) fn tagged(self, resource: &str, tags: &[(String, String)]) -> Self {
        let form = self.with("TagSpecification.1.ResourceType", resource);
        tags.iter().enumerate().fold(form, |form, (at, (key, value))| {
            let tag = format!("TagSpecification.1.Tag.{}", at + 1);
            form.with(format!("{tag}.Key"), key)
                .with(format!("{tag}.Value"), value)
        })
    }

    #[cfg(test)]
    pub(crate) fn fields(&self) -> &[(String, String)] {
        &self.fields
    }
}

/// A list, of which answers have a page.
pub(crate) trait Page: DeserializeOwned {
    /// What is listed.
    type Item;

    /// Of this page, and what the next one is asked for with.
    fn into_items(self) -> (Vec<Self::Item>, Option<String>);
}

/// AWS as one account.
#[derive(Debug)]
pub(crate) struct Client {
    env: Env,
    keys: OwnKeys,
    role: Option<Role>,
    /// Where roles are assumed.
    home: &'static str,
    /// By service and region.
    apis: Mutex<HashMap<(Service, String), ApiClient>>,
}

/// A role that all calls are made in.
#[derive(Debug)]
struct Role {
    arn: String,
    external_id: Option<String>,
    sessions: RoleSessions,
}

/// What is sent to a service.
#[derive(Debug)]
struct Sent<'a> {
    service: Service,
    region: &'a str,
    /// As policies name it.
    call: String,
    body: Body<'a>,
    may_be_repeated: bool,
}

#[derive(Debug)]
enum Body<'a> {
    Form(Vec<(String, String)>),
    /// JSON 1.1, and what it is for.
    Json {
        target: String,
        body: &'a Value,
    },
}

impl<'a> Sent<'a> {
    fn form(service: Service, region: &'a str, form: Form, may_be_repeated: bool) -> Self {
        let mut fields = form.fields;
        fields.push(("Action".to_owned(), form.action.to_owned()));
        fields.push(("Version".to_owned(), service.version().to_owned()));
        Self {
            service,
            region,
            call: call_name(service, form.action),
            body: Body::Form(fields),
            may_be_repeated,
        }
    }
}

impl Client {
    pub(crate) fn new(env: &Env, config: &AwsConfig) -> Result<Self, String> {
        let AwsRole {
            role_arn,
            external_id,
        } = config.creds.role().clone();
        Ok(Self {
            env: env.clone(),
            keys: OwnKeys::of(&config.creds)?,
            role: role_arn.map(|arn| Role {
                arn,
                external_id,
                sessions: RoleSessions::new(Arc::clone(&env.clock)),
            }),
            home: home_region(&regions(config)),
            apis: Mutex::default(),
        })
    }

    /// Who the credentials of the configuration are, before they assume a role.
    pub(crate) async fn caller(&self) -> Result<Caller, AwsError> {
        self.with_own_keys(caller_identity()).await
    }

    /// Sees to it that there is a session of the role, if there is one.
    pub(crate) async fn assume_role(&self) -> Result<(), AwsError> {
        match &self.role {
            Some(role) => self.role_key(role).await.map(drop),
            None => Ok(()),
        }
    }

    /// A call that changes nothing, or to no effect when it is made again: it is repeated when it fails.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        form: Form,
    ) -> Result<T, AwsError> {
        self.query(service, region, form, true).await
    }

    /// A call that changes something: it is made once.
    pub(crate) async fn change<T: DeserializeOwned>(&self, region: &str, form: Form) -> Result<T, AwsError> {
        self.query(Service::Ec2, region, form, false).await
    }

    /// As [`Client::change`], of load balancers.
    pub(crate) async fn change_elb<T: DeserializeOwned>(
        &self,
        region: &str,
        form: Form,
    ) -> Result<T, AwsError> {
        self.query(Service::Elb, region, form, false).await
    }

    /// A list of EC2, all pages of it.
    pub(crate) async fn list<P: Page>(&self, region: &str, form: Form) -> Result<Vec<P::Item>, AwsError> {
        let mut all = Vec::new();
        let mut next = None;
        for _ in 0..MAX_PAGES {
            let page = form.clone().with_some("NextToken", next.as_deref());
            let answer: P = self
                .read(Service::Ec2, region, page.with("MaxResults", PAGE))
                .await?;
            let (items, token) = answer.into_items();
            all.extend(items);
            match token.filter(|token| !token.is_empty()) {
                Some(token) => next = Some(token),
                None => return Ok(all),
            }
        }
        let call = call_name(Service::Ec2, form.action);
        Err(AwsError::new(
            call.clone(),
            ApiError::Malformed {
                api: call,
                details: format!("a list of more than {MAX_PAGES} pages"),
            },
        ))
    }

    async fn query<T: DeserializeOwned>(
        &self,
        service: Service,
        region: &str,
        form: Form,
        may_be_repeated: bool,
    ) -> Result<T, AwsError> {
        let sent = Sent::form(service, region, form, may_be_repeated);
        let answer = self.send(&sent).await?;
        read_xml(&answer).map_err(|details| AwsError::malformed(&sent.call, &details))
    }

    /// A call of Service Quotas, which changes nothing.
    pub(crate) async fn read_quotas<T: DeserializeOwned>(
        &self,
        region: &str,
        action: &'static str,
        body: &Value,
    ) -> Result<T, AwsError> {
        let service = Service::Quotas;
        let target = format!("ServiceQuotasV20190624.{action}");
        let sent = Sent {
            service,
            region,
            call: call_name(service, action),
            body: Body::Json { target, body },
            may_be_repeated: true,
        };
        let answer = self.send(&sent).await?;
        serde_json::from_slice(&answer).map_err(|error| AwsError::malformed(&sent.call, &error.to_string()))
    }

    /// A session of a role may end before it says so. A call that is refused for that was not carried out: it is made again, once.
    async fn send(&self, sent: &Sent<'_>) -> Result<Bytes, AwsError> {
        let key = self.key(&sent.call).await?;
        match (self.send_with(sent, &key).await, &self.role) {
            (Err(error), Some(role)) if error.is_of_an_expired_session() => {
                tracing::debug!(%error, "a session of a role has ended early");
                role.sessions.forget(&key);
                let renewed = self.key(&sent.call).await?;
                self.send_with(sent, &renewed).await
            }
            (answer, _) => answer,
        }
    }

    /// What calls are signed with now.
    async fn key(&self, call: &str) -> Result<AccessKey, AwsError> {
        match &self.role {
            None => self.own_key(call).await,
            Some(role) => {
                let key = self.role_key(role).await;
                key.map_err(|error| error.of_role(call, &role.arn))
            }
        }
    }

    async fn own_key(&self, call: &str) -> Result<AccessKey, AwsError> {
        let key = self.keys.current().await;
        key.map_err(|details| AwsError::without_keys(call, &details))
    }

    async fn role_key(&self, role: &Role) -> Result<AccessKey, AwsError> {
        role.sessions.key(self.new_session(role)).await
    }

    async fn new_session(&self, role: &Role) -> Result<Session, AwsError> {
        let form = assume_role(
            &role.arn,
            role.external_id.as_deref(),
            self.env.installation.get(),
        );
        let assumed: AssumedRole = self.with_own_keys(form).await?;
        Ok(assumed.into_session())
    }

    /// A call of STS that changes nothing, in the name of the configuration's credentials.
    async fn with_own_keys<T: DeserializeOwned>(&self, form: Form) -> Result<T, AwsError> {
        let sent = Sent::form(Service::Sts, self.home, form, true);
        let key = self.own_key(&sent.call).await?;
        let answer = self.send_with(&sent, &key).await?;
        read_xml(&answer).map_err(|details| AwsError::malformed(&sent.call, &details))
    }

    async fn send_with(&self, sent: &Sent<'_>, key: &AccessKey) -> Result<Bytes, AwsError> {
        let api = self.api(sent.service, sent.region, key.clone());
        let api = api.map_err(|details| AwsError::without_keys(&sent.call, &details))?;
        let request = match &sent.body {
            Body::Form(fields) => api.post("/").form(fields),
            Body::Json { target, body } => api
                .post("/")
                .json(body)
                .header(CONTENT_TYPE, "application/x-amz-json-1.1")
                .header(HeaderName::from_static("x-amz-target"), target),
        };
        let request = match sent.may_be_repeated {
            true => request.repeatable(),
            false => request,
        };
        let answer = request.send_raw().await;
        let answer = answer.map_err(|error| AwsError::new(sent.call.clone(), error))?;
        Ok(answer.into_body())
    }

    /// The API of a service in a region.
    fn api(&self, service: Service, region: &str, key: AccessKey) -> Result<ApiClient, String> {
        let signing_region = match service {
            Service::Iam => home_region(&[region.to_owned()]).to_owned(),
            _ => region.to_owned(),
        };
        let client = self.unsigned(service, region)?;
        Ok(client.with_signer(Arc::new(SigV4 {
            clock: self.env.clock.clone(),
            region: signing_region,
            service: service.name(),
            key,
        })))
    }

    /// One for each place: it bounds how many calls there are at the same time.
    fn unsigned(&self, service: Service, region: &str) -> Result<ApiClient, String> {
        check_region(region)?;
        let mut apis = self.apis.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = apis.get(&(service, region.to_owned())) {
            return Ok(known.clone());
        }
        let limits = ApiLimits {
            timeout: Duration::from_secs(30),
            ..ApiLimits::default()
        };
        let api = self.env.api(BackendType::Aws, &service.base(region), limits)?;
        apis.insert((service, region.to_owned()), api.clone());
        Ok(api)
    }
}

/// A region becomes part of a host name, to which signed requests go.
fn check_region(region: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match !region.is_empty() && region.chars().all(is_allowed) {
        true => Ok(()),
        false => Err(format!("{region:?} is no region of AWS")),
    }
}

/// As policies name it: `ec2:RunInstances`.
fn call_name(service: Service, action: &str) -> String {
    format!("{}:{action}", service.name())
}

fn read_xml<T: DeserializeOwned>(body: &Bytes) -> Result<T, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the answer is no text".to_owned())?;
    quick_xml::de::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_where_their_partitions_have_them() {
        for (service, region, base) in [
            (Service::Ec2, "eu-west-1", "https://ec2.eu-west-1.amazonaws.com"),
            (Service::Sts, "us-east-1", "https://sts.us-east-1.amazonaws.com"),
            (
                Service::Elb,
                "eu-west-1",
                "https://elasticloadbalancing.eu-west-1.amazonaws.com",
            ),
            (
                Service::Quotas,
                "us-east-1",
                "https://servicequotas.us-east-1.amazonaws.com",
            ),
            (Service::Iam, "eu-west-1", "https://iam.amazonaws.com"),
            (
                Service::Ec2,
                "cn-north-1",
                "https://ec2.cn-north-1.amazonaws.com.cn",
            ),
            (
                Service::Iam,
                "cn-north-1",
                "https://iam.cn-north-1.amazonaws.com.cn",
            ),
            (Service::Iam, "us-gov-west-1", "https://iam.us-gov.amazonaws.com"),
        ] {
            assert_eq!(service.base(region), base);
        }
        for (region, home) in [
            ("eu-west-1", "us-east-1"),
            ("cn-northwest-1", "cn-north-1"),
            ("us-gov-east-1", "us-gov-west-1"),
        ] {
            assert_eq!(home_region(&[region.to_owned()]), home);
        }
    }

    #[test]
    fn no_other_host_is_asked_by_the_name_of_a_region() {
        for region in ["x@internal.example/", "us-east-1.internal.example:80/", "", "EU"] {
            let refused = check_region(region).unwrap_err();
            assert!(refused.contains("no region of AWS"), "{refused}");
        }
        check_region("us-gov-east-1").unwrap();
    }

    /// Calls of EC2 are named where their forms are begun.
    #[test]
    fn the_policies_of_the_page_allow_all_calls() {
        let page = include_str!("../../../docs/backends/aws.md");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut calls = Vec::new();
        for file in fs_err::read_dir(folder).unwrap() {
            let text = fs_err::read_to_string(file.unwrap().path()).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for begin in [
                "Form::new(\"",
                "of_vpc(\"",
                "marked(\"",
                "(\"Register",
                "(\"Deregister",
                "=> \"Authorize",
                "QuotaAnswer>(region, \"",
            ] {
                let ends = code.split(begin).skip(1);
                let names = ends.filter_map(|rest| rest.split_once('"'));
                let prefix = begin.rsplit('"').next().unwrap();
                calls.extend(names.map(|(name, _)| format!("{prefix}{name}")));
            }
        }
        calls.sort_unstable();
        calls.dedup();
        assert!(calls.len() > 25, "{calls:?}");
        // Anybody may ask who they are.
        calls.retain(|call| call != "GetCallerIdentity");
        // What follows these words is not needed any more.
        let (needed, _) = page.split_once("New since dstack 0.22.5").unwrap();
        let policy = needed.split("```").find(|part| part.starts_with("json")).unwrap();
        let policy: Value = serde_json::from_str(policy.trim_start_matches("json")).unwrap();
        let mut allowed: Vec<&str> = policy["Statement"][0]["Action"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let table = needed.lines().filter(|line| line.starts_with('|'));
        allowed.extend(table.flat_map(|line| line.split('`')));
        let is_allowed = |call: &String| {
            ["ec2", "iam", "sts", "servicequotas", "elasticloadbalancing"]
                .iter()
                .any(|service| allowed.contains(&format!("{service}:{call}").as_str()))
        };
        let missing: Vec<&String> = calls.iter().filter(|call| !is_allowed(call)).collect();
        assert!(
            missing.is_empty(),
            "docs/backends/aws.md does not allow {missing:?}"
        );
    }

    #[test]
    fn lists_filters_and_tags_are_numbered() {
        let tags = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        let form = Form::new("X")
            .filter("vpc-id", ["v"])
            .filter("state", ["a", "b"])
            .list("Id", ["i", "j"])
            .tagged("volume", &tags)
            .with_some("Unset", None);
        let fields: Vec<String> = form
            .fields()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let expected = [
            "Filter.1.Name=vpc-id",
            "Filter.1.Value.1=v",
            "Filter.2.Name=state",
            "Filter.2.Value.1=a",
            "Filter.2.Value.2=b",
            "Id.1=i",
            "Id.2=j",
            "TagSpecification.1.ResourceType=volume",
            "TagSpecification.1.Tag.1.Key=a",
            "TagSpecification.1.Tag.1.Value=1",
            "TagSpecification.1.Tag.2.Key=b",
            "TagSpecification.1.Tag.2.Value=2",
        ];
        assert_eq!(fields, expected);
    }
}
