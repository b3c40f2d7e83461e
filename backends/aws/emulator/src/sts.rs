//! Roles, and sessions of those who assume them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::auth::Key;
use crate::lists::text;
use crate::state::Cloud;
use crate::{Answer, Call, Problem};

/// Who has the account's key.
pub(crate) const USER: &str = "arn:aws:iam::123456789012:user/dstack";

/// How long a session is, if its request does not say it.
const USUAL_DURATION: i64 = 3600;

/// A role of any account.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) arn: String,
    /// As AWS has it: `{"Statement": [{"Effect": "Allow", "Principal": {"AWS": ...}, "Action": "sts:AssumeRole", "Condition": ...}]}`.
    pub(crate) trust_policy: Value,
}

/// A session of a role.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) role: String,
    pub(crate) name: String,
    key: Key,
    ends_at: Instant,
}

impl Session {
    /// Of the account that has the role.
    fn arn(&self) -> String {
        let (partition, rest) = self.role.split_once(":iam::").unwrap();
        let (account, name) = rest.split_once(":role/").unwrap();
        let role = name.rsplit('/').next().unwrap();
        format!("{partition}:sts::{account}:assumed-role/{role}/{}", self.name)
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            is_over: self.ends_at <= Instant::now(),
            ..self.key.clone()
        }
    }

    /// It is over now, whatever was said of its end.
    pub(crate) fn end(&mut self) {
        self.ends_at = Instant::now();
    }
}

impl Role {
    fn trusts(&self, caller: &str, external_id: &Value) -> bool {
        let statements = self.trust_policy["Statement"].as_array().into_iter().flatten();
        statements.into_iter().any(|statement| {
            let is_for_caller = [caller, "arn:aws:iam::123456789012:root", "123456789012"]
                .iter()
                .any(|principal| has(&statement["Principal"]["AWS"], principal));
            let conditions = statement["Condition"].as_object().into_iter().flatten();
            let mut conditions = conditions.flat_map(|(operator, keys)| {
                let keys = keys.as_object().unwrap();
                keys.iter()
                    .map(move |(key, value)| (operator.as_str(), key.as_str(), value))
            });
            let is_met = conditions.all(|condition| match condition {
                ("StringEquals", "sts:ExternalId", value) => {
                    external_id.as_str().is_some_and(|given| has(value, given))
                }
                other => panic!("{other:?} is not played"),
            });
            statement["Effect"] == "Allow"
                && has(&statement["Action"], "sts:AssumeRole")
                && is_for_caller
                && is_met
        })
    }
}

/// Policies have one value, or a list.
fn has(one_or_more: &Value, wanted: &str) -> bool {
    match one_or_more {
        Value::Array(values) => values.iter().any(|value| value == wanted),
        value => value == wanted,
    }
}

/// `signed_at`: the time that the request was signed at, as the clock of who asks has it.
pub(crate) fn sts(cloud: &mut Cloud, action: &str, call: &Call<'_>, signed_at: &str) -> Answer {
    match action {
        "GetCallerIdentity" => Ok(identity(&caller(cloud, call))),
        "AssumeRole" => assume_role(cloud, call, signed_at),
        other => panic!("{other} is described and not played"),
    }
}

fn caller(cloud: &Cloud, call: &Call<'_>) -> String {
    let session = cloud
        .sessions
        .iter()
        .find(|session| session.key.id == call.key_id);
    session.map_or_else(|| USER.to_owned(), Session::arn)
}

fn identity(arn: &str) -> Value {
    let account = arn.split(':').nth(4).unwrap();
    json!({"UserId": "AIDACKCEVSQ6C2EXAMPLE", "Account": account, "Arn": arn})
}

fn assume_role(cloud: &mut Cloud, call: &Call<'_>, signed_at: &str) -> Answer {
    let (arn, name) = (text(&call.input["RoleArn"]), text(&call.input["RoleSessionName"]));
    let external_id = &call.input["ExternalId"];
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
    for (member, value, longest, more) in [
        ("roleSessionName", name.as_str(), 64, ""),
        ("externalId", external_id.as_str().unwrap_or("none"), 1224, ":/"),
    ] {
        let fits = (2..=longest).contains(&value.len());
        if !fits || !value.chars().all(|c| is_letter(c) || more.contains(c)) {
            let text = format!(
                "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint"
            );
            return Err(Problem::new(400, "ValidationError", text));
        }
    }
    let caller = caller(cloud, call);
    let role = cloud.roles.iter().find(|role| role.arn == arn);
    // A role that is not there is one that does not trust.
    if !role.is_some_and(|role| role.trusts(&caller, external_id)) {
        let text = format!("User: {caller} is not authorized to perform: sts:AssumeRole on resource: {arn}");
        return Err(Problem::new(403, "AccessDenied", text));
    }
    let seconds = call.input["DurationSeconds"].as_i64().unwrap_or(USUAL_DURATION);
    let number = cloud.sessions.len() + 1;
    let session = Session {
        role: arn,
        name,
        key: Key {
            id: format!("ASIA{number:016}"),
            secret: format!("canary-secret-of-session-{number}"),
            session_token: Some(format!("canary+token/of=session-{number}")),
            is_over: false,
        },
        ends_at: Instant::now() + Duration::from_secs(seconds.unsigned_abs()),
    };
    let key = session.key.clone();
    let user =
        json!({"AssumedRoleId": format!("AROACLKWSDQRAOEXAMPLE:{}", session.name), "Arn": session.arn()});
    cloud.sessions.push(session);
    Ok(
        json!({"Credentials": {"AccessKeyId": key.id, "SecretAccessKey": key.secret, "SessionToken": key.session_token,
            "Expiration": after(signed_at, seconds)}, "AssumedRoleUser": user}),
    )
}

/// So many seconds after a time such as `20150830T123600Z`, as XML has it.
fn after(signed_at: &str, seconds: i64) -> String {
    let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", signed_at).unwrap();
    let at = at.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
    let end = at.as_second() + seconds;
    let end = jiff::Timestamp::from_second(end).unwrap();
    end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
