//! Rows of placement and compute groups, in all stores of the engine.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)] // tests

use dstack_model::backends::BackendType;
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::placement::{PlacementGroupConfiguration, PlacementStrategy};
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_sim::databases::{databases, people};
use dstack_sim::scenario::Builder;
use dstack_store::queries::backends::BackendRow;
use dstack_store::rows::{
    ComputeGroupRow, FleetRow, GatewayRow, InstanceRow, NewGateway, OperationKind, OperationRow,
    OperationState, PlacementGroupRow,
};
use dstack_store::writes::Change;
use dstack_store::{
    Changes, Commit, Database, EngineStore, EntityRef, MemoryStore, Put, SqlStore, StoreError,
};
use dstack_system::Random;
use dstack_units::{OperationId, ProjectId, Time};
use serde_json::json;
use uuid::Uuid;

const NOW: Time = Time::from_millis(1_790_000_000_000);

fn builder() -> Builder {
    Builder {
        project: Uuid::from_u128(1).into(),
        random: Random::seeded(31),
    }
}

fn placement_group(builder: &Builder, fleet: &FleetRow) -> PlacementGroupRow {
    let configuration = PlacementGroupConfiguration {
        backend: BackendType::Aws,
        region: "here".to_owned(),
        placement_strategy: PlacementStrategy::Cluster,
    };
    let id = builder.random.uuid().into();
    PlacementGroupRow::submitted(id, fleet, configuration, "p5".to_owned(), NOW)
}

fn backend(project: ProjectId, kind: &str) -> BackendRow {
    BackendRow {
        id: "b".to_owned(),
        project_id: project,
        kind: kind.to_owned(),
        created_at: NOW,
        config: "{}".to_owned(),
        auth: "{}".to_owned(),
        source_config: None,
        source_auth: None,
    }
}

async fn write(store: &dyn EngineStore, puts: Vec<Put>) -> dstack_store::Result<()> {
    store.commit(Commit::unchecked(puts, Vec::new())).await
}

#[tokio::test]
async fn groups_are_stored_with_their_fleet_and_their_instances() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let builder = builder();
        people(&database, &builder, &[Uuid::from_u128(2).to_string()]).await;
        groups(&SqlStore::new(database), &builder).await;
    }
    groups(&MemoryStore::new(), &builder()).await;
}

