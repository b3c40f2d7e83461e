//! What was decided on something that is not so any more is refused, in both databases.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)] // tests

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dstack_compute::Registry;

use dstack_control::gateways::Gateways;
use dstack_control::keys::Keys;
use dstack_control::{Actor, Core, Directory, EngineHandle, Watcher};
use dstack_model::instances::InstanceTerminationReason;
use dstack_model::users::ProjectRole;
use dstack_plan::hosts::{HostKey, normalised};
use dstack_sim::databases::{databases, people};
use dstack_sim::scenario::Builder;
use dstack_store::encryption::Encryption;
use dstack_store::queries::backends::BackendRow;
use dstack_store::queries::exports::{ExportRow, FullExport, ImportRow};
use dstack_store::queries::identities::Identity;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::tokens::TokenRow;
use dstack_store::rows::{GatewayRow, InstanceRow, NewGateway, OperationKind, OperationRow, RunRow};
use dstack_store::writes::{Affected, Change};
use dstack_store::{
    Changes, Commit, Database, EngineStore, EntityRef, MemoryStore, Put, Sealed, SqlStore, StoreError, raw,
};
use dstack_system::Random;
use dstack_system::clock::SystemClock;
use dstack_units::{InstanceId, ProjectId, Time, UserId};
use futures_util::future::join_all;
use serde_json::json;

const NOW: Time = Time::from_millis(1_790_000_000_000);

/// A database with the project `main` of a user, and a run that is decided on but not written.
struct Setting {
    database: Database,
    store: SqlStore,
    builder: Builder,
    user: UserId,
    run: RunRow,
    submission: Commit,
    _folder: tempfile::TempDir,
}

impl Setting {
    async fn all() -> Vec<Self> {
        let mut settings = Vec::new();
        let folder = tempfile::tempdir().unwrap();
        for database in databases(folder.path()).await {
            let random = Random::seeded(31);
            let builder = Builder {
                project: random.uuid().into(),
                random,
            };
            let (run, submission) = builder.run("train", &json!({}), NOW).unwrap();
            people(&database, &builder, &[run.user_id.to_string()]).await;
            settings.push(Self {
                store: SqlStore::new(database.clone()),
                database,
                builder,
                user: run.user_id,
                run,
                submission,
                // Until the last one is done; only the first is a file.
                _folder: tempfile::tempdir().unwrap(),
            });
        }
        if let Some(first) = settings.first_mut() {
            first._folder = folder;
        }
        settings
    }

    async fn change(&self, change: Change) -> dstack_store::Result<()> {
        self.database.change(vec![change], Vec::new()).await
    }

    fn project(&self, name: &str) -> ProjectRow {
        ProjectRow {
            id: self.builder.random.uuid().into(),
            name: name.to_owned(),
            created_at: NOW,
            owner_id: self.user,
            is_public: false,
            templates_repo: None,
            ssh_private_key: None,
            ssh_public_key: None,
            deleted: false,
            original_name: None,
        }
    }

    async fn add_project(&self, name: &str) -> ProjectId {
        let project = self.project(name);
        let id = project.id;
        let change = Change::InsertProject {
            project,
            quota: None,
            imports: Vec::new(),
        };
        self.change(change).await.unwrap();
        id
    }

    fn delete_project(&self) -> Change {
        Change::DeleteProject {
            id: self.builder.project,
            renamed: "_deleted".to_owned(),
        }
    }
}

