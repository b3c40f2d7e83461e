//! Configuration files: YAML as dstack 0.22.5 reads it, and errors that point into the file.
//!
//! ```
//! let error = dstack_model::yaml::parse_configuration("type: task\ncomands: [make]\n", ".dstack.yml").unwrap_err();
//! let text = error.to_string();
//! assert!(text.starts_with(".dstack.yml:2:1: `comands`: unknown key, did you mean `commands`?"), "{text}");
//! ```

use crate::configurations::AnyConfiguration;
use crate::profiles::ProfilesConfig;

pub use dstack_decode::yaml::{
    ConfigError, ConfigErrors, Document, Position, Spans, SyntaxError, load, parse,
};

/// Reads a configuration file; `file_name` is used in errors.
///
/// # Errors
/// All problems, each with its place.
pub fn parse_configuration(text: &str, file_name: &str) -> Result<(AnyConfiguration, Spans), ConfigErrors> {
    parse(text, file_name)
}

/// Reads a `profiles.yml`; `file_name` is used in errors.
///
/// # Errors
/// All problems, each with its place.
pub fn parse_profiles(text: &str, file_name: &str) -> Result<(ProfilesConfig, Spans), ConfigErrors> {
    parse(text, file_name)
}
