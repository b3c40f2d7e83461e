//! Further tokens of users: named, and good for less than the user's own one. dstack 0.22.5 has none.

use std::time::Duration;

use dstack_model::ErrorCode;
use dstack_store::StoreError;
use dstack_store::events;
use dstack_store::queries::tokens::TokenRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_system::Secret;

use crate::access::{Project, token_hash};
use crate::core::Actor;
use crate::directory::Directory;
use crate::error::{ControlError, Result};

/// More than anyone needs: what a user can fill the database with is bounded.
const MAX_TOKENS: i64 = 100;

/// The verbs of API tokens.
#[derive(Debug, Clone)]
pub struct Tokens(Directory);

/// A token to be created.
#[derive(Debug)]
pub struct NewToken {
    /// Unique among the user's tokens.
    pub name: String,
    /// Good for this project only.
    pub project_name: Option<String>,
    /// Good for reading only.
    pub read_only: bool,
    /// How long it works; `None`: until it is deleted.
    pub lifetime: Option<Duration>,
}

/// A token that was created.
#[derive(Debug)]
pub struct CreatedToken {
    /// As it is stored.
    pub row: TokenRow,
    /// Name of the project that it is good for.
    pub project_name: Option<String>,
    /// The token: shown once, stored nowhere.
    pub token: Secret,
}

impl Tokens {
    /// On this database.
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Creates a token.
    ///
    /// # Errors
    /// The name cannot be one or is taken, there is no such project, or the user has too many tokens.
    pub async fn create(&self, user: &UserRow, new: NewToken) -> Result<CreatedToken> {
        if !is_token_name(&new.name) {
            return Err(ControlError::refused(
                "Token name should match regex '^[a-zA-Z0-9-_.]{1,60}$'",
            ));
        }
        let project = match &new.project_name {
            Some(name) => Some(self.visible_project(user, name).await?),
            None => None,
        };
        let now = self.0.now();
        // The start says to whoever finds it in a log or repo what it is.
        let token = format!("dstack_{}", hex::encode(self.0.random.bytes::<32>()));
        let row = TokenRow {
            id: self.0.random.uuid().into(),
            user_id: user.id,
            name: new.name,
            token_hash: token_hash(&token),
            created_at: now,
            expires_at: new.lifetime.map(|lifetime| now + lifetime),
            read_only: new.read_only,
            project_id: project.as_ref().map(|project| project.row.id),
        };
        let mut work = self.0.work(user.into());
        let message = format!("User token created. Name: {}", row.name);
        work.event(message, vec![events::user(user)]);
        work.change(Change::InsertToken {
            token: row.clone(),
            limit: MAX_TOKENS,
        });
        match self.0.finish(work).await {
            Err(ControlError::Store(StoreError::TooMany)) => Err(ControlError::refused(format!(
                "A user can have {MAX_TOKENS} tokens. Delete those that are not needed any more"
            ))),
            Err(error) => Err(error),
            Ok(()) => Ok(CreatedToken {
                row,
                project_name: project.map(|project| project.row.name),
                token: Secret::new(token),
            }),
        }
    }

    async fn visible_project(&self, user: &UserRow, name: &str) -> Result<Project> {
        let found = Project::by_name(&self.0.database, name).await?;
        let visible = found.filter(|project| project.is_member(user) || project.row.is_public);
        visible.ok_or_else(|| not_found("Project", name))
    }

    /// Deletes tokens of `owner`.
    ///
    /// # Errors
    /// One of them is not there: none is deleted.
    pub async fn delete(&self, actor: Actor, owner: &UserRow, names: &[String]) -> Result<()> {
        let existing = self.0.database.api_tokens().list(owner.id).await?;
        let mut work = self.0.work(actor);
        for name in names {
            let found = existing.iter().find(|(row, _)| row.name == *name);
            let (row, _) = found.ok_or_else(|| not_found("Token", name))?;
            work.change(Change::DeleteToken(row.id));
            let message = format!("User token deleted. Name: {name}");
            work.event(message, vec![events::user(owner)]);
        }
        self.0.finish(work).await
    }
}

fn not_found(what: &str, name: &str) -> ControlError {
    ControlError::with_code(ErrorCode::ResourceNotExists, format!("{what} {name} not found"))
}

fn is_token_name(name: &str) -> bool {
    (1..=60).contains(&name.len())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
}
