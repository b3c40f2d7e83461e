//! Both stores of the engine obey the same rules.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods
)] // tests

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dstack_model::changes::{Changed, ChangedKind};
use dstack_model::decode::decode_strict;
use dstack_model::events::EventTargetType;
use dstack_model::health::HealthStatus;
use dstack_model::runs::{JobProvisioningData, JobStatus, RunTerminationReason};
use dstack_plan::orphans::Sighting;
use dstack_sim::databases::{databases, databases_with, people, postgres};
use dstack_sim::scenario::Builder;
use dstack_store::encryption::{Encryption, Key};
use dstack_store::queries::health::{self, StoredCheck};
use dstack_store::queries::metrics::{self, MetricsPoint, PointsOf};
use dstack_store::queries::orphans::{MadeKey, OrphanRow};
use dstack_store::queries::{Page, events};
use dstack_store::rows::{
    FleetRow, GatewayRow, InstanceRow, JobRow, NewGateway, OperationKind, OperationRow, OperationState,
    RunRow,
};
use dstack_store::writes::Change;
use dstack_store::{
    Acquired, ChangeObserver, Changes, Claim, Commit, Database, Dialect, EngineStore, EntityRef, EventMaker,
    EventTarget, GatewaySnapshot, JobSnapshot, Lease, LeaseRequest, MemoryStore, NewEvent, PlacementSnapshot,
    Put, RowKeys, RunSnapshot, Sealed, SqlStore, StoreError, raw,
};
use dstack_system::{Random, task};
use dstack_units::{JobId, RunId, Time};
use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

const NOW: Time = Time::from_millis(1_790_000_000_000);

const MINUTE: Duration = Duration::from_secs(60);

/// A lease of the server's only process.
fn lease(owner: &str) -> Lease {
    Lease {
        owner: owner.to_owned(),
        process: Uuid::nil(),
        generation: 1,
    }
}

async fn acquire(store: &dyn EngineStore, lease: Lease, predecessor: Option<Uuid>) -> Acquired {
    let request = LeaseRequest {
        lease,
        predecessor,
        duration: MINUTE,
    };
    store.acquire(&request).await.unwrap()
}

/// Whether a lease of a minute is good for most of that still.
fn is_held(remaining: Option<Duration>) -> bool {
    remaining.is_some_and(|left| left > MINUTE / 2 && left <= MINUTE)
}

/// The lease runs out, as if it had not been renewed.
async fn run_out(store: &dyn EngineStore, lease: &Lease) {
    assert!(store.renew(lease, Duration::ZERO).await.unwrap());
}

fn parts(commit: &Commit) -> (RunRow, JobRow) {
    let run = commit.puts().iter().find_map(|put| {
        if let Put::Run(run) = put {
            Some(run.clone())
        } else {
            None
        }
    });
    let job = commit.puts().iter().find_map(|put| {
        if let Put::Job(job) = put {
            Some(job.clone())
        } else {
            None
        }
    });
    (run.unwrap(), job.unwrap())
}

/// What a store was asked for, and remembers.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // a handful
enum Seen {
    Run(Option<RunSnapshot>),
    Job(Option<JobSnapshot>),
    Gateway(GatewaySnapshot),
    Placement(PlacementSnapshot),
    Waiting(Vec<(JobId, RunId)>),
}

