//! Who may do what in a project.

use dstack_model::users::{GlobalRole, ProjectRole};
use dstack_store::Database;
use dstack_store::queries::projects::{Member, ProjectRow};
use dstack_store::queries::users::UserRow;
use dstack_units::UserId;
use sha2::{Digest, Sha256};

use crate::error::Result;

/// Lower-case hex SHA-256 of a token: how the database finds it.
pub fn token_hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

/// Whether the user is a global admin.
pub fn is_admin(user: &UserRow) -> bool {
    user.global_role == GlobalRole::Admin
}

/// A project with its members.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    /// Its row, also when it is deleted.
    pub row: ProjectRow,
    /// Its members in order.
    pub members: Vec<Member>,
}

impl Project {
    /// The project of this name in any case, as it is stored now.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn by_name(database: &Database, name: &str) -> Result<Option<Self>> {
        let Some(row) = database.projects().by_name(name).await? else {
            return Ok(None);
        };
        let members = database.projects().members(row.id).await?;
        Ok(Some(Self { row, members }))
    }

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

    /// The members with this role.
    pub(crate) fn with_role(&self, role: ProjectRole) -> impl Iterator<Item = UserId> {
        let members = self.members.iter().filter(move |member| member.role == role);
        members.map(|member| member.user.id)
    }
}
