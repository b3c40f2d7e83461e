//! Applying `config.yml` again while the server runs.

use dstack_store::encryption::Encryption;
use dstack_store::queries::users::UserRow;
use dstack_units::name::is_project_name;

use super::{ServerError, bootstrap};
use crate::config::{self, ServerConfig};
use crate::login::Logins;
use crate::login::config::ProviderConfig;
use crate::state::{AppState, Data, DefaultPermissions};

/// Applies `config.yml` again, as a whole or not at all.
#[derive(Debug)]
pub struct Reloader {
    admin: UserRow,
}

impl Reloader {
    /// Projects that it creates belong to the admin.
    pub fn new(admin: UserRow) -> Self {
        Self { admin }
    }

    /// Reads the file and applies it. Returns what has changed, a line each. After an error everything is as before, but for
    /// projects and backends that were applied before a database failed.
    pub async fn reload(&self, state: &AppState) -> Result<Vec<String>, ServerError> {
        let config = config::load(&state.edge.settings.dir)?.unwrap_or_default();
        let encryption = config.encryption(&state.edge.settings.dir, &state.data.random)?;
        check_projects(&config)?;
        check_keys(&state.data, &encryption).await?;
        bootstrap::apply_projects(&state.data, &state.control.verbs, &config, &self.admin).await?;
        let mut changes = permission_changes(state.auth.permissions.get(), config.permissions());
        changes.extend(key_changes(&state.data.encryption, &encryption));
        changes.extend(login_changes(&state.auth.logins, &config));
        state.auth.permissions.set(config.permissions());
        // Users are shown with what they may do.
        state.auth.access.changed();
        state.auth.logins.replace(&config.logins());
        let was_enabled = state.edge.plugins.is_enabled();
        state
            .edge
            .plugins
            .enable(config.plugins.as_deref().unwrap_or_default());
        changes.extend(plugin_change(was_enabled, state.edge.plugins.is_enabled()));
        state.data.encryption.replace(encryption.keys().to_vec());
        Ok(changes)
    }
}

fn check_projects(config: &ServerConfig) -> Result<(), ServerError> {
    match config
        .projects
        .iter()
        .find(|project| !is_project_name(&project.name))
    {
        None => Ok(()),
        Some(project) => Err(ServerError::ProjectName(project.name.clone())),
    }
}

/// No value that is stored may become unreadable.
async fn check_keys(data: &Data, new: &Encryption) -> Result<(), ServerError> {
    if new.keys() == data.encryption.keys() {
        return Ok(());
    }
    let database = &data.database;
    let before = database.sealed_values().unreadable(&data.encryption).await?;
    let after = database.sealed_values().unreadable(new).await?;
    let lost: Vec<String> = after
        .iter()
        .filter(|column| !before.contains(column))
        .map(|(column, count)| format!("{column} ({count})"))
        .collect();
    match lost.is_empty() {
        true => Ok(()),
        false => Err(ServerError::KeysMissing(lost.join(", "))),
    }
}

fn permission_changes(old: DefaultPermissions, new: DefaultPermissions) -> Vec<String> {
    let fields = |permissions: DefaultPermissions| {
        [
            (
                "allow_non_admins_create_projects",
                permissions.allow_non_admins_create_projects,
            ),
            (
                "allow_non_admins_manage_ssh_fleets",
                permissions.allow_non_admins_manage_ssh_fleets,
            ),
            (
                "allow_managers_manage_secrets",
                permissions.allow_managers_manage_secrets,
            ),
        ]
    };
    fields(old)
        .into_iter()
        .zip(fields(new))
        .filter(|(old, new)| old != new)
        .map(|((name, old), (_, new))| format!("default_permissions.{name}: {new} (was {old})"))
        .collect()
}

fn plugin_change(old: bool, new: bool) -> Option<String> {
    let shown = |enabled| if enabled { "rest_plugin" } else { "none" };
    (old != new).then(|| format!("plugins: {} (was {})", shown(new), shown(old)))
}

/// Their secrets and conditions are not compared: only what users see is told.
fn login_changes(logins: &Logins, config: &ServerConfig) -> Option<String> {
    let new = config.logins();
    let (old, new) = (logins.names(), new.providers.iter().map(ProviderConfig::name));
    let new: Vec<&str> = new.collect();
    let shown = |names: &[&str]| {
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    (old != new).then(|| format!("login.providers: {} (was {})", shown(&new), shown(&old)))
}

fn key_changes(old: &Encryption, new: &Encryption) -> Option<String> {
    if old.keys() == new.keys() {
        return None;
    }
    let names = |encryption: &Encryption| {
        let keys = encryption.keys();
        keys.iter()
            .map(|key| key.name().to_owned())
            .collect::<Vec<_>>()
            .join(", ")
    };
    Some(format!(
        "encryption.keys: {} (was {}); values written from now on are encrypted with the first",
        names(new),
        names(old)
    ))
}
