//! Changes besides those of the engine's rows: several of them, with the events that tell of them, are one transaction.

use std::collections::BTreeSet;

use dstack_model::users::{GlobalRole, ProjectRole};
use dstack_plan::hosts::HostKey;
use dstack_units::{
    ExportId, FleetId, GatewayId, ImportId, InstanceId, ProjectId, PublicKeyId, RepoRowId, SecretId, Time,
    TokenId, UserId,
};
use sqlx::Row;

use crate::encryption::RowKeys;
use crate::observer;
use crate::queries::backends::{self, BackendRow};
use crate::queries::content::{self, Content};
use crate::queries::events;
use crate::queries::exports::{self, FullExport};
use crate::queries::gateways;
use crate::queries::identities::{self, Identity};
use crate::queries::orphans::{self, OrphanRow};
use crate::queries::projects::{self, InUse, ProjectRow};
use crate::queries::repos::{self, RepoRow};
use crate::queries::secrets::{self, SecretRow};
use crate::queries::tokens::{self, TokenRow};
use crate::queries::users::{self, PublicKeyRow, UserRow};
use crate::queries::{views, volumes};
use crate::{Database, Dialect, NewEvent, Result, StoreError, Tx};

/// One change. Several of them, with the events that tell of them, are one transaction: see [`Database::change`].
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Adds a user.
    InsertUser {
        /// Its row, as it is to be stored or was read.
        user: UserRow,
        /// Lower-case hex SHA-256 of the token.
        token_hash: String,
    },
    /// Changes role, e-mail address and activity of a user.
    UpdateUser {
        /// Id of that user.
        id: UserId,
        /// Role in the whole server.
        role: GlobalRole,
        /// E-mail address; `None` takes it away.
        email: Option<String>,
        /// Whether they can authenticate.
        active: bool,
    },
    /// Replaces a user's own token.
    SetUserToken {
        /// Id of the user.
        id: UserId,
        /// The token, encrypted.
        encrypted: String,
        /// Lower-case hex SHA-256 of the token.
        hash: String,
    },
    /// Replaces a user's key pair.
    SetUserKeys {
        /// Id of the user.
        id: UserId,
        /// The private key, encrypted.
        private: String,
        /// The public key.
        public: String,
    },
    /// Deletes a user with memberships, API tokens and accounts of login providers.
    DeleteUser {
        /// Its row, as it is to be stored or was read.
        user: UserRow,
        /// The name that its row keeps, so that its own is free.
        renamed: String,
    },
    /// Makes an account of a login provider the user's.
    InsertIdentity {
        /// Issuer and subject, as the provider vouches for them.
        identity: Identity,
        /// Id of the user who logs in with it.
        user: UserId,
        /// When they logged in with it first.
        at: Time,
    },
    /// Adds an API token of a user.
    InsertToken {
        /// Its row; the token itself is stored nowhere.
        token: TokenRow,
        /// How many tokens the user may have.
        limit: i64,
    },
    /// Deletes an API token.
    DeleteToken(TokenId),
    /// Adds a public key of a user.
    InsertPublicKey(PublicKeyRow),
    /// Deletes a public key.
    DeletePublicKey(PublicKeyId),
    /// Adds a project with its owner as admin. It imports all global exports.
    InsertProject {
        /// Its row, without key pair and default gateway.
        project: ProjectRow,
        /// How many projects the owner may have; `None`: any number.
        quota: Option<i64>,
        /// Ids for imports of global exports; unused ones are left over.
        imports: Vec<(ExportId, ImportId)>,
    },
    /// Changes visibility and templates of a project.
    UpdateProject {
        /// Id of that project.
        id: ProjectId,
        /// Whether all users see it; `None` leaves it as it is.
        is_public: Option<bool>,
        /// Git repo of templates; `None` leaves it as it is, an inner `None` takes it away.
        templates_repo: Option<Option<String>>,
    },
    /// Deletes a project with the tokens that are good for it only; refused while it is in use.
    DeleteProject {
        /// Id of that project.
        id: ProjectId,
        /// The name that its row keeps.
        renamed: String,
    },
    /// Goes on only if the members of the project still are those; they cannot change until the end of the transaction.
    ExpectMembers {
        /// Id of the project.
        project: ProjectId,
        /// Users and roles in any order.
        members: Vec<(UserId, ProjectRole)>,
    },
    /// Adds a member, or changes its role; see [`projects::put_member`].
    PutMember {
        /// Id of the project.
        project: ProjectId,
        /// Id of the member.
        user: UserId,
        /// What they may do.
        role: ProjectRole,
        /// Place in lists.
        number: Option<i64>,
    },
    /// Removes a member.
    RemoveMember {
        /// From which project.
        project: ProjectId,
        /// Id of the member.
        user: UserId,
    },
    /// Removes all members.
    ClearMembers(ProjectId),
    /// Adds a secret, or replaces its value.
    PutSecret(SecretRow),
    /// Deletes a secret.
    DeleteSecret(SecretId),
    /// Adds a repo, or changes the one of its name.
    PutRepo {
        /// Its row; the id counts only where the name is new.
        repo: RepoRow,
        /// Whose credentials are replaced, or with an inner `None` deleted.
        credentials: Option<(UserId, Option<String>)>,
    },
    /// Deletes repos with their diffs and credentials.
    DeleteRepos {
        /// Of which project.
        project: ProjectId,
        /// By which names clients know them.
        names: Vec<String>,
    },
    /// Stores a diff of a repo.
    PutCode {
        /// Of which repo.
        repo: RepoRowId,
        /// Lower-case hex SHA-256 of its content.
        hash: String,
        /// Where it is.
        content: Content,
    },
    /// Writes an export in place of what was read; `before` is `None` where there was none.
    PutExport {
        /// As it was read: if it is not so any more, nothing is changed.
        before: Option<Box<FullExport>>,
        /// As it is to be.
        after: Box<FullExport>,
    },
    /// Deletes an export.
    DeleteExport(ExportId),
    /// Adds a backend.
    InsertBackend(BackendRow),
    /// Replaces the configuration of a backend.
    UpdateBackend(BackendRow),
    /// Deletes a backend; refused while instances, volumes or gateways need it.
    DeleteBackend {
        /// Of which project.
        project: ProjectId,
        /// Type of the backend, such as `aws`.
        kind: String,
    },
    /// Goes on only if the project has such a backend; it is not deleted before the end of the transaction.
    ExpectBackend {
        /// Of which project.
        project: ProjectId,
        /// Type of the backend, such as `aws`.
        kind: String,
    },
    /// Goes on only if no other fleet has one of these hosts, and none gets one before the end of the transaction.
    ExpectFreeHosts {
        /// Whose hosts they are to be.
        fleet: FleetId,
        /// Which ones.
        hosts: BTreeSet<HostKey>,
    },
    /// Goes on only if no other host is this machine, and none becomes it before the end of the transaction.
    ExpectOwnMachine {
        /// Whose machine it is to be.
        instance: InstanceId,
        /// Identity of the machine, as [`crate::rows::InstanceRow::machine`] has it.
        machine: String,
        /// Hosts that say the same of themselves, and are known to be other machines.
        apart: BTreeSet<InstanceId>,
    },
    /// Remembers something in a cloud that belongs to nobody.
    PutOrphan(OrphanRow),
    /// Remembers it no more, by its key.
    DeleteOrphan(String),
    /// Makes a gateway the project's default, or leaves the project without one.
    SetDefaultGateway {
        /// Of which project.
        project: ProjectId,
        /// `None` leaves the project without a default.
        gateway: Option<GatewayId>,
    },
}

