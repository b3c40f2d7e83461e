//! The rows of this machine.

use dstack_agent_api::shim::HostReport;
use dstack_model::decode::decode_strict;
use dstack_model::fleets::{FleetSpec, FleetStatus};
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::hosts::resources;
use dstack_store::rows::{AgentAddress, FleetRow, HostRules, InstanceRow};
use dstack_store::{Changes, EngineStore, EventMaker, Json, PlacementSnapshot, Sealed, StoreError};
use dstack_system::Random;
use dstack_units::{FleetId, InstanceId, ProjectId, Time};
use serde_json::{Value, json};

/// Name of the fleet of the servers' own machines, unless somebody has a fleet of that name: a flag marks it, not its name.
const FLEET_NAME: &str = "local";

/// How often it is tried again when another server registers its machine at the same time.
const ATTEMPTS: usize = 10;

/// The machine that this server runs on.
#[derive(Debug, Clone, Copy)]
pub struct ThisMachine<'a> {
    /// Its name among those of all servers that share the database.
    pub host: &'a str,
    /// What it has.
    pub report: &'a HostReport,
    /// What its owner allows there.
    pub rules: &'a HostRules,
}

/// Where the rows of this machine are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Id of its instance.
    pub instance: InstanceId,
    /// Name of its fleet.
    pub fleet: String,
}

/// Writes, or brings up to date, the fleet of the servers' own machines and the instance of this one.
pub async fn register(
    store: &dyn EngineStore,
    project: ProjectId,
    this: ThisMachine<'_>,
    random: &Random,
    now: Time,
) -> Result<Registered, StoreError> {
    retry_on_conflict(|| try_register(store, project, this, random, now)).await
}

/// Decides again when somebody else has changed the rows meanwhile, or has added the same.
async fn retry_on_conflict<T, F>(mut work: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut result = work().await;
    for _ in 1..ATTEMPTS {
        match &result {
            Err(error) if error.is_conflict() || error.is_unique_violation() => result = work().await,
            _ => break,
        }
    }
    result
}

async fn try_register(
    store: &dyn EngineStore,
    project: ProjectId,
    this: ThisMachine<'_>,
    random: &Random,
    now: Time,
) -> Result<Registered, StoreError> {
    let host = this.host;
    let placement = store.placement(project).await?;
    let fleet = local_fleet(&placement);
    let in_fleet = |row: &&InstanceRow| fleet.is_some_and(|fleet| row.fleet_id == Some(fleet.id));
    let machines: Vec<&InstanceRow> = placement.instances.iter().filter(in_fleet).collect();
    // One that a user has ended does not come back: the machine gets a new one.
    let named = |name: &str| {
        let mut living = machines.iter().filter(|row| row.status().is_active());
        living.find(|row| host_of(row) == Some(name)).copied()
    };
    // Those without a name were written before machines had one.
    let instance = named(host).or_else(|| named(""));
    let number = machines.iter().map(|row| row.instance_num + 1).max().unwrap_or(0);
    let machine = machine(this)?;
    let mut changes = Changes::new(EventMaker::system(now, random.clone()));
    let fleet = match fleet {
        Some(fleet) => fleet.clone(),
        None => {
            let name = free_name(&store.fleet_names(project).await?);
            let row = new_fleet(project, name, random.uuid().into(), now)?;
            changes.insert_silently(row.clone());
            row
        }
    };
    let row = match instance {
        Some(row) => updated(row, &machine, now),
        None => new_instance(&fleet, number, &machine, random.uuid().into(), now)?,
    };
    let registered = Registered {
        instance: row.id,
        fleet: fleet.name.clone(),
    };
    match instance {
        Some(before) => changes.update(before, row),
        None => changes.insert_silently(row),
    }
    store.commit(changes.into_commit()).await?;
    Ok(registered)
}

/// The fleet of the servers' own machines. One that is being deleted is none any more.
fn local_fleet(placement: &PlacementSnapshot) -> Option<&FleetRow> {
    let mut fleets = placement.fleets.iter();
    fleets.find(|fleet| fleet.local && fleet.status() == FleetStatus::Active)
}

/// `local`, or the first of `local-2`, `local-3` and so on that no fleet has.
fn free_name(taken: &[String]) -> String {
    let numbered = (2..).map(|number| format!("{FLEET_NAME}-{number}"));
    let mut names = std::iter::once(FLEET_NAME.to_owned()).chain(numbered);
    names
        .find(|name| !taken.contains(name))
        .unwrap_or_else(|| FLEET_NAME.to_owned())
}

