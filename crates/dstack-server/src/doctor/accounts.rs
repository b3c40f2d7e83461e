//! What clouds say: whether they take the credentials, and what they have of ours.

use std::time::Duration;

use dstack_compute::{Account, Backend, ComputeError, MissingRegion};
use dstack_engine::orphans::{ListError, Listed, Listing, list as list_owned};
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::diagnosis::{
    AccountInventory, DiagnosisCheck, Finding, ListAccountRequest, ListAccountResponse, OwnedState,
    OwnedThing,
};
use dstack_model::runs::Requirements;
use dstack_plan::orphans::{Holder, Policy};
use dstack_store::queries::orphans::OrphanRow;
use dstack_store::{EngineStore, SqlStore, StoreError};
use dstack_system::chain;
use dstack_units::{InstallationId, Time};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::{ACCOUNTS_AT_ONCE, Deadline, Report, counted, finding, stores};
use crate::error::{ApiError, Result};
use crate::state::AppState;

/// What all accounts are looked at with.
struct Look<'a> {
    store: SqlStore,
    installation: InstallationId,
    remembered: Vec<OrphanRow>,
    policy: Policy,
    now: Time,
    deadline: Deadline,
    /// Of accounts that may be asked at the same time.
    slots: &'a Semaphore,
}

/// What an account says, each within its time.
struct Answers {
    listed: std::result::Result<Listing, ListError>,
    /// That it does not say what it offers.
    offers: Option<ComputeError>,
}

/// What is asked of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Inventory,
    InventoryAndOffers,
}

impl<'a> Look<'a> {
    async fn begin(state: &'a AppState, deadline: Deadline) -> std::result::Result<Self, StoreError> {
        let store = state.data.store();
        let known = state.data.database.known_installation().await?;
        Ok(Self {
            // Nothing is of an installation that no server was started for.
            installation: known.unwrap_or_else(|| state.data.random.uuid().into()),
            remembered: store.orphans().await?,
            policy: state.edge.settings.orphan_policy(),
            now: state.data.clock.now(),
            store,
            deadline,
            slots: &state.control.doctor.accounts,
        })
    }

    /// What was reported of an account.
    fn reported(&self, account: &Account) -> impl Iterator<Item = &OrphanRow> {
        let rows = self.remembered.iter();
        rows.filter(|row| row.account == account.id && row.sighting.is_reported)
    }

    /// How long one of so many accounts may take: some that hang leave time for the others.
    fn limit(&self, accounts: usize) -> Duration {
        match accounts <= ACCOUNTS_AT_ONCE {
            true => self.deadline.limit,
            false => self.deadline.limit / 2,
        }
    }

    /// Asks one of so many accounts, once few enough others are being asked.
    async fn ask(&self, account: &Account, ask: Ask, accounts: usize) -> Answers {
        let backend = match &account.backend {
            Ok(backend) => backend.as_ref(),
            Err(error) => return Answers::failed(error.clone()),
        };
        let slot = timeout_at(self.deadline.at, self.slots.acquire()).await;
        let is_late = Instant::now() >= self.deadline.at;
        let Some(_slot) = slot.ok().and_then(std::result::Result::ok).filter(|_| !is_late) else {
            let text = "it was not asked: the others took all the time".to_owned();
            return Answers::failed(ComputeError::Unclear(text));
        };
        let until = self.deadline.at.min(Instant::now() + self.limit(accounts));
        let offers = async {
            match ask {
                Ask::Inventory => None,
                Ask::InventoryAndOffers => no_offers(backend, until).await,
            }
        };
        let (listed, offers) = tokio::join!(self.list(backend, until), offers);
        Answers { listed, offers }
    }

    async fn list(&self, backend: &dyn Backend, until: Instant) -> std::result::Result<Listing, ListError> {
        // Reading the rows takes time as well: what counts is when both are there.
        let no_limit = self.deadline.limit * 2;
        let listed = list_owned(&self.store, self.installation, backend, no_limit);
        let late = || ComputeError::Unclear("it has not said in time what it has".to_owned());
        let listed = timeout_at(until, listed).await;
        listed.unwrap_or_else(|_| Err(ListError::Cloud(late())))
    }
}

impl Answers {
    fn failed(error: ComputeError) -> Self {
        Self {
            listed: Err(ListError::Cloud(error)),
            offers: None,
        }
    }
}

pub(super) async fn check(state: &AppState, deadline: Deadline) -> Report {
    let look = match deadline.keep(Look::begin(state, deadline)).await {
        Ok(look) => look,
        Err(error) => return Report::of(stores::unreadable(&error)),
    };
    let accounts = match deadline.keep(state.control.backends.accounts()).await {
        Ok(accounts) => accounts,
        Err(error) => return Report::of(stores::unreadable(&error)),
    };
    let mut report = Report::default();
    let looked_at = counted(accounts.len(), "account");
    report.looked_at(DiagnosisCheck::Backends, looked_at.clone());
    report.looked_at(DiagnosisCheck::Orphans, looked_at);
    let found = accounts
        .iter()
        .map(|account| look_at(&look, account, accounts.len()));
    let found = join_all(found).await;
    report.findings.extend(found.into_iter().flatten());
    report
}