/// What somebody else keeps in memory, or waits for, and hears of after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Affected {
    /// Users, tokens, projects or members: who may do what.
    pub access: bool,
    /// Names that answers about runs contain.
    pub names: bool,
}

impl std::ops::BitOr for Affected {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self {
            access: self.access | other.access,
            names: self.names | other.names,
        }
    }
}

impl Change {
    /// What has to be forgotten, or looked at, once it is written.
    pub fn affected(&self) -> Affected {
        let mut affected = Affected::default();
        match self {
            Self::InsertUser { .. }
            | Self::UpdateUser { .. }
            | Self::SetUserToken { .. }
            | Self::SetUserKeys { .. }
            | Self::InsertToken { .. }
            | Self::DeleteToken(_)
            | Self::InsertProject { .. }
            | Self::UpdateProject { .. }
            | Self::PutMember { .. }
            | Self::RemoveMember { .. }
            | Self::ClearMembers(_) => affected.access = true,
            Self::DeleteUser { .. } | Self::DeleteProject { .. } => {
                (affected.access, affected.names) = (true, true);
            }
            Self::InsertIdentity { .. }
            | Self::InsertPublicKey(_)
            | Self::DeletePublicKey(_)
            | Self::ExpectMembers { .. }
            | Self::PutSecret(_)
            | Self::DeleteSecret(_)
            | Self::PutRepo { .. }
            | Self::DeleteRepos { .. }
            | Self::PutCode { .. }
            | Self::PutExport { .. }
            | Self::DeleteExport(_)
            | Self::InsertBackend(_)
            | Self::UpdateBackend(_)
            | Self::DeleteBackend { .. }
            | Self::ExpectBackend { .. }
            | Self::ExpectFreeHosts { .. }
            | Self::ExpectOwnMachine { .. }
            | Self::PutOrphan(_)
            | Self::DeleteOrphan(_)
            // Nobody remembers it: each question for the default gateway goes to the database.
            | Self::SetDefaultGateway { .. } => {}
        }
        affected
    }

