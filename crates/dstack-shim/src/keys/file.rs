//! Reading and replacing `~/.ssh/authorized_keys`.
//!
//! This agent is often root, and the directory belongs to a user who may put links there at any time. So nothing below the home
//! is reached by a path: each step is taken from the directory before it, without following links, and what is found must be
//! the user's or root's.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, mkdirat, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;

const DIR: &str = ".ssh";
const FILE: &str = "authorized_keys";
const TEMPORARY: &str = "authorized_keys.tmp";
/// Of a file of keys that is new.
const NEW_FILE: u32 = 0o600;
const NEW_DIR: u32 = 0o700;

/// Whose file it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What is there.
struct Found {
    text: String,
    mode: u32,
}

/// Replaces the user's keys by what `change` makes of them. Nothing is written when that is the same.
pub(super) fn update(home: &Path, owner: Owner, change: impl FnOnce(&str) -> String) -> io::Result<()> {
    let home = openat(CWD, home, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let dir = open_dir(&home, owner)?;
    let found = match &dir {
        Some(dir) => read(dir, owner)?,
        None => None,
    };
    let before = found.as_ref().map_or("", |found| &found.text);
    let after = change(before);
    if after == before {
        return Ok(());
    }
    let dir = match dir {
        Some(dir) => dir,
        None => make_dir(&home, owner)?,
    };
    replace(&dir, &after, found.map_or(NEW_FILE, |found| found.mode), owner)
}

fn open_dir(home: &OwnedFd, owner: Owner) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match openat(home, DIR, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(refused(DIR, "is no directory, or a link to one")),
        Err(error) => return Err(error.into()),
    };
    check_owner(DIR, &fstat(&dir)?, owner)?;
    Ok(Some(dir))
}

fn make_dir(home: &OwnedFd, owner: Owner) -> io::Result<OwnedFd> {
    mkdirat(home, DIR, Mode::from_raw_mode(NEW_DIR))?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(home, DIR, flags, Mode::empty())?;
    // Not left to the umask.
    fchmod(&dir, Mode::from_raw_mode(NEW_DIR))?;
    give(&dir, owner)?;
    Ok(dir)
}

fn read(dir: &OwnedFd, owner: Owner) -> io::Result<Option<Found>> {
    // A pipe must not make this wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, FILE, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(refused(FILE, "is a symbolic link")),
        Err(error) => return Err(error.into()),
    };
    let stat = fstat(&file)?;
    check_owner(FILE, &stat, owner)?;
    // Under another name it may be any file of root's, whose text would become the user's.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Err(refused(FILE, "is no file of its own"));
    }
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(Some(Found {
        text,
        mode: stat.st_mode & 0o777,
    }))
}

/// Writes beside the file and then renames: whoever logs in meanwhile finds one of the two.
fn replace(dir: &OwnedFd, text: &str, mode: u32, owner: Owner) -> io::Result<()> {
    match unlinkat(dir, TEMPORARY, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, TEMPORARY, flags, Mode::from_raw_mode(NEW_FILE))?);
    file.write_all(text.as_bytes())?;
    give(&file, owner)?;
    fchmod(&file, Mode::from_raw_mode(mode))?;
    file.sync_all()?;
    Ok(renameat(dir, TEMPORARY, dir, FILE)?)
}

fn check_owner(name: &str, stat: &Stat, owner: Owner) -> io::Result<()> {
    if stat.st_uid == owner.uid || stat.st_uid == 0 {
        Ok(())
    } else {
        Err(refused(name, "belongs to somebody else"))
    }
}

/// To the user, unless it is theirs already: whoever is not root must not even try.
fn give(file: impl std::os::fd::AsFd, owner: Owner) -> io::Result<()> {
    let stat = fstat(&file)?;
    if (stat.st_uid, stat.st_gid) == (owner.uid, owner.gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    Ok(fchown(file, Some(uid), Some(gid))?)
}

fn refused(name: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} {why}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    struct Home {
        dir: tempfile::TempDir,
        owner: Owner,
    }

    impl Home {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let meta = fs_err::metadata(dir.path()).unwrap();
            let owner = Owner {
                uid: meta.uid(),
                gid: meta.gid(),
            };
            Self { dir, owner }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.dir.path().join(name)
        }

        fn add(&self, line: &str) -> io::Result<()> {
            update(self.dir.path(), self.owner, |before| format!("{before}{line}\n"))
        }
    }

    #[test]
    fn what_a_user_put_in_the_way_is_not_written_through() {
        let home = Home::new();
        let victim = home.path("victim");
        fs_err::write(&victim, "precious").unwrap();
        fs_err::set_permissions(&victim, std::fs::Permissions::from_mode(0o400)).unwrap();
        fs_err::create_dir(home.path(DIR)).unwrap();
        symlink(&victim, home.path(DIR).join(TEMPORARY)).unwrap();
        home.add("key").unwrap();
        assert_eq!(fs_err::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs_err::metadata(&victim).unwrap().mode() & 0o777, 0o400);
        let file = home.path(DIR).join(FILE);
        assert!(fs_err::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs_err::read_to_string(file).unwrap(), "key\n");
        assert!(fs_err::symlink_metadata(home.path(DIR).join(TEMPORARY)).is_err());
    }

    #[test]
    fn links_are_neither_read_nor_entered() {
        let home = Home::new();
        let secret = home.path("secret");
        fs_err::write(&secret, "of root").unwrap();
        fs_err::create_dir(home.path(DIR)).unwrap();
        let file = home.path(DIR).join(FILE);
        symlink(&secret, &file).unwrap();
        assert!(home.add("key").unwrap_err().to_string().contains("symbolic link"));
        fs_err::remove_file(&file).unwrap();
        fs_err::hard_link(&secret, &file).unwrap();
        assert!(
            home.add("key")
                .unwrap_err()
                .to_string()
                .contains("no file of its own")
        );
        assert_eq!(fs_err::read_to_string(&secret).unwrap(), "of root");

        let home = Home::new();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), home.path(DIR)).unwrap();
        assert!(home.add("key").unwrap_err().to_string().contains("link"));
        assert_eq!(fs_err::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_others_are_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can make files of others");
            return;
        }
        let home = Home::new();
        fs_err::create_dir(home.path(DIR)).unwrap();
        std::os::unix::fs::chown(home.path(DIR), Some(65534), None).unwrap();
        assert!(home.add("key").unwrap_err().to_string().contains("somebody else"));
    }
}
