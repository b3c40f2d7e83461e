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
mod gcp;
mod hotaisle;
mod jarvislabs;
mod kubernetes;
mod kubernetes_gateways;
mod kubernetes_others;
mod lambda;
mod lium;
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
