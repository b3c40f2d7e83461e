//! Configurations of backends: from rows, and to rows.

use dstack_compute::config::{BackendConfig, Credential, SplitConfig};
use dstack_store::StoreError;
use dstack_store::encryption::Encryption;
use dstack_store::queries::backends::BackendRow;
use dstack_units::{ProjectId, Time};

/// The configuration in force, decrypted.
///
/// # Errors
/// The key with which it was encrypted is not known.
pub fn stored(encryption: &Encryption, row: &BackendRow) -> Result<SplitConfig, StoreError> {
    Ok(SplitConfig {
        config: row.config.clone(),
        auth: Credential::new(encryption.decrypt(&row.auth)?.expose()),
    })
}

/// The configuration as it was typed; `None` when that is not known.
pub fn source(encryption: &Encryption, row: &BackendRow) -> Option<BackendConfig> {
    let auth = match &row.source_auth {
        Some(auth) => encryption.decrypt(auth).ok()?.expose().to_owned(),
        None => String::new(),
    };
    let split = SplitConfig {
        config: row.source_config.clone()?,
        auth: Credential::new(auth),
    };
    BackendConfig::join(&split).ok()
}

/// A row of what was typed and what is in force.
///
/// # Errors
/// It cannot be encrypted.
pub fn row(
    encryption: &Encryption,
    id: String,
    project_id: ProjectId,
    created_at: Time,
    typed: &BackendConfig,
    in_force: &SplitConfig,
) -> Result<BackendRow, StoreError> {
    let source = typed.split();
    Ok(BackendRow {
        id,
        project_id,
        created_at,
        kind: typed.kind().to_string(),
        config: in_force.config.clone(),
        auth: encryption.encrypt(in_force.auth.expose())?,
        source_config: Some(source.config),
        source_auth: Some(encryption.encrypt(source.auth.expose())?),
    })
}