/// An instance that an earlier start offered, and this one does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawn {
    /// Id of this machine's instance.
    pub instance: InstanceId,
    /// Jobs run there, which are followed to their end.
    pub is_busy: bool,
}

/// Takes this machine out of what is offered: it stays in its fleet and gets no new jobs. `None`: it was never offered.
pub async fn withdraw(
    store: &dyn EngineStore,
    project: ProjectId,
    host: &str,
    random: &Random,
    now: Time,
) -> Result<Option<Withdrawn>, StoreError> {
    retry_on_conflict(|| try_withdraw(store, project, host, random, now)).await
}

async fn try_withdraw(
    store: &dyn EngineStore,
    project: ProjectId,
    host: &str,
    random: &Random,
    now: Time,
) -> Result<Option<Withdrawn>, StoreError> {
    let placement = store.placement(project).await?;
    let fleet = local_fleet(&placement);
    let in_fleet = |row: &&InstanceRow| {
        row.status().is_active() && fleet.is_some_and(|fleet| row.fleet_id == Some(fleet.id))
    };
    let named = |name: &str| {
        let mut machines = placement.instances.iter().filter(in_fleet);
        machines.find(|row| host_of(row) == Some(name))
    };
    // As in `try_register`: machines had no names once.
    let Some(before) = named(host).or_else(|| named("")) else {
        return Ok(None);
    };
    let mut row = before.clone();
    if let Some(AgentAddress::Local { runtime, host, rules }) = before.agent.as_deref() {
        row.agent = Some(Json::new(AgentAddress::Local {
            runtime: runtime.clone(),
            host: host.clone(),
            rules: HostRules {
                offered: false,
                told: None,
                ..rules.clone()
            },
        }));
    }
    if row != *before {
        row.last_processed_at = now;
    }
    let withdrawn = Withdrawn {
        instance: row.id,
        is_busy: row.busy_blocks > 0,
    };
    let mut changes = Changes::new(EventMaker::system(now, random.clone()));
    changes.update(before, row);
    store.commit(changes.into_commit()).await?;
    Ok(Some(withdrawn))
}

/// The machine that an instance of the fleet is.
fn host_of(row: &InstanceRow) -> Option<&str> {
    match row.agent.as_deref()? {
        AgentAddress::Local { host, .. } => Some(host),
        AgentAddress::Ssh { .. } | AgentAddress::Container { .. } => None,
    }
}

struct Machine {
    address: AgentAddress,
    offer: InstanceOfferWithAvailability,
    place: JobProvisioningData,
    blocks: i64,
}

fn machine(this: ThisMachine<'_>) -> Result<Machine, StoreError> {
    let report = this.report;
    let address = AgentAddress::Local {
        runtime: report.runtime.clone(),
        host: this.host.to_owned(),
        rules: this.rules.clone(),
    };
    let host = &report.host_info;
    let blocks = blocks(i64::from(host.cpus), i64::from(host.gpu_count));
    let kind = json!({"name": "local", "resources": resources(host, &report.arch)});
    let offer = json!({"backend": "remote", "instance": kind, "region": "remote", "price": 0.0, "availability": "available",
        "instance_runtime": "shim", "blocks": 1, "total_blocks": blocks});
    // Clients go straight to the SSH server of each job, whose port is filled in when it runs.
    let place = json!({"backend": "remote", "instance_type": kind, "instance_id": "local", "hostname": "127.0.0.1",
        "internal_ip": "127.0.0.1", "region": "remote", "price": 0.0, "username": "root", "ssh_port": 22, "dockerized": false});
    Ok(Machine {
        address,
        offer: decode("instances", "offer", &offer)?,
        place: decode("instances", "job_provisioning_data", &place)?,
        blocks,
    })
}

/// As `blocks: auto` of an SSH fleet: a block for each GPU, or for each CPU without any; whole if they do not divide.
fn blocks(cpus: i64, gpus: i64) -> i64 {
    match (cpus.max(1), gpus) {
        (cpus, 0) => cpus,
        (cpus, gpus) if cpus % gpus == 0 => gpus,
        _ => 1,
    }
}