async fn look_at(look: &Look<'_>, account: &Account, accounts: usize) -> Vec<Finding> {
    let Answers { listed, offers } = look.ask(account, Ask::InventoryAndOffers, accounts).await;
    let mut found: Vec<Finding> = match listed {
        Ok(listed) => {
            let things = listed.things.iter();
            let orphans = things.filter_map(|thing| orphan(look, account, thing));
            let hidden = look.reported(account).filter(|row| listed.hides(&row.key));
            let hidden = hidden.map(|row| remembered(look, account, row));
            let missing = listed
                .missing
                .iter()
                .filter_map(|one| region_failed(account, one));
            orphans.chain(hidden).chain(missing).collect()
        }
        Err(error) => {
            let known = look.reported(account);
            let known = known.map(|row| remembered(look, account, row));
            let failed = match error {
                ListError::Cloud(error) => failed(account, &error),
                ListError::Store(error) => stores::unreadable(&chain(&error).to_string()),
            };
            known.chain([failed]).collect()
        }
    };
    let no_offers = offers.map(|error| failed(account, &error));
    // Wrong credentials are told once.
    let is_new = |finding: &Finding| !found.contains(finding);
    if let Some(finding) = no_offers.filter(is_new) {
        found.push(finding);
    }
    found
}

/// A thing that belongs to nobody. What has just been ended may be listed for a moment more; so may what is one too many.
fn orphan(look: &Look<'_>, account: &Account, thing: &Listed) -> Option<Finding> {
    let key = thing.key(&account.kind);
    let seen = look.remembered.iter().find(|row| row.key == key);
    let since = seen.map(|row| row.sighting.first).or(thing.owned.made_at);
    let is_old = |at: Time| at + look.policy.grace <= look.now;
    let ended_at = thing.made_for.as_ref().and_then(|row| row.ended_at);
    let is_found = match thing.holder() {
        Holder::Live => false,
        Holder::Duplicate { .. } => since.is_some_and(is_old),
        Holder::Ended => ended_at.is_none_or(is_old),
        Holder::Nobody => true,
    };
    is_found.then(|| Finding {
        since,
        price_per_hour: thing.owned.price,
        ..about(
            account,
            DiagnosisCheck::Orphans,
            format!("{}: {}", thing.description(), thing.reason()),
            &remedy(look.policy, &account.kind, thing),
        )
    })
}

fn remedy(policy: Policy, kind: &str, thing: &Listed) -> String {
    let minutes = policy.grace.as_secs() / 60;
    match thing.holder() {
        _ if !thing.may_be_ended() => format!(
            "If nobody needs what is on it, delete it in the console of {kind}: the server never ends disks by itself. Else register it \
             as a volume (`volume_id`)"
        ),
        holder if policy.removes.includes(holder) => {
            format!(
                "The server ends it once it has belonged to nobody for {minutes} minutes (DSTACK_SERVER_ORPHANS)"
            )
        }
        Holder::Duplicate { own_is_listed: false } => format!(
            "See in the console of {kind} which of them the instance is, and end the other: the server does not see the one that it knows"
        ),
        Holder::Live | Holder::Duplicate { .. } | Holder::Ended => format!(
            "End it in the console of {kind}, or let the server end what is over here or one too many: DSTACK_SERVER_ORPHANS=remove"
        ),
        Holder::Nobody => unknown(kind),
    }
}

fn unknown(kind: &str) -> String {
    format!(
        "If nobody needs it, and no other server works with a copy of this database, end it in the console of {kind}, or let the \
         server end what it does not know: DSTACK_SERVER_ORPHANS=remove-unknown"
    )
}

/// As the last sweep saw it.
fn remembered(look: &Look<'_>, account: &Account, row: &OrphanRow) -> Finding {
    let remedy = match look.policy.removes.includes(Holder::Nobody) {
        true => "The server asks for its end again once the cloud says what it has".to_owned(),
        false => unknown(&account.kind),
    };
    Finding {
        since: Some(row.sighting.first),
        ..about(
            account,
            DiagnosisCheck::Orphans,
            format!("{}, as it was listed last", row.description),
            &remedy,
        )
    }
}

/// Any offer will do: to be told of some, the credentials have to be good.
async fn no_offers(backend: &dyn Backend, until: Instant) -> Option<ComputeError> {
    let requirements: Requirements = decode_strict(&json!({"resources": {}})).ok()?;
    let late = || ComputeError::Unclear("it has not said in time what it offers".to_owned());
    let asked = timeout_at(until, backend.offers(&requirements)).await;
    asked.unwrap_or_else(|_| Err(late())).err()
}

