//! What users and members may do beyond their roles.

use std::sync::{PoisonError, RwLock};

/// Process-wide permissions (`default_permissions` of config.yml).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultPermissions {
    /// Users may create projects.
    pub allow_non_admins_create_projects: bool,
    /// Members may apply and delete SSH fleets.
    pub allow_non_admins_manage_ssh_fleets: bool,
    /// Managers may read and write secrets.
    pub allow_managers_manage_secrets: bool,
}

impl Default for DefaultPermissions {
    fn default() -> Self {
        Self {
            allow_non_admins_create_projects: true,
            allow_non_admins_manage_ssh_fleets: true,
            allow_managers_manage_secrets: false,
        }
    }
}

/// The permissions in force: they change when `config.yml` is applied again.
#[derive(Debug, Default)]
pub struct SharedPermissions(RwLock<DefaultPermissions>);

impl From<DefaultPermissions> for SharedPermissions {
    fn from(permissions: DefaultPermissions) -> Self {
        Self(RwLock::new(permissions))
    }
}

impl SharedPermissions {
    /// As they are now.
    pub fn get(&self) -> DefaultPermissions {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub fn set(&self, permissions: DefaultPermissions) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = permissions;
    }
}