/// The same story told to a store; returns what it remembers.
async fn story(store: &dyn EngineStore, builder: &Builder, task: Commit, machine: Commit) -> Vec<Seen> {
    let mut seen = Vec::new();
    store.commit(machine.clone()).await.unwrap();
    for owner in ["a", "b"] {
        acquire(store, lease(owner), None).await;
    }
    store.commit(task.clone().driven_by("a")).await.unwrap();
    let (run, job) = parts(&task);
    seen.push(Seen::Run(store.run(run.id).await.unwrap()));
    seen.push(Seen::Placement(store.placement(builder.project).await.unwrap()));
    seen.push(Seen::Waiting(
        store.waiting("a", builder.project, 9).await.unwrap(),
    ));

    // A change of the job makes decisions about the run stale, and a stale commit changes nothing at all.
    let stale = store.run(run.id).await.unwrap().unwrap().run;
    let mut placed = store.job(job.id).await.unwrap().unwrap().job;
    place(&mut placed);
    let operation = OperationRow {
        notes: Some(Sealed::new(json!({"a": 1}))),
        ..OperationRow::intended(
            builder.random.uuid().into(),
            EntityRef::Job(job.id),
            OperationKind::SubmitTask,
            NOW,
        )
    };
    let event = NewEvent {
        id: builder.random.uuid().into(),
        message: "Job status changed".to_owned(),
        recorded_at: NOW,
        actor: None,
        for_managers: false,
        targets: vec![EventTarget {
            entity_type: EventTargetType::Job,
            entity_id: job.id.to_string(),
            entity_name: job.job_name.clone(),
            project_id: None,
            run_id: None,
            fleet_id: None,
            gateway_id: None,
        }],
    };
    let puts = vec![Put::Job(placed.clone()), Put::Operation(operation)];
    store.commit(Commit::unchecked(puts, vec![event])).await.unwrap();
    let mut ended = stale.clone();
    ended.terminate(RunTerminationReason::AllJobsDone, NOW).unwrap();
    let both = vec![
        Put::Job(store.job(job.id).await.unwrap().unwrap().job),
        Put::Run(ended),
    ];
    let refused = store
        .commit(Commit::unchecked(both, Vec::new()))
        .await
        .unwrap_err();
    assert!(refused.is_conflict(), "{refused:?}");
    assert!(
        store
            .commit(Commit::unchecked(vec![Put::Job(placed)], Vec::new()))
            .await
            .unwrap_err()
            .is_conflict()
    );
    seen.push(Seen::Job(store.job(job.id).await.unwrap()));
    seen.push(Seen::Waiting(
        store.waiting("a", builder.project, 9).await.unwrap(),
    ));

    // A gateway leaves no row, nor the operations made for it.
    let id = builder.random.uuid().into();
    let configuration = json!({"type": "gateway", "name": "gate", "backend": "aws", "region": "eu"});
    let new = NewGateway {
        id,
        project: builder.project,
        name: "gate".to_owned(),
        configuration: serde_json::from_value(configuration).unwrap(),
        backend: Some("b".to_owned()),
    };
    let mut changes = builder.changes(NOW);
    changes.insert(
        GatewayRow::submitted(new.clone(), NOW),
        "Gateway created. Status: SUBMITTED",
    );
    let (subject, operation) = (EntityRef::Gateway(id), builder.random.uuid());
    changes.intend(OperationRow::intended(
        operation.into(),
        subject,
        OperationKind::Create,
        NOW,
    ));
    store.commit(changes.into_commit()).await.unwrap();
    let stored = store.gateway(id).await.unwrap().unwrap();
    seen.push(Seen::Gateway(stored.clone()));
    let remove = |row| {
        let mut changes = builder.changes(NOW);
        changes.remove(row, "Gateway deleted");
        store.commit(changes.into_commit())
    };
    let refused = remove(GatewayRow::submitted(new, NOW)).await.unwrap_err();
    assert!(refused.is_conflict(), "another version: {refused:?}");
    remove(stored.gateway.clone()).await.unwrap();
    assert!(store.gateway(id).await.unwrap().is_none());
    assert!(
        remove(stored.gateway).await.unwrap_err().is_conflict(),
        "it is gone"
    );
    // The key is free again.
    let mut changes = builder.changes(NOW);
    changes.intend(OperationRow::intended(
        builder.random.uuid().into(),
        subject,
        OperationKind::Create,
        NOW,
    ));
    store.commit(changes.into_commit()).await.unwrap();

    // A job is driven by whoever drives its instance: nobody here, so that it stays with the one that made it.
    assert_eq!(
        store.owner_of(EntityRef::Job(job.id)).await.unwrap().as_deref(),
        Some("a")
    );

    seen
}

async fn claimed(store: &dyn EngineStore, owner: &str) -> Vec<EntityRef> {
    let claim = Claim {
        owner: owner.to_owned(),
        home: None,
    };
    let claimed = store.claim(&claim).await.unwrap();
    claimed.into_iter().map(|(entity, _)| entity).collect()
}

/// Rows are another server's until its lease runs out. SQLite is for one server, which owns everything at once.
async fn leases(store: &dyn EngineStore, builder: &Builder, task: &Commit, machine: &Commit) {
    let (run, job) = parts(task);
    let (run, instance) = (EntityRef::Run(run.id), instance_of(machine));
    for owner in ["a", "b"] {
        acquire(store, lease(owner), None).await;
    }
    store.commit(owned("a", task)).await.unwrap();
    store.commit(machine.clone()).await.unwrap();
    assert!(is_held(store.first_expiry("b").await.unwrap()));
    assert_eq!(
        claimed(store, "b").await.len(),
        2,
        "what nobody drives is anyone's"
    );

    // A placed job goes to whoever drives the machine, and comes home with it.
    let mut placed = store.job(job.id).await.unwrap().unwrap().job;
    place(&mut placed);
    placed.instance_id = Some(instance);
    let commit = Commit::unchecked(vec![Put::Job(placed)], Vec::new());
    store.commit(commit).await.unwrap();
    assert_eq!(
        store.owner_of(EntityRef::Job(job.id)).await.unwrap().as_deref(),
        Some("b")
    );
    let home = Claim {
        owner: "c".to_owned(),
        home: Some(instance),
    };
    acquire(store, lease("c"), None).await;
    let at_home = store.claim(&home).await.unwrap();
    let mut at_home: Vec<EntityRef> = at_home.into_iter().map(|(entity, _)| entity).collect();
    at_home.sort();
    assert_eq!(at_home, [EntityRef::Instance(instance), EntityRef::Job(job.id)]);

    // Renewed in time, then not.
    assert!(store.renew(&lease("a"), MINUTE).await.unwrap());
    assert!(!claimed(store, "c").await.contains(&run), "renewed");
    run_out(store, &lease("a")).await;
    assert!(
        !store.renew(&lease("a"), MINUTE).await.unwrap(),
        "a lease that has run out is taken anew"
    );
    assert_eq!(store.first_expiry("c").await.unwrap(), Some(Duration::ZERO));
    assert!(claimed(store, "c").await.contains(&run));
    let first = store.first_expiry("c").await.unwrap();
    assert!(is_held(first), "taken over once: {first:?}");
    let waiting = store.waiting("c", builder.project, 9).await.unwrap();
    assert!(waiting.is_empty(), "the only job is placed");
}