    pub(crate) async fn write(self, tx: &mut Tx, keys: &RowKeys, dialect: Dialect) -> Result<()> {
        match self {
            Self::InsertUser { user, token_hash } => users::insert(tx, &user, &token_hash).await,
            Self::UpdateUser {
                id,
                role,
                email,
                active,
            } => users::update(tx, id, role, email.as_deref(), active).await,
            Self::SetUserToken { id, encrypted, hash } => users::set_token(tx, id, &encrypted, &hash).await,
            Self::SetUserKeys { id, private, public } => {
                users::set_ssh_keys(tx, id, &private, &public, false).await?;
                Ok(())
            }
            Self::DeleteUser { user, renamed } => users::delete(tx, &user, &renamed).await,
            Self::InsertIdentity { identity, user, at } => {
                expect_user(tx, dialect, user).await?;
                identities::insert(tx, &identity, user, at).await
            }
            Self::InsertToken { token, limit } => {
                if !lock(tx, Lock::User, &token.user_id).await? {
                    return Err(StoreError::conflict("users", &token.user_id));
                }
                check_limit(tx, "user_tokens WHERE user_id = $1", &token.user_id, limit).await?;
                tokens::insert(tx, &token).await
            }
            Self::DeleteToken(id) => tokens::delete(tx, id).await,
            Self::InsertPublicKey(key) => {
                expect_user(tx, dialect, key.user_id).await?;
                users::insert_public_key(tx, &key).await
            }
            Self::DeletePublicKey(id) => users::delete_public_key(tx, id).await,
            Self::InsertProject {
                project,
                quota,
                imports,
            } => insert_project(tx, dialect, &project, quota, imports).await,
            Self::UpdateProject {
                id,
                is_public,
                templates_repo,
            } => projects::update(tx, id, is_public, templates_repo.as_ref().map(Option::as_deref)).await,
            Self::DeleteProject { id, renamed } => delete_project(tx, id, &renamed).await,
            Self::ExpectMembers { project, members } => expect_members(tx, project, members).await,
            Self::PutMember {
                project,
                user,
                role,
                number,
            } => {
                expect_user(tx, dialect, user).await?;
                projects::put_member(tx, project, user, role, number).await
            }
            Self::RemoveMember { project, user } => projects::remove_member(tx, project, user).await,
            Self::ClearMembers(project) => projects::clear_members(tx, project).await,
            other => other.write_content(tx, keys, dialect).await,
        }
    }