fn decode<T: dstack_model::decode::Decode>(
    entity: &'static str,
    column: &'static str,
    value: &Value,
) -> Result<T, StoreError> {
    decode_strict(value).map_err(|problems| StoreError::Corrupt {
        entity,
        column,
        source: format!("{problems:?}").into(),
    })
}

fn new_fleet(project: ProjectId, name: String, id: FleetId, now: Time) -> Result<FleetRow, StoreError> {
    let spec = json!({
        "configuration": {"type": "fleet", "name": &name, "blocks": "auto", "ssh_config": {"hosts": ["127.0.0.1"]}},
        "profile": {"name": "default"},
    });
    let spec: FleetSpec = decode("fleets", "spec", &spec)?;
    let mut fleet = FleetRow::active(id, project, name, spec, now);
    fleet.local = true;
    Ok(fleet)
}

fn new_instance(
    fleet: &FleetRow,
    number: i64,
    machine: &Machine,
    id: InstanceId,
    now: Time,
) -> Result<InstanceRow, StoreError> {
    let row = InstanceRow::pending(id, fleet, number, now);
    let mut row = row.offering(machine.offer.clone(), machine.place.clone());
    row.make_ready(InstanceStatus::Idle)?;
    row.started_at = Some(now);
    row.agent = Some(Json::new(machine.address.clone()));
    row.total_blocks = Some(machine.blocks);
    Ok(row)
}

/// The machine may have changed between two starts. How it is divided stays while jobs hold parts of it.
fn updated(row: &InstanceRow, machine: &Machine, now: Time) -> InstanceRow {
    let mut new = row.clone();
    new.job_provisioning_data = Some(Sealed::new(machine.place.clone()));
    new.agent = Some(Json::new(machine.address.clone().after(row.agent.as_deref())));
    if row.busy_blocks == 0 {
        new.offer = Some(Json::new(machine.offer.clone()));
        new.total_blocks = Some(machine.blocks);
    }
    if new != *row {
        new.last_processed_at = now;
    }
    new
}

#[cfg(test)]
mod tests {
    use dstack_agent_api::shim::HostInfo;
    use dstack_model::instances::InstanceTerminationReason;
    use dstack_store::MemoryStore;

    use super::*;

    fn report(cpus: u32) -> HostReport {
        let host_info = HostInfo {
            gpu_vendor: "nvidia".into(),
            gpu_name: "NVIDIA H200".into(),
            gpu_memory: 143_771,
            gpu_count: 1,
            cpus,
            memory: 128 << 30,
            disk_size: 64 << 30,
            ..HostInfo::default()
        };
        HostReport {
            host_info,
            runtime: "process".into(),
            arch: "x86_64".into(),
            ..HostReport::default()
        }
    }

    async fn registered(
        store: &MemoryStore,
        project: ProjectId,
        host: &str,
        cpus: u32,
        now: Time,
    ) -> InstanceId {
        let (report, rules) = (report(cpus), HostRules::default());
        let this = ThisMachine {
            host,
            report: &report,
            rules: &rules,
        };
        register(store, project, this, &Random::system(), now)
            .await
            .unwrap()
            .instance
    }

    #[tokio::test]
    async fn a_fleet_of_a_user_may_have_its_name() {
        let (store, project) = (MemoryStore::new(), Random::seeded(2).uuid().into());
        let random = Random::system();
        let mut theirs = new_fleet(project, "local".to_owned(), random.uuid().into(), Time::EPOCH).unwrap();
        theirs.local = false;
        let mut changes = Changes::new(EventMaker::system(Time::EPOCH, random.clone()));
        changes.insert_silently(theirs);
        store.commit(changes.into_commit()).await.unwrap();
        for _ in 0..2 {
            registered(&store, project, "a", 16, Time::EPOCH).await;
            let placement = store.placement(project).await.unwrap();
            let mut names: Vec<&str> = placement.fleets.iter().map(|fleet| fleet.name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, ["local", "local-2"]);
            assert_eq!(local_fleet(&placement).unwrap().name, "local-2");
            assert_eq!(placement.instances[0].name, "local-2-0");
        }
        let taken = ["local", "local-2", "local-4"].map(str::to_owned);
        assert_eq!(free_name(&taken), "local-3");
    }

