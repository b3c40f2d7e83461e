//! Key files: the one given with `--ssh-identity`, and the user's own, kept by the server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dstack_model::users::UserWithCreds;
use dstack_ssh::keys::{parse_private, parse_public};
use dstack_system::{Clock, SystemClock};
use dstack_units::Time;
use sha1::{Digest, Sha1};

use crate::error::{CliError, ErrorKind, of_io};
use crate::fs;

/// A downloaded key is used for this long without asking the server again.
const FRESH: Duration = Duration::from_secs(10 * 60);

/// A private key file and its public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// The private key's file.
    pub path: PathBuf,
    /// The public key, one line.
    pub public: String,
}

/// Reads the private key at `path`; its public key comes from the `.pub` file beside it, or from the key itself.
///
/// # Errors
/// No such file, a public key, a passphrase, or no key at all.
pub fn read(path: &Path) -> Result<KeyFile, CliError> {
    let text = fs_err::read_to_string(path).map_err(|error| {
        CliError::new(
            ErrorKind::SshKey,
            format!(
                "Unable to read the SSH key at {}: {}",
                path.display(),
                of_io(error.kind())
            ),
        )
        .hint("give the path of a private key, for example ~/.ssh/id_ed25519")
    })?;
    let key = parse_private(&text).map_err(|error| match parse_public(&text) {
        Ok(_) => CliError::new(
            ErrorKind::SshKey,
            format!("Expected a private key at {}, got a public key", path.display()),
        )
        .hint("give the path of the private key, usually the same without `.pub`"),
        Err(_) => CliError::new(
            ErrorKind::SshKey,
            format!("Unsupported or invalid SSH key at {}: {error}", path.display()),
        ),
    })?;
    let beside = public_path(path);
    let public = match fs::read_if_exists(&beside)? {
        Some(public) => public,
        None => key
            .public_key()
            .to_openssh()
            .map_err(|error| CliError::from_error(ErrorKind::SshKey, error))?,
    };
    Ok(KeyFile {
        path: path.to_owned(),
        public,
    })
}

/// Where the public key of a private key lies.
fn public_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".pub");
    PathBuf::from(name)
}

/// Where the user's key is kept: the first eight hex digits of the token's SHA-1.
pub fn user_key_path(ssh_folder: &Path, token: &str) -> PathBuf {
    let digest = hex::encode(Sha1::digest(token.as_bytes()));
    ssh_folder.join(digest.get(..8).unwrap_or(&digest))
}

/// The user's key as far as it is on this machine and was downloaded recently.
pub fn fresh_user_key(path: &Path) -> Option<KeyFile> {
    let modified = fs_err::metadata(path).ok()?.modified().ok()?;
    let modified: Time = jiff::Timestamp::try_from(modified).ok()?.into();
    if SystemClock.now().since(modified) > FRESH {
        return None;
    }
    let public = fs_err::read_to_string(public_path(path)).ok()?;
    Some(KeyFile {
        path: path.to_owned(),
        public,
    })
}

/// Stores the user's key as the server sent it. `None` when the server keeps none for this user.
///
/// # Errors
/// The files cannot be written.
pub fn store_user_key(path: &Path, user: &UserWithCreds) -> Result<Option<KeyFile>, CliError> {
    let (Some(private), Some(public)) = (&user.ssh_private_key, &user.user.ssh_public_key) else {
        return Ok(None);
    };
    fs::replace(&public_path(path), public.as_bytes(), fs::Access::Private)?;
    fs::replace(path, private.as_bytes(), fs::Access::Private)?;
    Ok(Some(KeyFile {
        path: path.to_owned(),
        public: public.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dstack_ssh::keys::generate_ed25519;
    use dstack_system::Random;

    #[test]
    fn private_keys_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        let pair = generate_ed25519(&Random::seeded(1), "me").unwrap();
        fs::replace(&path, pair.private.expose().as_bytes(), fs::Access::Private).unwrap();
        assert_eq!(read(&path).unwrap().public, pair.public);
        fs::replace(&path, pair.public.as_bytes(), fs::Access::Private).unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .message()
                .unwrap()
                .contains("got a public key")
        );
        fs::replace(&path, b"hello", fs::Access::Private).unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .message()
                .unwrap()
                .starts_with("Unsupported or invalid")
        );
        assert!(
            read(&folder.path().join("none"))
                .unwrap_err()
                .message()
                .unwrap()
                .starts_with("Unable to read")
        );
    }

    #[test]
    fn the_users_key_has_a_name_made_from_the_token() {
        let path = user_key_path(Path::new("/s"), "golden-admin-token");
        assert_eq!(path.file_name().unwrap().len(), 8);
        assert!(fresh_user_key(&path).is_none());
    }
}
