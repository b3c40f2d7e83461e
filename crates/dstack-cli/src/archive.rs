//! Packing `files` of a configuration: a plain tar, reproducible, `.gitignore` and `.dstackignore` honoured.

use std::path::{Component, Path, PathBuf};

use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;
use sha2::{Digest, Sha256};

/// Why something cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A folder cannot be walked, or a rule file in it is broken.
    #[error("cannot read the folder")]
    Walk(#[source] ignore::Error),
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file or directory that cannot be packed.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
}

/// A packed file or folder.
#[derive(Debug, Clone)]
pub struct Archive {
    /// The tar file.
    pub content: Vec<u8>,
    /// Its SHA-256 in hexadecimal digits.
    pub hash: String,
}

/// Packs the file or folder at the absolute path `root`. Names are relative to its parent folder. Links inside stay
/// relative links, links that lead outside become files.
///
/// # Errors
/// Something cannot be read.
pub fn pack(root: &Path) -> Result<Archive, ArchiveError> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    for path in walk(root)? {
        add(&mut builder, root, &path).map_err(|source| ArchiveError::Read {
            path: path.clone(),
            source,
        })?;
    }
    let content = builder.into_inner().map_err(|source| ArchiveError::Read {
        path: root.to_owned(),
        source,
    })?;
    let hash = hex::encode(Sha256::digest(&content));
    Ok(Archive { content, hash })
}

fn walk(root: &Path) -> Result<Vec<PathBuf>, ArchiveError> {
    let overrides = OverrideBuilder::new(root)
        .add("!/.git/")
        .and_then(|rules| rules.build())
        .map_err(ArchiveError::Walk)?;
    let walk = WalkBuilder::new(root)
        .overrides(overrides)
        // Hidden files are files too.
        .hidden(false)
        // The rules of git apply outside of git as well.
        .require_git(false)
        .add_custom_ignore_filename(".dstackignore")
        .build();
    let mut paths = walk
        .map(|entry| entry.map(ignore::DirEntry::into_path))
        .collect::<Result<Vec<_>, _>>()
        .map_err(ArchiveError::Walk)?;
    paths.sort();
    Ok(paths)
}

fn add(builder: &mut tar::Builder<Vec<u8>>, root: &Path, path: &Path) -> std::io::Result<()> {
    let name = root
        .parent()
        .and_then(|parent| path.strip_prefix(parent).ok())
        .unwrap_or(path);
    let metadata = path.symlink_metadata()?;
    if metadata.is_symlink() {
        return add_link(builder, root, path, name, &metadata);
    }
    if metadata.is_dir() {
        return builder.append_dir(name, path);
    }
    if metadata.is_file() {
        let mut file = fs_err::File::open(path)?;
        return builder.append_file(name, file.file_mut());
    }
    // Sockets, devices and pipes have no content to take along.
    Ok(())
}

fn add_link(
    builder: &mut tar::Builder<Vec<u8>>,
    root: &Path,
    path: &Path,
    name: &Path,
    metadata: &std::fs::Metadata,
) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(root);
    let target = normalize(&folder.join(fs_err::read_link(path)?));
    if target.starts_with(root) {
        let mut header = tar::Header::new_gnu();
        header.set_metadata(metadata);
        header.set_size(0);
        return builder.append_link(&mut header, name, relative(&target, folder));
    }
    let resolved = fs_err::canonicalize(path)?;
    if resolved.is_dir() {
        return builder.append_dir(name, &resolved);
    }
    let mut file = fs_err::File::open(&resolved)?;
    builder.append_file(name, file.file_mut())
}

/// Without `.` and `..`, by name only.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The way from a folder to a target, both absolute and normal.
fn relative(target: &Path, folder: &Path) -> PathBuf {
    let shared = target
        .components()
        .zip(folder.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(target.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Access, replace};

    fn names(archive: &Archive) -> Vec<String> {
        let mut tar = tar::Archive::new(archive.content.as_slice());
        tar.entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect()
    }

    #[test]
    fn rules_are_honoured_and_hidden_files_kept() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("app");
        for (name, text) in [
            (".gitignore", "*.log\n"),
            (".dstackignore", "data/\n"),
            (".hidden", ""),
            ("a.log", ""),
            ("data/big", ""),
            ("src/main.py", "print()"),
            (".git/HEAD", ""),
        ] {
            replace(&root.join(name), text.as_bytes(), Access::Normal).unwrap();
        }
        let archive = pack(&root).unwrap();
        assert_eq!(
            names(&archive),
            [
                "app",
                "app/.dstackignore",
                "app/.gitignore",
                "app/.hidden",
                "app/src",
                "app/src/main.py"
            ]
        );
        assert_eq!(pack(&root).unwrap().hash, archive.hash);
    }

    #[test]
    fn a_single_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.txt");
        replace(&path, b"1", Access::Normal).unwrap();
        assert_eq!(names(&pack(&path).unwrap()), ["one.txt"]);
        assert!(pack(&folder.path().join("none")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_inside_and_become_files_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("app");
        replace(&root.join("sub/x"), b"x", Access::Normal).unwrap();
        replace(&folder.path().join("outside"), b"o", Access::Normal).unwrap();
        std::os::unix::fs::symlink(root.join("sub/x"), root.join("inner")).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("outer")).unwrap();
        let archive = pack(&root).unwrap();
        let mut tar = tar::Archive::new(archive.content.as_slice());
        let mut links = Vec::new();
        for entry in tar.entries().unwrap() {
            let entry = entry.unwrap();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            links.push((entry.path().unwrap().display().to_string(), link));
        }
        assert!(links.contains(&("app/inner".to_owned(), Some("sub/x".to_owned()))));
        assert!(links.contains(&("app/outer".to_owned(), None)));
    }
}
