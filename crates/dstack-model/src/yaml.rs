//! Configuration files: YAML as dstack 0.22.5 reads it, and errors that point into the file.
//!
//! ```
//! let error = dstack_model::yaml::parse_configuration("type: task\ncomands: [make]\n", ".dstack.yml").unwrap_err();
//! let text = error.to_string();
//! assert!(text.starts_with(".dstack.yml:2:1: `comands`: unknown key, did you mean `commands`?"), "{text}");
//! ```

mod errors;
mod load;
mod scalar;
mod suggest;

use crate::configurations::AnyConfiguration;
use crate::decode::{Decode, decode_strict};
use crate::profiles::ProfilesConfig;

pub use errors::{ConfigError, ConfigErrors};
pub use load::{Document, Position, Spans, SyntaxError, load};

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

/// Reads any document.
///
/// # Errors
/// All problems, each with its place.
pub fn parse<T: Decode>(text: &str, file_name: &str) -> Result<(T, Spans), ConfigErrors> {
    let document = load(text).map_err(|error| ConfigErrors::of_syntax(file_name, &error))?;
    match decode_strict(&document.value) {
        Ok(decoded) => Ok((decoded, document.spans)),
        Err(problems) => Err(ConfigErrors::new(file_name, &document.spans, &problems)),
    }
}
