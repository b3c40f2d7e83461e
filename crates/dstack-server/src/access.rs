//! Who calls, and for which project: tokens, projects with their members, and the guards of routes.

mod failed_logins;
mod scope;
pub mod shared;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::http::{Extensions, HeaderMap, header};
use dstack_api::{Effect, Guard, RouteInfo};
use dstack_store::Database;
use dstack_store::queries::tokens::TokenRow;
use dstack_store::queries::users::UserRow;
use dstack_system::Locked;
use dstack_units::{ProjectId, Time};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

pub use dstack_control::access::{Project, is_admin, token_hash};
pub use failed_logins::FailedLogins;
pub use scope::permit;

use crate::error::{ApiError, Result};

/// Entries kept; when full, all are forgotten.
const CAPACITY: usize = 10_000;

/// SHA-256 of a token: how it is found. Tokens are never compared themselves, so that how long a look-up takes says
/// nothing about them.
type TokenDigest = [u8; 32];

fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

/// Who calls, and with which of their tokens.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The user as stored when the token was looked up; see [`Freshness`].
    pub user: Arc<UserRow>,
    /// The API token used; `None`: the user's own one.
    pub token: Option<Arc<TokenRow>>,
    /// The user as `users/get_my_user` answers, once it was asked for: clients ask for little else as often.
    pub(crate) shown: Arc<Shown>,
}

/// An answer with credentials in it.
#[derive(Default)]
pub(crate) struct Shown(OnceLock<Bytes>);

impl Shown {
    pub(crate) fn get(&self) -> Option<Bytes> {
        self.0.get().cloned()
    }

    pub(crate) fn keep(&self, answer: Bytes) {
        self.0.set(answer).ok(); // another call was faster
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl Caller {
    /// Whether the token is good for this project as far as projects go; what the user may do there is another question.
    pub fn reaches(&self, project: ProjectId) -> bool {
        let only = self.token.as_ref().and_then(|token| token.project_id);
        only.is_none_or(|only| only == project)
    }
}

#[derive(Debug, Default)]
struct Cached {
    epoch: u64,
    callers: HashMap<TokenDigest, Caller>,
    projects: HashMap<String, Arc<Project>>,
    /// Every change made before has come to us; only where other servers make changes as well.
    complete_at: Option<Instant>,
}

impl Cached {
    fn forget(&mut self) {
        self.epoch += 1;
        self.callers.clear();
        self.projects.clear();
    }
}

/// How old what is remembered may be where other servers make changes as well.
const TRUSTED_FOR: Duration = Duration::from_secs(3);

/// How fresh an answer must be where other servers make changes as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// At most [`TRUSTED_FOR`] old: for what users and members do every day.
    Cached,
    /// Asked of the database now.
    Current,
}

impl Freshness {
    /// For a call of this route: what shows credentials of others, or what not every member may do, is not done on memory.
    pub fn for_route(route: &RouteInfo) -> Self {
        let daily = matches!(route.effect, Effect::Reads | Effect::Changes)
            && matches!(
                route.guard,
                Guard::User
                    | Guard::Member
                    | Guard::MemberOrPublic
                    | Guard::Importer
                    | Guard::ImporterOrPublic
            );
        if daily { Self::Cached } else { Self::Current }
    }
}

/// Finds callers by token and projects by name.
///
/// What was found is remembered until [`Access::changed`] is called. Servers that share a database are told of changes by
/// it ([`shared`]), and remember only while they surely hear it.
#[derive(Debug)]
pub struct Access {
    database: Database,
    failed: FailedLogins,
    cached: Locked<Cached>,
    news: Notify,
}

impl Access {
    /// On this database.
    pub fn new(database: Database, failed: FailedLogins) -> Self {
        Self {
            database,
            failed,
            cached: Locked::default(),
            news: Notify::new(),
        }
    }

    /// To be called after every change of users, tokens, projects or members.
    pub fn changed(&self) {
        self.lock().forget();
        self.news.notify_waiters();
    }

    /// Every change made before `at` has come to us.
    fn heard(&self, at: Instant) {
        self.lock().complete_at = Some(at);
        self.news.notify_waiters();
    }

    /// Changes do not come to us any more.
    fn deaf(&self) {
        let mut cached = self.lock();
        cached.complete_at = None;
        cached.forget();
        drop(cached);
        self.news.notify_waiters();
    }

