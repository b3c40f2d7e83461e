//! `~/.dstack/config.yml` on the disk.

use std::path::{Path, PathBuf};

use dstack_model::client_config::ClientConfig;

use crate::error::{CliError, ErrorKind};
use crate::fs;

/// The file as it was read.
#[derive(Debug)]
pub struct ConfigFile {
    /// What it says; of one that cannot be understood, nothing.
    pub config: ClientConfig,
    /// Why it cannot be understood.
    pub problem: Option<CliError>,
}

/// Reads the file. A missing one is empty.
///
/// # Errors
/// It exists but cannot be read.
pub fn load(path: &Path) -> Result<ConfigFile, CliError> {
    let text = fs::read_if_exists(path)?.unwrap_or_default();
    Ok(match ClientConfig::parse(&text) {
        Ok(config) => ConfigFile {
            config,
            problem: None,
        },
        Err(error) => ConfigFile {
            config: ClientConfig::default(),
            problem: Some(not_understood(
                path,
                &CliError::from_error(ErrorKind::ClientConfig, error),
            )),
        },
    })
}

fn not_understood(path: &Path, error: &CliError) -> CliError {
    let reason = error.message().unwrap_or_default();
    CliError::new(
        ErrorKind::ClientConfig,
        format!("{} is ignored: {reason}", path.display()),
    )
    .hint("repair or delete the file, then `dstack project add`")
}

/// Changes the file while nobody else does. One that cannot be understood is kept beside the new one.
///
/// # Errors
/// It cannot be read or written.
pub fn change(path: &Path, change: impl FnOnce(&mut ClientConfig)) -> Result<Changed, CliError> {
    // Of a link, the file that it leads to: so does a server that starts.
    let target = fs_err::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let _lock = fs::lock(&target)?;
    let ConfigFile { mut config, problem } = load(path)?;
    let before = config.clone();
    change(&mut config);
    let mut kept = None;
    if config != before {
        if problem.is_some() {
            kept = Some(keep_beside(&target)?);
        }
        fs::replace(&target, config.to_yaml().as_bytes(), fs::Access::Private)
            .map_err(|error| with_kept(error, kept.as_deref()))?;
    }
    Ok(Changed { config, kept })
}

/// What a change led to.
#[derive(Debug)]
pub struct Changed {
    /// What the file says now.
    pub config: ClientConfig,
    /// Where the file lies that could not be understood.
    pub kept: Option<PathBuf>,
}

/// Copies the file to `config.yml.bad`, or to that with a number: what was kept earlier stays. Whoever is killed after it finds
/// both.
fn keep_beside(path: &Path) -> Result<PathBuf, CliError> {
    let content = fs_err::read(path).map_err(|error| CliError::from_error(ErrorKind::File, error))?;
    let mut number = 1_u32;
    loop {
        let mut kept = path.as_os_str().to_owned();
        kept.push(match number {
            1 => ".bad".to_owned(),
            number => format!(".bad{number}"),
        });
        let kept = PathBuf::from(kept);
        match fs_err::read(&kept) {
            // Kept already, by one who could not replace the file after that.
            Ok(earlier) if earlier == content => return Ok(kept),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                fs::replace(&kept, &content, fs::Access::Private)?;
                return Ok(kept);
            }
            _ => number = number.saturating_add(1),
        }
    }
}

fn with_kept(error: CliError, kept: Option<&Path>) -> CliError {
    match kept {
        Some(kept) => error.hint(format!(
            "the file that cannot be understood is as it was; a copy is in {}",
            kept.display()
        )),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_cannot_be_understood_is_reported_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yml");
        fs_err::write(&path, "a: [b").unwrap();
        let file = load(&path).unwrap();
        assert!(file.config.projects().is_empty());
        assert!(file.problem.unwrap().message().unwrap().contains("is ignored"));
        let unchanged = change(&path, |config| config.remove("x")).unwrap();
        assert_eq!(unchanged.kept, None);
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "a: [b");
        let changed = change(&path, |config| config.set("main", "http://h", "t", true)).unwrap();
        let kept = changed.kept.unwrap();
        assert_eq!(kept, folder.path().join("config.yml.bad"));
        assert_eq!(fs_err::read_to_string(kept).unwrap(), "a: [b");
        assert_eq!(load(&path).unwrap().config, changed.config);
    }

    #[test]
    fn a_link_stays_one_and_what_was_kept_earlier_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (
            folder.path().join("config.yml"),
            folder.path().join("dotfiles.yml"),
        );
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let kept = |text: &str| {
            fs_err::write(&target, text).unwrap();
            let changed = change(&path, |config| config.set("main", "http://h", "t", true)).unwrap();
            assert!(fs_err::symlink_metadata(&path).unwrap().is_symlink());
            assert_eq!(load(&target).unwrap().config, changed.config);
            let kept = changed.kept.unwrap();
            assert_eq!(fs_err::read_to_string(&kept).unwrap(), text);
            kept.file_name().unwrap().to_owned()
        };
        assert_eq!(kept("a: [b"), "dotfiles.yml.bad");
        assert_eq!(kept("a: [c"), "dotfiles.yml.bad2");
        assert_eq!(kept("a: [b"), "dotfiles.yml.bad");
    }

    #[test]
    fn a_failure_says_where_the_copy_is() {
        let error = CliError::new(ErrorKind::File, "cannot write config.yml");
        let error = with_kept(error, Some(Path::new("/home/me/config.yml.bad")));
        let hint = error.hint_text().unwrap();
        assert!(hint.contains("/home/me/config.yml.bad"), "{hint}");
    }

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".dstack/config.yml");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let name = format!("project-{number}");
                    change(path, |config| config.set(&name, "http://h", "t", false)).unwrap();
                });
            }
        });
        assert_eq!(load(&path).unwrap().config.projects().len(), 8);
    }
}