#[tokio::test]
async fn a_project_with_a_run_is_not_deleted() {
    for setting in Setting::all().await {
        setting.store.commit(setting.submission.clone()).await.unwrap();
        let refused = setting.change(setting.delete_project()).await.unwrap_err();
        let StoreError::InUse { by, names } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((by, names), ("runs", vec!["train".to_owned()]));
        let database = &setting.database;
        assert!(database.projects().by_name("main").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn nothing_begins_in_a_project_that_was_deleted_meanwhile() {
    for setting in Setting::all().await {
        setting.change(setting.delete_project()).await.unwrap();
        let fleet = setting.builder.machine(1, NOW).unwrap();
        for commit in [setting.submission.clone(), fleet] {
            let refused = setting.store.commit(commit).await.unwrap_err();
            assert!(refused.is_conflict(), "{refused:?}");
        }
        assert!(setting.store.run(setting.run.id).await.unwrap().is_none());
    }
}

/// Whoever is first, a run is never left behind in a deleted project.
#[tokio::test]
async fn a_submission_and_a_deletion_at_once_do_not_both_succeed() {
    for setting in Setting::all().await {
        for number in 0..20 {
            let project = setting.add_project(&format!("project-{number}")).await;
            let builder = Builder {
                project,
                ..setting.builder.clone()
            };
            let (mut run, _) = builder.run("train", &json!({}), NOW).unwrap();
            run.user_id = setting.user;
            let mut changes = builder.changes(NOW);
            changes.insert_silently(run.clone());
            let delete = Change::DeleteProject {
                id: project,
                renamed: format!("_deleted_{number}"),
            };
            let (submitted, deleted) = tokio::join!(
                setting.store.commit(changes.into_commit()),
                setting.change(delete)
            );
            assert_ne!(submitted.is_ok(), deleted.is_ok(), "{submitted:?} {deleted:?}");
        }
    }
}

fn backend(setting: &Setting) -> BackendRow {
    BackendRow {
        id: "backend".to_owned(),
        project_id: setting.builder.project,
        kind: "aws".to_owned(),
        created_at: NOW,
        config: "{}".to_owned(),
        auth: String::new(),
        source_config: None,
        source_auth: None,
    }
}

/// A fleet with an instance of the backend.
fn instance_of_backend(setting: &Setting) -> Commit {
    let mut changes = setting.builder.changes(NOW);
    for put in setting.builder.machine(1, NOW).unwrap().puts() {
        match put.clone() {
            Put::Fleet(row) => changes.insert_silently(row),
            Put::Instance(mut row) => {
                row.backend = Some("aws".to_owned());
                changes.insert_silently(row);
            }
            other => panic!("{other:?}"),
        }
    }
    changes.into_commit()
}

#[tokio::test]
async fn a_backend_and_its_instances_do_not_part() {
    for setting in Setting::all().await {
        let delete = || Change::DeleteBackend {
            project: setting.builder.project,
            kind: "aws".to_owned(),
        };
        let refused = setting.store.commit(instance_of_backend(&setting)).await;
        assert!(refused.unwrap_err().is_conflict(), "there is no such backend");
        setting
            .change(Change::InsertBackend(backend(&setting)))
            .await
            .unwrap();
        setting.store.commit(instance_of_backend(&setting)).await.unwrap();
        let refused = setting.change(delete()).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::InUse { by: "instances", .. }),
            "{refused:?}"
        );
        let placed = setting.store.placement(setting.builder.project).await.unwrap();
        let old = placed.instances.first().unwrap().clone();
        let mut changes: Changes = setting.builder.changes(NOW);
        let mut over = old.clone();
        over.delete(NOW);
        changes.update(&old, over);
        setting.store.commit(changes.into_commit()).await.unwrap();
        setting.change(delete()).await.unwrap();
    }
}

/// A new fleet of this host, decided on while no other fleet had it.
fn fleet_of_host(setting: &Setting, name: &str, hostname: &str) -> Commit {
    let mut changes = setting.builder.changes(NOW);
    for put in setting.builder.machine(1, NOW).unwrap().puts() {
        match put.clone() {
            Put::Fleet(mut row) => {
                name.clone_into(&mut row.name);
                row.local = false;
                let host = HostKey {
                    name: normalised(hostname),
                    port: 22,
                };
                let hosts = [host].into();
                changes.directory(Change::ExpectFreeHosts { fleet: row.id, hosts });
                changes.insert_silently(row);
            }
            Put::Instance(mut row) => {
                let mut place = row.job_provisioning_data.as_deref().unwrap().clone();
                place.hostname = Some(hostname.to_owned());
                row.job_provisioning_data = Some(Sealed::new(place));
                changes.insert_silently(row);
            }
            other => panic!("{other:?}"),
        }
    }
    changes.into_commit()
}

#[tokio::test]
async fn of_two_fleets_that_get_a_host_at_once_one_has_it() {
    for setting in Setting::all().await {
        for number in 0..10 {
            let [a, b] = ["a", "b"].map(|fleet| format!("{fleet}{number}"));
            let host = format!("Host{number}.example");
            let first = fleet_of_host(&setting, &a, &host);
            let second = fleet_of_host(&setting, &b, &format!("host{number}.EXAMPLE."));
            let (first, second) = tokio::join!(setting.store.commit(first), setting.store.commit(second));
            assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
            let refused = first.err().or(second.err()).unwrap();
            assert!(refused.is_conflict(), "{refused:?}");
            let late = fleet_of_host(&setting, &format!("c{number}"), &host);
            assert!(setting.store.commit(late).await.unwrap_err().is_conflict());
        }
        let store = MemoryStore::new();
        store.commit(fleet_of_host(&setting, "a", "h")).await.unwrap();
        let refused = store.commit(fleet_of_host(&setting, "b", "H")).await;
        assert!(refused.unwrap_err().is_conflict());
        store.commit(fleet_of_host(&setting, "b", "other")).await.unwrap();
    }
}

/// A host of a new fleet that turns out to be this machine, decided on while no other host was it.
fn host_on(setting: &Setting, name: &str, machine: &str) -> Commit {
    host_beside(setting, name, machine, &BTreeSet::new())
}

/// Same, where these are known to be other machines.
fn host_beside(setting: &Setting, name: &str, machine: &str, apart: &BTreeSet<InstanceId>) -> Commit {
    let mut changes = setting.builder.changes(NOW);
    for put in setting.builder.machine(1, NOW).unwrap().puts() {
        match put.clone() {
            Put::Fleet(mut row) => {
                name.clone_into(&mut row.name);
                changes.insert_silently(row);
            }
            Put::Instance(mut row) => {
                row.machine = Some(machine.to_owned());
                let instance = row.id;
                let machine = machine.to_owned();
                changes.directory(Change::ExpectOwnMachine {
                    instance,
                    machine,
                    apart: apart.clone(),
                });
                changes.insert_silently(row);
            }
            other => panic!("{other:?}"),
        }
    }
    changes.into_commit()
}

async fn leave(setting: &Setting, host: &InstanceRow) {
    let mut leaves = host.clone();
    let reason = InstanceTerminationReason::TerminatedByUser;
    leaves.terminate(reason, None, NOW).unwrap();
    let mut changes: Changes = setting.builder.changes(NOW);
    changes.update(host, leaves);
    setting.store.commit(changes.into_commit()).await.unwrap();
}

#[tokio::test]
async fn of_two_hosts_that_become_one_machine_at_once_one_has_it() {
    for setting in Setting::all().await {
        for number in 0..10 {
            let machine = format!("boot id {number} net:[1]");
            let [a, b] = ["a", "b"].map(|fleet| host_on(&setting, &format!("{fleet}{number}"), &machine));
            let (first, second) = tokio::join!(setting.store.commit(a), setting.store.commit(b));
            assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
            let refused = first.err().or(second.err()).unwrap();
            assert!(refused.is_conflict(), "{refused:?}");
            let late = host_on(&setting, &format!("c{number}"), &machine);
            assert!(setting.store.commit(late).await.unwrap_err().is_conflict());
            // Whoever decides again finds whose it is, until that one leaves.
            let found = setting.store.hosts_on(&machine).await.unwrap();
            assert_eq!(found.len(), 1);
            // One that is known to be another machine is not in the way.
            let apart = BTreeSet::from([found[0].id]);
            let beside = |fleet: &str| host_beside(&setting, &format!("{fleet}{number}"), &machine, &apart);
            setting.store.commit(beside("e")).await.unwrap();
            let third = setting.store.commit(beside("f")).await;
            assert!(third.unwrap_err().is_conflict());
            for host in setting.store.hosts_on(&machine).await.unwrap() {
                leave(&setting, &host).await;
            }
            assert_eq!(setting.store.hosts_on(&machine).await.unwrap(), []);
            setting
                .store
                .commit(host_on(&setting, &format!("d{number}"), &machine))
                .await
                .unwrap();
        }
        let store = MemoryStore::new();
        store.commit(host_on(&setting, "a", "m")).await.unwrap();
        let refused = store.commit(host_on(&setting, "b", "m")).await;
        assert!(refused.unwrap_err().is_conflict());
        store.commit(host_on(&setting, "b", "other")).await.unwrap();
    }
}

#[tokio::test]
async fn of_two_admins_one_stays() {
    for setting in Setting::all().await {
        let project = setting.builder.project;
        let other: UserId = setting.builder.random.uuid().into();
        let insert = format!(
            "INSERT INTO users (id, name, created_at, global_role, active, token, token_hash, projects_quota) \
             VALUES ('{other}', 'other', 0, 'user', 1, '', 'other', 1)"
        );
        raw::execute(&setting.database, &insert).await.unwrap();
        let both = [setting.user, other];
        for user in both {
            let put = Change::PutMember {
                project,
                user,
                role: ProjectRole::Admin,
                number: None,
            };
            setting.change(put).await.unwrap();
        }
        // Both were decided on while there were two.
        let removals = both.map(|user| {
            let expect = Change::ExpectMembers {
                project,
                members: both.map(|user| (user, ProjectRole::Admin)).to_vec(),
            };
            let changes = vec![expect, Change::RemoveMember { project, user }];
            setting.database.change(changes, Vec::new())
        });
        let done = join_all(removals).await;
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        let members = setting.database.projects().members(project).await.unwrap();
        assert_eq!(members.len(), 1);
    }
}

fn export(setting: &Setting, importers: &[(&str, ProjectId)]) -> FullExport {
    FullExport {
        row: ExportRow {
            id: uuid::Uuid::from_u128(7).into(),
            project_id: setting.builder.project,
            name: "shared".to_owned(),
            created_at: NOW,
            is_global: false,
        },
        project_name: "main".to_owned(),
        imports: importers
            .iter()
            .map(|(name, project)| ImportRow {
                id: setting.builder.random.uuid().into(),
                project_id: *project,
                project_name: (*name).to_owned(),
                created_at: NOW,
            })
            .collect(),
        fleets: Vec::new(),
        gateways: Vec::new(),
    }
}

#[tokio::test]
async fn two_changes_of_an_export_do_not_undo_each_other() {
    for setting in Setting::all().await {
        let [a, b] = [setting.add_project("a").await, setting.add_project("b").await];
        let put = |before: Option<FullExport>, after: FullExport| Change::PutExport {
            before: before.map(Box::new),
            after: Box::new(after),
        };
        let empty = export(&setting, &[]);
        setting.change(put(None, empty.clone())).await.unwrap();
        let [with_a, with_b] = [("a", a), ("b", b)].map(|one| export(&setting, &[one]));
        setting
            .change(put(Some(empty.clone()), with_a.clone()))
            .await
            .unwrap();
        let refused = setting.change(put(Some(empty), with_b)).await.unwrap_err();
        assert!(refused.is_conflict(), "{refused:?}");
        let both = export(&setting, &[("a", a), ("b", b)]);
        setting.change(put(Some(with_a), both)).await.unwrap();
        let stored = setting
            .database
            .exports()
            .of_project(setting.builder.project)
            .await
            .unwrap();
        assert_eq!(stored[0].imports.len(), 2);
    }
}

#[tokio::test]
async fn a_new_project_imports_what_became_global_meanwhile() {
    for setting in Setting::all().await {
        let mut global = export(&setting, &[]);
        global.row.is_global = true;
        let id = global.row.id;
        let put = Change::PutExport {
            before: None,
            after: Box::new(global),
        };
        setting.change(put).await.unwrap();
        let insert = |imports| Change::InsertProject {
            project: setting.project("late"),
            quota: None,
            imports,
        };
        let refused = setting.change(insert(Vec::new())).await.unwrap_err();
        assert!(refused.is_conflict(), "{refused:?}");
        let imports = vec![(id, setting.builder.random.uuid().into())];
        setting.change(insert(imports)).await.unwrap();
        // And the other way round: an export cannot become global without a project that came meanwhile.
        let mut second = export(&setting, &[]);
        (second.row.id, second.row.is_global) = (uuid::Uuid::from_u128(8).into(), true);
        second.row.name = "second".to_owned();
        let put = Change::PutExport {
            before: None,
            after: Box::new(second),
        };
        let refused = setting.change(put).await.unwrap_err();
        assert!(refused.is_conflict(), "{refused:?}");
    }
}

#[tokio::test]
async fn quotas_hold_for_calls_at_the_same_time() {
    for setting in Setting::all().await {
        // `main` is one of two.
        let inserts = (0..5).map(|number| {
            setting.change(Change::InsertProject {
                project: setting.project(&format!("project-{number}")),
                quota: Some(2),
                imports: Vec::new(),
            })
        });
        let done = join_all(inserts).await;
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        let tokens = (0..5).map(|number| {
            setting.change(Change::InsertToken {
                token: TokenRow {
                    id: setting.builder.random.uuid().into(),
                    user_id: setting.user,
                    name: format!("token-{number}"),
                    token_hash: format!("hash-{number}"),
                    created_at: NOW,
                    expires_at: None,
                    read_only: false,
                    project_id: None,
                },
                limit: 3,
            })
        });
        let done = join_all(tokens).await;
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 3, "{done:?}");
    }
}