/// A name belongs to one living process.
async fn names(store: &dyn EngineStore) {
    let process = |n: u128, generation| Lease {
        process: Uuid::from_u128(n),
        generation,
        ..lease("web-1")
    };
    assert_eq!(acquire(store, process(1, 1), None).await, Acquired::Held);
    // A container that is equal to the first.
    let refused = acquire(store, process(2, 1), None).await;
    let Acquired::Refused { remaining } = refused else {
        panic!("{refused:?}");
    };
    assert!(is_held(Some(remaining)), "{remaining:?}");
    assert!(!store.renew(&process(2, 1), MINUTE).await.unwrap());
    let stranger = Some(Uuid::from_u128(7));
    let refused = acquire(store, process(2, 1), stranger).await;
    assert!(matches!(refused, Acquired::Refused { .. }), "{refused:?}");
    assert!(
        store.renew(&process(1, 1), MINUTE).await.unwrap(),
        "not disturbed"
    );
    // The same process once more, and then one that knows it to be dead.
    assert_eq!(acquire(store, process(1, 2), None).await, Acquired::Held);
    assert!(!store.renew(&process(1, 1), MINUTE).await.unwrap());
    let dead = Some(Uuid::from_u128(1));
    assert_eq!(acquire(store, process(3, 1), dead).await, Acquired::Held);
    assert!(!store.renew(&process(1, 2), MINUTE).await.unwrap());
    // Nobody knows that this one is dead, but its lease has run out.
    run_out(store, &process(3, 1)).await;
    assert_eq!(acquire(store, process(2, 1), None).await, Acquired::Held);
}

/// What was decided under a lease that is lost is not written; what needs none is, at the same time.
async fn fences(store: &dyn EngineStore, builder: &Builder, task: &Commit) {
    let (run, _) = parts(task);
    let held = Lease {
        generation: 2,
        ..lease("a")
    };
    acquire(store, lease("a"), None).await;
    acquire(store, held.clone(), None).await;
    store.commit(owned("a", task)).await.unwrap();
    let ranked = async |priority: i64, fence: Option<&Lease>| {
        let mut row = store.run(run.id).await.unwrap().unwrap().run;
        row.priority = priority;
        let puts = vec![Put::Run(row)];
        let commit = Commit::unchecked(puts, Vec::new());
        match fence {
            Some(lease) => commit.under(lease.clone()),
            None => commit,
        }
    };
    let priority = async || store.run(run.id).await.unwrap().unwrap().run.priority;
    store.commit(ranked(1, Some(&held)).await).await.unwrap();
    assert_eq!(priority().await, 1);
    for (stale, why) in [
        (lease("a"), "an earlier generation"),
        (lease("b"), "never had one"),
    ] {
        let refused = store.commit(ranked(2, Some(&stale)).await).await;
        assert!(
            matches!(refused, Err(StoreError::LeaseLost { .. })),
            "{why}: {refused:?}"
        );
    }
    // New rows are refused as well, and do not drag down what comes with them.
    let mut together = Vec::new();
    let mut kept = Vec::new();
    for n in 0..6 {
        let (run, commit) = builder.run(&format!("fenced-{n}"), &json!({}), NOW).unwrap();
        let fence = [None, Some(held.clone()), Some(lease("a"))][n % 3].clone();
        kept.push((run.id, n % 3 < 2));
        let commit = match fence {
            Some(lease) => commit.under(lease),
            None => commit,
        };
        together.push(store.commit(commit));
    }
    join_all(together).await;
    for (run, is_kept) in kept {
        assert_eq!(store.run(run).await.unwrap().is_some(), is_kept);
    }
    run_out(store, &held).await;
    let refused = store.commit(ranked(3, Some(&held)).await).await;
    assert!(
        matches!(refused, Err(StoreError::LeaseLost { .. })),
        "{refused:?}"
    );
    assert_eq!(priority().await, 1);
    store.commit(ranked(4, None).await).await.unwrap();
    assert_eq!(priority().await, 4, "a call of the API needs no lease");
}

fn owned(owner: &str, commit: &Commit) -> Commit {
    commit.clone().driven_by(owner)
}

fn instance_of(machine: &Commit) -> dstack_units::InstanceId {
    let id = |put: &Put| match put {
        Put::Instance(row) => Some(row.id),
        _ => None,
    };
    machine.puts().iter().find_map(id).unwrap()
}

#[tokio::test]
async fn rows_have_one_driver_until_its_lease_runs_out() {
    let random = Random::seeded(21);
    let builder = Builder {
        project: random.uuid().into(),
        random: random.clone(),
    };
    let machine = builder.machine(2, NOW).unwrap();
    let (run, task) = builder.run("train", &json!({}), NOW).unwrap();
    leases(&MemoryStore::new(), &builder, &task, &machine).await;
    if let Some(database) = postgres().await {
        people(&database, &builder, &[run.user_id.to_string()]).await;
        leases(&SqlStore::new(database), &builder, &task, &machine).await;
    }
}

#[tokio::test]
async fn a_name_belongs_to_one_living_process() {
    names(&MemoryStore::new()).await;
    if let Some(database) = postgres().await {
        names(&SqlStore::new(database)).await;
    }
}

#[tokio::test]
async fn what_was_decided_under_a_lost_lease_is_not_written() {
    let random = Random::seeded(22);
    let builder = Builder {
        project: random.uuid().into(),
        random: random.clone(),
    };
    let (run, task) = builder.run("train", &json!({}), NOW).unwrap();
    fences(&MemoryStore::new(), &builder, &task).await;
    if let Some(database) = postgres().await {
        people(&database, &builder, &[run.user_id.to_string()]).await;
        fences(&SqlStore::new(database), &builder, &task).await;
    }
}

