//! Users and groups, read from `/etc/passwd` and `/etc/group` by hand: a static binary must not load the machine's NSS
//! plugins ([`nss`](crate::nss)).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A line of `passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Login name, unique in the file.
    pub name: String,
    /// Id of the user.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Home directory as written, maybe empty.
    pub home: String,
    /// Login shell as written, maybe empty (`/bin/sh`).
    pub shell: String,
}

/// A line of `group`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

/// Where the accounts stand. Read anew at each question: images and jobs add users.
#[derive(Debug, Clone)]
pub struct Passwd {
    passwd: PathBuf,
    group: PathBuf,
}

impl Passwd {
    /// The files of this machine or container.
    pub fn system() -> Self {
        Self::at("/etc/passwd", "/etc/group")
    }

    /// Reads other files than the system's.
    pub fn at(passwd: impl Into<PathBuf>, group: impl Into<PathBuf>) -> Self {
        Self {
            passwd: passwd.into(),
            group: group.into(),
        }
    }

    /// The account of this name.
    pub fn find_name(&self, name: &str) -> Option<Account> {
        self.accounts().into_iter().find(|account| account.name == name)
    }

    /// The first account with this uid.
    pub fn find_uid(&self, uid: u32) -> Option<Account> {
        self.accounts().into_iter().find(|account| account.uid == uid)
    }

    /// The primary group and every group that lists the account, sorted, each once.
    pub fn groups_of(&self, account: &Account) -> Vec<u32> {
        let listed = self
            .groups()
            .into_iter()
            .filter(|group| group.members.contains(&account.name));
        let ids: BTreeSet<u32> = listed.map(|group| group.gid).chain([account.gid]).collect();
        ids.into_iter().collect()
    }

    /// The id of the group of this name.
    pub fn group_id(&self, name: &str) -> Option<u32> {
        self.groups()
            .into_iter()
            .find(|group| group.name == name)
            .map(|group| group.gid)
    }

    // A missing or unreadable file is an image without accounts, as for Docker.
    fn accounts(&self) -> Vec<Account> {
        lines(&self.passwd)
            .iter()
            .filter_map(|line| parse_account(line))
            .collect()
    }

    fn groups(&self) -> Vec<Group> {
        lines(&self.group)
            .iter()
            .filter_map(|line| parse_group(line))
            .collect()
    }
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs_err::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .map(str::to_owned)
        .collect()
}

fn parse_account(line: &str) -> Option<Account> {
    let mut fields = line.trim().split(':');
    let name = fields
        .next()
        .filter(|name| !name.is_empty() && !name.starts_with('#'))?
        .to_owned();
    let _password = fields.next()?;
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let _gecos = fields.next();
    let home = fields.next().unwrap_or_default().to_owned();
    let shell = fields.next().unwrap_or_default().to_owned();
    Some(Account {
        name,
        uid,
        gid,
        home,
        shell,
    })
}

fn parse_group(line: &str) -> Option<Group> {
    let mut fields = line.trim().split(':');
    let name = fields
        .next()
        .filter(|name| !name.is_empty() && !name.starts_with('#'))?
        .to_owned();
    let _password = fields.next()?;
    let gid = fields.next()?.parse().ok()?;
    let members = fields.next().unwrap_or_default();
    let members = members
        .split(',')
        .filter(|member| !member.is_empty())
        .map(str::to_owned)
        .collect();
    Some(Group { name, gid, members })
}

/// The account's home when it can be used: absolute, and a directory or absent (but then not one that says it is
/// nonexistent, as Debian's `nobody`).
pub fn usable_home(home: &str) -> Option<PathBuf> {
    let path = PathBuf::from(home);
    if !path.is_absolute() {
        return None;
    }
    match fs_err::metadata(&path) {
        Ok(found) => found.is_dir().then_some(path),
        Err(_) => (!home.contains("nonexistent")).then_some(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs_err::write(&file, "").unwrap();
        assert_eq!(
            usable_home(dir.path().to_str().unwrap()),
            Some(dir.path().to_owned())
        );
        assert_eq!(
            usable_home(dir.path().join("absent").to_str().unwrap()),
            Some(dir.path().join("absent"))
        );
        for bad in ["", "relative", "/nonexistent", file.to_str().unwrap()] {
            assert_eq!(usable_home(bad), None, "{bad}");
        }
    }
}
