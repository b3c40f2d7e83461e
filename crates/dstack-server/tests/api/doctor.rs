//! What is wrong with an installation, and what it has in clouds.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Account, AccountProject, Backend, BackendKind, Backends, ComputeError, Inventory, Marks, MissingRegion,
    Owned, OwnedKind, OwnedMark, Removal,
};
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceTerminationReason;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::orphans::Sighting;
use dstack_server::blobs::Bucket;
use dstack_server::doctor::{BackendFiles, LeftOut, Wrong};
use dstack_store::queries::orphans::OrphanRow;
use dstack_store::rows::{InstanceRow, OperationKind, OperationRow, OperationState};
use dstack_store::writes::Change;
use dstack_store::{Changes, Commit, EngineStore, EntityRef, EventMaker, Put, Sealed, StoreError, raw};
use dstack_store_doubles::Fault;
use dstack_store_doubles::objects::{Kind, Objects};
use dstack_system::{Locked, task};
use dstack_units::{InstallationId, ProjectId, Time};
use serde_json::{Value, json};
use uuid::Uuid;

use super::effects::ssh_fleet;
use super::{ADMIN, HandClock, Server, TestServer, backends, on_postgres};

const DIAGNOSIS: &str = "/api/server/get_diagnosis";
const ACCOUNT: &str = "/api/server/list_account";

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A cloud that lists what it is told to, or fails, or does not answer.
#[derive(Debug)]
struct Cloud {
    inventory: Locked<Result<Vec<Owned>, ComputeError>>,
    missing: Locked<Vec<MissingRegion>>,
    offers: Locked<Result<(), ComputeError>>,
    hangs: AtomicBool,
    asked: AtomicUsize,
    being_asked: AtomicUsize,
    most_at_once: AtomicUsize,
}

/// Counts until it is dropped.
struct BeingAsked<'a>(&'a AtomicUsize);

impl Drop for BeingAsked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Cloud {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inventory: Locked::new(Ok(Vec::new())),
            missing: Locked::new(Vec::new()),
            offers: Locked::new(Ok(())),
            hangs: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            being_asked: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        })
    }

    /// That never says what it has.
    fn silent() -> Arc<Self> {
        let cloud = Self::new();
        cloud.hangs.store(true, Ordering::SeqCst);
        cloud
    }

    fn lists(&self, things: Vec<Owned>) {
        *self.inventory.lock() = Ok(things);
    }

    fn fails(&self, error: &ComputeError) {
        *self.inventory.lock() = Err(error.clone());
    }
}

#[async_trait]
impl Backend for Cloud {
    fn backend_kind(&self) -> &dyn BackendKind {
        &backends::Picky
    }

    async fn offers(&self, _: &Requirements) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        self.offers.lock().clone().map(|()| Vec::new())
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let now = self.being_asked.fetch_add(1, Ordering::SeqCst) + 1;
        let _asked = BeingAsked(&self.being_asked);
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
        self.inventory.lock().clone()
    }

    async fn inventory_by_region(&self) -> Result<Inventory, ComputeError> {
        let owned = self.inventory().await?;
        let missing = self.missing.lock().clone();
        Ok(Inventory { owned, missing })
    }

    async fn remove_owned(&self, _: &Owned) -> Result<Removal, ComputeError> {
        panic!("a diagnosis changes nothing")
    }
}

/// Accounts of projects `main` and `team`, so many; `None`: nobody knows, and nobody says so.
#[derive(Debug)]
struct Accounts(Arc<Cloud>, Option<usize>);

#[async_trait]
impl Backends for Accounts {
    async fn of_project(&self, _: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        Ok(vec![Arc::clone(&self.0) as Arc<dyn Backend>])
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let Some(count) = self.1 else {
            return pending().await;
        };
        let project = |name: &str| AccountProject {
            id: ProjectId::new(Uuid::nil()),
            name: name.to_owned(),
        };
        let account = Account {
            id: "account".to_owned(),
            kind: "runpod".to_owned(),
            backend: Ok(Arc::clone(&self.0) as Arc<dyn Backend>),
            projects: vec![project("main"), project("team")],
        };
        Ok(vec![account; count])
    }
}