    /// Completes when something was heard or forgotten after this was called: then calls may be answered differently.
    pub fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    fn is_shared(&self) -> bool {
        self.database.is_shared()
    }

    /// Whether memory is not older than it may be.
    fn remembers(&self, cached: &Cached) -> bool {
        !self.is_shared() || cached.complete_at.is_some_and(|at| at.elapsed() < TRUSTED_FOR)
    }

    /// From memory; `None`: ask the database.
    fn known<T>(&self, freshness: Freshness, get: impl FnOnce(&Cached) -> Option<T>) -> Option<T> {
        if freshness == Freshness::Current && self.is_shared() {
            return None;
        }
        let cached = self.lock();
        if self.remembers(&cached) {
            get(&cached)
        } else {
            None
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cached> {
        self.cached.lock()
    }

    /// Grows with every change of users, tokens, projects and members that this server has heard of.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Remembers something read, unless it may be out of date already.
    fn remember(&self, epoch: u64, put: impl FnOnce(&mut Cached)) {
        let mut cached = self.lock();
        if cached.epoch == epoch && self.remembers(&cached) {
            if cached.callers.len() + cached.projects.len() >= CAPACITY {
                cached.callers.clear();
                cached.projects.clear();
            }
            put(&mut cached);
        }
    }

    /// Who calls with this token: an active user. Failures are counted, and answered with 429 when there were too many.
    pub async fn authenticate(
        &self,
        token: &str,
        peer: Option<IpAddr>,
        now: Time,
        freshness: Freshness,
    ) -> Result<Caller> {
        match self.caller(token, now, freshness).await? {
            Some(caller) => Ok(caller),
            None => Err(self.refusal(token, peer, now, ApiError::InvalidToken)),
        }
    }

    /// Counts a failed login: `wrong`, or 429 when there were too many.
    pub(crate) fn refusal(&self, token: &str, peer: Option<IpAddr>, now: Time, wrong: ApiError) -> ApiError {
        match self.failed.failed(&token_hash(token), peer, now) {
            None => wrong,
            Some(wait) => ApiError::TooMany {
                msg: "Too many failed logins. Check your access token",
                retry_after: wait,
            },
        }
    }

    /// The active user with this token, and which token of theirs it is. Expired tokens are nobody's.
    pub async fn caller(&self, token: &str, now: Time, freshness: Freshness) -> Result<Option<Caller>> {
        let digest = digest(token);
        let known = self.known(freshness, |cached| cached.callers.get(&digest).cloned());
        let found = match known {
            Some(caller) => Some(caller),
            None => self.find(digest).await?,
        };
        Ok(found.filter(|caller| !caller.token.as_ref().is_some_and(|token| token.is_expired(now))))
    }

    async fn find(&self, digest: TokenDigest) -> Result<Option<Caller>> {
        let (epoch, hash) = (self.epoch(), hex::encode(digest));
        let database = &self.database;
        let caller = match database.users().by_token_hash(&hash).await? {
            Some(user) => Some(Caller {
                user: Arc::new(user),
                token: None,
                shown: Arc::default(),
            }),
            None => database
                .api_tokens()
                .by_hash(&hash)
                .await?
                .map(|(user, token)| Caller {
                    user: Arc::new(user),
                    token: Some(Arc::new(token)),
                    shown: Arc::default(),
                }),
        };
        if let Some(caller) = &caller {
            self.remember(epoch, |cached| {
                cached.callers.insert(digest, caller.clone());
            });
        }
        Ok(caller)
    }

    /// The project of this name in any case.
    pub async fn project(&self, name: &str, freshness: Freshness) -> Result<Option<Arc<Project>>> {
        let name = name.to_lowercase();
        if let Some(project) = self.known(freshness, |cached| cached.projects.get(&name).cloned()) {
            return Ok(Some(project));
        }
        let epoch = self.epoch();
        let Some(project) = Project::by_name(&self.database, &name).await? else {
            return Ok(None);
        };
        let project = Arc::new(project);
        self.remember(epoch, |cached| {
            cached.projects.insert(name, Arc::clone(&project));
        });
        Ok(Some(project))
    }
}

/// Where a request comes from.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let info = extensions.get::<ConnectInfo<SocketAddr>>();
    info.map(|info| info.ip())
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
