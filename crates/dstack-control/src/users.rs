//! Users: creating, changing, deleting, and their credentials.

use dstack_model::users::GlobalRole;
use dstack_store::events;
use dstack_store::queries::users::{PublicKeyRow, UserRow};
use dstack_store::writes::Change;
use dstack_system::Secret;
use dstack_units::PublicKeyId;
use dstack_units::name::is_user_name;

use crate::access::token_hash;
use crate::core::{Actor, retry_on_conflict};
use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};
use crate::public_key::{self, ParsedKey};
use crate::text::{list_or_none, python_bool};

const BUSY: &str = "The users are being changed by others. Try again";

/// The user that every server has and that cannot be deleted.
pub const ADMIN: &str = "admin";

/// The verbs of users.
#[derive(Debug, Clone)]
pub struct Users {
    directory: Directory,
    projects_quota: i64,
}

/// A user to be created.
#[derive(Debug)]
pub struct NewUser {
    /// 1 to 60 letters, digits, `-` and `_`; no other user has it in any case.
    pub name: String,
    /// Role in the whole server.
    pub role: GlobalRole,
    /// E-mail address; logins with a provider may find the user by it.
    pub email: Option<String>,
    /// Whether they can authenticate.
    pub active: bool,
    /// A random one when unset.
    pub token: Option<Secret>,
}

/// What can be changed of a user.
#[derive(Debug)]
pub struct UserUpdate {
    /// Role in the whole server.
    pub role: GlobalRole,
    /// E-mail address; logins with a provider may find the user by it.
    pub email: Option<String>,
    /// Whether they can authenticate.
    pub active: bool,
}

impl Users {
    /// On this database; new users may own `projects_quota` projects.
    pub fn new(directory: Directory, projects_quota: i64) -> Self {
        Self {
            directory,
            projects_quota,
        }
    }

    /// Creates a user without a key pair, which is made when first needed. Without a creator, users create themselves.
    ///
    /// # Errors
    /// The name cannot be one, or is taken.
    pub async fn create(&self, creator: Option<&UserRow>, new: NewUser) -> Result<UserRow> {
        let (user, work) = self.begin(creator, new).await?;
        match self.directory.finish(work).await {
            Err(error) if error.is_conflict() => Err(ControlError::exists()),
            written => written.map(|()| user),
        }
    }

    /// A new user, with the work that creates it.
    pub(crate) async fn begin(&self, creator: Option<&UserRow>, new: NewUser) -> Result<(UserRow, Work)> {
        let directory = &self.directory;
        if !is_user_name(&new.name) {
            return Err(ControlError::refused(
                "Username should match regex '^[a-zA-Z0-9-_]{1,60}$'",
            ));
        }
        if directory.database.users().name_taken(&new.name).await? {
            return Err(ControlError::exists());
        }
        let token = new
            .token
            .unwrap_or_else(|| Secret::new(directory.random.uuid().to_string()));
        let user = UserRow {
            id: directory.random.uuid().into(),
            name: new.name,
            created_at: directory.now(),
            global_role: new.role,
            email: new.email,
            active: new.active,
            token: directory.encryption.encrypt(token.expose())?,
            ssh_private_key: None,
            ssh_public_key: None,
            projects_quota: self.projects_quota,
            deleted: false,
            original_name: None,
        };
        let mut work = directory.work(creator.unwrap_or(&user).into());
        work.change(Change::InsertUser {
            user: user.clone(),
            token_hash: token_hash(token.expose()),
        });
        work.event("User created", vec![events::user(&user)]);
        Ok((user, work))
    }

    /// Changes role, e-mail address and activity.
    ///
    /// # Errors
    /// There is no such user.
    pub async fn update(&self, actor: Actor, name: &str, update: UserUpdate) -> Result<UserRow> {
        let mut user = self.find(name).await?;
        let mut fields = Vec::new();
        if update.role != user.global_role {
            // The reference prints the enum's Python name here.
            let role = update.role.as_str().to_uppercase();
            fields.push(format!("global_role=GlobalRole.{role}"));
        }
        if update.email != user.email {
            fields.push("email".to_owned());
        }
        if update.active != user.active {
            fields.push(format!("active={}", python_bool(update.active)));
        }
        (user.global_role, user.email, user.active) = (update.role, update.email, update.active);
        let mut work = self.directory.work(actor);
        work.change(Change::UpdateUser {
            id: user.id,
            role: user.global_role,
            email: user.email.clone(),
            active: user.active,
        });
        let message = format!("User updated. Updated fields: {}", list_or_none(&fields));
        work.event(message, vec![events::user(&user)]);
        self.directory.finish(work).await?;
        Ok(user)
    }