    /// Changes of what projects have.
    async fn write_content(self, tx: &mut Tx, keys: &RowKeys, dialect: Dialect) -> Result<()> {
        match self {
            Self::PutSecret(secret) => secrets::put(tx, &secret).await,
            Self::DeleteSecret(id) => secrets::delete(tx, id).await,
            Self::PutRepo { repo, credentials } => {
                let id = repos::put(tx, &repo).await?;
                match credentials {
                    Some((user, creds)) => repos::put_creds(tx, id, user, creds.as_deref()).await,
                    None => Ok(()),
                }
            }
            Self::DeleteRepos { project, names } => repos::delete(tx, project, &names).await,
            Self::PutCode { repo, hash, content } => content::put_code(tx, repo, &hash, content).await,
            Self::PutExport { before, after } => put_export(tx, dialect, before, &after).await,
            Self::DeleteExport(id) => {
                lock_global_exports(tx, dialect).await?;
                exports::delete(tx, id).await
            }
            Self::InsertBackend(row) => backends::insert(tx, &row).await,
            Self::UpdateBackend(row) => backends::update(tx, &row).await,
            Self::DeleteBackend { project, kind } => delete_backend(tx, keys, project, &kind).await,
            Self::ExpectBackend { project, kind } => expect_backend(tx, dialect, project, &kind).await,
            Self::ExpectFreeHosts { fleet, hosts } => {
                expect_free_hosts(tx, keys, dialect, fleet, &hosts).await
            }
            Self::ExpectOwnMachine {
                instance,
                machine,
                apart,
            } => expect_own_machine(tx, dialect, instance, &machine, &apart).await,
            Self::PutOrphan(row) => orphans::put(tx, &row).await,
            Self::DeleteOrphan(key) => orphans::delete(tx, &key).await,
            Self::SetDefaultGateway { project, gateway } => gateways::set_default(tx, project, gateway).await,
            _ => Ok(()),
        }
    }
}

impl Database {
    /// Makes all changes and records their events in one transaction.
    ///
    /// # Errors
    /// A change is refused ([`StoreError::InUse`], [`StoreError::TooMany`]), a row was changed since it was read, a name is
    /// taken, or the database: then nothing is changed.
    pub async fn change(&self, changes: Vec<Change>, recorded: Vec<NewEvent>) -> Result<()> {
        let (dialect, keys) = (self.dialect(), self.keys().clone());
        let changed = observer::of_changes(&changes, &recorded);
        let written = self
            .write(move |tx| {
                Box::pin(async move {
                    for change in changes {
                        change.write(tx, &keys, dialect).await?;
                    }
                    for event in recorded {
                        events::insert(tx, event).await?;
                    }
                    Ok(())
                })
            })
            .await;
        self.observed().tell(changed, &written);
        written
    }
}

/// Rows on which transactions wait for each other.
#[derive(Debug, Clone, Copy)]
enum Lock {
    User,
    Project,
    Export,
    Backend,
}

/// Holds a row until the end of the transaction, by changing nothing of it; whether it is there.
async fn lock(tx: &mut Tx, what: Lock, id: &impl ToString) -> Result<bool> {
    let sql = match what {
        Lock::User => "UPDATE users SET deleted = deleted WHERE id = $1 AND deleted = 0",
        Lock::Project => "UPDATE projects SET deleted = deleted WHERE id = $1",
        Lock::Export => "UPDATE exports SET is_global = is_global WHERE id = $1",
        Lock::Backend => "UPDATE backends SET type = type WHERE id = $1",
    };
    let done = sqlx::query(sql).bind(id.to_string()).execute(tx).await?;
    Ok(done.rows_affected() > 0)
}

/// Goes on only if the user is there, and not deleted before the end of the transaction.
async fn expect_user(tx: &mut Tx, dialect: Dialect, user: UserId) -> Result<()> {
    // Several may hold it at the same time; who deletes the user waits, and deletes what was added meanwhile. SQLite has one
    // writer.
    let sql = match dialect {
        Dialect::Postgres => "SELECT 1 FROM users WHERE id = $1 AND deleted = 0 FOR SHARE",
        Dialect::Sqlite => "SELECT 1 FROM users WHERE id = $1 AND deleted = 0",
    };
    let found = sqlx::query(sql).bind(user.to_string()).fetch_optional(tx).await?;
    match found {
        Some(_) => Ok(()),
        None => Err(StoreError::conflict("users", &user)),
    }
}