/// A region that does not tell what it has; `None`: nobody expects it to.
fn region_failed(account: &Account, missing: &MissingRegion) -> Option<Finding> {
    let finding = failed(account, missing.error.as_ref()?);
    Some(Finding {
        problem: format!(
            "The region {} does not tell what it has: {}",
            missing.region, finding.problem
        ),
        ..finding
    })
}

fn failed(account: &Account, error: &ComputeError) -> Finding {
    let remedy = match error {
        ComputeError::Credentials(_) => {
            "Replace the credentials of the backend in these projects. Until then nothing is made there, and what is there cannot be ended"
        }
        ComputeError::NoKeysNow(_) => {
            "See that the server's machine has credentials (environment, profile, role), and that its clock is right. It is asked again by itself"
        }
        ComputeError::Configuration(_) if is_gone(&account.kind) => {
            let remedy = format!(
                "Put the file that describes it back, and start the server again. If the backend is not needed any more, delete it: \
                 `dstack backend delete {}`, in each of these projects",
                account.kind
            );
            return about(account, DiagnosisCheck::Backends, error.to_string(), &remedy);
        }
        ComputeError::Configuration(_) | ComputeError::Unsupported(_) => {
            "Configure the backend again in these projects, or remove it from them"
        }
        _ => {
            "It is asked again by itself. If that lasts, see the status page of the cloud, and whether the server reaches its API"
        }
    };
    about(account, DiagnosisCheck::Backends, error.to_string(), remedy)
}

/// Whether it is a type that no file describes any more.
fn is_gone(kind: &str) -> bool {
    kind.parse::<BackendType>().is_err()
}

fn about(account: &Account, check: DiagnosisCheck, problem: String, remedy: &str) -> Finding {
    Finding {
        projects: names(account),
        ..finding(check, &format!("backend {}", account.kind), problem, remedy)
    }
}

fn names(account: &Account) -> Vec<String> {
    account
        .projects
        .iter()
        .map(|project| project.name.clone())
        .collect()
}

/// The inventories of the accounts that are asked for.
pub(super) async fn list(
    state: &AppState,
    request: &ListAccountRequest,
    deadline: Deadline,
) -> Result<ListAccountResponse> {
    let late = |_| {
        ApiError::internal(ComputeError::Unclear(
            "the database does not answer in time".to_owned(),
        ))
    };
    let look = timeout_at(deadline.at, Look::begin(state, deadline)).await;
    let look = look.map_err(late)??;
    let accounts = timeout_at(deadline.at, state.control.backends.accounts()).await;
    let mut accounts = accounts.map_err(late)?.map_err(ApiError::internal)?;
    accounts.retain(|account| {
        let of_project = |name: &String| {
            account
                .projects
                .iter()
                .any(|project| project.name.eq_ignore_ascii_case(name))
        };
        account.kind == request.backend.as_str() && request.project_name.as_ref().is_none_or(of_project)
    });
    let inventories = accounts
        .iter()
        .map(|account| inventory(&look, account, accounts.len()));
    let inventories = join_all(inventories).await;
    Ok(ListAccountResponse {
        accounts: inventories,
    })
}

async fn inventory(look: &Look<'_>, account: &Account, accounts: usize) -> AccountInventory {
    let Answers { listed, .. } = look.ask(account, Ask::Inventory, accounts).await;
    let (mut things, error) = match listed {
        Ok(listed) => {
            let error = without(&listed.missing);
            (listed.things.into_iter().map(thing).collect(), error)
        }
        Err(error) => (Vec::new(), Some(chain(&error).to_string())),
    };
    things.sort_by(|a: &OwnedThing, b: &OwnedThing| {
        (&a.region, &a.kind, &a.name, &a.id).cmp(&(&b.region, &b.kind, &b.name, &b.id))
    });
    AccountInventory {
        backend: account.kind.clone(),
        projects: names(account),
        error,
        price_per_hour: things.iter().filter_map(|thing| thing.price_per_hour).sum(),
        things,
    }
}

/// Which regions do not tell what they have, and why; `None`: all that should, do.
fn without(missing: &[MissingRegion]) -> Option<String> {
    let told = missing.iter().filter_map(|one| {
        let error = one.error.as_ref()?;
        Some(format!(
            "the region {} does not tell what it has: {error}",
            one.region
        ))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn thing(listed: Listed) -> OwnedThing {
    let state = match listed.holder() {
        Holder::Live => OwnedState::Known,
        Holder::Duplicate { .. } => OwnedState::Duplicate,
        Holder::Ended => OwnedState::Over,
        Holder::Nobody => OwnedState::Unknown,
    };
    let made_for = listed.made_for.as_ref();
    OwnedThing {
        kind: listed.owned.kind.to_string(),
        state,
        made_for: made_for.map(|row| format!("{} {}", row.entity.kind(), row.name)),
        id: listed.owned.id,
        name: listed.owned.name,
        region: listed.owned.region,
        made_at: listed.owned.made_at,
        price_per_hour: listed.owned.price,
    }
}
