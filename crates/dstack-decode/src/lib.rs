//! One decoder for request bodies, YAML documents, and stored or peer JSON.
//!
//! It accepts and refuses what dstack 0.22.5 accepts and refuses, with the same coercions (numbers become texts
//! where a text is expected, `"5"` becomes 5, `yes` becomes true), and finds **all** problems at once. Each
//! [`Problem`] has the place, kind and message of the reference's 422 answers.
//!
//! ```
//! use dstack_decode::{Decode, decode_strict};
//!
//! /// A disk.
//! #[derive(Debug, PartialEq, Decode)]
//! struct Disk {
//!     /// Its size.
//!     size: dstack_units::Memory,
//! }
//!
//! let value = serde_json::json!({"size": "100GB"});
//! assert_eq!(decode_strict::<Disk>(&value).unwrap().size.gb(), 100.0);
//!
//! let value = serde_json::json!({"sice": "100GB"});
//! let problems = decode_strict::<Disk>(&value).unwrap_err();
//! let kinds: Vec<&str> = problems.iter().map(|problem| &*problem.kind).collect();
//! assert_eq!(kinds, ["missing", "extra_forbidden"]);
//! ```
//!
//! * [`Decode`], the trait and the derive macro; [`Cx`], the state of a decoder.
//! * [`schema`] — JSON Schemas of the same types.
//! * [`yaml`] — YAML documents as dstack 0.22.5 reads them, with errors that point into the file.

#![warn(missing_docs)]

// The derive macro writes paths from this crate's name, also inside this crate.
extern crate self as dstack_decode;

pub mod collections;
pub mod constraint;
mod context;
pub mod enums;
pub mod fields;
pub mod problem;
pub mod scalars;
pub mod schema;
mod unions;
pub mod units;
pub mod yaml;

pub use collections::MAX_ITEMS;
pub use context::{Cx, MAX_PROBLEMS, Mode, Refusal};
pub use dstack_decode_derive::Decode;
pub use fields::{DecodeFields, Fields};
pub use problem::{Loc, Problem};
pub use regex::Regex;
pub use serde_json::{Map, Value};
pub use unions::UnionMember;

/// A type that can be read from a JSON value.
pub trait Decode: Sized {
    /// The value, or `None` after at least one problem was reported to `cx`.
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self>;
}

/// Decodes a request body or a YAML document: unknown keys are refused.
///
/// # Errors
/// All problems, in the order of the fields.
pub fn decode_strict<T: Decode>(value: &Value) -> Result<T, Vec<Problem>> {
    decode(value, Mode::Strict)
}

/// Decodes what is stored or what a peer answered: unknown keys are dropped at every level.
///
/// # Errors
/// All problems, in the order of the fields.
pub fn decode_lenient<T: Decode>(value: &Value) -> Result<T, Vec<Problem>> {
    decode(value, Mode::Lenient)
}

fn decode<T: Decode>(value: &Value, mode: Mode) -> Result<T, Vec<Problem>> {
    let mut cx = Cx::new(mode);
    let decoded = T::decode(value, &mut cx);
    match decoded {
        Some(decoded) if cx.problem_count() == 0 => Ok(decoded),
        _ => Err(cx.into_problems()),
    }
}

/// serde's `Deserialize` through the lenient decoder.
///
/// # Errors
/// A text of all problems.
pub fn deserialize<'de, T: Decode, D: serde::Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    use serde::Deserialize as _;
    let value = Value::deserialize(deserializer)?;
    decode_lenient(&value).map_err(|problems| serde::de::Error::custom(problem::summary(&problems)))
}

impl Decode for Value {
    fn decode(value: &Value, _: &mut Cx) -> Option<Self> {
        Some(value.clone())
    }
}
