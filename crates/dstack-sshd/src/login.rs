//! Who logs in: any account, root too, whatever its password says.

use std::path::{Path, PathBuf};

use dstack_system::accounts::{Account, Passwd};

/// The user a session runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Login {
    /// Login name, as the session sees it in `USER`.
    pub(crate) name: String,
    /// Id of the user.
    pub(crate) uid: u32,
    /// Id of the primary group.
    pub(crate) gid: u32,
    /// Ids of all groups, the primary one among them.
    pub(crate) groups: Vec<u32>,
    /// Home directory; `/` when the account has none.
    pub(crate) home: PathBuf,
    /// Login shell; `/bin/sh` when the account's cannot be used.
    pub(crate) shell: PathBuf,
    /// Whether the identity must be changed to run something as this user.
    pub(crate) switch: bool,
}

impl Login {
    /// The account `name`; a number that is no account's name is a uid, as processes need no account.
    pub(crate) fn find(passwd: &Passwd, name: &str) -> Option<Self> {
        if let Some(account) = passwd.find_name(name) {
            return Some(Self::of(passwd, account));
        }
        let uid: u32 = name.parse().ok()?;
        Some(match passwd.find_uid(uid) {
            Some(account) => Self::of(passwd, account),
            None => Self {
                name: name.to_owned(),
                uid,
                gid: 0,
                groups: vec![0],
                home: PathBuf::from("/"),
                shell: default_shell(),
                switch: true,
            },
        })
    }

    /// The user of this process, whatever the login name: for servers that cannot switch.
    pub(crate) fn own(passwd: &Passwd, home: Option<PathBuf>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let account = passwd.find_uid(uid);
        let mut login = match account {
            Some(account) => Self::of(passwd, account),
            None => Self {
                name: uid.to_string(),
                uid,
                gid: rustix::process::getegid().as_raw(),
                groups: Vec::new(),
                home: PathBuf::from("/"),
                shell: default_shell(),
                switch: false,
            },
        };
        login.switch = false;
        login.home = home.unwrap_or(login.home);
        // Who runs the server may also log in to it, service account or not.
        if login.shell.ends_with("nologin") || login.shell.ends_with("false") {
            login.shell = default_shell();
        }
        login
    }

    fn of(passwd: &Passwd, account: Account) -> Self {
        let groups = passwd.groups_of(&account);
        let home = PathBuf::from(&account.home);
        let shell = PathBuf::from(&account.shell);
        Self {
            name: account.name,
            uid: account.uid,
            gid: account.gid,
            groups,
            home: if home.is_absolute() {
                home
            } else {
                PathBuf::from("/")
            },
            // A container image may name a shell it does not have.
            shell: if usable_shell(&shell) {
                shell
            } else {
                default_shell()
            },
            switch: true,
        }
    }
}

fn usable_shell(shell: &Path) -> bool {
    shell.is_absolute() && fs_err::metadata(shell).is_ok_and(|found| found.is_file())
}

fn default_shell() -> PathBuf {
    PathBuf::from("/bin/sh")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bare_uids_log_in() {
        let dir = tempfile::tempdir().unwrap();
        let (passwd, group) = (dir.path().join("passwd"), dir.path().join("group"));
        let text = "root:*:0:0::/root:/bin/sh\nlocked:!:7:8::relative:/no/such/shell\n";
        fs_err::write(&passwd, text).unwrap();
        fs_err::write(&group, "extra:x:9:locked\n").unwrap();
        let passwd = Passwd::at(passwd, group);

        assert_eq!(Login::find(&passwd, "root").unwrap().home, Path::new("/root"));
        let locked = Login::find(&passwd, "locked").unwrap();
        assert_eq!(
            (locked.uid, locked.gid, locked.groups.as_slice()),
            (7, 8, &[8, 9][..])
        );
        assert_eq!(
            (locked.home.to_str(), locked.shell.to_str()),
            (Some("/"), Some("/bin/sh"))
        );
        assert_eq!(Login::find(&passwd, "7").unwrap().name, "locked");
        assert_eq!(Login::find(&passwd, "1234").unwrap().uid, 1234);
        assert_eq!(Login::find(&passwd, "nobody-here"), None);
    }
}
