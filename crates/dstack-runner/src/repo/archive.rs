//! Unpacking uploaded tars.

use std::io;
use std::path::Path;

use tar::Archive;

use crate::users::Owner;

use super::tree;

/// Unpacks `archive` into `dir`, which is created. Entries that would land outside of it are an error.
pub(super) fn unpack(archive: &Path, dir: &Path) -> io::Result<()> {
    let mut archive = Archive::new(io::BufReader::new(fs_err::File::open(archive)?));
    archive.set_preserve_mtime(true);
    archive.set_overwrite(true);
    fs_err::create_dir_all(dir)?;
    let mut directories = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        // A directory may be read-only: its mode is set when everything is in it.
        if entry.header().entry_type().is_dir() {
            directories.push(entry);
        } else {
            unpack_entry(&mut entry, dir)?;
        }
    }
    directories
        .iter_mut()
        .rev()
        .try_for_each(|entry| unpack_entry(entry, dir))
}

fn unpack_entry(entry: &mut tar::Entry<'_, impl io::Read>, dir: &Path) -> io::Result<()> {
    // `unpack_in` skips paths with `..`, follows no link out of `dir`, and takes absolute paths as relative ones.
    if entry.unpack_in(dir)? {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the archive's entry `{name}` leads outside"),
    ))
}

/// Unpacks an archive whose only top entry becomes `destination`, replacing what is there.
pub(super) fn place(archive: &Path, destination: &Path, owner: Option<Owner>) -> io::Result<()> {
    let parent = destination
        .parent()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    tree::create(parent, owner)?;
    // Beside the destination, so that it can be renamed in one step.
    let unpacked = tempfile::Builder::new().prefix(".dstack-").tempdir_in(parent)?;
    unpack(archive, unpacked.path())?;
    let mut tops = fs_err::read_dir(unpacked.path())?;
    let top = match (tops.next(), tops.next()) {
        (Some(top), None) => top?.path(),
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the archive must have exactly one top entry",
            ));
        }
    };
    tree::give_all(&top, owner)?;
    match fs_err::symlink_metadata(destination) {
        Ok(found) if found.is_dir() => fs_err::remove_dir_all(destination)?,
        Ok(_) => fs_err::remove_file(destination)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs_err::rename(top, destination)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tar::{Builder, EntryType, Header};

    fn archive(path: &Path, entries: &[(&str, EntryType, u32, &str)]) {
        let mut builder = Builder::new(fs_err::File::create(path).unwrap());
        for (name, kind, mode, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            // Names are written raw: the builder refuses bad ones.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name(content).unwrap();
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap();
    }

    #[test]
    fn files_directories_links_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let (tar, out) = (dir.path().join("x.tar"), dir.path().join("out"));
        let entries = [
            ("top/", EntryType::Directory, 0o555, ""),
            ("top/run", EntryType::Regular, 0o755, "text"),
            ("top/link", EntryType::Symlink, 0o777, "run"),
            ("top/empty/", EntryType::Directory, 0o700, ""),
        ];
        archive(&tar, &entries);
        unpack(&tar, &out).unwrap();
        let mode = |name: &str| fs_err::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode("top"), mode("top/run"), mode("top/empty")),
            (0o555, 0o755, 0o700)
        );
        assert_eq!(fs_err::read_to_string(out.join("top/link")).unwrap(), "text");
    }

    #[test]
    fn nothing_lands_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (tar, out) = (dir.path().join("x.tar"), dir.path().join("out"));
        let outside = dir.path().join("outside");
        fs_err::create_dir(&outside).unwrap();
        let through = outside.to_str().unwrap();
        for entries in [
            vec![("../evil", EntryType::Regular, 0o644, "x")],
            vec![("a/../../evil", EntryType::Regular, 0o644, "x")],
            vec![
                ("l", EntryType::Symlink, 0o777, through),
                ("l/evil", EntryType::Regular, 0o644, "x"),
            ],
            vec![("h", EntryType::Link, 0o644, "../x.tar")],
        ] {
            archive(&tar, &entries);
            assert!(unpack(&tar, &out).is_err(), "{entries:?}");
            assert!(!dir.path().join("evil").exists() && !outside.join("evil").exists());
        }
        archive(&tar, &[("/abs", EntryType::Regular, 0o644, "x")]);
        unpack(&tar, &out).unwrap();
        assert!(out.join("abs").exists() && !Path::new("/abs").exists());
    }

    #[test]
    fn a_placed_archive_takes_the_destinations_name_and_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("x.tar");
        archive(
            &tar,
            &[
                ("src/", EntryType::Directory, 0o755, ""),
                ("src/f", EntryType::Regular, 0o644, "new"),
            ],
        );
        let destination = dir.path().join("deep/er/name");
        place(&tar, &destination, None).unwrap();
        fs_err::write(destination.join("old"), "").unwrap();
        place(&tar, &destination, None).unwrap();
        assert_eq!(fs_err::read_to_string(destination.join("f")).unwrap(), "new");
        assert!(!destination.join("old").exists());
        assert_eq!(fs_err::read_dir(dir.path().join("deep/er")).unwrap().count(), 1);

        archive(
            &tar,
            &[
                ("a", EntryType::Regular, 0o600, "file"),
                ("b", EntryType::Regular, 0o600, ""),
            ],
        );
        assert!(place(&tar, &destination, None).is_err());
        archive(&tar, &[("a", EntryType::Regular, 0o600, "file")]);
        place(&tar, &destination, None).unwrap();
        assert_eq!(fs_err::read_to_string(&destination).unwrap(), "file");
    }
}