/// Clients go away in the middle of calls: no connection goes back with a transaction that nobody ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_given_up_at_any_moment_leaves_no_transaction_open() {
    let Some(database) = postgres().await else {
        return;
    };
    raw::execute(&database, "CREATE TABLE marks (n BIGINT)")
        .await
        .unwrap();
    // Of the connection that is asked, `now()` is when its transaction began.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND ((pid <> pg_backend_pid() \
                AND state LIKE 'idle in transaction%') OR (pid = pg_backend_pid() AND clock_timestamp() - now() > INTERVAL '50 milliseconds'))";
    let random = Random::seeded(23);
    for round in 0..20 {
        for _ in 0..10 {
            give_up_a_write(&database, Duration::from_millis(3).mul_f64(random.fraction())).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let found = raw::fetch(&database, open).await.unwrap();
        assert_eq!(found, [[Some("0".to_owned())]], "round {round}");
    }
}

/// Begins to write, and gives up so much later; by another thread than the one that writes.
async fn give_up_a_write(database: &Database, after: Duration) {
    let database = database.clone();
    let write = task::spawn("write", async move {
        let write = database.write(|tx| {
            Box::pin(async move {
                raw::execute_in(tx, "INSERT INTO marks VALUES (1)").await?;
                Ok(())
            })
        });
        write.await
    });
    let began = std::time::Instant::now();
    while began.elapsed() < after {
        std::hint::spin_loop();
    }
    write.abort();
    write.await.ok();
}

/// What a database tells of itself.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<BTreeSet<Changed>>>);

impl ChangeObserver for Heard {
    fn changed(&self, changed: BTreeSet<Changed>) {
        self.0.lock().unwrap().push(changed);
    }
}

#[tokio::test]
async fn what_is_written_is_told_and_what_is_refused_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for database in databases(dir.path()).await {
        let random = Random::seeded(31);
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let (run, submitted) = builder.run("train", &json!({}), NOW).unwrap();
        let (other_run, other) = builder.run("other", &json!({}), NOW).unwrap();
        let users = [run.user_id.to_string(), other_run.user_id.to_string()];
        people(&database, &builder, &users).await;
        let heard = Arc::new(Heard::default());
        database.observe(Arc::clone(&heard) as _);
        let told = || std::mem::take(&mut *heard.0.lock().unwrap());
        let store = SqlStore::new(database.clone());
        store.commit(submitted).await.unwrap();
        let of_run = Changed::of(ChangedKind::Run, builder.project, run.id.uuid());
        assert_eq!(told(), [BTreeSet::from([of_run])], "the run and its job are one");
        // Of two that are written together, the one that comes too late is refused.
        let current = store.run(run.id).await.unwrap().unwrap().run;
        let stale = Commit::unchecked(vec![Put::Run(current.clone())], Vec::new());
        let fresh = Commit::unchecked(vec![Put::Run(current)], Vec::new());
        let (first, second, third) =
            tokio::join!(store.commit(fresh), store.commit(stale), store.commit(other));
        assert_eq!(
            (first.is_ok(), second.is_ok(), third.is_ok()),
            (true, false, true)
        );
        let told = told();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.contains(&BTreeSet::from([of_run])));
        let project = builder.project;
        let secret = Change::ClearMembers(project);
        database.change(vec![secret], Vec::new()).await.unwrap();
        let of_project = Changed::of(ChangedKind::Project, project, project.uuid());
        assert_eq!(
            std::mem::take(&mut *heard.0.lock().unwrap()),
            [BTreeSet::from([of_project])]
        );
    }
}

/// The only server of SQLite has no lease to lose.
#[tokio::test]
async fn sqlite_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open_file(&dir.path().join("x.db")).await.unwrap();
    let store = SqlStore::new(database);
    assert_eq!(acquire(&store, lease("a"), None).await, Acquired::Alone);
    let builder = Builder {
        project: Random::seeded(1).uuid().into(),
        random: Random::seeded(2),
    };
    let machine = builder.machine(1, NOW).unwrap();
    people(
        store.database(),
        &builder,
        &[Random::seeded(3).uuid().to_string()],
    )
    .await;
    store.commit(machine.under(lease("a"))).await.unwrap();
    assert_eq!(claimed(&store, "a").await.len(), 2);
    assert_eq!(store.first_expiry("a").await.unwrap(), None);
}

#[tokio::test]
async fn memory_and_sql_tell_the_same_story() {
    let random = Random::seeded(11);
    let builder = Builder {
        project: random.uuid().into(),
        random: random.clone(),
    };
    let machine = builder.machine(2, NOW).unwrap();
    let (run, task) = builder.run("train", &json!({}), NOW).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let databases = databases(dir.path()).await;
    let memory = MemoryStore::new();
    let twin = Builder {
        random: Random::seeded(12),
        ..builder.clone()
    };
    let expected = story(&memory, &twin, task.clone(), machine.clone()).await;
    for database in databases {
        people(&database, &builder, &[run.user_id.to_string()]).await;
        let twin = Builder {
            random: Random::seeded(12),
            ..builder.clone()
        };
        let told = story(
            &SqlStore::new(database.clone()),
            &twin,
            task.clone(),
            machine.clone(),
        )
        .await;
        assert_eq!(told, expected);
    }
}

/// Commits that come at the same time share statements and a transaction; each is still kept or refused by itself.
/// The statement is prepared with what comes first.
#[tokio::test]
async fn a_number_may_be_unknown_at_first_and_known_later() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let builder = Builder {
            project: Random::seeded(5).uuid().into(),
            random: Random::seeded(6),
        };
        people(&database, &builder, &[Random::seeded(7).uuid().to_string()]).await;
        let store = SqlStore::new(database);
        for price in [None, Some(0.5), None, Some(1.5)] {
            let machine = builder.machine(1, NOW).unwrap();
            let mut stored = None;
            let machine = changed(&machine, |put| match put {
                Put::Instance(row) => {
                    row.price = price;
                    stored = Some(row.id);
                }
                Put::Fleet(row) => row.name = format!("fleet-{}", row.id),
                _ => {}
            });
            store.commit(machine).await.unwrap();
            let read = store.instance(stored.unwrap()).await.unwrap().unwrap();
            assert_eq!(read.instance.price, price);
        }
    }
}