/// Goes on only if the project has such a backend, and it is not deleted before the end of the transaction.
async fn expect_backend(tx: &mut Tx, dialect: Dialect, project: ProjectId, kind: &str) -> Result<()> {
    // As with users: several may hold it, and who deletes it waits and finds what was written meanwhile.
    let sql = match dialect {
        Dialect::Postgres => "SELECT 1 FROM backends WHERE project_id = $1 AND type = $2 FOR SHARE",
        Dialect::Sqlite => "SELECT 1 FROM backends WHERE project_id = $1 AND type = $2",
    };
    let found = sqlx::query(sql)
        .bind(project.to_string())
        .bind(kind.to_owned())
        .fetch_optional(tx)
        .await?;
    match found {
        Some(_) => Ok(()),
        None => Err(StoreError::conflict("backends", &kind)),
    }
}

/// Any number that nobody else takes: the advisory lock between exports that become global and projects that are created.
const GLOBAL_EXPORTS: i64 = 0x6473_7461_6378;

/// The same between fleets that get hosts.
const HOSTS: i64 = 0x6473_7461_6379;

/// The same between hosts that have been set up, and may be one machine.
const MACHINES: i64 = 0x6473_7461_637a;

/// Waits for others that make exports global, or create projects, at the same time.
async fn lock_global_exports(tx: &mut Tx, dialect: Dialect) -> Result<()> {
    lock_number(tx, dialect, GLOBAL_EXPORTS).await
}

/// Waits for others that hold this number, until the end of their transactions. SQLite has one transaction at a time.
async fn lock_number(tx: &mut Tx, dialect: Dialect, number: i64) -> Result<()> {
    if dialect == Dialect::Postgres {
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(number)
            .execute(tx)
            .await?;
    }
    Ok(())
}

/// Goes on only if no other fleet has one of the hosts: what others committed meanwhile is seen once they are waited for.
async fn expect_free_hosts(
    tx: &mut Tx,
    keys: &RowKeys,
    dialect: Dialect,
    fleet: FleetId,
    hosts: &BTreeSet<HostKey>,
) -> Result<()> {
    lock_number(tx, dialect, HOSTS).await?;
    let used = views::remote_hosts_in(tx, keys).await?;
    let is_taken = |other: Option<FleetId>, host: &HostKey| other != Some(fleet) && hosts.contains(host);
    match used.iter().find(|(other, host)| is_taken(*other, host)) {
        None => Ok(()),
        Some((_, host)) => Err(StoreError::conflict("instances", host)),
    }
}

/// Goes on only if no other host is this machine. Changes are made after those of rows: the row itself has it already.
async fn expect_own_machine(
    tx: &mut Tx,
    dialect: Dialect,
    instance: InstanceId,
    machine: &str,
    apart: &BTreeSet<InstanceId>,
) -> Result<()> {
    lock_number(tx, dialect, MACHINES).await?;
    let sql = "SELECT id FROM instances WHERE machine = $1 AND id <> $2 AND deleted = 0 \
         AND status NOT IN ('terminating', 'terminated')";
    let found = sqlx::query_scalar(sql)
        .bind(machine.to_owned())
        .bind(instance.to_string())
        .fetch_all(tx)
        .await?;
    let apart: BTreeSet<String> = apart.iter().map(InstanceId::to_string).collect();
    match found.iter().all(|id: &String| apart.contains(id)) {
        true => Ok(()),
        false => Err(StoreError::conflict("instances", &machine)),
    }
}

/// Refuses when there are as many rows already as there may be.
async fn check_limit(tx: &mut Tx, rows_of: &'static str, id: &impl ToString, limit: i64) -> Result<()> {
    let sql = format!("SELECT COUNT(*) FROM {rows_of}");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.to_string())
        .fetch_one(tx)
        .await?;
    match row.try_get::<i64, _>(0)? < limit {
        true => Ok(()),
        false => Err(StoreError::TooMany),
    }
}

