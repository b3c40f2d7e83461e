//! Keys of tasks in the host user's authorized_keys: they may use the host as a jump host while their task lives.
//!
//! Reconciled, not edited: lines of ours are made anew from what the living tasks need, all others stay as they are.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use file::Owner;

/// Ends every line of ours. The server's own mark is a prefix of it: compare the whole line end only.
const MARK: &str = " # added by dstack-shim";

/// Whose keys cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// No such account.
    #[error("the host has no user {0:?}")]
    UnknownUser(String),
    /// The file cannot be written.
    #[error("cannot update {}", path.display())]
    Io {
        /// Path of the `authorized_keys` file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// The keys each user needs now.
pub type Wanted = BTreeMap<String, Vec<String>>;

/// The host's accounts.
#[derive(Debug, Clone)]
pub struct HostKeys {
    passwd: PathBuf,
}

struct Account {
    uid: u32,
    gid: u32,
    home: PathBuf,
}

impl Default for HostKeys {
    fn default() -> Self {
        Self {
            passwd: "/etc/passwd".into(),
        }
    }
}

impl HostKeys {
    /// With another account file.
    pub fn with_passwd(passwd: PathBuf) -> Self {
        Self { passwd }
    }

    /// Makes the user's file hold exactly `keys` of ours.
    pub fn reconcile(&self, user: &str, keys: &[String]) -> Result<(), KeysError> {
        let account = self
            .account(user)
            .ok_or_else(|| KeysError::UnknownUser(user.to_owned()))?;
        let path = account.home.join(".ssh/authorized_keys");
        let owner = Owner {
            uid: account.uid,
            gid: account.gid,
        };
        file::update(&account.home, owner, |before| render(before, keys))
            .map_err(|source| KeysError::Io { path, source })
    }

    // Parsed here: a static binary must not ask the host's name service plugins.
    fn account(&self, user: &str) -> Option<Account> {
        let text = fs_err::read_to_string(&self.passwd).ok()?;
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            match fields.as_slice() {
                [name, _, uid, gid, _, home, ..] if *name == user => Some(Account {
                    uid: uid.parse().ok()?,
                    gid: gid.parse().ok()?,
                    home: PathBuf::from(home),
                }),
                _ => None,
            }
        })
    }
}

/// The new file: foreign lines verbatim and in order, then one line for each distinct valid key.
fn render(before: &str, keys: &[String]) -> String {
    let mut text: String = before
        .split_inclusive('\n')
        .filter(|line| !line.trim_end_matches('\n').ends_with(MARK))
        .collect();
    let mut seen = BTreeSet::new();
    for key in keys {
        match parse(key) {
            Some(parsed) if seen.insert(parsed.fingerprint) => {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(&parsed.line);
                text.push_str(MARK);
                text.push('\n');
            }
            Some(_) => {}
            None => tracing::warn!("a task's SSH key is not a plain public key: ignored"),
        }
    }
    text
}

struct Key {
    line: String,
    fingerprint: [u8; 32],
}

/// `<type> <base64> [comment]` on one line. Options are refused: the first word must be the type that the key says.
fn parse(entry: &str) -> Option<Key> {
    let entry = entry.trim();
    if entry.contains(['\n', '\r', '\0']) {
        return None;
    }
    let mut words = entry.split_whitespace();
    let (kind, blob) = (words.next()?, words.next()?);
    let data = STANDARD.decode(blob).ok()?;
    let length = usize::try_from(u32::from_be_bytes(*data.first_chunk::<4>()?)).ok()?;
    if data.get(4..4usize.checked_add(length)?)? != kind.as_bytes() {
        return None;
    }
    let line = std::iter::once(kind)
        .chain([blob])
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ");
    Some(Key {
        line,
        fingerprint: Sha256::digest(&data).into(),
    })
}

/// Whether a text is one plain public key; returns it as `type base64 [comment]`, free of anything a shell minds.
pub fn normalize(entry: &str) -> Option<String> {
    parse(entry)
        .map(|key| key.line)
        .filter(|line| !line.contains(['\'', '"', '`', '$', '\\']))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::Path;

    use super::*;
    use proptest::prelude::*;

    const A: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Dt me@laptop";
    const A_AGAIN: &str =
        "ssh-ed25519   AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Dt other";

    fn key(n: u8) -> String {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend([n; 32]);
        format!("ssh-ed25519 {} k{n}", STANDARD.encode(blob))
    }

    #[test]
    fn foreign_lines_stay() {
        let before = "# mine\nssh-rsa AAA x # added by dstack\nold # added by dstack-shim\nlast";
        let after = render(before, &[A.into(), A_AGAIN.into()]);
        assert_eq!(
            after,
            format!("# mine\nssh-rsa AAA x # added by dstack\nlast\n{A} # added by dstack-shim\n")
        );
        assert_eq!(
            render(&after, &[]),
            "# mine\nssh-rsa AAA x # added by dstack\nlast\n"
        );
    }

    #[test]
    fn only_plain_keys() {
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 !!!",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIJqfxm8ZIR9ypxoW+l1MoWlHVHfHHIhcUtRwIMqOb0Dt",
            &format!("command=\"x\" {A}"),
            &format!("{A}\n{A}"),
        ] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
        assert_eq!(normalize(A_AGAIN).unwrap().split(' ').count(), 3);
        assert!(normalize(&format!("{A}'; reboot '")).is_none());
    }

    #[test]
    fn files_and_modes() {
        let home = tempfile::tempdir().unwrap();
        let passwd = home.path().join("passwd");
        let me = fs_err::metadata(home.path()).unwrap();
        fs_err::write(
            &passwd,
            format!(
                "root:x:0:0::/root:/bin/sh\nme:x:{}:{}:Me:{}:/bin/sh\n",
                me.uid(),
                me.gid(),
                home.path().display()
            ),
        )
        .unwrap();
        let keys = HostKeys::with_passwd(passwd);
        assert!(matches!(
            keys.reconcile("nobody-here", &[]),
            Err(KeysError::UnknownUser(_))
        ));
        keys.reconcile("me", &[]).unwrap();
        assert!(!home.path().join(".ssh").exists(), "nothing to add, nothing made");
        keys.reconcile("me", &[A.into()]).unwrap();
        let file = home.path().join(".ssh/authorized_keys");
        let mode = |path: &Path| fs_err::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&home.path().join(".ssh")), mode(&file)), (0o700, 0o600));
        fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        keys.reconcile("me", &[]).unwrap();
        assert_eq!(
            (fs_err::read_to_string(&file).unwrap().as_str(), mode(&file)),
            ("", 0o644)
        );
    }

    proptest! {
        /// Applying is idempotent, and taking all keys away restores the foreign lines.
        #[test]
        fn reconcile_is_idempotent(lines in proptest::collection::vec("[ -~]{0,20}", 0..6), keys in proptest::collection::vec(0u8..4, 0..6)) {
            let before: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let keys: Vec<String> = keys.into_iter().map(key).collect();
            let once = render(&before, &keys);
            prop_assert_eq!(render(&once, &keys), once.clone());
            prop_assert_eq!(render(&once, &[]), before);
        }
    }
}