async fn groups(store: &dyn EngineStore, builder: &Builder) {
    let cluster = json!({"nodes": "0..3", "placement": "cluster"});
    let fleet = builder.fleet("f", &cluster, NOW).unwrap();
    let group = placement_group(builder, &fleet);
    let pending = |num: i64| InstanceRow::pending(builder.random.uuid().into(), &fleet, num, NOW);
    let (mut first, mut second, other) = (pending(0), pending(1), pending(2));
    first.placement_group_id = Some(group.id);
    let nodes = builder.random.uuid().into();
    second.compute_group_id = Some(nodes);
    let mut compute = ComputeGroupRow::submitted(nodes, &fleet, "train".to_owned(), vec![second.id], NOW);
    let puts = vec![
        Put::Fleet(fleet.clone()),
        Put::Instance(first.clone()),
        Put::Instance(second.clone()),
        Put::Instance(other),
        Put::PlacementGroup(group.clone()),
        Put::ComputeGroup(compute.clone()),
    ];
    write(store, puts).await.unwrap();
    let found = store.placement_group(group.id).await.unwrap().unwrap();
    assert_eq!(found.group.configuration, group.configuration);
    assert_eq!(found.fleet.id, fleet.id);
    let members: Vec<_> = found.instances.iter().map(|row| row.id).collect();
    assert_eq!(members, [first.id]);
    let of_fleet = store.fleet(fleet.id).await.unwrap().unwrap();
    assert_eq!(of_fleet.placement_groups, std::slice::from_ref(&found.group));

    let found_nodes = store.compute_group(nodes).await.unwrap().unwrap();
    assert_eq!(found_nodes.instances.len(), 1);
    let seen = store.instance(second.id).await.unwrap().unwrap();
    assert_eq!(seen.group.unwrap().row, found_nodes.group);
    assert_eq!(store.instance(first.id).await.unwrap().unwrap().group, None);
    compute = found_nodes.group;
    let data = ComputeGroupProvisioningData {
        compute_group_id: "c".to_owned(),
        compute_group_name: "dstack-train".to_owned(),
        backend: BackendType::Runpod,
        base_backend: None,
        region: "US-TX-3".to_owned(),
        job_provisioning_datas: Vec::new(),
        backend_data: None,
    };
    compute.run(data.clone(), NOW).unwrap();
    write(store, vec![Put::ComputeGroup(compute)]).await.unwrap();
    let running = store.compute_group(nodes).await.unwrap().unwrap().group;
    assert_eq!(running.status(), ComputeGroupState::Running);
    assert_eq!(running.provisioning_data.as_deref(), Some(&data));

    // What is over is not the fleet's any more.
    let mut over = found.group;
    over.fail("no".to_owned(), NOW).unwrap();
    write(store, vec![Put::PlacementGroup(over)]).await.unwrap();
    let failed = store.placement_group(group.id).await.unwrap().unwrap().group;
    assert_eq!(failed.status(), PlacementGroupStatus::Failed);
    assert_eq!(failed.status_message(), Some("no"));
    assert!(
        store
            .fleet(fleet.id)
            .await
            .unwrap()
            .unwrap()
            .placement_groups
            .is_empty()
    );
}

/// Databases refuse a second one, whoever asks for it.
#[tokio::test]
async fn a_fleet_has_one_group_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let builder = builder();
        people(&database, &builder, &[Uuid::from_u128(2).to_string()]).await;
        let store = SqlStore::new(database);
        let fleet = builder
            .fleet("f", &json!({"nodes": 1, "placement": "cluster"}), NOW)
            .unwrap();
        let (first, second) = (
            placement_group(&builder, &fleet),
            placement_group(&builder, &fleet),
        );
        let puts = vec![Put::Fleet(fleet), Put::PlacementGroup(first.clone())];
        write(&store, puts).await.unwrap();
        let refused = write(&store, vec![Put::PlacementGroup(second.clone())]).await;
        assert!(refused.is_err());
        // In place of one that is set aside at the same time it is taken.
        let mut left = store.placement_group(first.id).await.unwrap().unwrap().group;
        left.set_aside(NOW).unwrap();
        let puts = vec![Put::PlacementGroup(second), Put::PlacementGroup(left)];
        write(&store, puts).await.unwrap();
    }
}

/// Only the backend can end what it has made.
#[tokio::test]
async fn a_backend_and_a_project_stay_while_they_have_a_placement_group() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let builder = builder();
        people(&database, &builder, &[Uuid::from_u128(2).to_string()]).await;
        in_use(database, &builder).await;
    }
}

