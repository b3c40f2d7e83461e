//! Keeps the CLI's own configuration (`~/.dstack/config.yml`) up to date with this server.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use dstack_model::client_config::{ClientConfig, ClientConfigError, ClientProject};
use dstack_system::{Secret, chain, task};

/// What to do when the file has another default project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The configuration of the command line gets this server as its default project.
    Yes,
    /// The configuration of the command line stays as it is.
    No,
    /// Leave it, and see whether there is something to ask ([`question`]).
    Ask,
}

/// The project of this server.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) token: Secret,
}

/// Updates the file under `home`; returns whether it was written. A failure only costs the convenience.
pub(crate) async fn update(home: PathBuf, entry: Entry, answer: Answer) -> bool {
    let work = move || update_file(&home.join(".dstack/config.yml"), &entry, answer);
    match task::blocking("update CLI config", work).await {
        Ok(Ok(written)) => written,
        Ok(Err(error)) => {
            let reason = chain(&error);
            tracing::warn!(
                "~/.dstack/config.yml is left as it is: {reason}. Repair or delete it; then `dstack project add` adds this server"
            );
            false
        }
        Err(_) => false,
    }
}

/// What to ask the user who starts this server, when the command line uses another one by default: with what a yes would
/// change. `None`: there is nothing to change, or nobody to ask.
pub(crate) async fn question(home: PathBuf, entry: Entry) -> Option<String> {
    if !has_terminal() {
        return None;
    }
    let work = move || change(&home.join(".dstack/config.yml"), &entry);
    let change = task::blocking("read CLI config", work).await.ok().flatten()?;
    Some(format!("{change} [y/n] (n): "))
}

/// Whether somebody looks at the terminal of this process. One that reads from it in the background is stopped by the system.
fn has_terminal() -> bool {
    let stdin = io::stdin();
    let in_front =
        || rustix::termios::tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp());
    stdin.is_terminal() && io::stdout().is_terminal() && in_front()
}

/// What a yes would change, as a question.
fn change(path: &Path, entry: &Entry) -> Option<String> {
    let config = read(path).ok()?;
    let default = config.default_project()?;
    if is_same(default, entry) {
        return None;
    }
    let from = match (default.name == entry.name, default.url == entry.url) {
        (true, true) => "has another token".to_owned(),
        _ => format!("is project {} at {}", default.name, default.url),
    };
    Some(format!(
        "In ~/.dstack/config.yml the default {from}. Make it project {} of this server, {}?",
        entry.name, entry.url
    ))
}

/// Asks on the terminal, and waits for the answer as long as it takes.
pub(crate) async fn is_agreed(question: String) -> bool {
    let answer = task::blocking("ask about the CLI config", move || ask(&question)).await;
    matches!(answer, Ok(Ok(true)))
}

fn update_file(path: &Path, entry: &Entry, answer: Answer) -> Result<bool, UpdateError> {
    if answer == Answer::No {
        return Ok(false);
    }
    // A link to a file that is kept elsewhere stays one.
    let path = &fs_err::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let _lock = lock(path)?;
    let mut config = read(path)?;
    let default = config.default_project();
    let is_wanted = match answer {
        Answer::No => false,
        Answer::Yes => !default.is_some_and(|project| is_same(project, entry)),
        Answer::Ask => default.is_none(),
    };
    if is_wanted {
        config.set(&entry.name, &entry.url, entry.token.expose(), true);
        write_private(path, config.to_yaml().as_bytes())?;
    }
    Ok(is_wanted)
}