    #[tokio::test]
    async fn a_machine_that_a_user_has_ended_gets_a_new_instance() {
        let (store, project) = (MemoryStore::new(), Random::seeded(2).uuid().into());
        let first = registered(&store, project, "a", 16, Time::EPOCH).await;
        let before = store.instance(first).await.unwrap().unwrap().instance;
        let mut ended = before.clone();
        ended
            .terminate(InstanceTerminationReason::TerminatedByUser, None, Time::EPOCH)
            .unwrap();
        let mut changes = Changes::new(EventMaker::system(Time::EPOCH, Random::system()));
        changes.update(&before, ended);
        store.commit(changes.into_commit()).await.unwrap();
        let second = registered(&store, project, "a", 16, Time::EPOCH).await;
        assert_ne!(first, second);
        let row = store.instance(second).await.unwrap().unwrap().instance;
        assert_eq!(
            (row.name.as_str(), row.status()),
            ("local-1", InstanceStatus::Idle)
        );
    }

    #[tokio::test]
    async fn a_machine_that_is_withdrawn_stays_and_comes_back() {
        let (store, project) = (MemoryStore::new(), Random::seeded(2).uuid().into());
        let random = Random::system();
        let none = withdraw(&store, project, "a", &random, Time::EPOCH)
            .await
            .unwrap();
        assert_eq!(none, None);
        let id = registered(&store, project, "a", 16, Time::EPOCH).await;
        registered(&store, project, "b", 16, Time::EPOCH).await;
        let rules = async |id| {
            let row = store.instance(id).await.unwrap().unwrap().instance;
            row.agent.unwrap().rules().clone()
        };
        // Whoever starts the server again is not told again, and whoever offers the machine again is.
        let before = store.instance(id).await.unwrap().unwrap().instance;
        let mut told = before.clone();
        told.agent = Some(Json::new(
            AgentAddress::clone(before.agent.as_deref().unwrap()).told_of(),
        ));
        let mut changes = Changes::new(EventMaker::system(Time::EPOCH, random.clone()));
        changes.update(&before, told);
        store.commit(changes.into_commit()).await.unwrap();
        registered(&store, project, "a", 16, Time::EPOCH).await;
        assert_eq!(rules(id).await.told.as_deref(), Some("process"));
        for _ in 0..2 {
            let found = withdraw(&store, project, "a", &random, Time::EPOCH)
                .await
                .unwrap();
            let idle = Withdrawn {
                instance: id,
                is_busy: false,
            };
            assert_eq!(found, Some(idle));
            assert!(!rules(id).await.offered);
        }
        assert_eq!(registered(&store, project, "a", 16, Time::EPOCH).await, id);
        let again = rules(id).await;
        assert!(again.offered && again.told.is_none(), "{again:?}");
    }

    #[test]
    fn a_machine_is_divided_by_gpus_else_by_cpus() {
        assert_eq!(
            (blocks(16, 0), blocks(16, 8), blocks(6, 4), blocks(0, 0)),
            (16, 8, 1, 1)
        );
    }

    #[tokio::test]
    async fn registering_again_changes_what_changed_and_nothing_else() {
        let (store, project) = (MemoryStore::new(), Random::seeded(2).uuid().into());
        let first = registered(&store, project, "a", 16, Time::EPOCH).await;
        let again = registered(&store, project, "a", 16, Time::from_millis(5)).await;
        assert_eq!(first, again);
        let row = store.instance(first).await.unwrap().unwrap().instance;
        assert_eq!((row.version, row.total_blocks), (1, Some(1)));
        assert_eq!(row.offer.unwrap().instance.resources.gpus[0].name, "H200");
        registered(&store, project, "a", 32, Time::from_millis(9)).await;
        let row = store.instance(first).await.unwrap().unwrap().instance;
        assert_eq!((row.version, row.offer.unwrap().instance.resources.cpus), (2, 32));
    }

    #[tokio::test]
    async fn each_server_has_its_machine_in_the_same_fleet() {
        let (store, project) = (MemoryStore::new(), Random::seeded(2).uuid().into());
        let mut ids = Vec::new();
        for host in ["a", "b", "a", "b"] {
            ids.push(registered(&store, project, host, 16, Time::EPOCH).await);
        }
        assert_eq!((ids[0], ids[1]), (ids[2], ids[3]));
        let placement = store.placement(project).await.unwrap();
        assert_eq!(placement.fleets.len(), 1);
        let names: Vec<&str> = placement.instances.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["local-0", "local-1"]);
    }
}
