//! Every backend against its emulator, in virtual time: one module for each.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

mod aws;
mod aws_others;
mod aws_roles;
mod azure;
mod cloudrift;
mod crusoe;
mod cudo;
mod daytona;
mod digitalocean;
mod digitalocean_checks;
mod gcp;
mod hotaisle;
mod jarvislabs;
mod kubernetes;
mod kubernetes_gateways;
mod kubernetes_others;
mod lambda;
mod lambda_checks;
mod lium;
mod manifest_pages;
mod manifests;
mod nebius;
mod oci;
mod runpod;
mod seeweb;
mod sky;
mod slurm;
mod slurm_real;
mod stored;
mod tensordock;
mod vastai;
mod verda;
mod vultr;

use serde_json::{Value, json};

/// A configuration with no more than a key.
fn with_key(name: &str, key: &str) -> Value {
    json!({"type": name, "creds": {"type": "api_key", "api_key": key}})
}