#[tokio::test]
async fn commits_at_the_same_time_are_kept_or_refused_one_by_one() {
    const RUNS: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    for database in databases(dir.path()).await {
        let random = Random::system();
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let store = SqlStore::new(database.clone());
        let mut made: Vec<(RunRow, Commit)> = (0..RUNS)
            .map(|n| builder.run(&format!("run-{n}"), &json!({}), NOW).unwrap())
            .collect();
        let users: Vec<String> = made.iter().map(|(run, _)| run.user_id.to_string()).collect();
        people(&database, &builder, &users).await;
        // One of them has the name of another.
        let taken = builder.run("run-7", &json!({}), NOW).unwrap().1;
        let taken = changed(&taken, |put| {
            if let Put::Run(run) = put {
                run.user_id = made[0].0.user_id;
            }
        });
        let all = made.iter().map(|(_, commit)| commit.clone()).chain([taken]);
        let outcomes = join_all(all.map(|commit| store.commit(owned("a", &commit)))).await;
        let refused: Vec<_> = (0..outcomes.len())
            .filter_map(|n| outcomes[n].as_ref().err().map(|error| (n, error)))
            .collect();
        let [(lost, error)] = refused[..] else {
            panic!("one is refused: {refused:?}");
        };
        assert!(error.is_unique_violation(), "{error:?}");
        // Either of the two may come first.
        assert!([7, RUNS].contains(&lost), "{lost}");
        if lost == 7 {
            made.remove(lost);
        }
        assert_eq!(
            store.waiting("a", builder.project, 1000).await.unwrap().len(),
            RUNS
        );

        // Every run changes, the third by someone who has not seen its last change, the fourth twice.
        let mut changes = Vec::new();
        for (n, (run, _)) in made.iter().enumerate() {
            let mut row = store.run(run.id).await.unwrap().unwrap().run;
            row.priority = i64::try_from(n).unwrap();
            if n == 3 {
                row.version += 1;
            }
            let change = Commit::unchecked(vec![Put::Run(row)], Vec::new());
            if n == 4 {
                changes.push(change.clone());
            }
            changes.push(change);
        }
        let outcomes = join_all(changes.into_iter().map(|commit| store.commit(commit))).await;
        let refused: Vec<usize> = (0..outcomes.len()).filter(|n| outcomes[*n].is_err()).collect();
        assert_eq!(refused, [3, 5], "the stale one, and the second of the two");
        for (n, (run, _)) in made.iter().enumerate() {
            let row = store.run(run.id).await.unwrap().unwrap().run;
            let (priority, version) = if n == 3 {
                (0, 1)
            } else {
                (i64::try_from(n).unwrap(), 2)
            };
            assert_eq!((row.priority, row.version), (priority, version), "run {n}");
        }
    }
}

/// Events end with what they were about, in every database.
#[tokio::test]
async fn old_events_are_deleted_with_their_targets() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let random = Random::seeded(5);
        let event = |at: Time| NewEvent {
            id: random.uuid().into(),
            message: "Something happened".to_owned(),
            recorded_at: at,
            actor: None,
            for_managers: false,
            targets: ["first", "second"].map(|name| target(name, &random)).to_vec(),
        };
        let two = vec![event(NOW), event(NOW + Duration::from_secs(60))];
        let commit = Commit::unchecked(Vec::new(), two);
        database.commit(commit).await.unwrap();
        let before = NOW + Duration::from_secs(1);
        let deleted = database
            .write(move |tx| Box::pin(async move { events::delete_before(tx, before, 100).await }))
            .await;
        assert_eq!(deleted.unwrap(), 2);
        let filter = events::EventFilter::default();
        let left = database.events().list(&filter, &Page::newest(10)).await.unwrap();
        let targets = left.first().unwrap().targets.iter();
        let names: Vec<&str> = targets.map(|target| target.entity_name.as_str()).collect();
        assert_eq!((left.len(), names), (1, vec!["first", "second"]));
    }
}

/// The transaction of a write that panics is rolled back, and others are written as before.
#[tokio::test]
async fn a_write_that_panics_is_refused_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let set = |key: &'static str, panics: bool| {
            database.write(move |tx| {
                Box::pin(async move {
                    let insert = format!("INSERT INTO meta (key, value) VALUES ('{key}', 'x')");
                    raw::execute_in(tx, &insert).await?;
                    assert!(!panics, "on purpose");
                    Ok(())
                })
            })
        };
        for n in 0..3 {
            let refused = set("b", true).await;
            assert!(
                matches!(refused, Err(StoreError::Panicked(_))),
                "{n}: {refused:?}"
            );
        }
        set("a", false).await.unwrap();
        let keys = raw::fetch(&database, "SELECT key FROM meta WHERE value = 'x'").await;
        assert_eq!(keys.unwrap(), [[Some("a".to_owned())]]);
        database.check_writers().unwrap();
    }
}