async fn server(cloud: &Arc<Cloud>) -> (Server, Arc<HandClock>) {
    // As the database has it.
    let clock = HandClock::stopped();
    let server = TestServer::new()
        .clock(&clock)
        .backends(Arc::new(Accounts(Arc::clone(cloud), Some(1))));
    (server.start().await, clock)
}

/// That is diagnosed soon.
async fn hasty_server(cloud: &Arc<Cloud>, accounts: Option<usize>) -> Server {
    let accounts = Accounts(Arc::clone(cloud), accounts);
    let server = TestServer::new()
        .backends(Arc::new(accounts))
        .diagnosed_within(Duration::from_secs(3));
    server.start().await
}

fn now(server: &Server) -> Time {
    server.state.data.clock.now()
}

async fn installation(server: &Server) -> InstallationId {
    let candidate = Uuid::nil().into();
    let database = &server.state.data.database;
    database.installation(candidate).await.unwrap()
}

async fn owned(server: &Server, kind: OwnedKind, id: &str, key: Uuid, by_name: bool) -> Owned {
    let marks = Marks {
        installation: installation(server).await,
        key,
        name: id.to_owned(),
        project: ProjectId::new(Uuid::nil()),
    };
    let mark = OwnedMark::Tags {
        installation: marks.installation,
        key,
    };
    Owned {
        kind,
        id: id.to_owned(),
        name: marks.name(60),
        mark: match by_name {
            true => OwnedMark::of_name(&marks.name(60)).unwrap(),
            false => mark,
        },
        region: "EU-1".to_owned(),
        price: Some(1.5),
        made_at: Some(now(server) - minutes(90)),
    }
}

/// Instances 0 and 1 of an SSH fleet, as they are stored.
async fn instances(server: &Server) -> Vec<InstanceRow> {
    let plan = json!({"plan": {"spec": ssh_fleet(&["192.0.2.1", "192.0.2.2"])}, "force": true});
    let fleet = server.main("fleets/apply", plan).await.ok();
    let mut rows = Vec::new();
    for instance in fleet["instances"].as_array().unwrap() {
        let id = instance["id"].as_str().unwrap().parse().unwrap();
        rows.push(
            server
                .state
                .data
                .store()
                .instance(id)
                .await
                .unwrap()
                .unwrap()
                .instance,
        );
    }
    rows
}