#[tokio::test]
async fn what_is_deleted_twice_keeps_the_name_that_it_had() {
    for setting in Setting::all().await {
        let id = setting.add_project("twice").await;
        let delete = |renamed: &str| Change::DeleteProject {
            id,
            renamed: renamed.to_owned(),
        };
        setting.change(delete("_deleted_1")).await.unwrap();
        let refused = setting.change(delete("_deleted_2")).await.unwrap_err();
        assert!(refused.is_conflict(), "{refused:?}");
        let row = setting.database.projects().by_id(id).await.unwrap().unwrap();
        assert_eq!(row.original_name.as_deref(), Some("twice"));
    }
}

#[tokio::test]
async fn a_field_that_nobody_changes_stays_as_others_have_left_it() {
    for setting in Setting::all().await {
        let id = setting.add_project("team").await;
        let update = |is_public, templates_repo| Change::UpdateProject {
            id,
            is_public,
            templates_repo,
        };
        setting.change(update(Some(true), None)).await.unwrap();
        let repo = Some(Some("https://example.com/templates".to_owned()));
        setting.change(update(None, repo)).await.unwrap();
        setting.change(update(Some(false), None)).await.unwrap();
        let row = || async { setting.database.projects().by_id(id).await.unwrap().unwrap() };
        assert_eq!(
            (row().await.is_public, row().await.templates_repo.as_deref()),
            (false, Some("https://example.com/templates"))
        );
        setting.change(update(None, Some(None))).await.unwrap();
        assert_eq!(row().await.templates_repo, None);
    }
}

