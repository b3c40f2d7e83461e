//! Every backend against its emulator, in virtual time: one module for each.

#![allow(clippy::unwrap_used)] // tests

mod cloudrift;
mod kubernetes;
