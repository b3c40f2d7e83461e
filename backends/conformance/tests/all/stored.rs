//! What dstack 0.22.5 stored, as its own code writes it (`stored_0_22_5.py`): its configurations are opened and shown as it shows them,
//! and what it made is seen and removed by a server that has nothing but its row.

use std::sync::LazyLock;

use dstack_backend_kit::{Cloud, Driver, Subject};
use dstack_compute::config::{BackendConfig, Credential, SplitConfig};
use dstack_compute::{Container, OwnedKind, Resource, Sign};
use dstack_model::backends::BackendType;
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::decode::{Decode, decode_lenient};
use dstack_model::runs::JobProvisioningData;
use dstack_model::yaml;
use serde_json::{Value, json};

use crate::{
    aws, azure, cloudrift, crusoe, daytona, digitalocean, gcp, hotaisle, jarvislabs, kubernetes, lambda,
    lium, nebius, oci, runpod, seeweb, slurm, vastai, verda, vultr,
};

static STORED: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../data/stored-0.22.5.json");
    serde_json::from_str(text).unwrap()
});

fn configurations() -> &'static [Value] {
    STORED["configurations"].as_array().unwrap()
}

/// The columns of a configuration.
fn columns(stored: &Value) -> SplitConfig {
    SplitConfig {
        config: stored["config"].as_str().unwrap().to_owned(),
        auth: Credential::new(stored["auth"].as_str().unwrap()),
    }
}

/// What is written in YAML, in its order.
fn fields(text: &str) -> String {
    yaml::load(text).unwrap().value.to_string()
}

#[test]
fn configurations_are_shown_as_dstack_0_22_5_shows_them() {
    let mut types = Vec::new();
    for stored in configurations() {
        let kind: BackendType = stored["type"].as_str().unwrap().parse().unwrap();
        let config = BackendConfig::join(&columns(stored)).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(config.kind(), kind);
        let shown = serde_json::to_value(&config).unwrap();
        assert_eq!(shown, stored["config_info"], "{kind}");
        let (yaml, expected) = (config.yaml(), stored["config_yaml"].as_str().unwrap());
        // What is quoted is folded there, and reads the same.
        match expected.contains(['"', '\'']) {
            true => assert_eq!(fields(&yaml), fields(expected), "{kind}"),
            false => assert_eq!(yaml, expected, "{kind}"),
        }
        // Stored as it is stored here, it is the same.
        assert_eq!(BackendConfig::join(&config.split()).unwrap(), config, "{kind}");
        types.push(kind);
    }
    types.dedup();
    // Of the others that have backends, dstack 0.22.5 stores none.
    let without = [
        BackendType::Cudo,
        BackendType::Dstack,
        BackendType::Remote,
        BackendType::TensorDock,
    ];
    let all = BackendType::ALL.iter().filter(|kind| !without.contains(kind));
    assert_eq!(types.len(), all.count(), "{types:?}");
}

/// What `<name>` stands for in a row: what the cloud said when it made this.
struct Said(Value);

impl Said {
    /// Of an instance. `data.x.0` is the first of `x` in its `backend_data`.
    fn of(place: &JobProvisioningData, pieces: &[String]) -> Self {
        let data = place.backend_data.as_deref().unwrap_or("null");
        let data: Value = serde_json::from_str(data).unwrap();
        Self(json!({
            "instance_id": place.instance_id,
            "instance_type": place.instance_type.name,
            "hostname": place.hostname,
            "ssh_port": place.ssh_port,
            "internal_ip": place.internal_ip,
            "region": place.region,
            "availability_zone": place.availability_zone,
            "pieces": pieces,
            "data": data,
        }))
    }

    /// Of a group, where `hostname.1` is that of its second member.
    fn of_group(place: &ComputeGroupProvisioningData) -> Self {
        let members = place.job_provisioning_datas.iter();
        let all = |field: &str| -> Vec<Value> {
            let said = members.clone().map(|member| Self::of(member, &[]));
            said.map(|Self(said)| said[field].clone()).collect()
        };
        Self(json!({
            "compute_group_id": place.compute_group_id,
            "compute_group_name": place.compute_group_name,
            "region": place.region,
            "instance_type": all("instance_type")[0],
            "instance_id": all("instance_id"),
            "hostname": all("hostname"),
            "ssh_port": all("ssh_port"),
            "internal_ip": all("internal_ip"),
            "availability_zone": all("availability_zone")[0],
        }))
    }

    fn filled(&self, row: &Value) -> Value {
        match row {
            Value::String(text) => match text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
                Some(name) => {
                    let pointer = format!("/{}", name.replace('.', "/"));
                    let said = self.0.pointer(&pointer);
                    said.unwrap_or_else(|| panic!("no {name} in {}", self.0)).clone()
                }
                // `backend_data` is JSON in JSON.
                None if text.starts_with('{') => {
                    let inner = serde_json::from_str(text).unwrap();
                    self.filled(&inner).to_string().into()
                }
                None => row.clone(),
            },
            Value::Array(items) => items.iter().map(|item| self.filled(item)).collect(),
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, field)| (name.clone(), self.filled(field)));
                Value::Object(fields.collect())
            }
            other => other.clone(),
        }
    }
}

