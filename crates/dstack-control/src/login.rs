//! From a person, whom a login provider vouches for, to a user: known, linked, or made.

use dstack_model::users::{GlobalRole, ProjectRole};
use dstack_store::events;
use dstack_store::queries::identities::Identity;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;

use crate::core::retry_on_conflict;
use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};
use crate::own_machine::OwnMachine;
use crate::users::{NewUser, Users};

/// Names that are tried for a new user.
const NAMES: usize = 100;

const BUSY: &str = "Someone else logged in at the same time. Try again";

/// The verb of logins with providers outside.
#[derive(Debug, Clone)]
pub struct Logins {
    directory: Directory,
    users: Users,
}

/// Somebody with an account, as the provider has proven it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The account, for ever.
    pub identity: Identity,
    /// What they are called there: a name of a user is made of it.
    pub login: String,
    /// Their e-mail address, if the provider has verified it.
    pub email: Option<String>,
}

/// What becomes of people who come from a provider.
#[derive(Debug, Clone)]
pub struct LoginPolicy {
    /// Name of the provider for users.
    pub provider: String,
    /// Whether people without a user get one.
    pub sign_up: bool,
    /// Whether the user with their e-mail address is theirs.
    pub link_by_email: bool,
    /// Role of new users in the whole server.
    pub global_role: GlobalRole,
    /// Names of projects that new users join.
    pub projects: Vec<String>,
}

impl Logins {
    /// On this database.
    pub fn new(directory: Directory, users: Users) -> Self {
        Self { directory, users }
    }

    /// The user that the person is.
    ///
    /// # Errors
    /// They may not log in, each with a text of its own; or the store.
    pub async fn log_in(&self, policy: &LoginPolicy, person: &Person) -> Result<UserRow> {
        retry_on_conflict(BUSY, || self.try_log_in(policy, person)).await
    }

    async fn try_log_in(&self, policy: &LoginPolicy, person: &Person) -> Result<UserRow> {
        let known = self
            .directory
            .database
            .identities()
            .user(&person.identity)
            .await?;
        match known {
            Some(user) => self.note(policy, user, None).await,
            None => match self.linked(policy, person).await? {
                Some(user) => self.note(policy, user, Some(&person.identity)).await,
                None => self.make(policy, person).await,
            },
        }
    }

    /// The user with the person's e-mail address, where that counts.
    async fn linked(&self, policy: &LoginPolicy, person: &Person) -> Result<Option<UserRow>> {
        let Some(email) = person.email.as_deref().filter(|_| policy.link_by_email) else {
            return Ok(None);
        };
        let mut found = self.directory.database.users().by_email(email).await?;
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(ControlError::refused(format!(
                "Several users have the e-mail address {email}. Ask the server's administrator to leave it to one of them"
            ))),
        }
    }

    /// Writes down that the user logged in, from now on also with this account.
    async fn note(&self, policy: &LoginPolicy, user: UserRow, new: Option<&Identity>) -> Result<UserRow> {
        if !user.active {
            return Err(ControlError::refused(format!(
                "User {} is deactivated. Ask the server's administrator",
                user.name
            )));
        }
        let mut work = self.directory.work((&user).into());
        self.tell(&mut work, policy, &user, new);
        self.directory.finish(work).await?;
        Ok(user)
    }

    fn tell(&self, work: &mut Work, policy: &LoginPolicy, user: &UserRow, new: Option<&Identity>) {
        if let Some(identity) = new {
            work.change(Change::InsertIdentity {
                identity: identity.clone(),
                user: user.id,
                at: self.directory.now(),
            });
            let message = format!("User identity added. Provider: {}", policy.provider);
            work.event(message, vec![events::user(user)]);
        }
        let message = format!("User logged in. Provider: {}", policy.provider);
        work.event(message, vec![events::user(user)]);
    }

    /// A new user.
    async fn make(&self, policy: &LoginPolicy, person: &Person) -> Result<UserRow> {
        if !policy.sign_up {
            return Err(ControlError::refused(format!(
                "{} is no user of this server. Ask the server's administrator for one, with this account's e-mail address",
                person.login
            )));
        }
        let new = NewUser {
            name: self.free_name(&person.login).await?,
            role: policy.global_role,
            email: person.email.clone(),
            active: true,
            token: None,
        };
        let (user, mut work) = self.users.begin(None, new).await?;
        for project in self.projects_to_join(policy).await? {
            work.change(Change::PutMember {
                project: project.id,
                user: user.id,
                role: ProjectRole::User,
                number: None,
            });
            if let Some(machine) = OwnMachine::of_project(&self.directory, project.id).await? {
                machine.warn(&mut work, &project, &[&user.name]);
            }
        }
        self.tell(&mut work, policy, &user, Some(&person.identity));
        self.directory.finish(work).await?;
        Ok(user)
    }

    async fn projects_to_join(&self, policy: &LoginPolicy) -> Result<Vec<ProjectRow>> {
        let mut found = Vec::new();
        for name in &policy.projects {
            match self.directory.database.projects().by_name(name).await? {
                Some(project) => found.push(project),
                None => tracing::warn!(
                    project.name = name,
                    "new users of {} cannot join the project: there is none of that name",
                    policy.provider
                ),
            }
        }
        Ok(found)
    }

    /// A name that no user has: that of the account as far as it can be one, with a number if need be.
    async fn free_name(&self, login: &str) -> Result<String> {
        let base = user_name(login);
        for number in 1..=NAMES {
            let name = match number {
                1 => base.clone(),
                _ => format!("{base}-{number}"),
            };
            if !self.directory.database.users().name_taken(&name).await? {
                return Ok(name);
            }
        }
        let suffix = hex::encode(self.directory.random.bytes::<4>());
        Ok(format!("{base}-{suffix}"))
    }
}

/// Of an e-mail address, what is before the `@`; letters, digits, `-` and `_` stay.
fn user_name(login: &str) -> String {
    const MAX_LENGTH: usize = 50;
    let local = login.split('@').next().unwrap_or(login);
    let name: String = local
        .chars()
        .map(|letter| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => letter,
            _ => '-',
        })
        .take(MAX_LENGTH)
        .collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "user".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use dstack_units::name::is_user_name;

    use super::*;

    #[test]
    fn any_account_makes_a_name() {
        assert_eq!(user_name("octo-cat"), "octo-cat");
        assert_eq!(user_name("jane.doe@acme.com"), "jane-doe");
        assert_eq!(user_name("@acme.com"), "user");
        assert_eq!(user_name("Ünal"), "nal");
        assert_eq!(user_name("00u1abcd"), "00u1abcd");
        for login in ["日本", "a b", &"x".repeat(200), "-"] {
            assert!(is_user_name(&user_name(login)), "{login}");
        }
    }
}
