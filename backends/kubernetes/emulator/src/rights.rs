//! What the user may not do.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::store::Failure;

#[derive(Debug, Default)]
pub(crate) struct Denied(BTreeSet<(String, String)>);

impl Denied {
    pub(crate) fn deny(&mut self, verb: &str, resource: &str) {
        self.0.insert((verb.to_owned(), resource.to_owned()));
    }

    fn is_denied(&self, verb: &str, resource: &str) -> bool {
        self.0.contains(&(verb.to_owned(), resource.to_owned()))
    }

    /// Whether the roles allow it; the error is the 403 that a cluster answers.
    pub(crate) fn check(&self, verb: &str, resource: &str, namespace: Option<&str>) -> Result<(), Failure> {
        if !self.is_denied(verb, resource) {
            return Ok(());
        }
        let place = match namespace {
            Some(namespace) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let user = "system:serviceaccount:team:dstack";
        let message = format!(
            "{resource} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"\" {place}"
        );
        Err(Failure::new(403, "Forbidden", &message))
    }

    /// Answers a `SelfSubjectAccessReview`: whether the caller may do what its body names.
    pub(crate) fn review(&self, body: &Value) -> Result<Value, Failure> {
        let asked = &body["spec"]["resourceAttributes"];
        let (Some(verb), Some(resource)) = (asked["verb"].as_str(), asked["resource"].as_str()) else {
            let message = "SelfSubjectAccessReview is invalid: spec.resourceAttributes: Required value";
            return Err(Failure::new(422, "Invalid", message));
        };
        let mut answer = body.clone();
        answer["metadata"] = json!({});
        answer["status"] = json!({"allowed": !self.is_denied(verb, resource)});
        Ok(answer)
    }
}
