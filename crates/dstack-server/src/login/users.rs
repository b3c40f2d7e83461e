//! From a person to a user: known, linked, or made.

use dstack_model::users::ProjectRole;
use dstack_store::NewEvent;
use dstack_store::directory::identities::{self, Identity};
use dstack_store::directory::projects;
use dstack_store::directory::users::{self, UserRow};
use dstack_units::ProjectId;

use super::{Person, Provider};
use crate::access::Sure;
use crate::audit;
use crate::error::{ApiError, Result};
use crate::handlers::users::{Draft, NewUser, draft_user};
use crate::state::AppState;

/// Somebody else may become a user at the same time.
const TRIES: usize = 5;

/// Names that are tried for a new user.
const NAMES: usize = 100;

/// The user that the person is.
///
/// # Errors
/// They may not log in, each with a text of its own; or the database.
pub(crate) async fn log_in(state: &AppState, provider: &Provider, person: &Person) -> Result<UserRow> {
    if let Some(refusal) = provider.policy.refusal(person) {
        return Err(ApiError::client(refusal));
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let known = identities::user(state.database.pool(), &person.identity).await?;
        let result = match known {
            Some(user) => note(state, provider, user, None).await,
            None => match linked(state, provider, person).await? {
                Some(user) => note(state, provider, user, Some(&person.identity)).await,
                None => make(state, provider, person).await,
            },
        };
        match result {
            Err(Failed::Taken) if tries < TRIES => {}
            Err(Failed::Taken) => {
                return Err(ApiError::client(
                    "Someone else logged in at the same time. Try again",
                ));
            }
            Err(Failed::Other(error)) => return Err(error),
            Ok(user) => return Ok(user),
        }
    }
}

/// Why it was not written.
enum Failed {
    /// The name or the account is somebody's meanwhile.
    Taken,
    Other(ApiError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Other(error)
    }
}

impl From<dstack_store::StoreError> for Failed {
    fn from(error: dstack_store::StoreError) -> Self {
        match error.is_unique_violation() || error.is_conflict() {
            true => Self::Taken,
            false => Self::Other(error.into()),
        }
    }
}

/// The user with the person's e-mail address, where that counts.
async fn linked(state: &AppState, provider: &Provider, person: &Person) -> Result<Option<UserRow>> {
    let Some(email) = person.email.as_deref().filter(|_| provider.policy.link_by_email) else {
        return Ok(None);
    };
    let mut found = users::by_email(state.database.pool(), email).await?;
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(ApiError::client(format!(
            "Several users have the e-mail address {email}. Ask the server's administrator to leave it to one of them"
        ))),
    }
}

fn events(
    state: &AppState,
    provider: &Provider,
    user: &UserRow,
    new_identity: bool,
) -> impl Iterator<Item = NewEvent> + use<> {
    let event = |text: &str| {
        let message = format!("{text}. Provider: {}", provider.title);
        audit::event(state, user, message, audit::user(user))
    };
    let added = new_identity.then(|| event("User identity added")).flatten();
    added.into_iter().chain(event("User logged in"))
}

/// Writes down that the user logged in, from now on also with this account.
async fn note(
    state: &AppState,
    provider: &Provider,
    user: UserRow,
    new: Option<&Identity>,
) -> Result<UserRow, Failed> {
    if !user.active {
        return Err(Failed::Other(ApiError::client(format!(
            "User {} is deactivated. Ask the server's administrator",
            user.name
        ))));
    }
    let events: Vec<_> = events(state, provider, &user, new.is_some()).collect();
    let (new, id, now) = (new.cloned(), user.id, state.clock.now());
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                if let Some(identity) = new {
                    identities::insert(tx, &identity, id, now).await?;
                }
                audit::write_all(tx, events).await
            })
        })
        .await?;
    Ok(user)
}

/// A new user.
async fn make(state: &AppState, provider: &Provider, person: &Person) -> Result<UserRow, Failed> {
    let policy = &provider.policy;
    if !policy.sign_up {
        return Err(Failed::Other(ApiError::client(format!(
            "{} is no user of this server. Ask the server's administrator for one, with this account's e-mail address",
            person.login
        ))));
    }
    let Draft {
        user,
        token_hash,
        event,
    } = draft_user(
        state,
        NewUser {
            name: free_name(state, &person.login).await?,
            role: policy.global_role,
            email: person.email.clone(),
            active: true,
            token: None,
        },
        None,
    )
    .await?;
    let projects = projects_to_join(state, provider).await?;
    let events: Vec<_> = event
        .into_iter()
        .chain(events(state, provider, &user, true))
        .collect();
    let (row, identity) = (user.clone(), person.identity.clone());
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::insert(tx, &row, &token_hash).await?;
                identities::insert(tx, &identity, row.id, row.created_at).await?;
                for project in projects {
                    projects::put_member(tx, project, row.id, ProjectRole::User, None).await?;
                }
                audit::write_all(tx, events).await
            })
        })
        .await?;
    state.access.changed();
    Ok(user)
}

async fn projects_to_join(state: &AppState, provider: &Provider) -> Result<Vec<ProjectId>> {
    let mut found = Vec::new();
    for name in &provider.policy.projects {
        match state.access.project(name, Sure::Now).await? {
            Some(project) => found.push(project.row.id),
            None => tracing::warn!(
                project.name = name,
                "new users of {} cannot join the project: there is none of that name",
                provider.title
            ),
        }
    }
    Ok(found)
}

/// A name that no user has: that of the account as far as it can be one, with a number if need be.
async fn free_name(state: &AppState, login: &str) -> Result<String> {
    let base = user_name(login);
    for number in 1..=NAMES {
        let name = match number {
            1 => base.clone(),
            _ => format!("{base}-{number}"),
        };
        if !users::name_taken(state.database.pool(), &name).await? {
            return Ok(name);
        }
    }
    Ok(format!("{base}-{}", hex::encode(state.random.bytes::<4>())))
}

/// Of an e-mail address, what is before the `@`; letters, digits, `-` and `_` stay.
fn user_name(login: &str) -> String {
    const LONGEST: usize = 50;
    let local = login.split('@').next().unwrap_or(login);
    let name: String = local
        .chars()
        .map(|letter| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => letter,
            _ => '-',
        })
        .take(LONGEST)
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