async fn write(server: &Server, puts: Vec<Put>) {
    let commit = Commit::unchecked(puts, Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
}

async fn remember(server: &Server, row: OrphanRow) {
    let random = server.state.data.random.clone();
    let mut changes = Changes::new(EventMaker::system(now(server), random));
    changes.directory(Change::PutOrphan(row));
    server
        .state
        .data
        .store()
        .commit(changes.into_commit())
        .await
        .unwrap();
}

async fn findings(server: &Server) -> Vec<Value> {
    let diagnosis = server.post(ADMIN, DIAGNOSIS, Value::Null).await.ok();
    let mut found = diagnosis["findings"].as_array().unwrap().clone();
    // Where the database has a clock of its own, it does not go with that of a test.
    found.retain(|finding| finding["check"] != "clocks");
    found
}

/// Check, subject, and a part of the problem of each finding.
#[track_caller]
fn assert_found(found: &[Value], expected: &[(&str, &str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (check, subject, problem)) in found.iter().zip(expected) {
        assert_eq!(
            (&found["check"], &found["subject"]),
            (&json!(check), &json!(subject))
        );
        assert!(found["problem"].as_str().unwrap().contains(problem), "{found:#}");
        assert!(found["remedy"].as_str().unwrap().len() > 20, "{found:#}");
    }
}

#[tokio::test]
async fn of_a_healthy_installation_every_check_is_told_and_nothing_is_found() {
    let (server, _) = server(&Cloud::new()).await;
    let diagnosis = server.post(ADMIN, DIAGNOSIS, Value::Null).await.ok();
    assert_eq!(diagnosis["findings"], json!([]));
    assert_eq!(diagnosis["asked_at"], json!(now(&server)));
    let checks: Vec<&str> = diagnosis["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    let all = [
        "database",
        "log-store",
        "bucket",
        "clocks",
        "backend-files",
        "backends",
        "orphans",
        "terminations",
        "stuck",
        "hosts",
    ];
    assert_eq!(checks, all);
}

#[tokio::test]
async fn files_that_describe_no_backend_are_found_with_line_and_cause() {
    let wrong = |line: Option<usize>, cause: &str| Wrong {
        line,
        cause: cause.to_owned(),
    };
    let dir = PathBuf::from("/etc/backends");
    let left_out = vec![
        LeftOut {
            file: dir.join("twice.yml"),
            problems: vec![wrong(Some(4), "`type`: acme.yml describes `acme` already")],
        },
        LeftOut {
            file: dir.join("broken.yml"),
            problems: vec![
                wrong(Some(2), "`api`: Field required"),
                wrong(Some(11), "`mkae` is no field"),
            ],
        },
        LeftOut {
            file: dir.clone(),
            problems: vec![wrong(None, "Permission denied")],
        },
    ];
    let files = BackendFiles {
        dir,
        used: 1,
        left_out,
    };
    let server = TestServer::new().backend_files(files).start().await;
    let diagnosis = server.post(ADMIN, DIAGNOSIS, Value::Null).await.ok();
    let checks = diagnosis["checks"].as_array().unwrap();
    let done = checks
        .iter()
        .find(|done| done["check"] == "backend-files")
        .unwrap();
    assert_eq!(
        done["looked_at"],
        "4 files in /etc/backends, as read at the start"
    );
    let found = findings(&server).await;
    let check = "backend-files";
    assert_found(
        &found,
        &[
            (check, "directory /etc/backends", "Permission denied"),
            (
                check,
                "file /etc/backends/broken.yml",
                "line 2: `api`: Field required; line 11: `mkae` is no field",
            ),
            (
                check,
                "file /etc/backends/twice.yml",
                "line 4: `type`: acme.yml describes `acme` already",
            ),
        ],
    );
    let remedy = found[1]["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("`dstack backend check --offline /etc/backends/broken.yml`"),
        "{remedy}"
    );
}

/// Accounts of a type whose file is gone, and of one that this server knows and that was configured for another version.
#[derive(Debug)]
struct Misfits;

#[async_trait]
impl Backends for Misfits {
    async fn of_project(&self, _: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        Ok(Vec::new())
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let of = |kind: &str| Account {
            id: kind.to_owned(),
            kind: kind.to_owned(),
            backend: Err(ComputeError::Configuration("it does not fit".to_owned())),
            projects: vec![AccountProject {
                id: ProjectId::new(Uuid::nil()),
                name: "team".to_owned(),
            }],
        };
        Ok(vec![of("nimbus"), of("runpod")])
    }
}

#[tokio::test]
async fn a_backend_whose_type_nobody_describes_is_found_with_how_it_is_deleted() {
    let server = TestServer::new().backends(Arc::new(Misfits)).start().await;
    let found = findings(&server).await;
    assert_found(
        &found,
        &[
            ("backends", "backend nimbus", "it does not fit"),
            ("backends", "backend runpod", "it does not fit"),
        ],
    );
    assert_eq!(found[0]["projects"], json!(["team"]));
    let remedies = found.iter().map(|finding| finding["remedy"].as_str().unwrap());
    let says = |text: &str| {
        remedies
            .clone()
            .map(|remedy| remedy.contains(text))
            .collect::<Vec<_>>()
    };
    assert_eq!(says("`dstack backend delete nimbus`"), [true, false]);
    assert_eq!(says("Put the file that describes it back"), [true, false]);
    assert_eq!(says("Configure the backend again"), [false, true]);
}

#[tokio::test]
async fn orphans_are_found_by_what_the_cloud_lists_now() {
    let cloud = Cloud::new();
    let (server, clock) = server(&cloud).await;
    let begin = now(&server);
    let mut rows = instances(&server).await;
    let (live, mut over) = (rows.remove(0), rows.remove(0));
    over.terminate(InstanceTerminationReason::TerminatedByUser, None, begin)
        .unwrap();
    over.finish(begin).unwrap();
    let operations = server
        .state
        .data
        .store()
        .instance(over.id)
        .await
        .unwrap()
        .unwrap()
        .operations;
    let ended = operations.into_iter().map(|row| {
        Put::Operation(OperationRow {
            state: OperationState::Failed,
            ..row
        })
    });
    let mut puts: Vec<Put> = ended.collect();
    puts.push(Put::Instance(over.clone()));
    write(&server, puts).await;
    let unknown = Uuid::from_u128(77);
    let lost = owned(&server, OwnedKind::Machine, "lost", unknown, false).await;
    let things = vec![
        owned(&server, OwnedKind::Machine, "live", live.id.uuid(), true).await,
        owned(&server, OwnedKind::Piece("address"), "left", over.id.uuid(), true).await,
        lost.clone(),
        Owned {
            mark: OwnedMark::Tags {
                installation: Uuid::from_u128(9).into(),
                key: unknown,
            },
            id: "others".to_owned(),
            ..lost.clone()
        },
    ];
    cloud.lists(things);
    // What ended just now may be listed for a moment more.
    let backend = "backend runpod";
    let lost_text = "machine lost (dstack-lost-";
    assert_found(&findings(&server).await, &[("orphans", backend, lost_text)]);
    clock.advance(31 * 60);
    let found = findings(&server).await;
    assert_found(
        &found,
        &[
            (
                "orphans",
                backend,
                "in EU-1 for $1.50 an hour: it was made for instance onprem-1, which is over",
            ),
            ("orphans", backend, lost_text),
        ],
    );
    assert_eq!(found[1]["projects"], json!(["main", "team"]));
    assert_eq!(found[1]["price_per_hour"], 1.5);
    assert_eq!(found[1]["since"], json!(begin - minutes(90)), "when it was made");
    assert!(
        found[1]["remedy"]
            .as_str()
            .unwrap()
            .contains("DSTACK_SERVER_ORPHANS=remove-unknown")
    );
}

/// Of one that belongs to nobody, as a sweep wrote it down.
fn orphan_row(now: Time, key: &str, account: &str, is_reported: bool) -> OrphanRow {
    OrphanRow {
        key: key.to_owned(),
        account: account.to_owned(),
        description: format!("machine {key}"),
        sighting: Sighting {
            first: now - minutes(40),
            last: now,
            is_reported,
            is_ending: false,
        },
    }
}

/// The others are looked at; what was seen in it is told, as when nothing is known of the whole account.
#[tokio::test]
async fn a_region_that_does_not_tell_is_found_and_hides_no_other() {
    let cloud = Cloud::new();
    let (server, _) = server(&cloud).await;
    let now = now(&server);
    for (region, is_reported) in [("EU-1", true), ("EU-2", true), ("EU-3", true), ("EU-3", false)] {
        let key = format!("runpod|machine|{region}|{is_reported}|key");
        remember(&server, orphan_row(now, &key, "account", is_reported)).await;
    }
    cloud.lists(vec![
        owned(&server, OwnedKind::Machine, "lost", Uuid::from_u128(77), false).await,
    ]);
    let missing = |region: &str, error: Option<&str>| MissingRegion {
        region: region.to_owned(),
        error: error.map(|text| ComputeError::Unclear(text.to_owned())),
    };
    *cloud.missing.lock() = vec![missing("EU-2", None), missing("EU-3", Some("503"))];
    let backend = "backend runpod";
    assert_found(
        &findings(&server).await,
        &[
            ("backends", backend, "The region EU-3 does not tell what it has:"),
            ("orphans", backend, "machine lost (dstack-lost-"),
            (
                "orphans",
                backend,
                "machine runpod|machine|EU-2|true|key, as it was listed last",
            ),
            (
                "orphans",
                backend,
                "machine runpod|machine|EU-3|true|key, as it was listed last",
            ),
        ],
    );
    let answer = server
        .post(ADMIN, ACCOUNT, json!({"backend": "runpod"}))
        .await
        .ok();
    let account = &answer["accounts"][0];
    assert_eq!(account["things"][0]["id"], "lost");
    let error = account["error"].as_str().unwrap();
    assert!(error.contains("EU-3") && !error.contains("EU-2"), "{error}");
}

#[tokio::test]
async fn a_cloud_that_fails_is_found_with_what_the_last_sweep_saw() {
    let cloud = Cloud::new();
    let (server, _) = server(&cloud).await;
    let now = now(&server);
    let row = |key: &str, account: &str, is_reported| orphan_row(now, key, account, is_reported);
    remember(&server, row("lost", "account", true)).await;
    remember(&server, row("new", "account", false)).await;
    remember(&server, row("of another", "another", true)).await;
    cloud.fails(&ComputeError::Credentials("401".to_owned()));
    let found = findings(&server).await;
    assert_found(
        &found,
        &[
            (
                "backends",
                "backend runpod",
                "the cloud refuses the credentials: 401",
            ),
            ("orphans", "backend runpod", "machine lost, as it was listed last"),
        ],
    );
    assert!(
        found[0]["remedy"]
            .as_str()
            .unwrap()
            .starts_with("Replace the credentials"),
        "{found:?}"
    );
    assert_eq!(found[1]["since"], json!(now - minutes(40)));
    // It lists what it has, and refuses to say what it offers.
    cloud.lists(Vec::new());
    *cloud.offers.lock() = Err(ComputeError::Unclear("503".to_owned()));
    let found = findings(&server).await;
    assert_found(&found, &[("backends", "backend runpod", "503")]);
}

#[tokio::test]
async fn rows_that_do_not_get_on_are_found() {
    let (server, clock) = server(&Cloud::new()).await;
    let begin = now(&server);
    let mut rows = instances(&server).await;
    let (mut ending, mut waiting) = (rows.remove(0), rows.remove(0));
    ending
        .terminate(InstanceTerminationReason::TerminatedByUser, None, begin)
        .unwrap();
    let id = server.state.data.random.uuid().into();
    let removal = OperationRow {
        attempt: 7,
        error: Some("403: not authorized".to_owned()),
        ..OperationRow::intended(id, EntityRef::Instance(ending.id), OperationKind::Remove, begin)
    };
    waiting.unreachable = true;
    waiting.wait(Wait::until(begin + minutes(10), WaitReason::CloudsAsked));
    write(
        &server,
        vec![
            Put::Instance(ending),
            Put::Operation(removal),
            Put::Instance(waiting),
        ],
    )
    .await;
    // As far as those that were prepared are concerned.
    let unreachable = ("hosts", "instance onprem-1", "its agent does not answer");
    assert_found(&findings(&server).await, &[unreachable]);
    clock.advance(16 * 60);
    let found = findings(&server).await;
    assert_found(
        &found,
        &[
            (
                "terminations",
                "instance onprem-0",
                "it is being ended: 403: not authorized",
            ),
            ("stuck", "instance onprem-1", "past the deadline of that"),
            unreachable,
        ],
    );
    assert_eq!(
        (&found[0]["since"], &found[0]["projects"]),
        (&json!(begin), &json!(["main"]))
    );
    assert_eq!(found[1]["since"], json!(begin + minutes(10)));
}

#[tokio::test]
async fn a_clock_of_the_database_that_differs_is_found() {
    let (server, clock) = server(&Cloud::new()).await;
    clock.advance(60);
    let diagnosis = server.post(ADMIN, DIAGNOSIS, Value::Null).await.ok();
    let found = diagnosis["findings"].as_array().unwrap();
    // SQLite has no clock.
    let wrong = ("clocks", "clock of the database", "s behind that of the server");
    assert_found(found, &[wrong][..usize::from(on_postgres())]);
}

#[tokio::test]
async fn a_bucket_that_refuses_is_found() {
    let double = Objects::start(Kind::Gcs, "bucket").await;
    let bucket = Bucket::gcs("bucket", Some(&double.url)).unwrap();
    let server = TestServer::new().bucket(bucket).start().await;
    assert_found(&findings(&server).await, &[]);
    double.faults.add([Fault::Denied]);
    assert_found(
        &findings(&server).await,
        &[("bucket", "bucket of uploads", "the bucket bucket failed")],
    );
}

/// Neither a full disk nor a database that was made read only shows when something is read.
#[tokio::test]
async fn a_database_that_cannot_be_written_to_is_found() {
    let (server, _) = server(&Cloud::new()).await;
    assert_found(&findings(&server).await, &[]);
    let refuse = match on_postgres() {
        true => "ALTER TABLE meta ADD CONSTRAINT no_room CHECK (key <> 'diagnoses') NOT VALID",
        false => "CREATE TRIGGER no_room BEFORE UPDATE ON meta BEGIN SELECT RAISE(FAIL, 'no_room'); END",
    };
    let database = &server.state.data.database;
    let refused = database.write(move |tx| Box::pin(async move { raw::execute_in(tx, refuse).await }));
    refused.await.unwrap();
    assert_found(&findings(&server).await, &[("database", "database", "no_room")]);
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_found_in_time() {
    let late = ("database", "database", "no answer within 3 s");
    // Whoever is asked for the accounts hangs as well.
    for accounts in [Some(1), None] {
        let server = hasty_server(&Cloud::new(), accounts).await;
        let (held, is_held) = tokio::sync::oneshot::channel();
        let database = server.state.data.database.clone();
        let holds = accounts.is_some();
        let writer = task::spawn("holds the database", async move {
            let write = database.write(move |tx| {
                Box::pin(async move {
                    let sql = "INSERT INTO meta (key, value) VALUES ('diagnoses', '1')";
                    raw::execute_in(tx, sql).await?;
                    held.send(()).ok();
                    pending::<Result<(), StoreError>>().await
                })
            });
            match holds {
                true => write.await.ok(),
                false => None,
            }
        });
        is_held.await.ok();
        assert_found(&findings(&server).await, &[late]);
        writer.abort();
    }
}

#[tokio::test]
async fn a_log_store_that_cannot_be_written_to_is_found() {
    let (server, _) = server(&Cloud::new()).await;
    fs_err::write(server.folder.path().join("projects"), "a file in its place").unwrap();
    let refused = ("log-store", "store of output", "cannot write the log");
    assert_found(&findings(&server).await, &[refused]);
}

/// Nor is it said that it offers nothing, where it has only not said yet what it has.
#[tokio::test]
async fn who_asks_while_others_wait_for_a_diagnosis_gets_the_same() {
    let cloud = Cloud::silent();
    let server = hasty_server(&cloud, Some(1)).await;
    let found = tokio::join!(findings(&server), findings(&server));
    let silent = (
        "backends",
        "backend runpod",
        "it has not said in time what it has",
    );
    for found in [found.0, found.1] {
        assert_found(&found, &[silent]);
    }
    assert_eq!(cloud.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn of_many_accounts_few_are_asked_at_once_and_all_are_told_of_in_time() {
    let cloud = Cloud::silent();
    let server = hasty_server(&cloud, Some(10)).await;
    let found = findings(&server).await;
    assert_eq!(found.len(), 2, "each text once: {found:#?}");
    let problem = |finding: &Value| finding["problem"].as_str().unwrap().to_owned();
    let problems: Vec<String> = found.iter().map(problem).collect();
    for expected in ["what it has", "the others took all the time"] {
        assert!(
            problems.iter().any(|text| text.contains(expected)),
            "{problems:?}"
        );
    }
    assert_eq!(cloud.most_at_once.load(Ordering::SeqCst), 4);
    let answer = server
        .post(ADMIN, ACCOUNT, json!({"backend": "runpod"}))
        .await
        .ok();
    assert_eq!(answer["accounts"].as_array().unwrap().len(), 10);
    assert_eq!(cloud.most_at_once.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_second_machine_of_an_instance_is_found_and_its_own_is_not() {
    let cloud = Cloud::new();
    let (server, _) = server(&cloud).await;
    let mut live = instances(&server).await.remove(0);
    let resources =
        json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 102_400}});
    let place = json!({"backend": "runpod", "instance_type": {"name": "m", "resources": resources}, "instance_id": "own",
        "region": "EU-1", "price": 1.5, "username": "root", "dockerized": true});
    let place: JobProvisioningData = decode_strict(&place).unwrap();
    live.job_provisioning_data = Some(Sealed::new(place));
    let key = live.id.uuid();
    write(&server, vec![Put::Instance(live)]).await;
    cloud.lists(vec![
        owned(&server, OwnedKind::Machine, "own", key, true).await,
        owned(&server, OwnedKind::Machine, "second", key, true).await,
        // Made just now: it may not be for long.
        Owned {
            made_at: Some(now(&server)),
            ..owned(&server, OwnedKind::Machine, "third", key, true).await
        },
        owned(&server, OwnedKind::Piece("address"), "of it", key, true).await,
    ]);
    let text = "it was made for instance onprem-0, which has another one";
    let found = findings(&server).await;
    assert_found(&found, &[("orphans", "backend runpod", text)]);
    assert!(
        found[0]["problem"]
            .as_str()
            .unwrap()
            .starts_with("machine second")
    );
    let answer = server
        .post(ADMIN, ACCOUNT, json!({"backend": "runpod"}))
        .await
        .ok();
    let things = answer["accounts"][0]["things"].as_array().unwrap();
    let states: Vec<_> = things
        .iter()
        .map(|thing| (&thing["id"], &thing["state"]))
        .collect();
    let (known, duplicate) = (json!("known"), json!("duplicate"));
    assert_eq!(
        states,
        [
            (&json!("of it"), &known),
            (&json!("own"), &known),
            (&json!("second"), &duplicate),
            (&json!("third"), &duplicate)
        ]
    );
}

#[tokio::test]
async fn disks_are_left_to_whoever_reads_the_finding() {
    let cloud = Cloud::new();
    let server = TestServer::new()
        .backends(Arc::new(Accounts(Arc::clone(&cloud), Some(1))))
        .settings(|settings| settings.orphans = "remove-unknown".to_owned())
        .start()
        .await;
    cloud.lists(vec![
        owned(&server, OwnedKind::Machine, "lost", Uuid::from_u128(5), false).await,
        owned(&server, OwnedKind::Volume, "disk", Uuid::from_u128(6), false).await,
    ]);
    let found = findings(&server).await;
    let remedies: Vec<_> = found
        .iter()
        .map(|finding| finding["remedy"].as_str().unwrap())
        .collect();
    assert!(remedies[0].starts_with("The server ends it once"), "{remedies:?}");
    assert!(
        remedies[1].contains("the server never ends disks"),
        "{remedies:?}"
    );
}

#[tokio::test]
async fn an_account_is_listed_with_what_it_costs_and_who_knows_it() {
    let cloud = Cloud::new();
    let (server, _) = server(&cloud).await;
    let live = instances(&server).await.remove(0);
    let things = vec![
        owned(&server, OwnedKind::Volume, "disk", Uuid::from_u128(5), false).await,
        owned(&server, OwnedKind::Machine, "live", live.id.uuid(), false).await,
    ];
    cloud.lists(things);
    for (request, accounts) in [
        (json!({"backend": "runpod"}), 1),
        (json!({"backend": "runpod", "project_name": "team"}), 1),
        (json!({"backend": "runpod", "project_name": "other"}), 0),
        (json!({"backend": "aws"}), 0),
    ] {
        let answer = server.post(ADMIN, ACCOUNT, request).await.ok();
        let found = answer["accounts"].as_array().unwrap();
        assert_eq!(found.len(), accounts, "{answer:#}");
        let Some(account) = found.first() else { continue };
        assert_eq!(account["projects"], json!(["main", "team"]));
        assert_eq!(
            (&account["error"], &account["price_per_hour"]),
            (&Value::Null, &json!(3.0))
        );
        let of = |thing: &Value| {
            (
                thing["id"].clone(),
                thing["state"].clone(),
                thing["made_for"].clone(),
            )
        };
        let things: Vec<_> = account["things"].as_array().unwrap().iter().map(of).collect();
        let expected = [
            (json!("live"), json!("known"), json!("instance onprem-0")),
            (json!("disk"), json!("unknown"), Value::Null),
        ];
        assert_eq!(things, expected);
    }
    cloud.fails(&ComputeError::Unclear("503".to_owned()));
    let answer = server
        .post(ADMIN, ACCOUNT, json!({"backend": "runpod"}))
        .await
        .ok();
    let account = &answer["accounts"][0];
    assert_eq!(account["things"], json!([]));
    assert!(account["error"].as_str().unwrap().contains("503"), "{account}");
}

#[tokio::test]
async fn only_admins_of_the_server_may_ask_also_with_tokens_that_only_read() {
    let (server, _) = server(&Cloud::new()).await;
    let manager = server.user("manager").await;
    server.project(&manager, "team").await;
    let reader = json!({"name": "monitor", "read_only": true});
    let reader = server.post(ADMIN, "/api/users/tokens/create", reader).await.ok();
    let of_project = json!({"name": "one", "project_name": "main"});
    let of_project = server
        .post(ADMIN, "/api/users/tokens/create", of_project)
        .await
        .ok();
    for (token, status) in [
        (ADMIN, 200),
        (reader["token"].as_str().unwrap(), 200),
        (of_project["token"].as_str().unwrap(), 403),
        (&manager, 403),
    ] {
        assert_eq!(server.post(token, DIAGNOSIS, Value::Null).await.status, status);
        let account = json!({"backend": "runpod"});
        assert_eq!(server.post(token, ACCOUNT, account).await.status, status);
    }
}
