//! Which keys may log in: those that the server was given, and those in the user's own `authorized_keys`.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use dstack_ssh::keys::{KeyError, parse_public};
use russh::keys::PublicKey;
use russh::keys::ssh_key::authorized_keys::{AuthorizedKeys, Entry};
use russh::keys::ssh_key::public::KeyData;

use crate::login::Login;
use crate::process::with_file_rights;

/// Options of an `authorized_keys` entry that take nothing away which this server would grant.
const HARMLESS_OPTIONS: &[&str] = &[
    "agent-forwarding",
    "port-forwarding",
    "pty",
    "user-rc",
    "X11-forwarding",
    "no-X11-forwarding",
    "no-user-rc",
    "no-agent-forwarding",
];

/// Keys that may log in as any user.
#[derive(Debug, Default)]
pub(crate) struct AcceptedKeys {
    keys: RwLock<Vec<PublicKey>>,
}

impl AcceptedKeys {
    /// Adds a key, given as `type base64 [comment]`.
    pub(crate) fn add(&self, line: &str) -> Result<(), KeyError> {
        let key = parse_public(line)?;
        self.keys
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(key);
        Ok(())
    }

    fn contains(&self, key: &KeyData) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().any(|known| known.key_data() == key)
    }

    /// Whether `key` may log in as `login`. Reads the user's file: call it off the async threads.
    pub(crate) fn allow(&self, key: &PublicKey, login: &Login) -> bool {
        self.contains(key.key_data())
            || user_keys(login)
                .iter()
                .any(|known| known.key_data() == key.key_data())
    }
}

/// Keys of `~/.ssh/authorized_keys`; none when the file is missing, unreadable, or writable by others.
fn user_keys(login: &Login) -> Vec<PublicKey> {
    let home = login.home.clone();
    let uid = login.uid;
    let text = with_file_rights(login, move || {
        let directory = home.join(".ssh");
        let file = directory.join("authorized_keys");
        for path in [&home, &directory, &file] {
            check_safe(path, uid)?;
        }
        fs_err::read_to_string(file)
    });
    match text {
        Ok(text) => parse_entries(&text),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::debug!(ssh.user = login.name, %error, "authorized_keys of the user not used");
            }
            Vec::new()
        }
    }
}

/// As sshd's StrictModes: a file that others may write could have been filled by them.
fn check_safe(path: &Path, uid: u32) -> io::Result<()> {
    let found = fs_err::metadata(path)?;
    if (found.uid() != uid && found.uid() != 0) || found.mode() & 0o022 != 0 {
        let text = format!("{} may be written by other users", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Entries whose options restrict something are left out: this server could not enforce them.
fn parse_entries(text: &str) -> Vec<PublicKey> {
    let unrestricted = |entry: &Entry| {
        entry.config_opts().iter().all(|option| {
            HARMLESS_OPTIONS
                .iter()
                .any(|harmless| harmless.eq_ignore_ascii_case(option))
                || option.starts_with("environment=")
        })
    };
    text.lines()
        .filter_map(|line| AuthorizedKeys::new(line).next()?.ok())
        .filter(unrestricted)
        .map(|entry| entry.public_key().clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dstack_system::Random;
    use std::os::unix::fs::PermissionsExt;

    fn key(seed: u64) -> String {
        dstack_ssh::keys::generate_ed25519(&Random::seeded(seed), "")
            .unwrap()
            .public
            .trim()
            .to_owned()
    }

    #[test]
    fn restricted_entries_are_left_out() {
        let text = format!(
            "# mine\n\n{}\nnot a key\ncommand=\"/bin/false\" {}\nno-pty,pty {}\npty,no-X11-forwarding {} me@here\nrestrict {}\n",
            key(1),
            key(2),
            key(3),
            key(4),
            key(5)
        );
        let keys: Vec<_> = parse_entries(&text)
            .iter()
            .map(|key| key.key_data().clone())
            .collect();
        let expected = [1, 4].map(|seed| parse_public(&key(seed)).unwrap().key_data().clone());
        assert_eq!(keys, expected);
    }

    #[test]
    fn the_users_file_counts_unless_others_may_write_it() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".ssh");
        fs_err::create_dir(&directory).unwrap();
        let file = directory.join("authorized_keys");
        fs_err::write(&file, key(1)).unwrap();
        fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let login = Login::own(
            &dstack_system::accounts::Passwd::system(),
            Some(home.path().to_owned()),
        );
        let keys = AcceptedKeys::default();
        keys.add(&key(2)).unwrap();
        let allow = |seed| keys.allow(&parse_public(&key(seed)).unwrap(), &login);
        assert!(allow(1) && allow(2) && !allow(3));
        fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!allow(1) && allow(2));
    }
}
