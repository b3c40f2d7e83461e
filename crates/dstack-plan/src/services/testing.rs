//! Services for tests.

use dstack_model::configurations::service::ServiceConfiguration;
use dstack_model::decode::decode_strict;
use serde_json::{Value, json};

/// A service with these fields besides the least.
pub(super) fn service(more: &Value) -> ServiceConfiguration {
    let mut service = json!({"type": "service", "port": 8000, "commands": ["serve"]});
    let fields = more.as_object().unwrap().clone();
    service.as_object_mut().unwrap().extend(fields);
    decode_strict(&service).unwrap()
}
