//! Every backend against its emulator, in virtual time: one module for each.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

mod cloudrift;
mod runpod;
mod slurm;
mod slurm_real;
