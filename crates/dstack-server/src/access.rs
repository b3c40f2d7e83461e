//! Who calls, and for which project: tokens, projects with their members, and the guards of routes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use dstack_api::Guard;
use dstack_model::users::{GlobalRole, ProjectRole};
use dstack_store::directory::projects::{self, Member, ProjectRow};
use dstack_store::directory::users::{self, UserRow};
use dstack_store::{Database, Dialect};
use sha2::{Digest, Sha256};

use crate::error::{ApiError, Result};

/// Entries kept; when full, all are forgotten.
const CAPACITY: usize = 10_000;

/// Lower-case hex SHA-256 of a token: how it is found.
pub fn token_hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

/// A project with its members.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    /// The project.
    pub row: ProjectRow,
    /// Its members in order.
    pub members: Vec<Member>,
}

impl Project {
    /// The user's role in it.
    pub fn role(&self, user: &UserRow) -> Option<ProjectRole> {
        self.members
            .iter()
            .find(|member| member.user.id == user.id)
            .map(|member| member.role)
    }

    /// Whether the user may do what members may.
    pub fn is_member(&self, user: &UserRow) -> bool {
        is_admin(user) || self.role(user).is_some()
    }

    /// Whether the user may do what admins of the project may.
    pub fn is_admin(&self, user: &UserRow) -> bool {
        is_admin(user) || self.role(user) == Some(ProjectRole::Admin)
    }

    /// Whether the user may do what managers of the project may.
    pub fn is_manager(&self, user: &UserRow) -> bool {
        is_admin(user) || matches!(self.role(user), Some(ProjectRole::Admin | ProjectRole::Manager))
    }
}

/// Whether the user is a global admin.
pub fn is_admin(user: &UserRow) -> bool {
    user.global_role == GlobalRole::Admin
}

#[derive(Debug, Default)]
struct Cached {
    epoch: u64,
    users: HashMap<String, Arc<UserRow>>,
    projects: HashMap<String, Arc<Project>>,
}

/// Finds users by token and projects by name.
///
/// One server process with a database of its own remembers what it found until [`Access::changed`] is called; servers
/// that share a database always ask it.
#[derive(Debug)]
pub struct Access {
    database: Database,
    cached: Mutex<Cached>,
}

impl Access {
    /// On this database.
    pub fn new(database: Database) -> Self {
        Self {
            database,
            cached: Mutex::default(),
        }
    }

    /// To be called after every change of users, projects or members.
    pub fn changed(&self) {
        let mut cached = self.lock();
        *cached = Cached {
            epoch: cached.epoch + 1,
            ..Cached::default()
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cached> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Remembers something read, unless it may be out of date already.
    fn remember(&self, epoch: u64, put: impl FnOnce(&mut Cached)) {
        if self.database.dialect() != Dialect::Sqlite {
            return;
        }
        let mut cached = self.lock();
        if cached.epoch == epoch {
            if cached.users.len() + cached.projects.len() >= CAPACITY {
                cached.users.clear();
                cached.projects.clear();
            }
            put(&mut cached);
        }
    }

    /// The active user with this token.
    pub async fn user(&self, token: &str) -> Result<Option<Arc<UserRow>>> {
        let hash = token_hash(token);
        if let Some(user) = self.lock().users.get(&hash) {
            return Ok(Some(Arc::clone(user)));
        }
        let epoch = self.epoch();
        let Some(user) = users::by_token_hash(self.database.pool(), &hash).await? else {
            return Ok(None);
        };
        let user = Arc::new(user);
        self.remember(epoch, |cached| {
            cached.users.insert(hash, Arc::clone(&user));
        });
        Ok(Some(user))
    }

    /// The project of this name in any case.
    pub async fn project(&self, name: &str) -> Result<Option<Arc<Project>>> {
        let name = name.to_lowercase();
        if let Some(project) = self.lock().projects.get(&name) {
            return Ok(Some(Arc::clone(project)));
        }
        let epoch = self.epoch();
        let Some(row) = projects::by_name(self.database.pool(), &name).await? else {
            return Ok(None);
        };
        let members = projects::members(self.database.pool(), row.id).await?;
        let project = Arc::new(Project { row, members });
        self.remember(epoch, |cached| {
            cached.projects.insert(name, Arc::clone(&project));
        });
        Ok(Some(project))
    }
}

/// The token of an `Authorization: Bearer` header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Whether the guard lets the user through; `project` is that of the path.
pub fn check(guard: Guard, user: &UserRow, project: Option<&Project>) -> Result<()> {
    let project_is =
        |test: fn(&Project, &UserRow) -> bool| project.is_some_and(|project| test(project, user));
    let public = project.is_some_and(|project| project.row.is_public);
    let passes = match guard {
        Guard::Anyone | Guard::User | Guard::SshProxyToken | Guard::MetricsToken => true,
        // Decided by the handler, which knows the entity.
        Guard::Importer | Guard::ImporterOrPublic => true,
        Guard::GlobalAdmin => is_admin(user),
        Guard::Member | Guard::MemberSelf => project_is(Project::is_member),
        Guard::MemberOrPublic => public || project_is(Project::is_member),
        Guard::Manager => project_is(Project::is_manager),
        Guard::ManagerOrPublic => public || project_is(Project::is_manager),
        Guard::Admin => project_is(Project::is_admin),
    };
    if passes { Ok(()) } else { Err(ApiError::Denied) }
}
