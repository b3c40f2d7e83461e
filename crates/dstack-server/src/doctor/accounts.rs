//! What clouds say: whether they take the credentials, and what they have of ours.

use std::time::Duration;

use dstack_compute::{Account, Backend, ComputeError};
use dstack_engine::orphans::{ListError, Listed, list as list_owned};
use dstack_model::decode::decode_strict;
use dstack_model::diagnosis::{
    AccountInventory, DiagnosisCheck, Finding, ListAccountRequest, ListAccountResponse, OwnedState,
    OwnedThing,
};
use dstack_model::runs::Requirements;
use dstack_plan::orphans::{Holder, Policy};
use dstack_store::queries::orphans::OrphanRow;
use dstack_store::{EngineStore, SqlStore};
use dstack_system::chain;
use dstack_units::{InstallationId, Time};
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{Report, counted, finding, stores};
use crate::error::Result;
use crate::state::AppState;

/// What all accounts are looked at with.
struct Look {
    store: SqlStore,
    installation: InstallationId,
    remembered: Vec<OrphanRow>,
    policy: Policy,
    now: Time,
    deadline: Instant,
}

impl Look {
    async fn begin(
        state: &AppState,
        deadline: Instant,
    ) -> std::result::Result<Self, dstack_store::StoreError> {
        let store = state.data.store();
        let candidate = state.data.random.uuid().into();
        Ok(Self {
            installation: state.data.database.installation(candidate).await?,
            remembered: store.orphans().await?,
            policy: state.edge.settings.orphan_policy(),
            now: state.data.clock.now(),
            store,
            deadline,
        })
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    async fn list(&self, backend: &dyn Backend) -> std::result::Result<Vec<Listed>, ListError> {
        list_owned(&self.store, self.installation, backend, self.remaining()).await
    }
}

pub(super) async fn check(state: &AppState, deadline: Instant) -> Report {
    let mut report = Report::default();
    let look = match Look::begin(state, deadline).await {
        Ok(look) => look,
        Err(error) => {
            report
                .findings
                .push(stores::unreadable(&chain(&error).to_string()));
            return report;
        }
    };
    let accounts = match state.control.backends.accounts().await {
        Ok(accounts) => accounts,
        Err(error) => {
            report.findings.push(stores::unreadable(&error.to_string()));
            return report;
        }
    };
    let looked_at = counted(accounts.len(), "account");
    report.looked_at(DiagnosisCheck::Backends, looked_at.clone());
    report.looked_at(DiagnosisCheck::Orphans, looked_at);
    let found = join_all(accounts.iter().map(|account| look_at(&look, account))).await;
    report.findings.extend(found.into_iter().flatten());
    report
}

async fn look_at(look: &Look, account: &Account) -> Vec<Finding> {
    let listed = match &account.backend {
        Ok(backend) => look.list(backend.as_ref()).await,
        Err(error) => Err(ListError::Cloud(error.clone())),
    };
    match listed {
        Ok(listed) => {
            let orphans = listed.iter().filter_map(|thing| orphan(look, account, thing));
            let mut found: Vec<Finding> = orphans.collect();
            if let Ok(backend) = &account.backend {
                found.extend(offers(look, account, backend.as_ref()).await);
            }
            found
        }
        Err(error) => {
            let known = look.remembered.iter();
            let known = known.filter(|row| row.account == account.id && row.sighting.is_reported);
            let mut found: Vec<Finding> = known.map(|row| remembered(look, account, row)).collect();
            found.push(match error {
                ListError::Cloud(error) => failed(account, &error),
                ListError::Store(error) => stores::unreadable(&chain(&error).to_string()),
            });
            found
        }
    }
}

/// A thing that belongs to nobody. What has just been ended may be listed for a moment more.
fn orphan(look: &Look, account: &Account, thing: &Listed) -> Option<Finding> {
    let ended_at = thing.made_for.as_ref().and_then(|row| row.ended_at);
    let may_be_leaving = ended_at.is_some_and(|at| look.now < at + look.policy.grace);
    if thing.holder() == Holder::Live || may_be_leaving {
        return None;
    }
    let key = thing.key(&account.kind);
    let seen = look.remembered.iter().find(|row| row.key == key);
    Some(Finding {
        since: seen.map(|row| row.sighting.first).or(thing.owned.made_at),
        price_per_hour: thing.owned.price,
        ..of_orphan(
            look,
            account,
            thing.holder(),
            format!("{}: {}", thing.description(), thing.reason()),
        )
    })
}

/// As the last sweep saw it.
fn remembered(look: &Look, account: &Account, row: &OrphanRow) -> Finding {
    Finding {
        since: Some(row.sighting.first),
        ..of_orphan(
            look,
            account,
            Holder::Nobody,
            format!("{}, as it was listed last", row.description),
        )
    }
}

fn of_orphan(look: &Look, account: &Account, holder: Holder, problem: String) -> Finding {
    let (kind, minutes) = (&account.kind, look.policy.grace.as_secs() / 60);
    let remedy = match holder {
        _ if look.policy.removes.includes(holder) => {
            format!(
                "The server ends it once it has belonged to nobody for {minutes} minutes (DSTACK_SERVER_ORPHANS)"
            )
        }
        Holder::Live | Holder::Ended => format!(
            "End it in the console of {kind}, or let the server end what is over here: DSTACK_SERVER_ORPHANS=remove"
        ),
        Holder::Nobody => format!(
            "If nobody needs it, and no other server works with a copy of this database, end it in the console of {kind}, or let the \
             server end what it does not know: DSTACK_SERVER_ORPHANS=remove-unknown"
        ),
    };
    about(account, DiagnosisCheck::Orphans, problem, &remedy)
}

/// Any offer will do: to be told of some, the credentials have to be good.
async fn offers(look: &Look, account: &Account, backend: &dyn Backend) -> Option<Finding> {
    let requirements: Requirements = decode_strict(&json!({"resources": {}})).ok()?;
    let late = || ComputeError::Unclear("it has not said in time what it offers".to_owned());
    let asked = tokio::time::timeout(look.remaining(), backend.offers(&requirements)).await;
    let error = asked.unwrap_or_else(|_| Err(late())).err()?;
    Some(failed(account, &error))
}

fn failed(account: &Account, error: &ComputeError) -> Finding {
    let remedy = match error {
        ComputeError::Credentials(_) => {
            "Replace the credentials of the backend in these projects. Until then nothing is made there, and what is there cannot be ended"
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
    deadline: Instant,
) -> Result<ListAccountResponse> {
    let look = Look::begin(state, deadline).await?;
    let mut accounts = state
        .control
        .backends
        .accounts()
        .await
        .map_err(crate::error::ApiError::internal)?;
    accounts.retain(|account| {
        let of_project = |name: &String| {
            account
                .projects
                .iter()
                .any(|project| project.name.eq_ignore_ascii_case(name))
        };
        account.kind == request.backend.as_str() && request.project_name.as_ref().is_none_or(of_project)
    });
    let inventories = join_all(accounts.iter().map(|account| inventory(&look, account))).await;
    Ok(ListAccountResponse {
        accounts: inventories,
    })
}

async fn inventory(look: &Look, account: &Account) -> AccountInventory {
    let listed = match &account.backend {
        Ok(backend) => look.list(backend.as_ref()).await,
        Err(error) => Err(ListError::Cloud(error.clone())),
    };
    let (mut things, error) = match listed {
        Ok(listed) => (listed.into_iter().map(thing).collect(), None),
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

fn thing(listed: Listed) -> OwnedThing {
    let state = match listed.holder() {
        Holder::Live => OwnedState::Known,
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
