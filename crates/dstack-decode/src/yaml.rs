//! YAML documents as dstack 0.22.5 reads them, and errors that point into the file.

mod errors;
mod load;
mod scalar;
mod suggest;

use crate::{Decode, decode_strict};

pub use errors::{ConfigError, ConfigErrors};
pub use load::{Document, Position, Spans, SyntaxError, load};

/// Reads a document; `file_name` is used in errors.
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
