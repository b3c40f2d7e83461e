//! `config.yml` of the server.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_model::Decode;
use dstack_model::decode::Loc;
use dstack_model::yaml::{self, ConfigErrors};
use dstack_store::encryption::{Encryption, Key};
use dstack_system::Random;
use serde::Serialize;
use serde_json::Value;

use crate::cli_config::write_private;
use crate::login::config::LoginConfig;
use crate::state::DefaultPermissions;

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Decode)]
pub struct ServerConfig {
    /// Projects to be there.
    #[decode(default)]
    pub projects: Vec<ProjectConfig>,
    /// Keys for secrets at rest.
    pub encryption: Option<EncryptionConfig>,
    /// Process-wide permissions.
    pub default_permissions: Option<PermissionsConfig>,
    /// Plugins by name.
    pub plugins: Option<Vec<String>>,
    /// Where else users log in.
    pub login: Option<LoginConfig>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ProjectConfig {
    /// Its name.
    pub name: String,
    /// Its backends, each an object with `type`; all others are removed. Unset: they are left as they are.
    pub backends: Option<Vec<Value>>,
}

/// Keys, first the one to encrypt with.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct EncryptionConfig {
    /// Objects with `type` `aes` or `identity`.
    pub keys: Vec<Value>,
}

/// `default_permissions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct PermissionsConfig {
    /// Users may create projects.
    #[decode(default = true)]
    pub allow_non_admins_create_projects: bool,
    /// Members may manage SSH fleets.
    #[decode(default = true)]
    pub allow_non_admins_manage_ssh_fleets: bool,
    /// Managers may manage secrets.
    #[decode(default = false)]
    pub allow_managers_manage_secrets: bool,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read or written.
    #[error("cannot read the server's configuration")]
    Io(#[from] io::Error),
    /// Its content is wrong: file, line, column and reason of each problem.
    #[error("the server's configuration is not valid:\n{0}")]
    Content(ConfigErrors),
    /// A key cannot be used.
    #[error("{place}: encryption.keys[{index}]: {reason}")]
    Key {
        /// File, line and column.
        place: String,
        /// Position of the key in `encryption.keys`.
        index: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Where it is.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("config.yml")
}

/// Reads the file; `None` when there is none.
pub fn load(dir: &Path) -> Result<Option<ServerConfig>, ConfigError> {
    let path = path(dir);
    let text = match fs_err::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        return Ok(Some(ServerConfig::default()));
    }
    let name = path.display().to_string();
    let (config, spans) = yaml::parse::<ServerConfig>(&text, &name).map_err(ConfigError::Content)?;
    for (index, value) in config.keys().iter().enumerate() {
        key(value).map_err(|reason| {
            let at = spans.value(&[
                Loc::Key("encryption".into()),
                Loc::Key("keys".into()),
                Loc::Index(index),
            ]);
            let place = format!("{name}:{}:{}", at.line, at.column);
            ConfigError::Key { place, index, reason }
        })?;
    }
    Ok(Some(config))
}

/// What a new server's file says. It lists no backends: those that a list does not have are removed at each start, and some may
/// have been imported already, or are added on the page later.
const DEFAULT: &str = "\
projects:
- name: main
  # Backends of a list here are configured at every start, and all others of the project are removed then.
  # Without a list, they are those that are added by the page, the command line or the API.
  # backends: []

encryption:
  keys: []
";

/// Writes the file of a new server.
pub fn write_default(dir: &Path) -> Result<(), ConfigError> {
    Ok(write_private(&path(dir), DEFAULT.as_bytes())?)
}

impl ServerConfig {
    /// Returns the configured default permissions, or the built-in ones where none are configured.
    pub fn permissions(&self) -> DefaultPermissions {
        match self.default_permissions {
            None => DefaultPermissions::default(),
            Some(config) => DefaultPermissions {
                allow_non_admins_create_projects: config.allow_non_admins_create_projects,
                allow_non_admins_manage_ssh_fleets: config.allow_non_admins_manage_ssh_fleets,
                allow_managers_manage_secrets: config.allow_managers_manage_secrets,
            },
        }
    }

    /// Where else users log in.
    pub fn logins(&self) -> LoginConfig {
        self.login.clone().unwrap_or_default()
    }

    /// Files with credentials that backends of the file name; `~` is the home of the server's user.
    pub fn credential_files(&self) -> Vec<PathBuf> {
        let backends = self.projects.iter().flat_map(|project| &project.backends);
        crate::config_backends::named_files(backends.flatten())
    }

    fn keys(&self) -> &[Value] {
        let encryption = self.encryption.as_ref();
        encryption
            .map(|config| config.keys.as_slice())
            .unwrap_or_default()
    }

    /// The configured keys, then the generated one, which encrypts when none is configured.
    pub fn encryption(&self, dir: &Path, random: &Random) -> Result<Encryption, ConfigError> {
        let mut keys = Vec::new();
        for (index, value) in self.keys().iter().enumerate() {
            let found = key(value).and_then(|found| distinct(&keys, found));
            keys.push(found.map_err(|reason| ConfigError::Key {
                place: path(dir).display().to_string(),
                index,
                reason,
            })?);
        }
        if let Some(generated) = generated_key(dir, random, keys.is_empty())? {
            keys.push(generated);
        }
        Ok(Encryption::new(keys, random.clone()))
    }
}