#[tokio::test]
async fn nothing_is_given_to_a_user_that_was_deleted_meanwhile() {
    for setting in Setting::all().await {
        let user = setting
            .database
            .users()
            .by_id(setting.user)
            .await
            .unwrap()
            .unwrap();
        let delete = Change::DeleteUser {
            user,
            renamed: "_deleted_".to_owned(),
        };
        setting.change(delete).await.unwrap();
        let identity = Change::InsertIdentity {
            identity: Identity {
                issuer: "https://id.example.com".to_owned(),
                subject: "1".to_owned(),
            },
            user: setting.user,
            at: NOW,
        };
        let member = Change::PutMember {
            project: setting.builder.project,
            user: setting.user,
            role: ProjectRole::User,
            number: None,
        };
        let project = |quota| Change::InsertProject {
            project: setting.project("late"),
            quota,
            imports: Vec::new(),
        };
        for change in [identity, member, project(None), project(Some(9))] {
            let refused = setting.change(change).await.unwrap_err();
            assert!(refused.is_conflict(), "{refused:?}");
        }
    }
}

/// While a cloud is asked for an instance, its row names no backend yet.
#[tokio::test]
async fn a_backend_that_is_asked_for_an_instance_is_not_deleted() {
    for setting in Setting::all().await {
        setting
            .change(Change::InsertBackend(backend(&setting)))
            .await
            .unwrap();
        let mut asked = None;
        let mut changes = setting.builder.changes(NOW);
        for put in setting.builder.machine(1, NOW).unwrap().puts() {
            match put.clone() {
                Put::Fleet(row) => {
                    let wanted = InstanceRow::pending(setting.builder.random.uuid().into(), &row, 0, NOW);
                    asked = Some(wanted.clone());
                    changes.insert_silently(row);
                    changes.insert_silently(wanted);
                }
                Put::Instance(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let asked = asked.unwrap();
        let attempts = json!({"remaining": [{"backend": "aws"}], "in_flight": true});
        changes.intend(OperationRow {
            notes: Some(Sealed::new(attempts)),
            ..OperationRow::intended(
                setting.builder.random.uuid().into(),
                EntityRef::Instance(asked.id),
                OperationKind::Create,
                NOW,
            )
        });
        setting.store.commit(changes.into_commit()).await.unwrap();
        let delete = Change::DeleteBackend {
            project: setting.builder.project,
            kind: "aws".to_owned(),
        };
        let refused = setting.change(delete).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::InUse { by: "instances", .. }),
            "{refused:?}"
        );
        // Even where the backend is gone, what a cloud has made is written down: it is to be seen, and to be ended.
        raw::execute(&setting.database, "DELETE FROM backends")
            .await
            .unwrap();
        let stored = setting.store.instance(asked.id).await.unwrap().unwrap().instance;
        let mut made = stored.clone();
        made.backend = Some("aws".to_owned());
        let mut changes: Changes = setting.builder.changes(NOW);
        changes.update(&stored, made);
        setting.store.commit(changes.into_commit()).await.unwrap();
    }
}

/// Which offer a cloud is asked for is written down only while the backend is there, whoever is faster.
#[tokio::test]
async fn a_backend_that_is_deleted_meanwhile_is_not_asked() {
    for setting in Setting::all().await {
        for round in 0..10 {
            setting
                .change(Change::InsertBackend(backend(&setting)))
                .await
                .unwrap();
            let random = &setting.builder.random;
            let mut changes = setting.builder.changes(NOW);
            let mut asked = None;
            for put in setting.builder.machine(1, NOW).unwrap().puts() {
                if let Put::Fleet(row) = put {
                    let mut fleet = row.clone();
                    fleet.name = format!("fleet-{round}");
                    let wanted = InstanceRow::pending(random.uuid().into(), &fleet, 0, NOW);
                    let subject = EntityRef::Instance(wanted.id);
                    asked = Some(subject);
                    changes.insert_silently(fleet);
                    changes.insert_silently(wanted);
                    changes.intend(OperationRow {
                        notes: Some(Sealed::new(
                            json!({"remaining": [{"backend": "gcp"}, {"backend": "aws"}]}),
                        )),
                        ..OperationRow::intended(random.uuid().into(), subject, OperationKind::Create, NOW)
                    });
                }
            }
            setting.store.commit(changes.into_commit()).await.unwrap();
            let Some(EntityRef::Instance(id)) = asked else {
                panic!("no instance")
            };
            let mut operation = setting
                .store
                .instance(id)
                .await
                .unwrap()
                .unwrap()
                .operations
                .remove(0);
            let notes = json!({"remaining": [{"backend": "aws"}], "in_flight": true});
            operation.notes = Some(Sealed::new(notes));
            let mut changes = setting.builder.changes(NOW);
            changes.intend(operation);
            changes.directory(Change::ExpectBackend {
                project: setting.builder.project,
                kind: "aws".to_owned(),
            });
            let delete = Change::DeleteBackend {
                project: setting.builder.project,
                kind: "aws".to_owned(),
            };
            let (asked, deleted) = tokio::join!(
                setting.store.commit(changes.into_commit()),
                setting.change(delete)
            );
            match (&asked, &deleted) {
                (Ok(()), Err(StoreError::InUse { by: "instances", .. })) => {}
                (Err(refused), Ok(())) if refused.is_conflict() => {}
                other => panic!("both or none: {other:?}"),
            }
            for table in ["operations", "instances", "backends"] {
                let all = format!("DELETE FROM {table}");
                raw::execute(&setting.database, &all).await.unwrap();
            }
        }
    }
}

/// A store that others write to just before each commit, as often as there is something to write.
#[derive(Debug)]
struct Overtaken {
    store: SqlStore,
    others: Mutex<Vec<Commit>>,
}

#[async_trait]
impl EngineHandle for Overtaken {
    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        let other = self.others.lock().unwrap().pop();
        if let Some(other) = other {
            self.store.commit(other).await?;
        }
        self.store.commit(commit).await
    }
}

