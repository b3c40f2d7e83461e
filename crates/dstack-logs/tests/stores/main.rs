//! What every log store promises, asked of all of them: files, and the others against doubles that refuse what the
//! vendors refuse.

// Helpers of tests may panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod promises;
mod subject;
mod vendors;