/// What agents said of GPUs is listed as it was asked for, and ends when it is old, in every database.
#[tokio::test]
async fn health_checks_are_listed_newest_first_and_deleted_when_they_are_old() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let random = Random::seeded(6);
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        people(&database, &builder, &[random.uuid().to_string()]).await;
        let store = SqlStore::new(database.clone());
        let [this, other] = [1, 2].map(|_| builder.machine(1, NOW).unwrap());
        // Two fleets of one name there are not.
        let other = renamed(&other);
        let at = |minute: u64| NOW + Duration::from_secs(60 * minute);
        let check = |minute: u64| StoredCheck {
            collected_at: at(minute),
            status: [
                HealthStatus::Healthy,
                HealthStatus::Warning,
                HealthStatus::Failure,
            ][usize::try_from(minute).unwrap() % 3],
            response: json!({"dcgm": {"overall_health": minute}}).to_string(),
        };
        for machine in [&this, &other] {
            store.commit(machine.clone()).await.unwrap();
            for minute in [1, 0, 3, 2] {
                let id = random.uuid();
                let instance = instance_of(machine);
                store.add_health_check(id, instance, check(minute)).await.unwrap();
            }
        }
        let instance = instance_of(&this);
        let list = async |after, before, limit| {
            database
                .health_checks()
                .list(instance, after, before, limit)
                .await
                .unwrap()
        };
        let checks = |minutes: &[u64]| minutes.iter().map(|minute| check(*minute)).collect::<Vec<_>>();
        assert_eq!(list(None, None, None).await, checks(&[3, 2, 1, 0]));
        assert_eq!(list(Some(at(1)), None, None).await, checks(&[3, 2]));
        assert_eq!(list(None, Some(at(2)), Some(1)).await, checks(&[1]));
        assert_eq!(list(Some(at(0)), Some(at(3)), None).await, checks(&[2, 1]));
        assert_eq!(list(None, None, Some(0)).await, []);
        assert_eq!(list(None, None, Some(-1)).await, []);

        let deleted = database
            .write(move |tx| Box::pin(async move { health::delete_before(tx, at(2), 100).await }))
            .await;
        assert_eq!(deleted.unwrap(), 4, "two of each instance");
        assert_eq!(list(None, None, None).await, checks(&[3, 2]));
    }
}

/// What jobs used is deleted when it is old; what is old depends on whether they still run.
#[tokio::test]
async fn old_points_of_metrics_are_deleted_by_whether_their_jobs_run() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let random = Random::seeded(7);
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let store = SqlStore::new(database.clone());
        let statuses = [
            ("first", "running"),
            ("second", "running"),
            ("over", "done"),
            ("ending", "terminating"),
        ];
        let runs = statuses.map(|(name, status)| (status, builder.run(name, &json!({}), NOW).unwrap()));
        let users: Vec<String> = runs.iter().map(|(_, (run, _))| run.user_id.to_string()).collect();
        people(&database, &builder, &users).await;
        let mut ids = Vec::new();
        for (status, (_, commit)) in runs {
            let (_, job) = parts(&commit);
            store.commit(commit).await.unwrap();
            for minute in 0..4 {
                let point = MetricsPoint {
                    at: NOW + Duration::from_secs(60 * minute),
                    network_receive_bytes: Some(1 << 40),
                    ..MetricsPoint::default()
                };
                store.add_metrics(job.id, point).await.unwrap();
            }
            let update = format!("UPDATE jobs SET status = '{status}' WHERE id = '{}'", job.id);
            raw::execute(&database, &update).await.unwrap();
            ids.push(job.id);
        }
        let before = NOW + Duration::from_secs(120);
        let delete = async |of| {
            let mut jobs = database
                .metrics()
                .jobs_with_points_before(of, before)
                .await
                .unwrap();
            jobs.sort_unstable();
            let found = jobs.clone();
            let deleted = database.write(move |tx| {
                Box::pin(async move { metrics::delete_before(tx, &found, before, 3).await })
            });
            (jobs, deleted.await.unwrap())
        };
        // Two of each job are old.
        let mut running = ids[..2].to_vec();
        running.sort_unstable();
        let last = running[1];
        assert_eq!(
            delete(PointsOf::Running).await,
            (running, 3),
            "as many as it may at once"
        );
        assert_eq!(delete(PointsOf::Running).await, (vec![last], 1));
        assert_eq!(delete(PointsOf::Running).await, (Vec::new(), 0));
        assert_eq!(delete(PointsOf::Finished).await, (vec![ids[2]], 2));
        let mut left = Vec::new();
        for id in ids {
            let points = store
                .metrics_since(id, NOW - Duration::from_secs(1))
                .await
                .unwrap();
            left.push(points.len());
        }
        assert_eq!(left, [2, 2, 2, 4], "a job that is ending keeps its points");
    }
}

/// With another name for the fleet.
fn renamed(machine: &Commit) -> Commit {
    changed(machine, |put| {
        if let Put::Fleet(fleet) = put {
            fleet.name = "other".to_owned();
        }
    })
}

/// A commit of new rows, each changed.
fn changed(commit: &Commit, mut change: impl FnMut(&mut Put)) -> Commit {
    let mut puts = commit.puts().to_vec();
    puts.iter_mut().for_each(&mut change);
    Commit::unchecked(puts, Vec::new())
}

/// Makes the job one that has just got a place.
fn place(job: &mut JobRow) {
    job.advance(JobStatus::Provisioning, NOW).unwrap();
}

fn target(name: &str, random: &Random) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Run,
        entity_id: random.uuid().to_string(),
        entity_name: name.to_owned(),
        project_id: None,
        run_id: None,
        fleet_id: None,
        gateway_id: None,
    }
}