#[derive(Debug)]
struct Nobody;

impl Watcher for Nobody {
    fn changed(&self, _affected: Affected) {}
}

#[tokio::test]
async fn a_gateway_that_was_removed_meanwhile_does_not_become_the_default() {
    for setting in Setting::all().await {
        let (store, random) = (setting.store.clone(), setting.builder.random.clone());
        let project = setting.database.projects().by_id(setting.builder.project);
        let project = project.await.unwrap().unwrap();
        let backend = backend(&setting);
        let new = NewGateway {
            id: random.uuid().into(),
            project: project.id,
            name: "gate".to_owned(),
            configuration: serde_json::from_value(
                json!({"type": "gateway", "name": "gate", "backend": "aws", "region": "eu"}),
            )
            .unwrap(),
            backend: Some(backend.id.clone()),
        };
        setting.change(Change::InsertBackend(backend)).await.unwrap();
        let mut changes = setting.builder.changes(NOW);
        changes.insert_silently(GatewayRow::submitted(new.clone(), NOW));
        store.commit(changes.into_commit()).await.unwrap();
        let stored = store.gateway(new.id).await.unwrap().unwrap().gateway;
        let mut removal = setting.builder.changes(NOW);
        removal.remove(stored, "Gateway deleted");

        let encryption = Encryption::new(Vec::new(), random.clone());
        let database = setting.database.clone();
        let keys = Keys::new(database.clone(), encryption.clone(), random.clone());
        let clock = Arc::new(SystemClock);
        let directory = Directory {
            database,
            encryption,
            keys: Arc::new(keys),
            clock: clock.clone(),
            random: random.clone(),
            keep_events: true,
            watcher: Arc::new(Nobody),
        };
        let core = Core {
            store: Arc::new(store.clone()),
            engine: Arc::new(Overtaken {
                store,
                others: Mutex::new(vec![removal.into_commit()]),
            }),
            clock,
            random,
            keep_events: true,
        };
        let gateways = Gateways::new(core, directory, Registry::new([]), 1);
        let refused = gateways.set_default(Actor::System, &project, None, "gate").await;
        assert!(refused.is_err(), "it is gone");
        let default = setting.database.gateways().default_id(project.id).await;
        assert_eq!(default.unwrap(), None);
    }
}
