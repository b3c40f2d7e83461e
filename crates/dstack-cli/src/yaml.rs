//! YAML files that are not configurations: parsed into plain values.

use serde_json::Value;

use crate::error::{CliError, ErrorKind};

/// Parses a document.
///
/// # Errors
/// Malformed YAML, with line and column.
pub fn parse(text: &str) -> Result<Value, CliError> {
    match dstack_model::yaml::load(text) {
        Ok(document) => Ok(document.value),
        Err(error) => Err(CliError::from_error(ErrorKind::ClientConfig, error)),
    }
}