/// Columns of any table with an encrypted value, as `table.column`.
async fn encrypted_columns(database: &Database) -> BTreeSet<String> {
    let columns = match database.dialect() {
        Dialect::Sqlite => {
            "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
        }
        Dialect::Postgres => {
            "SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT) FROM information_schema.columns \
             WHERE table_schema = 'public'"
        }
    };
    let mut encrypted = BTreeSet::new();
    for row in raw::fetch(database, columns).await.unwrap() {
        let (table, column) = (row[0].clone().unwrap(), row[1].clone().unwrap());
        let count = format!("SELECT COUNT(*) FROM {table} WHERE CAST({column} AS TEXT) LIKE 'enc:%'");
        let found = raw::fetch(database, &count).await.unwrap();
        if found[0][0].as_deref() != Some("0") {
            encrypted.insert(format!("{table}.{column}"));
        }
    }
    encrypted
}

/// What users and clouds put secrets into is encrypted. What was written there before it was sealed is read as well.
#[tokio::test]
async fn sealed_columns_are_encrypted_and_clear_text_in_them_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let key = Key::Aes {
        name: "k".to_owned(),
        secret: [7; 32],
    };
    let keys = RowKeys::from(&Encryption::new(vec![key], Random::seeded(8)));
    for database in databases_with(folder.path(), &keys).await {
        let random = Random::seeded(9);
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let (run, task) = builder.run("train", &json!({}), NOW).unwrap();
        people(&database, &builder, &[run.user_id.to_string()]).await;
        let store = SqlStore::new(database.clone());
        store.commit(task).await.unwrap();
        let machine = builder.machine(1, NOW).unwrap();
        store.commit(machine.clone()).await.unwrap();
        let id = instance_of(&machine);
        let result = json!({"left": [{"backend": "aws"}]});
        let (subject, kind) = (EntityRef::Instance(id), OperationKind::Create);
        let operation = OperationRow {
            notes: Some(Sealed::new(result.clone())),
            ..OperationRow::intended(random.uuid().into(), subject, kind, NOW)
        };
        let commit = Commit::unchecked(vec![Put::Operation(operation)], Vec::new());
        store.commit(commit).await.unwrap();

        let written = store.instance(id).await.unwrap().unwrap();
        for (table, column) in [
            ("fleets", "spec"),
            ("instances", "job_provisioning_data"),
            ("operations", "notes"),
        ] {
            let rows = raw::fetch(&database, &format!("SELECT {column} FROM {table}")).await;
            let stored = rows.unwrap()[0][0].clone().unwrap();
            assert!(stored.starts_with("enc:aes:k:"), "{table}.{column}: {stored}");
        }
        // Before a key is dropped, all that it encrypts is looked at.
        let lost = Encryption::new(Vec::new(), Random::seeded(8));
        let unreadable = database.sealed_values().unreadable(&lost).await.unwrap();
        let checked: BTreeSet<String> = unreadable.into_iter().map(|(column, _)| column).collect();
        let encrypted = encrypted_columns(&database).await;
        assert!(encrypted.contains("runs.run_spec"), "{encrypted:?}");
        assert_eq!(checked, encrypted);

        let data = written.instance.job_provisioning_data.as_deref();
        for (table, column, clear) in [
            (
                "instances",
                "job_provisioning_data",
                serde_json::to_string(&data).unwrap(),
            ),
            ("operations", "notes", result.to_string()),
        ] {
            let update = format!("UPDATE {table} SET {column} = '{clear}'");
            raw::execute(&database, &update).await.unwrap();
        }
        let read = store.instance(id).await.unwrap().unwrap();
        // The versions are as they were, since the rows were changed behind the store's back.
        assert_eq!(read, written);
        assert!(read.operations[0].notes.as_deref() == Some(&result));
    }
}

/// What is found by keys, in any store: rows that live, rows that are over, and those for which a call is still to be made.
#[tokio::test]
async fn rows_are_found_by_the_keys_of_what_was_made_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder {
        project: Uuid::from_u128(1).into(),
        random: Random::seeded(21),
    };
    for database in databases(folder.path()).await {
        people(&database, &builder, &[Uuid::from_u128(2).to_string()]).await;
        made_for(&SqlStore::new(database), &builder).await;
    }
    made_for(&MemoryStore::new(), &builder).await;
}

async fn made_for(store: &dyn EngineStore, builder: &Builder) {
    let fleet = builder.fleet("f", &json!({"nodes": "0..3"}), NOW).unwrap();
    let pending = |num: i64| InstanceRow::pending(builder.random.uuid().into(), &fleet, num, NOW);
    let (live, mut over, mut ending) = (pending(0), pending(1), pending(2));
    for row in [&mut over, &mut ending] {
        let reason = dstack_model::instances::InstanceTerminationReason::TerminatedByUser;
        row.terminate(reason, None, NOW).unwrap();
        row.finish(NOW + MINUTE).unwrap();
    }
    let operation = |row: &InstanceRow, state: OperationState| {
        let id = builder.random.uuid().into();
        let intended = OperationRow::intended(id, EntityRef::Instance(row.id), OperationKind::Remove, NOW);
        Put::Operation(OperationRow { state, ..intended })
    };
    let puts = vec![
        Put::Fleet(fleet.clone()),
        Put::Instance(live.clone()),
        Put::Instance(over.clone()),
        operation(&over, OperationState::Done),
        Put::Instance(ending.clone()),
        operation(&ending, OperationState::Intended),
    ];
    store.commit(Commit::unchecked(puts, Vec::new())).await.unwrap();
    let rows = [
        (fleet.id.uuid(), "f", true),
        (live.id.uuid(), "f-0", true),
        (over.id.uuid(), "f-1", false),
        (ending.id.uuid(), "f-2", true),
    ];
    let unknown = Uuid::from_u128(7);
    for key in [MadeKey::Id, MadeKey::end_of] {
        let keys = rows
            .iter()
            .map(|(id, ..)| *id)
            .chain([unknown])
            .map(key)
            .collect();
        let mut found = store.made_for(&keys).await.unwrap();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let seen: Vec<_> = found
            .iter()
            .map(|row| (row.id, row.name.as_str(), row.is_live))
            .collect();
        assert_eq!(seen, rows);
        assert_eq!(found[2].entity, EntityRef::Instance(over.id));
    }
    where_instances_are(store, builder, &fleet).await;
    assert_eq!(store.made_for(&BTreeSet::new()).await.unwrap(), []);
    assert_eq!(store.made_for(&[MadeKey::Id(unknown)].into()).await.unwrap(), []);
}

