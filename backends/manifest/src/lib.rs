//! Backends that one file describes: requests, what is read from the answers, states, errors and limits.
//!
//! `manifest` is the file as types, `template` the texts with placeholders in it, `read` checks it, `folder` reads all that a server has.
//! `kind` and `backend` are what a server opens, `client` sends what the file says, `offers` is what can be had, `machines` the life of a
//! machine. `life` goes through such a life step by step and tells what it finds: for whoever writes a file.

#![warn(missing_docs)]

mod backend;
mod client;
mod errors;
mod folder;
mod keys;
mod kind;
mod life;
mod lookups;
mod machines;
mod manifest;
mod offers;
mod read;
mod template;

use dstack_decode::Value;
pub use dstack_model::backends::NameError;

pub use folder::{Described, FileProblem, Folder, read_folder};
pub use kind::{config_of, kind};
pub use life::{Choice, Finding, check_life};
pub use manifest::*;
pub use read::read;
pub use template::{JsonTemplate, Reader, Template};

/// The JSON Schema of the files, for editors.
pub fn schema() -> Value {
    dstack_decode::schema::document::<Manifest>()
}
