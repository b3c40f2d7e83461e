//! The API over a real socket, with a runtime made of memory.

mod conventions;
mod fake;
mod lifecycle;
mod streaming;
