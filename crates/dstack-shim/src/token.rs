//! What calls to the API must bring, when its owner wants that: it lies in a file, as everybody on the host may read command lines,
//! and what the agent starts inherits its variables.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use dstack_system::Secret;

use crate::error::StartError;

/// As much of the file is read.
const MAX_BYTES: u64 = 4096;

/// Reads the token, without white space around it.
///
/// # Errors
/// Others may read or change the file, or it has none that a header can carry. Without it, nobody may be answered.
pub(crate) fn read(path: &Path) -> Result<Secret, StartError> {
    let refused = |problem: String| StartError::Setting {
        name: "--token-file",
        problem: format!("{}: {problem}", path.display()),
    };
    let unreadable = |error: std::io::Error| refused(format!("cannot be read: {error}"));
    let file = fs_err::File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    let own = rustix::process::geteuid().as_raw();
    if let Some(problem) = problem(found.mode(), found.uid(), own) {
        return Err(refused(problem));
    }
    let mut text = String::new();
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(Secret::new(token)),
        false => Err(refused(
            "has no token: one line of letters, digits and signs".to_owned(),
        )),
    }
}

/// Why a file of these rights and this owner does not keep a secret of the user `own`.
fn problem(mode: u32, owner: u32, own: u32) -> Option<String> {
    if owner != own && owner != 0 {
        return Some(format!(
            "it belongs to the user {owner}, who may change it: `chown {own}` it"
        ));
    }
    (mode & 0o077 != 0).then(|| "others may read it: `chmod 600` it".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_of_another_user_is_refused_with_what_helps() {
        let told = problem(0o100_600, 1000, 5).unwrap();
        assert!(
            told.contains("the user 1000") && told.contains("`chown 5`"),
            "{told}"
        );
        assert_eq!((problem(0o100_600, 5, 5), problem(0o100_400, 0, 5)), (None, None));
        assert!(problem(0o100_640, 5, 5).unwrap().contains("chmod 600"));
    }

    #[test]
    fn a_token_that_others_may_read_or_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |content: &str, mode: u32| {
            fs_err::write(&path, content).unwrap();
            fs_err::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert_eq!(read("s3cret\n", 0o600).unwrap().expose(), "s3cret");
        assert_eq!(read("s3cret", 0o400).unwrap().expose(), "s3cret");
        for mode in [0o640, 0o604, 0o620, 0o602] {
            let error = read("s3cret", mode).unwrap_err().to_string();
            assert!(
                error.contains("chmod 600") && !error.contains("s3cret"),
                "{error}"
            );
        }
        for content in ["", "\n", "two words", "käse"] {
            let error = read(content, 0o600).unwrap_err().to_string();
            assert!(error.contains("has no token"), "{content:?}: {error}");
        }
        fs_err::remove_file(&path).unwrap();
        let error = super::read(&path).unwrap_err().to_string();
        assert!(
            error.contains("--token-file") && error.contains("cannot be read"),
            "{error}"
        );
    }
}