    /// Replaces a user's own token.
    ///
    /// # Errors
    /// There is no such user.
    pub async fn refresh_token(&self, actor: Actor, name: &str) -> Result<UserRow> {
        let mut user = self.find(name).await?;
        let token = self.directory.random.uuid().to_string();
        user.token = self.directory.encryption.encrypt(&token)?;
        let mut work = self.directory.work(actor);
        work.change(Change::SetUserToken {
            id: user.id,
            encrypted: user.token.clone(),
            hash: token_hash(&token),
        });
        work.event("User token refreshed", vec![events::user(&user)]);
        self.directory.finish(work).await?;
        Ok(user)
    }

    /// Replaces a user's key pair.
    ///
    /// # Errors
    /// There is no such user.
    pub async fn refresh_ssh_key(&self, actor: Actor, name: &str) -> Result<UserRow> {
        let keys = &self.directory.keys;
        let mut user = self.find(name).await?;
        let pair = keys.generate(&user.name).await?;
        let private = keys.seal(&pair)?;
        (user.ssh_private_key, user.ssh_public_key) = (Some(private.clone()), Some(pair.public.clone()));
        let mut work = self.directory.work(actor);
        work.change(Change::SetUserKeys {
            id: user.id,
            private,
            public: pair.public,
        });
        work.event("User SSH key refreshed", vec![events::user(&user)]);
        self.directory.finish(work).await?;
        Ok(user)
    }

    /// Deletes the users of these names, with their memberships and tokens.
    ///
    /// # Errors
    /// One of them is not there, named twice, or the admin: none is deleted.
    pub async fn delete(&self, actor: Actor, names: &[String]) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete(actor, names)).await
    }

    async fn try_delete(&self, actor: Actor, names: &[String]) -> Result<()> {
        if names.iter().any(|name| name == ADMIN) {
            return Err(ControlError::refused("User 'admin' cannot be deleted"));
        }
        let unknown = || ControlError::refused("Failed to delete non-existent users");
        let mut work = self.directory.work(actor);
        let mut known = Vec::new();
        for name in names {
            let user = self.directory.database.users().by_name(name).await?;
            let user = user.ok_or_else(unknown)?;
            if known.contains(&user.id) {
                return Err(unknown());
            }
            known.push(user.id);
            work.event("User deleted", vec![events::user(&user)]);
            let renamed = self.directory.deleted_name();
            work.change(Change::DeleteUser { user, renamed });
        }
        self.directory.finish(work).await
    }

    async fn find(&self, name: &str) -> Result<UserRow> {
        let found = self.directory.database.users().by_name(name).await?;
        found.ok_or_else(ControlError::not_found)
    }

    /// Adds a public key with which the user logs in to jobs; without a name it gets its comment, or its digest.
    ///
    /// # Errors
    /// It cannot be read, is of an unknown type, or is there already.
    pub async fn add_public_key(
        &self,
        user: &UserRow,
        key: &str,
        name: Option<String>,
    ) -> Result<PublicKeyRow> {
        let ParsedKey {
            kind,
            line,
            comment,
            fingerprint,
            md5,
        } = public_key::parse(key).map_err(ControlError::refused)?;
        let row = PublicKeyRow {
            id: self.directory.random.uuid().into(),
            user_id: user.id,
            created_at: self.directory.now(),
            name: name.filter(|name| !name.is_empty()).or(comment).unwrap_or(md5),
            r#type: kind,
            fingerprint,
            key: line,
        };
        let mut work = self.directory.work(user.into());
        let message = format!("Public key added. Fingerprint: {}", row.fingerprint);
        work.event(message, vec![events::user(user)]);
        work.change(Change::InsertPublicKey(row.clone()));
        self.directory.finish(work).await?;
        Ok(row)
    }

    /// Deletes those public keys of the user that have these ids; others are ignored.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn delete_public_keys(&self, user: &UserRow, ids: &[PublicKeyId]) -> Result<()> {
        let mut work = self.directory.work(user.into());
        let own = self.directory.database.users().public_keys(user.id).await?;
        for row in own.into_iter().filter(|row| ids.contains(&row.id)) {
            let message = format!("Public key deleted. Fingerprint: {}", row.fingerprint);
            work.event(message, vec![events::user(user)]);
            work.change(Change::DeletePublicKey(row.id));
        }
        self.directory.finish(work).await
    }
}
