//! How long it takes to read what decides about placement, and to write a small change of each row of it: 1,000 instances on
//! SQLite, their places in clear text and encrypted.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss
)]

use std::time::{Duration, Instant};

use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceStatus;
use dstack_store::encryption::{Encryption, Key};
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_store::{Commit, Database, DatabaseOptions, EngineStore, Put, RowKeys, SqlStore, raw};
use dstack_system::Random;
use dstack_units::{ProjectId, Time};
use serde_json::json;

const INSTANCES: i64 = 1_000;
const ROUNDS: usize = 21;
const NOW: Time = Time::from_millis(1_790_000_000_000);

fn fleet(random: &Random, project: ProjectId) -> FleetRow {
    let spec: FleetSpec = serde_json::from_value(json!({
        "configuration": {"type": "fleet", "name": "f", "nodes": "0.."}, "profile": {"name": "default"},
    }))
    .unwrap();
    FleetRow::active(random.uuid().into(), project, "f".to_owned(), spec, NOW)
}

fn instance(random: &Random, fleet: &FleetRow, number: i64) -> InstanceRow {
    let resources =
        json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 512_000}});
    let kind = json!({"name": "type-8", "resources": resources});
    let offer = json!({"backend": "aws", "instance": kind, "region": "eu", "price": 1.0, "availability": "idle", "total_blocks": 1});
    let place = json!({"backend": "aws", "instance_type": kind, "instance_id": "i", "hostname": format!("10.0.0.{number}"),
        "region": "eu", "price": 1.0, "username": "root", "ssh_port": 22, "dockerized": true});
    let mut row = InstanceRow::pending(random.uuid().into(), fleet, number, NOW).offering(
        serde_json::from_value(offer).unwrap(),
        serde_json::from_value(place).unwrap(),
    );
    row.make_ready(InstanceStatus::Idle).unwrap();
    row.total_blocks = Some(1);
    row
}

/// A store with the project and its instances.
async fn store(folder: &std::path::Path, keys: RowKeys, project: ProjectId) -> SqlStore {
    let url = format!("sqlite://{}", folder.join("x.db").display());
    let database = Database::open_on(&url, DatabaseOptions::default(), keys, None);
    let database = database.await.unwrap();
    for insert in [
        "INSERT INTO users (id, name, created_at, global_role, active, token, token_hash, projects_quota) \
         VALUES ('u', 'u', 0, 'user', 1, '', 'u', 1)",
        &format!(
            "INSERT INTO projects (id, name, created_at, owner_id, is_public) VALUES ('{project}', 'main', 0, 'u', 0)"
        ),
        &format!(
            "INSERT INTO backends (id, project_id, type, config, auth) VALUES ('b', '{project}', 'aws', '{{}}', '')"
        ),
    ] {
        raw::execute(&database, insert).await.unwrap();
    }
    let (store, random) = (SqlStore::new(database), Random::seeded(2));
    let fleet = fleet(&random, project);
    let instances = (0..INSTANCES).map(|number| Put::Instance(instance(&random, &fleet, number)));
    let puts = [Put::Fleet(fleet.clone())].into_iter().chain(instances);
    let commit = Commit::unchecked(puts.collect(), Vec::new());
    store.commit(commit).await.unwrap();
    store
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.as_secs_f64() * 1e3
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let key = Key::Aes {
        name: "k".to_owned(),
        secret: [7; 32],
    };
    let encryption = Encryption::new(vec![key], Random::seeded(1));
    for (name, keys) in [
        ("clear text", RowKeys::none()),
        ("encrypted", RowKeys::from(&encryption)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let project = Random::seeded(3).uuid().into();
        let store = store(folder.path(), keys, project).await;
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let started = Instant::now();
            let read = store.placement(project).await.unwrap();
            reads.push(started.elapsed());
            let changed = read.instances.into_iter().map(|mut row| {
                row.last_processed_at = NOW;
                Put::Instance(row)
            });
            let commit = Commit::unchecked(changed.collect(), Vec::new());
            let started = Instant::now();
            store.commit(commit).await.unwrap();
            writes.push(started.elapsed());
        }
        println!(
            "{INSTANCES} instances, {name}: read {:.1} ms, a change of each written {:.1} ms",
            median(reads),
            median(writes)
        );
    }
}