/// Why the file is left as it is.
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error("it cannot be read or written")]
    File(#[from] io::Error),
    /// What else it says would be lost.
    #[error("it cannot be understood")]
    Content(#[from] ClientConfigError),
}

/// Holds `<path>.lock` until dropped, as the command line does while it changes the file.
fn lock(path: &Path) -> io::Result<fs_err::File> {
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = fs_err::OpenOptions::new().create(true).append(true).open(name)?;
    file.file().lock()?;
    Ok(file)
}

fn is_same(project: &ClientProject, entry: &Entry) -> bool {
    (
        project.name.as_str(),
        project.url.as_str(),
        project.token.as_str(),
    ) == (&entry.name, &entry.url, entry.token.expose())
}

/// Reads the file; a missing one is empty.
fn read(path: &Path) -> Result<ClientConfig, UpdateError> {
    let text = match fs_err::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(ClientConfig::parse(&text)?)
}

/// Replaces a file at once, readable by its owner only.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let mut options = fs_err::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.options_mut().mode(0o600);
    let mut file = options.open(&temporary)?;
    // One that a killed process left keeps the mode it had.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    file.sync_data()?;
    fs_err::rename(&temporary, path)
}

fn ask(question: &str) -> io::Result<bool> {
    let mut stdout = io::stdout();
    write!(stdout, "{question}")?;
    stdout.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(token: &str) -> Entry {
        Entry {
            name: "main".into(),
            url: "http://127.0.0.1:3000".into(),
            token: Secret::new(token),
        }
    }

    #[test]
    fn a_file_is_private_whatever_was_left_of_an_earlier_attempt() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join("key"), dir.path().join("key.new"));
        fs_err::write(&left, "half").unwrap();
        fs_err::set_permissions(&left, std::fs::Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"secret").unwrap();
        let mode = fs_err::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode, fs_err::read(&path).unwrap()), (0o600, b"secret".to_vec()));
        assert!(!left.exists());
    }

    #[test]
    fn a_first_default_is_set_without_asking_and_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".dstack/config.yml");
        assert!(update_file(&path, &entry("0123"), Answer::Ask).unwrap());
        assert!(
            !update_file(&path, &entry("0123"), Answer::Yes).unwrap(),
            "nothing to change"
        );
        let text = fs_err::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "projects:\n- default: true\n  name: main\n  token: \"0123\"\n  url: http://127.0.0.1:3000\n"
        );
        // Another server: whoever starts it is asked, once it answers.
        assert_eq!(change(&path, &entry("0123")), None, "nothing to ask");
        assert_eq!(
            change(&path, &entry("other")).unwrap(),
            "In ~/.dstack/config.yml the default has another token. Make it project main of this server, http://127.0.0.1:3000?"
        );
        let elsewhere = Entry {
            url: "http://127.0.0.1:3977".into(),
            ..entry("0123")
        };
        assert_eq!(
            change(&path, &elsewhere).unwrap(),
            "In ~/.dstack/config.yml the default is project main at http://127.0.0.1:3000. Make it project main of this server, \
             http://127.0.0.1:3977?"
        );
        assert!(!update_file(&path, &entry("other"), Answer::Ask).unwrap());
        assert!(!update_file(&path, &entry("other"), Answer::No).unwrap());
        assert!(update_file(&path, &entry("other"), Answer::Yes).unwrap());
        let config = read(&path).unwrap();
        assert_eq!(config.projects().len(), 1);
        assert_eq!(config.projects()[0].token, "other");
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yml");
        let text = "projects:\n- name: 'sky\n  url: https://sky\n  token: t\n";
        fs_err::write(&path, text).unwrap();
        for answer in [Answer::Ask, Answer::Yes] {
            update_file(&path, &entry("0123"), answer).unwrap_err();
        }
        assert_eq!(change(&path, &entry("0123")), None);
        assert_eq!(fs_err::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn other_projects_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yml");
        fs_err::write(
            &path,
            "projects:\n- {name: sky, url: 'https://sky', token: t, default: true}\nrepos: []\n",
        )
        .unwrap();
        assert!(update_file(&path, &entry("new"), Answer::Yes).unwrap());
        let config = read(&path).unwrap();
        let names: Vec<(&str, bool)> = config
            .projects()
            .iter()
            .map(|project| (project.name.as_str(), project.default))
            .collect();
        assert_eq!(names, [("sky", false), ("main", true)]);
    }

    #[test]
    fn the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write_private(&path, b"secret").unwrap();
        assert_eq!(
            fs_err::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
