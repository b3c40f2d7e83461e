//! `~/.dstack/ssh/config` and the line in `~/.ssh/config` that includes it; reading the user's own settings of a host.

use std::path::{Path, PathBuf};

use dstack_units::quoting::{
    Unquotable, ssh_config_alias, ssh_config_host, ssh_config_path, ssh_config_user,
};
use dstack_units::{HostName, LoginName};

use crate::error::{CliError, ErrorKind};
use crate::fs;

/// One `Host` entry: its name and options, in order, as OpenSSH reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    name: String,
    options: Vec<(&'static str, String)>,
}

impl Host {
    /// An entry without options.
    ///
    /// # Errors
    /// The name would be a pattern, or more than a name.
    pub fn new(alias: &str) -> Result<Self, Unquotable> {
        Ok(Self {
            name: ssh_config_alias(alias)?.to_owned(),
            options: Vec::new(),
        })
    }

    /// Returns the alias after `Host`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds `HostName`.
    ///
    /// # Errors
    /// OpenSSH would read something else.
    pub fn host_name(self, host: &HostName) -> Result<Self, Unquotable> {
        Ok(self.with("HostName", ssh_config_host(host)?))
    }

    /// Adds `User`.
    ///
    /// # Errors
    /// OpenSSH would read something else.
    pub fn user(self, user: &LoginName) -> Result<Self, Unquotable> {
        Ok(self.with("User", ssh_config_user(user)?))
    }

    /// Adds a line `Port`.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.with("Port", port.to_string())
    }

    /// Adds `IdentityFile`, and that no other key is tried.
    ///
    /// # Errors
    /// OpenSSH would read another path.
    pub fn identity(self, path: &str) -> Result<Self, Unquotable> {
        let path = ssh_config_path(path)?;
        Ok(self.with("IdentityFile", path).fixed("IdentitiesOnly", "yes"))
    }

    /// Adds `ProxyJump` to another entry.
    ///
    /// # Errors
    /// It is not the name of one.
    pub fn jump(self, alias: &str) -> Result<Self, Unquotable> {
        let alias = ssh_config_alias(alias)?.to_owned();
        Ok(self.with("ProxyJump", alias))
    }

    /// Adds an option whose value is part of the program.
    #[must_use]
    pub fn fixed(self, name: &'static str, value: &'static str) -> Self {
        self.with(name, value.to_owned())
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.options.push((name, value));
        self
    }

    /// Its options, for tests.
    #[cfg(test)]
    pub(super) fn options(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.options.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// Writes or replaces entries.
///
/// # Errors
/// The file cannot be written.
pub fn add(path: &Path, hosts: &[Host]) -> Result<(), CliError> {
    update(path, |mut text| {
        for host in hosts {
            text = without(&text, &host.name);
            text.push_str(&entry(host));
        }
        text
    })
}

/// Removes the `Host` entries with these names.
///
/// # Errors
/// The file cannot be written.
pub fn remove(path: &Path, names: &[String]) -> Result<(), CliError> {
    update(path, |text| {
        names.iter().fold(text, |text, name| without(&text, name))
    })
}

fn update(path: &Path, change: impl FnOnce(String) -> String) -> Result<(), CliError> {
    let _lock = fs::lock(path)?;
    let text = fs::read_if_exists(path)?.unwrap_or_default();
    fs::replace(path, change(text).as_bytes(), fs::Access::Private)
}

fn entry(host: &Host) -> String {
    let options: String = host
        .options
        .iter()
        .map(|(name, value)| format!("    {name} {value}\n"))
        .collect();
    format!("Host {}\n{options}", host.name)
}

/// The text without the entry of this name.
fn without(text: &str, name: &str) -> String {
    let mut keep = true;
    let mut kept = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut words = line.split_whitespace();
        if let (Some("Host"), Some(host), None) = (words.next(), words.next(), words.next()) {
            keep = host != name;
        }
        if keep {
            kept.push_str(line);
        }
    }
    kept
}

/// Puts `Include <path>` on top of the user's configuration, once.
///
/// # Errors
/// That file cannot be read or written.
pub fn include(user_config: &Path, path: &Path, home: &Path) -> Result<(), CliError> {
    let shown = collapse(path, home);
    let shown =
        ssh_config_path(&shown).map_err(|error| CliError::from_error(ErrorKind::AttachFailed, error))?;
    let line = format!("Include {shown}");
    let text = fs::read_if_exists(user_config)?.unwrap_or_default();
    if has_line(&text, &line) {
        return Ok(());
    }
    let _lock = fs::lock(user_config)?;
    let text = fs::read_if_exists(user_config)?.unwrap_or_default();
    if has_line(&text, &line) {
        return Ok(());
    }
    fs::replace(
        user_config,
        format!("{line}\n{text}").as_bytes(),
        fs::Access::Normal,
    )
}

fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|existing| existing.trim() == line)
}

/// A path with `~` in the place of the home directory.
pub fn collapse(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(rest) => format!("~/{}", rest.display()),
        Err(_) => path.display().to_string(),
    }
}

/// What the user's configuration says about a host, as far as we need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSettings {
    /// The address behind the alias.
    pub hostname: Option<String>,
    /// The user to log in as.
    pub user: Option<String>,
    /// The TCP port of the SSH server.
    pub port: Option<u16>,
    /// The first `IdentityFile`, `~` expanded.
    pub identity_file: Option<PathBuf>,
}

/// Looks a host up; the first value of an option wins. `Match` blocks are skipped.
pub fn lookup(text: &str, host: &str, home: &Path) -> HostSettings {
    let mut settings = HostSettings::default();
    let mut applies = true;
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line
            .split_once(|c: char| c.is_whitespace() || c == '=')
            .unwrap_or((line, ""));
        let value = value.trim_matches(|c: char| c.is_whitespace() || c == '=' || c == '"');
        match key.to_lowercase().as_str() {
            "host" => applies = matches_any(value, host),
            "match" => applies = false,
            "hostname" if applies => keep_first(&mut settings.hostname, value.replace("%h", host)),
            "user" if applies => keep_first(&mut settings.user, value.to_owned()),
            "port" if applies && settings.port.is_none() => settings.port = value.parse().ok(),
            "identityfile" if applies => keep_first(&mut settings.identity_file, expand(value, home)),
            _ => {}
        }
    }
    settings
}

fn keep_first<T>(slot: &mut Option<T>, value: T) {
    if slot.is_none() {
        *slot = Some(value);
    }
}

/// A path with a leading `~` replaced by the home directory.
pub fn expand(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None if path == "~" => home.to_owned(),
        None => PathBuf::from(path),
    }
}

fn matches_any(patterns: &str, host: &str) -> bool {
    let mut matched = false;
    for pattern in patterns.split_whitespace() {
        match pattern.strip_prefix('!') {
            Some(negated) if glob(negated, host) => return false,
            Some(_) => {}
            None => matched |= glob(pattern, host),
        }
    }
    matched
}

/// `*` any characters, `?` one.
fn glob(pattern: &str, text: &str) -> bool {
    let mut pattern_left = pattern.chars();
    match pattern_left.next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = pattern_left.as_str();
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .any(|at| glob(rest, text.get(at..).unwrap_or("")))
        }
        Some(wanted) => {
            let mut text_left = text.chars();
            text_left.next().is_some_and(|found| {
                (wanted == '?' || wanted == found) && glob(pattern_left.as_str(), text_left.as_str())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        let host = Host::new(name).unwrap();
        host.host_name(&"h".parse().unwrap()).unwrap().port(port)
    }

    #[test]
    fn entries_are_added_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        add(&path, &[host("a", 1), host("a-host", 2)]).unwrap();
        add(&path, &[host("a", 3)]).unwrap();
        assert_eq!(
            fs_err::read_to_string(&path).unwrap(),
            "Host a-host\n    HostName h\n    Port 2\nHost a\n    HostName h\n    Port 3\n"
        );
        remove(&path, &["a".to_owned(), "a-host".to_owned()]).unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn the_include_goes_on_top_once() {
        let home = tempfile::tempdir().unwrap();
        let user = home.path().join(".ssh/config");
        fs::replace(&user, b"Host x\n  User me\n", fs::Access::Normal).unwrap();
        let ours = home.path().join(".dstack/ssh/config");
        include(&user, &ours, home.path()).unwrap();
        include(&user, &ours, home.path()).unwrap();
        assert_eq!(
            fs_err::read_to_string(&user).unwrap(),
            "Include ~/.dstack/ssh/config\nHost x\n  User me\n"
        );
    }

    #[test]
    fn lookups_take_the_first_value() {
        let text = "Host gh\n  HostName github.com\n  User git\nHost *.corp !bad.corp\n  Port=2222\n  IdentityFile ~/.ssh/corp\nHost *\n  User other\nMatch all\n  Port 1\n";
        let home = Path::new("/home/me");
        let found = lookup(text, "gh", home);
        assert_eq!(
            (found.hostname.as_deref(), found.user.as_deref(), found.port),
            (Some("github.com"), Some("git"), None)
        );
        let corp = lookup(text, "a.corp", home);
        assert_eq!(
            (corp.port, corp.identity_file),
            (Some(2222), Some(PathBuf::from("/home/me/.ssh/corp")))
        );
        assert_eq!(lookup(text, "bad.corp", home).port, None);
    }
}