async fn in_use(database: Database, builder: &Builder) {
    let store = SqlStore::new(database);
    let cluster = json!({"nodes": "0..1", "placement": "cluster"});
    let fleet = builder.fleet("f", &cluster, NOW).unwrap();
    let group = placement_group(builder, &fleet);
    let puts = vec![Put::Fleet(fleet.clone()), Put::PlacementGroup(group.clone())];
    write(&store, puts).await.unwrap();
    let (project, kind): (ProjectId, String) = (builder.project, "aws".to_owned());
    let change = |change: Change| {
        let mut changes = builder.changes(NOW);
        changes.directory(change);
        store.commit(changes.into_commit())
    };
    let backend = backend(project, &kind);
    change(Change::InsertBackend(backend)).await.unwrap();
    let delete = Change::DeleteBackend {
        project,
        kind: kind.clone(),
    };
    // The fleet is idle, and keeps its group.
    for is_there in [true, false] {
        let refused = change(delete.clone()).await.unwrap_err();
        let StoreError::HasPlacementGroups {
            fleets, are_there, ..
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!((fleets, are_there), (vec!["f".to_owned()], is_there));
        if is_there {
            let mut over = store.fleet(fleet.id).await.unwrap().unwrap().fleet;
            over.terminate(NOW).unwrap();
            over.finish(NOW).unwrap();
            write(&store, vec![Put::Fleet(over)]).await.unwrap();
        }
    }
    let renamed = "gone".to_owned();
    let deletions = [
        Change::DeleteBackend { project, kind },
        Change::DeleteProject { id: project, renamed },
    ];
    for deletion in deletions.clone() {
        let refused = change(deletion).await.unwrap_err().to_string();
        assert!(refused.contains("placement groups"), "{refused}");
    }
    let mut over = store.placement_group(group.id).await.unwrap().unwrap().group;
    over.fail("no".to_owned(), NOW).unwrap();
    write(&store, vec![Put::PlacementGroup(over)]).await.unwrap();
    for deletion in deletions {
        change(deletion).await.unwrap();
    }
}

/// A load balancer is asked for before there are replicas, and goes after them.
#[tokio::test]
async fn a_backend_stays_while_the_load_balancer_of_a_gateway_may_be_there() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let builder = builder();
        people(&database, &builder, &[Uuid::from_u128(2).to_string()]).await;
        in_use_by_a_load_balancer(database, &builder).await;
    }
}

async fn in_use_by_a_load_balancer(database: Database, builder: &Builder) {
    let store = SqlStore::new(database);
    let (project, kind): (ProjectId, String) = (builder.project, "aws".to_owned());
    let commit = |edit: &dyn Fn(&mut Changes)| {
        let mut changes = builder.changes(NOW);
        edit(&mut changes);
        store.commit(changes.into_commit())
    };
    let backend = backend(project, &kind);
    let configuration = json!({"type": "gateway", "name": "gate", "backend": "aws", "region": "eu",
        "load_balancer": {"type": "alb"}, "certificate": null});
    let gateway = NewGateway {
        id: builder.random.uuid().into(),
        project,
        name: "gate".to_owned(),
        configuration: serde_json::from_value(configuration).unwrap(),
        backend: Some("b".to_owned()),
    };
    let subject = EntityRef::Gateway(gateway.id);
    let row = GatewayRow::submitted(gateway, NOW);
    let operation = |kind| OperationRow::intended(builder.random.uuid().into(), subject, kind, NOW);
    let (create, remove) = (operation(OperationKind::Create), operation(OperationKind::Remove));
    commit(&|changes| {
        changes.directory(Change::InsertBackend(backend.clone()));
        changes.insert(row.clone(), "Gateway created. Status: SUBMITTED");
        changes.intend(create.clone());
    })
    .await
    .unwrap();
    let is_kept = async || {
        let delete = Change::DeleteBackend {
            project,
            kind: kind.clone(),
        };
        let refused = commit(&|changes| changes.directory(delete.clone())).await;
        refused.is_err_and(|error| error.to_string().contains("gateways"))
    };
    let ended = async |id: OperationId, state: OperationState| {
        let stored = store.gateway(row.id).await.unwrap().unwrap();
        let before = stored
            .operations
            .into_iter()
            .find(|operation| operation.id == id)
            .unwrap();
        commit(&|changes| {
            changes.intend(OperationRow {
                state,
                ..before.clone()
            });
        })
        .await
        .unwrap();
    };
    assert!(is_kept().await, "it is being made");
    ended(create.id, OperationState::Done).await;
    assert!(is_kept().await, "it is there");
    commit(&|changes| changes.intend(remove.clone())).await.unwrap();
    assert!(is_kept().await, "it is being removed");
    ended(remove.id, OperationState::Done).await;
    assert!(!is_kept().await, "it is gone");
}
