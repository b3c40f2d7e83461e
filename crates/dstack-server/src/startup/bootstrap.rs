//! What must be there before the first request: the admin, the project `main`, and the projects of config.yml.

use dstack_control::users::{ADMIN, NewUser};
use dstack_model::users::GlobalRole;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_system::Secret;

use super::ServerError;
use crate::config::ServerConfig;
use crate::config_backends::rounds::Rounds;
use crate::settings::Settings;
use crate::state::{Data, Verbs};

/// The project of a new server.
const MAIN: &str = "main";

/// Admin and first project.
#[derive(Debug)]
pub(super) struct First {
    pub(super) admin: UserRow,
    pub(super) token: Secret,
    pub(super) project: ProjectRow,
}

/// Finds or creates admin and project. Another server may do the same at the same time: whoever is late takes what is there.
pub(super) async fn first_user_and_project(
    data: &Data,
    verbs: &Verbs,
    settings: &Settings,
) -> Result<First, ServerError> {
    let database = &data.database;
    let admin = match database.users().by_name(ADMIN).await? {
        Some(admin) => admin,
        None => {
            let new = NewUser {
                name: ADMIN.to_owned(),
                role: GlobalRole::Admin,
                email: None,
                active: true,
                token: settings.admin_token.clone().map(Secret::new),
            };
            match verbs.users.create(None, new).await {
                Ok(admin) => admin,
                Err(error) => database.users().by_name(ADMIN).await?.ok_or(error)?,
            }
        }
    };
    let token = data
        .encryption
        .decrypt(&admin.token)
        .map_err(|_| ServerError::AdminToken)?;
    let project = match database.projects().by_name(MAIN).await? {
        Some(project) => project,
        None => match verbs.projects.create_for_server(&admin, MAIN).await {
            Ok(project) => project,
            Err(error) => database.projects().by_name(MAIN).await?.ok_or(error)?,
        },
    };
    Ok(First {
        admin,
        token,
        project,
    })
}

/// Creates missing projects, and gives those for which the file lists backends these and no others.
pub(super) async fn apply_projects(
    data: &Data,
    verbs: &Verbs,
    rounds: &Rounds,
    config: &ServerConfig,
    admin: &UserRow,
) -> Result<(), ServerError> {
    let mut with_backends = Vec::new();
    for project in &config.projects {
        let row = match data.database.projects().by_name(&project.name).await? {
            Some(row) => row,
            None => verbs.projects.create_for_server(admin, &project.name).await?,
        };
        with_backends.extend(project.backends.as_ref().map(|listed| (row, listed)));
    }
    let mut round = rounds.begin().await;
    for (row, listed) in with_backends {
        crate::config_backends::apply(data, verbs, &mut round, &row, listed).await?;
    }
    round.settle().await;
    Ok(())
}
