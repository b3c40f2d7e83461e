//! The user a job runs as.

use dstack_agent_api::runner::UnixUser;
use dstack_system::accounts::{Account, Passwd};

/// Who owns a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Id of the user.
    pub uid: u32,
    /// Id of the group.
    pub gid: u32,
}

/// The user a job runs as, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobUser {
    /// Id of the user.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All groups, the primary among them, sorted, each once.
    pub groups: Vec<u32>,
    /// Name of the account; empty when the uid has none.
    pub name: String,
    /// Home as the account has it; empty when there is none.
    pub account_home: String,
}

impl JobUser {
    /// Who owns the job's files.
    pub const fn owner(&self) -> Owner {
        Owner {
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// The requested user cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// Neither uid nor name.
    #[error("neither uid nor username is set")]
    Nobody,
    /// No such name.
    #[error("unknown user {0}: the image has no such account")]
    UnknownUser(String),
    /// No such group name.
    #[error("unknown group {0}: the image has no such group")]
    UnknownGroup(String),
}

/// Resolves the requested user like Docker's `USER`; `None` is the runner's own user.
pub fn resolve(
    passwd: &Passwd,
    wanted: Option<&UnixUser>,
    own_uid: u32,
    own_gid: u32,
) -> Result<JobUser, UserError> {
    let Some(wanted) = wanted else {
        return Ok(user_of(passwd, passwd.find_uid(own_uid), own_uid, own_gid));
    };
    let name = wanted.username.as_deref().filter(|name| !name.is_empty());
    let mut user = match (wanted.uid, name) {
        (Some(uid), _) => user_of(passwd, passwd.find_uid(uid), uid, 0),
        (None, Some(name)) => {
            let account = passwd
                .find_name(name)
                .ok_or_else(|| UserError::UnknownUser(name.to_owned()))?;
            let (uid, gid) = (account.uid, account.gid);
            user_of(passwd, Some(account), uid, gid)
        }
        (None, None) => return Err(UserError::Nobody),
    };
    let group = wanted.groupname.as_deref().filter(|name| !name.is_empty());
    let only_group = match (wanted.gid, group) {
        (Some(gid), _) => Some(gid),
        (None, Some(name)) => Some(
            passwd
                .group_id(name)
                .ok_or_else(|| UserError::UnknownGroup(name.to_owned()))?,
        ),
        (None, None) => None,
    };
    if let Some(gid) = only_group {
        user.gid = gid;
        user.groups = vec![gid];
    }
    Ok(user)
}

fn user_of(passwd: &Passwd, account: Option<Account>, uid: u32, fallback_gid: u32) -> JobUser {
    match account {
        Some(account) => JobUser {
            uid,
            gid: account.gid,
            groups: passwd.groups_of(&account),
            name: account.name,
            account_home: account.home,
        },
        None => JobUser {
            uid,
            gid: fallback_gid,
            groups: vec![fallback_gid],
            name: String::new(),
            account_home: String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> (tempfile::TempDir, Passwd) {
        let dir = tempfile::tempdir().unwrap();
        let (passwd, group) = (dir.path().join("passwd"), dir.path().join("group"));
        fs_err::write(
            &passwd,
            "# accounts\nroot:x:0:0:root:/root:/bin/bash\n\nbroken:x:z\napp:!:1000:1001:App,,,:/home/app:/bin/sh\nbare:x:5:6\n+::::::\n",
        )
        .unwrap();
        fs_err::write(
            &group,
            "root:x:0:\nvideo:x:44:app,root\napp:x:1001:\nwheel:x:10:app\nnext:x:11:apple\n",
        )
        .unwrap();
        let accounts = Passwd::at(passwd, group);
        (dir, accounts)
    }

    fn user(uid: Option<u32>, name: Option<&str>, gid: Option<u32>, group: Option<&str>) -> UnixUser {
        UnixUser {
            uid,
            username: name.map(str::to_owned),
            gid,
            groupname: group.map(str::to_owned),
        }
    }

    fn ids(passwd: &Passwd, wanted: &UnixUser) -> Result<(u32, u32, Vec<u32>, String), UserError> {
        resolve(passwd, Some(wanted), 0, 0).map(|user| (user.uid, user.gid, user.groups, user.name))
    }

    #[test]
    fn resolves_like_docker() {
        let (_dir, passwd) = image();
        let app = Ok((1000, 1001, vec![10, 44, 1001], "app".to_owned()));
        assert_eq!(ids(&passwd, &user(None, Some("app"), None, None)), app);
        assert_eq!(ids(&passwd, &user(Some(1000), None, None, None)), app);
        let only = Ok((1000, 44, vec![44], "app".to_owned()));
        assert_eq!(ids(&passwd, &user(Some(1000), None, Some(44), None)), only);
        assert_eq!(ids(&passwd, &user(None, Some("app"), None, Some("video"))), only);
        // An unknown uid has no name and no home; an unknown name is an error.
        assert_eq!(
            ids(&passwd, &user(Some(77), None, None, None)),
            Ok((77, 0, vec![0], String::new()))
        );
        assert_eq!(
            ids(&passwd, &user(Some(77), None, Some(9), None)),
            Ok((77, 9, vec![9], String::new()))
        );
        assert_eq!(
            ids(&passwd, &user(Some(5), None, None, None)),
            Ok((5, 6, vec![6], "bare".to_owned()))
        );
        let unknown = |name: &str| Err(UserError::UnknownUser(name.to_owned()));
        assert_eq!(
            ids(&passwd, &user(None, Some("nope"), None, None)),
            unknown("nope")
        );
        assert_eq!(
            ids(&passwd, &user(None, Some("broken"), None, None)),
            unknown("broken")
        );
        assert_eq!(
            ids(&passwd, &user(None, Some("app"), None, Some("nope"))),
            Err(UserError::UnknownGroup("nope".to_owned()))
        );
        assert_eq!(ids(&passwd, &UnixUser::default()), Err(UserError::Nobody));
    }

    #[test]
    fn no_wish_is_the_runners_user() {
        let (_dir, passwd) = image();
        let own = resolve(&passwd, None, 0, 0).unwrap();
        assert_eq!(
            (own.uid, own.name.as_str(), own.groups.as_slice()),
            (0, "root", &[0, 44][..])
        );
    }

    #[test]
    fn an_image_without_accounts_has_uids_only() {
        let none = Passwd::at("/nonexistent/passwd", "/nonexistent/group");
        assert_eq!(resolve(&none, None, 0, 0).unwrap().name, "");
        assert!(resolve(&none, Some(&user(None, Some("root"), None, None)), 0, 0).is_err());
    }
}
