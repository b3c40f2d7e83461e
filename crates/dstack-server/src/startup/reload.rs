//! Applying `config.yml` again while the server runs.

use std::path::PathBuf;

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
    at_start: AtStart,
}

/// What the server's own machine was decided on, once: whether it is offered, and what is kept from its containers.
#[derive(Debug)]
struct AtStart {
    has_logins: bool,
    credential_files: Vec<PathBuf>,
}

impl AtStart {
    fn of(config: &ServerConfig) -> Self {
        Self {
            has_logins: !config.logins().providers.is_empty(),
            credential_files: config.credential_files(),
        }
    }

    /// What would be decided differently now; `is_wanted`: whether somebody said that the machine is offered, or is not.
    fn warnings(&self, now: &Self, is_wanted: Option<bool>) -> Vec<String> {
        let mut warnings = Vec::new();
        let not_protected: Vec<String> = now
            .credential_files
            .iter()
            .filter(|file| !self.credential_files.contains(file))
            .map(|file| file.display().to_string())
            .collect();
        if is_wanted != Some(false) && !not_protected.is_empty() {
            warnings.push(format!(
                "restart the server: until then containers on its own machine may mount {}",
                not_protected.join(", ")
            ));
        }
        match (is_wanted, self.has_logins, now.has_logins) {
            (None, false, true) => warnings.push(
                "restart the server: until then its own machine stays an instance, if it is one, and whoever logs in may come to \
                 run code there. `--local` at the start keeps it one"
                    .to_owned(),
            ),
            (None, true, false) => warnings.push(
                "restart the server if its own machine is to be an instance again: there are no login providers any more"
                    .to_owned(),
            ),
            _ => {}
        }
        warnings
    }
}

/// What applying the file again has led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What has changed, a line each.
    pub changes: Vec<String>,
    /// What has not, and takes a restart.
    pub warnings: Vec<String>,
}

impl Reloader {
    /// Projects that it creates belong to the admin; `config` is what the server started with.
    pub fn new(admin: UserRow, config: &ServerConfig) -> Self {
        Self {
            admin,
            at_start: AtStart::of(config),
        }
    }

    /// Reads the file and applies it. After an error everything is as before, but for projects and backends that were applied
    /// before a database failed.
    pub async fn reload(&self, state: &AppState) -> Result<Reloaded, ServerError> {
        let config = config::load(&state.edge.settings.dir)?.unwrap_or_default();
        let encryption = config.encryption(&state.edge.settings.dir, &state.data.random)?;
        check_projects(&config)?;
        check_keys(&state.data, &encryption).await?;
        let (verbs, rounds) = (&state.control.verbs, &state.edge.config_backends);
        bootstrap::apply_projects(&state.data, verbs, rounds, &config, &self.admin).await?;
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
        let warnings = self
            .at_start
            .warnings(&AtStart::of(&config), state.edge.settings.local);
        Ok(Reloaded { changes, warnings })
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