/// By the backend that the first configuration of a type opens.
async fn is_seen_and_removed<R: Resource>(
    cloud: &Cloud,
    subject: &Subject<R>,
    kind: &str,
    (row, said): (&Value, Said),
) where
    R::Place: Decode,
{
    let stored = configurations().iter().find(|stored| stored["type"] == kind);
    let backend = cloud.kind.open(&columns(stored.unwrap())).unwrap();
    let row = said.filled(row);
    let place: R::Place = decode_lenient(&row).unwrap_or_else(|problems| panic!("{row}: {problems:?}"));
    let known = subject.known(Some(place));
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well), "{row}");
    Driver::with_backend(cloud, backend).remove(&known, subject).await;
    // Those on login nodes of Slurm it leaves, and does not mark.
    let mut left = cloud.emulator.ledger().alive();
    left.retain(|entry| entry.kind != "keys");
    assert_eq!(left, [], "{row}");
}

/// Ids of the pieces in the cloud, such as a login to a registry.
async fn pieces(cloud: &Cloud) -> Vec<String> {
    let owned = cloud.open().inventory().await.unwrap();
    let pieces = owned
        .into_iter()
        .filter(|owned| matches!(owned.kind, OwnedKind::Piece(_)));
    pieces.map(|owned| owned.id).collect()
}

async fn instance<R: Resource<Place = JobProvisioningData>>(
    (cloud, subject): (Cloud, Subject<R>),
    kind: &str,
    row: &str,
) {
    let made = Driver::new(&cloud).make(&subject).await.unwrap();
    let said = Said::of(&made, &pieces(&cloud).await);
    is_seen_and_removed(&cloud, &subject, kind, (&STORED["rows"][row], said)).await;
}

/// To a registry: it has a name by chance there, which no row tells.
async fn a_container_of_runpod_without_a_login() -> (Cloud, Subject<Container>) {
    let (cloud, mut subject) = runpod::one_container().await;
    subject.want.workload.registry = None;
    (cloud, subject)
}

macro_rules! instances {
    ($($name:ident = $row:literal of $kind:literal: $one:path;)*) => {
        mod instances {
            use super::*;

            $(
                #[tokio::test(start_paused = true)]
                async fn $name() {
                    instance($one().await, $kind, $row).await;
                }
            )*

            #[test]
            fn of_all_types() {
                let rows: Vec<&String> = STORED["rows"].as_object().unwrap().keys().collect();
                assert_eq!(rows, [$($row),*]);
            }
        }
    };
}

instances! {
    amddevcloud = "amddevcloud" of "amddevcloud": digitalocean::one_of_amd;
    aws = "aws" of "aws": aws::one_small_machine;
    aws_with_an_address = "aws-with-an-address" of "aws": aws::one_machine;
    azure = "azure" of "azure": azure::one_machine;
    cloudrift = "cloudrift" of "cloudrift": cloudrift::one_machine;
    crusoe = "crusoe" of "crusoe": crusoe::one_machine;
    datacrunch = "datacrunch" of "datacrunch": verda::one_of_datacrunch;
    daytona = "daytona" of "daytona": daytona::one_container;
    digitalocean = "digitalocean" of "digitalocean": digitalocean::one_machine;
    gcp = "gcp" of "gcp": gcp::one_machine;
    hotaisle = "hotaisle" of "hotaisle": hotaisle::one_machine;
    jarvislabs = "jarvislabs" of "jarvislabs": jarvislabs::one_machine;
    kubernetes = "kubernetes" of "kubernetes": kubernetes::one_container;
    lambda = "lambda" of "lambda": lambda::one_machine;
    lium = "lium" of "lium": lium::one_container;
    nebius = "nebius" of "nebius": nebius::one_machine;
    oci = "oci" of "oci": oci::one_machine;
    runpod = "runpod" of "runpod": a_container_of_runpod_without_a_login;
    seeweb = "seeweb" of "seeweb": seeweb::one_machine;
    slurm = "slurm" of "slurm": slurm::one_container;
    vastai = "vastai" of "vastai": vastai::one_container;
    verda = "verda" of "verda": verda::one;
    vultr = "vultr" of "vultr": vultr::one_vm;
    vultr_of_bare_metal = "vultr-bare-metal" of "vultr": vultr::one_of_metal;
}

#[tokio::test(start_paused = true)]
async fn groups_of_runpod_and_slurm() {
    let (cloud, subject) = runpod::one_group().await;
    let made = Driver::new(&cloud).make(&subject).await.unwrap();
    let row = (&STORED["groups"]["runpod"], Said::of_group(&made));
    is_seen_and_removed(&cloud, &subject, "runpod", row).await;
    let (cloud, subject) = slurm::one_group().await;
    let made = Driver::new(&cloud).make(&subject).await.unwrap();
    let row = (&STORED["groups"]["slurm"], Said::of_group(&made));
    is_seen_and_removed(&cloud, &subject, "slurm", row).await;
}