/// The encryption keys of a `config.yml` that may have anything else in it.
pub(crate) fn keys_of(path: &Path) -> Result<Vec<Key>, ConfigError> {
    let name = path.display().to_string();
    let text = fs_err::read_to_string(path)?;
    let (whole, _) = yaml::parse::<Value>(&text, &name).map_err(ConfigError::Content)?;
    let keys = whole.pointer("/encryption/keys").and_then(Value::as_array);
    let read = |(index, value)| {
        let place = name.clone();
        key(value).map_err(|reason| ConfigError::Key { place, index, reason })
    };
    keys.into_iter().flatten().enumerate().map(read).collect()
}

fn key(value: &Value) -> Result<Key, &'static str> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    match text("type") {
        Some("identity") => Ok(Key::Identity),
        Some("aes") => {
            let name = text("name").unwrap_or_default();
            if name.is_empty() || !name.chars().all(char::is_alphanumeric) {
                return Err("`name` must be alphanumeric");
            }
            let secret = text("secret")
                .and_then(secret_bytes)
                .ok_or("`secret` must be base64 of 32 bytes")?;
            Ok(Key::Aes {
                name: name.to_owned(),
                secret,
            })
        }
        _ => Err("`type` must be aes or identity"),
    }
}

/// What is stored names the key that it was encrypted with.
fn distinct(others: &[Key], key: Key) -> Result<Key, &'static str> {
    match others
        .iter()
        .any(|other| other.name() == key.name() && *other != key)
    {
        true => Err("another key has this `name` and another `secret`: give each key a name of its own"),
        false => Ok(key),
    }
}

fn secret_bytes(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text.trim()).ok()?.try_into().ok()
}

/// The key in `encryption.key`; made if needed.
fn generated_key(dir: &Path, random: &Random, needed: bool) -> Result<Option<Key>, ConfigError> {
    let path = dir.join("encryption.key");
    let secret = match fs_err::read_to_string(&path) {
        Ok(text) => secret_bytes(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is not base64 of 32 bytes: restore it", path.display()),
            )
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !needed => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret: [u8; 32] = random.bytes();
            write_private(&path, format!("{}\n", STANDARD.encode(secret)).as_bytes())?;
            secret
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Some(Key::Aes {
        name: "generated".to_owned(),
        secret,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Result<Option<ServerConfig>, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(path(dir.path()), text).unwrap();
        load(dir.path())
    }

    #[test]
    fn two_keys_of_one_name_are_refused() {
        let keys = |second: u8| {
            let key = |byte: u8| {
                format!(
                    "  - {{type: aes, name: k, secret: {}}}\n",
                    STANDARD.encode([byte; 32])
                )
            };
            let text = format!("encryption:\n  keys:\n{}{}", key(1), key(second));
            let dir = tempfile::tempdir().unwrap();
            let config = loaded(&text).unwrap().unwrap();
            config.encryption(dir.path(), &Random::seeded(1))
        };
        assert_eq!(keys(1).unwrap().keys().len(), 2, "the same key twice");
        let error = keys(2).unwrap_err().to_string();
        assert!(error.contains("name of its own"), "{error}");
    }

    #[test]
    fn a_new_servers_file_is_valid() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        write_default(dir.path()).unwrap();
        let config = load(dir.path()).unwrap().unwrap();
        assert_eq!(config.projects[0].name, "main");
        assert_eq!(
            config.projects[0].backends, None,
            "backends that are added later stay"
        );
        assert_eq!(config.permissions(), DefaultPermissions::default());
    }

    #[test]
    fn problems_have_a_place() {
        let error = loaded("projects:\n- name: main\n  backend: []\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("config.yml:3:"), "{error}");
        let error = loaded("projects: [\n").unwrap_err().to_string();
        assert!(error.contains("config.yml:"), "{error}");
    }

    #[test]
    fn an_empty_file_is_an_empty_configuration() {
        assert_eq!(loaded("# nothing\n\n").unwrap(), Some(ServerConfig::default()));
    }

    #[test]
    fn the_generated_key_stays_readable_when_others_are_configured() {
        let dir = tempfile::tempdir().unwrap();
        let random = Random::seeded(1);
        let first = ServerConfig::default().encryption(dir.path(), &random).unwrap();
        let stored = first.encrypt("s3cret").unwrap();
        assert!(stored.starts_with("enc:aes:generated:"));
        let text = format!(
            "encryption:\n  keys:\n  - {{type: aes, name: k1, secret: {}}}\n",
            STANDARD.encode([7_u8; 32])
        );
        fs_err::write(path(dir.path()), text).unwrap();
        let second = load(dir.path())
            .unwrap()
            .unwrap()
            .encryption(dir.path(), &random)
            .unwrap();
        assert_eq!(second.decrypt(&stored).unwrap().expose(), "s3cret");
        assert!(second.encrypt("x").unwrap().starts_with("enc:aes:k1:"));
    }

    #[test]
    fn bad_keys_are_named() {
        for bad in [
            "{type: aes, name: k}",
            "{type: aes, name: k, secret: abc}",
            "{type: rot13}",
        ] {
            let error = loaded(&format!("encryption:\n  keys:\n  - {bad}\n")).unwrap_err();
            assert!(error.to_string().contains("config.yml:3:5"), "{error}");
            assert!(error.to_string().contains("encryption.keys[0]"), "{error}");
        }
    }
}