async fn insert_project(
    tx: &mut Tx,
    dialect: Dialect,
    project: &ProjectRow,
    quota: Option<i64>,
    imports: Vec<(ExportId, ImportId)>,
) -> Result<()> {
    // Whoever is to own it may have been deleted since the caller looked.
    if let Some(quota) = quota {
        if !lock(tx, Lock::User, &project.owner_id).await? {
            return Err(StoreError::conflict("users", &project.owner_id));
        }
        check_limit(
            tx,
            "projects WHERE owner_id = $1 AND deleted = 0",
            &project.owner_id,
            quota,
        )
        .await?;
    } else {
        expect_user(tx, dialect, project.owner_id).await?;
    }
    lock_global_exports(tx, dialect).await?;
    let global = exports::global_in(tx).await?;
    // Others were made global, or global ones were deleted, since the caller looked.
    let known = |id: &ExportId| imports.iter().any(|(export, _)| export == id);
    if !global.iter().all(known) {
        return Err(StoreError::conflict("exports", &project.name));
    }
    projects::insert(tx, project).await?;
    projects::put_member(tx, project.id, project.owner_id, ProjectRole::Admin, Some(0)).await?;
    for (export, import) in imports.into_iter().filter(|(export, _)| global.contains(export)) {
        exports::add_import(tx, export, import, project.id, project.created_at).await?;
    }
    Ok(())
}

/// The row changes first: what begins in the project at the same time either is there to be found, or finds the project
/// deleted.
async fn delete_project(tx: &mut Tx, id: ProjectId, renamed: &str) -> Result<()> {
    projects::delete(tx, id, renamed).await?;
    let kinds = [
        InUse::Runs,
        InUse::Fleets,
        InUse::Volumes,
        InUse::PlacementGroups,
        InUse::Gateways,
    ];
    for kind in kinds {
        let names = projects::names_in_use(tx, id, kind).await?;
        if !names.is_empty() {
            return Err(StoreError::InUse {
                by: kind.as_str(),
                names,
            });
        }
    }
    Ok(())
}

async fn expect_members(
    tx: &mut Tx,
    project: ProjectId,
    mut expected: Vec<(UserId, ProjectRole)>,
) -> Result<()> {
    lock(tx, Lock::Project, &project).await?;
    let mut found = projects::roles(tx, project).await?;
    found.sort_by_key(|(user, _)| *user);
    expected.sort_by_key(|(user, _)| *user);
    match found == expected {
        true => Ok(()),
        false => Err(StoreError::conflict("members", &project)),
    }
}

async fn put_export(
    tx: &mut Tx,
    dialect: Dialect,
    before: Option<Box<FullExport>>,
    after: &FullExport,
) -> Result<()> {
    let was_global = before.as_ref().is_some_and(|before| before.row.is_global);
    // Also when it stops being global: a project that is created meanwhile is not to import it.
    if after.row.is_global || was_global {
        lock_global_exports(tx, dialect).await?;
    }
    if after.row.is_global && !was_global {
        let importing =
            |project: &ProjectId| after.imports.iter().any(|import| import.project_id == *project);
        let mut others = projects::ids_in(tx).await?;
        others.retain(|project| *project != after.row.project_id);
        if !others.iter().all(importing) {
            return Err(StoreError::conflict("exports", &after.row.id));
        }
    }
    if let Some(before) = before {
        lock(tx, Lock::Export, &before.row.id).await?;
        if exports::parts_in(tx, before.row.id).await? != exports::Parts::of(&before) {
            return Err(StoreError::conflict("exports", &before.row.id));
        }
    }
    exports::put(tx, after).await
}

async fn delete_backend(tx: &mut Tx, keys: &RowKeys, project: ProjectId, kind: &str) -> Result<()> {
    let Some(id) = backends::id_in(tx, project, kind).await? else {
        return Ok(());
    };
    lock(tx, Lock::Backend, &id).await?;
    if backends::has_instances(tx, keys, project, kind).await? {
        return Err(in_use_backend("instances", kind));
    }
    let volumes = volumes::of_project_in(tx, keys, project).await?;
    if volumes.iter().any(|volume| volume.needs(kind)) {
        return Err(in_use_backend("volumes", kind));
    }
    if backends::has_gateways(tx, project, kind).await? {
        return Err(in_use_backend("gateways", kind));
    }
    let (kept, left) = backends::fleets_with_placement_groups(tx, project, kind).await?;
    let are_there = !kept.is_empty();
    let fleets = if are_there { kept } else { left };
    if !fleets.is_empty() {
        return Err(StoreError::HasPlacementGroups {
            kind: kind.to_owned(),
            fleets: fleets.into_iter().collect(),
            are_there,
        });
    }
    backends::delete(tx, project, kind).await
}

fn in_use_backend(by: &'static str, kind: &str) -> StoreError {
    StoreError::InUse {
        by,
        names: vec![kind.to_owned()],
    }
}
