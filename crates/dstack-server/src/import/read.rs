//! From rows of dstack 0.22.5 to rows of ours.

use std::collections::{HashMap, HashSet};

use dstack_compute::config::{BackendConfig, Credential, SplitConfig};
use dstack_model::backends::BackendType;
use dstack_store::encryption::{Encryption, RowKeys};
use dstack_store::legacy::{LegacyDatabase, LegacyRow, NewRow};
use dstack_units::{ProjectId, Time, UserId};
use serde_json::json;
use uuid::Uuid;

use super::{ImportError, Report, entities, history};

/// What is taken over, of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Kind in the plural, such as `users`.
    pub kind: &'static str,
    /// How many there are.
    pub found: usize,
    /// How many of them were not here yet.
    pub new: usize,
}

/// What is not taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Kind in the plural, such as `users`.
    pub kind: &'static str,
    /// Name by which its owner knows it.
    pub name: String,
    /// Why not, and what to do instead.
    pub why: String,
}

/// Everything that is to be written.
#[derive(Debug)]
pub(super) struct Plan {
    /// In the order in which they refer to each other.
    pub(super) rows: Vec<(&'static str, NewRow)>,
    pub(super) left: Vec<Skipped>,
    pub(super) users: Vec<(UserId, String)>,
    pub(super) projects: Vec<(ProjectId, String)>,
    /// Ids of what is taken over, by kind.
    taken: HashMap<&'static str, HashSet<Uuid>>,
    /// What could not be decrypted.
    sealed: Vec<String>,
    /// With which sealed columns are written.
    pub(super) keys: RowKeys,
}

/// Everything that is shown, in this order, also when there is none.
const KINDS: &[&str] = &[
    "users",
    "public keys",
    "projects",
    "members",
    "backends",
    "secrets",
    "repos",
    "repo credentials",
    "fleets",
    "instances",
    "runs",
    "jobs",
    "events",
];

impl Plan {
    /// Nothing yet; sealed columns are to be written with these keys.
    fn new(keys: RowKeys) -> Self {
        Self {
            rows: Vec::new(),
            left: Vec::new(),
            users: Vec::new(),
            projects: Vec::new(),
            taken: HashMap::new(),
            sealed: Vec::new(),
            keys,
        }
    }

    pub(super) fn add(&mut self, kind: &'static str, id: Uuid, row: NewRow) {
        self.taken.entry(kind).or_default().insert(id);
        self.rows.push((kind, row));
    }

    /// A row that belongs to what was added before.
    pub(super) fn add_part(&mut self, row: NewRow) {
        self.rows.push(("", row));
    }

    pub(super) fn has(&self, kind: &'static str, id: Option<Uuid>) -> bool {
        id.is_some_and(|id| self.taken.get(kind).is_some_and(|ids| ids.contains(&id)))
    }

    pub(super) fn leave(&mut self, kind: &'static str, name: &str, why: impl Into<String>) {
        self.left.push(Skipped {
            kind,
            name: name.to_owned(),
            why: why.into(),
        });
    }

    pub(super) fn report(&self) -> Report {
        let found = |kind| self.rows.iter().filter(|(of, _)| *of == kind).count();
        Report {
            taken: KINDS
                .iter()
                .map(|kind| Imported {
                    kind,
                    found: found(*kind),
                    new: 0,
                })
                .collect(),
            left: self.left.clone(),
        }
    }
}

/// The keys of both installations.
pub(super) struct Keys<'a> {
    pub(super) old: &'a Encryption,
    pub(super) new: &'a Encryption,
}

impl Keys<'_> {
    /// A value that was encrypted there, encrypted for here. What cannot be decrypted is noted and left empty.
    pub(super) fn moved(&self, plan: &mut Plan, what: &str, stored: &str) -> Result<String, ImportError> {
        match self.old.decrypt(stored) {
            Ok(value) => self.sealed(value.expose()),
            Err(_) => {
                plan.sealed.push(what.to_owned());
                Ok(String::new())
            }
        }
    }

    /// The configuration of a backend, which members see, and its credentials, as they are stored here. dstack 0.22.5 has those of
    /// Kubernetes and Slurm in the configuration, in clear text, with credentials that are empty, or none in what was typed. What
    /// cannot be read stays as it is.
    pub(super) fn backend(
        &self,
        plan: &mut Plan,
        kind: BackendType,
        config: &str,
        auth: Option<&str>,
    ) -> Result<(String, Option<String>), ImportError> {
        let opened = match auth.map(|auth| self.old.decrypt(auth)).transpose() {
            Ok(opened) => opened.map(|auth| auth.expose().to_owned()).unwrap_or_default(),
            Err(_) => {
                plan.sealed.push(format!("credentials of {kind}"));
                return Ok((config.to_owned(), None));
            }
        };
        let stored = SplitConfig {
            config: config.to_owned(),
            auth: Credential::new(opened.as_str()),
        };
        let (config, auth) = match BackendConfig::join(&stored) {
            Ok(whole) => {
                let split = whole.split();
                (split.config, split.auth)
            }
            Err(_) if opened.is_empty() => (
                json!({"type": kind.as_str()}).to_string(),
                Credential::new(config),
            ),
            Err(_) => (stored.config, stored.auth),
        };
        Ok((config, Some(self.sealed(auth.expose())?)))
    }

    /// A value that was clear text there.
    pub(super) fn sealed(&self, value: &str) -> Result<String, ImportError> {
        self.new.encrypt(value).map_err(ImportError::Target)
    }
}

/// The rows of a table, in the order of a column.
pub(super) async fn rows(
    source: &LegacyDatabase,
    table: &'static str,
    columns: &[&'static str],
    order: &'static str,
) -> Result<Vec<LegacyRow>, ImportError> {
    let rows = source.rows(table, columns, order).await;
    rows.map_err(ImportError::Source)
}

/// The id of a row.
pub(super) fn id(table: &'static str, row: &LegacyRow) -> Result<Uuid, ImportError> {
    uuid(table, row, "id")
}

/// A reference that must be there.
pub(super) fn uuid(table: &'static str, row: &LegacyRow, column: &'static str) -> Result<Uuid, ImportError> {
    needed(table, row, column, row.parse(column))
}

/// A time that must be there.
pub(super) fn time(table: &'static str, row: &LegacyRow, column: &'static str) -> Result<Time, ImportError> {
    needed(table, row, column, row.time(column))
}

/// A value that must be there.
pub(super) fn needed<T>(
    table: &'static str,
    row: &LegacyRow,
    column: &'static str,
    value: Option<T>,
) -> Result<T, ImportError> {
    value.ok_or_else(|| ImportError::Corrupt {
        table,
        column,
        id: row.text("id").to_owned(),
    })
}

/// Reads and converts everything.
pub(super) async fn read(
    source: &LegacyDatabase,
    old: &Encryption,
    new: &Encryption,
) -> Result<Plan, ImportError> {
    let keys = Keys { old, new };
    let mut plan = Plan::new(new.into());
    entities::users(source, &keys, &mut plan).await?;
    entities::projects(source, &keys, &mut plan).await?;
    entities::contents(source, &keys, &mut plan).await?;
    history::fleets(source, &keys, &mut plan).await?;
    history::runs(source, &mut plan).await?;
    history::events(source, &mut plan).await?;
    entities::not_taken(source, &mut plan).await?;
    if !plan.sealed.is_empty() {
        return Err(ImportError::Undecryptable(plan.sealed.join(", ")));
    }
    Ok(plan)
}