/// Where an instance is, is known once nothing makes it any more, as long as it is not over.
async fn where_instances_are(store: &dyn EngineStore, builder: &Builder, fleet: &FleetRow) {
    let resources =
        json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 102_400}});
    let place = json!({"backend": "aws", "instance_type": {"name": "m5", "resources": resources}, "instance_id": "i-1",
        "region": "here", "price": 1.0, "username": "ubuntu", "dockerized": true});
    let place: JobProvisioningData = decode_strict(&place).unwrap();
    let place = Sealed::new(place);
    let mut puts = Vec::new();
    let mut ids = Vec::new();
    for (num, create, is_over) in [
        (3, OperationState::Done, false),
        (4, OperationState::Intended, false),
        (5, OperationState::Done, true),
    ] {
        let mut row = InstanceRow::pending(builder.random.uuid().into(), fleet, num, NOW);
        row.job_provisioning_data = Some(place.clone());
        if is_over {
            let reason = dstack_model::instances::InstanceTerminationReason::TerminatedByUser;
            row.terminate(reason, None, NOW).unwrap();
            row.finish(NOW + MINUTE).unwrap();
        }
        let subject = EntityRef::Instance(row.id);
        let id = builder.random.uuid().into();
        let call = OperationRow::intended(id, subject, OperationKind::Create, NOW);
        ids.push(row.id.uuid());
        puts.push(Put::Instance(row));
        puts.push(Put::Operation(OperationRow {
            state: create,
            ..call
        }));
    }
    store.commit(Commit::unchecked(puts, Vec::new())).await.unwrap();
    let found = store
        .made_for(&ids.iter().copied().map(MadeKey::Id).collect())
        .await
        .unwrap();
    let places = ids.iter().map(|id| {
        let row = found.iter().find(|row| row.id == *id).unwrap();
        assert_eq!(row.project, builder.project);
        row.place.as_deref().map(|place| place.instance_id.as_str())
    });
    assert_eq!(places.collect::<Vec<_>>(), [Some("i-1"), None, None]);
}

/// More keys than a statement takes values.
#[tokio::test]
async fn many_keys_are_looked_up_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        let store = SqlStore::new(database);
        let ids = (1..70_000_u128).map(Uuid::from_u128);
        let keys = ids
            .flat_map(|id| [MadeKey::Id(id), MadeKey::end_of(id)])
            .collect();
        assert_eq!(store.made_for(&keys).await.unwrap(), []);
    }
}

#[tokio::test]
async fn what_belongs_to_nobody_is_remembered_until_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await {
        orphans(&SqlStore::new(database)).await;
    }
    orphans(&MemoryStore::new()).await;
}

async fn orphans(store: &dyn EngineStore) {
    let row = |key: &str, is_reported| OrphanRow {
        key: key.to_owned(),
        account: "a".to_owned(),
        description: "machine i-1".to_owned(),
        sighting: Sighting {
            first: NOW,
            last: NOW + MINUTE,
            is_reported,
            is_ending: is_reported,
        },
    };
    let write = |changes: Vec<Change>| {
        let mut all = Changes::new(EventMaker::system(NOW, Random::seeded(1)));
        for change in changes {
            all.directory(change);
        }
        store.commit(all.into_commit())
    };
    let put = |key: &str, is_reported| Change::PutOrphan(row(key, is_reported));
    write(vec![put("x", false), put("y", false)]).await.unwrap();
    assert_eq!(store.orphans().await.unwrap(), [row("x", false), row("y", false)]);
    write(vec![put("x", true), Change::DeleteOrphan("y".to_owned())])
        .await
        .unwrap();
    assert_eq!(store.orphans().await.unwrap(), [row("x", true)]);
}

/// Where servers share the store, one has a duty as long as it lives.
#[tokio::test]
async fn a_duty_is_one_living_server_s() {
    if let Some(database) = postgres().await {
        duty(&SqlStore::new(database)).await;
    }
    duty(&MemoryStore::new()).await;
    // Alone, nobody else can have it.
    let folder = tempfile::tempdir().unwrap();
    for database in databases(folder.path()).await.into_iter().take(1) {
        let store = SqlStore::new(database);
        assert!(store.take_duty("sweep", "a").await.unwrap());
        assert!(store.take_duty("sweep", "b").await.unwrap());
    }
}

async fn duty(store: &dyn EngineStore) {
    for owner in ["a", "b"] {
        acquire(store, lease(owner), None).await;
    }
    assert!(store.take_duty("sweep", "a").await.unwrap());
    assert!(store.take_duty("sweep", "a").await.unwrap(), "it keeps it");
    assert!(!store.take_duty("sweep", "b").await.unwrap());
    assert!(store.take_duty("another", "b").await.unwrap());
    run_out(store, &lease("a")).await;
    assert!(store.take_duty("sweep", "b").await.unwrap(), "the other is dead");
    acquire(store, lease("a"), None).await;
    assert!(!store.take_duty("sweep", "a").await.unwrap());
}
