//! Applying parsed patches to a working tree.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use git2::build::CheckoutBuilder;
use git2::{Oid, Repository};

use super::binary::apply_delta;
use super::{Change, FilePatch, Hunk, PatchError, TYPE_LINK, TYPE_MASK, TYPE_SUBMODULE};

/// A file as it will be.
struct Written {
    path: PathBuf,
    content: Vec<u8>,
    mode: u32,
    created: bool,
}

/// Applies all patches to the tree at `root`. Files are changed only when every patch fits.
pub(crate) fn apply(root: &Path, patches: &[FilePatch]) -> Result<(), PatchError> {
    let mut removed = BTreeSet::new();
    let mut written = Vec::new();
    let mut submodules = Vec::new();
    for patch in patches {
        for path in patch.old.iter().chain(&patch.new) {
            check_name(path)?;
        }
        let mode = patch.new_mode.or(patch.old_mode);
        if mode.is_some_and(|mode| mode & TYPE_MASK == TYPE_SUBMODULE) {
            submodules.extend(submodule_commit(patch)?);
            continue;
        }
        if let Some(file) = result(root, patch)? {
            written.push(file);
        }
        if let Some(old) = patch
            .old
            .as_ref()
            .filter(|old| !patch.copied && patch.new.as_ref() != Some(old))
        {
            removed.insert(old.clone());
        }
    }
    // All removals first: a file may take the place of a directory, or of itself with another type.
    for path in removed {
        remove(root, &path).map_err(|source| PatchError::Io { path, source })?;
    }
    for file in written {
        write(root, &file)?;
    }
    submodules
        .iter()
        .try_for_each(|(path, commit)| checkout_submodule(root, path, *commit))
}

/// Paths of a patch are below the tree and not in `.git`.
fn check_name(path: &Path) -> Result<(), PatchError> {
    let allowed = |component: Component<'_>| match component {
        Component::Normal(name) => !name.eq_ignore_ascii_case(".git"),
        _ => false,
    };
    if path.components().next().is_some() && path.components().all(allowed) {
        return Ok(());
    }
    Err(PatchError::Forbidden {
        path: path.to_owned(),
    })
}

/// Paths of a patch lead through no link.
fn check_parents(root: &Path, path: &Path) -> Result<(), PatchError> {
    let is_link =
        |parent: &Path| fs_err::symlink_metadata(root.join(parent)).is_ok_and(|found| found.is_symlink());
    if path
        .ancestors()
        .skip(1)
        .filter(|parent| !parent.as_os_str().is_empty())
        .any(is_link)
    {
        return Err(PatchError::Forbidden {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// What the patch makes of the old file; `None` when it deletes it.
fn result(root: &Path, patch: &FilePatch) -> Result<Option<Written>, PatchError> {
    let shown = patch
        .new
        .as_ref()
        .or(patch.old.as_ref())
        .cloned()
        .unwrap_or_default();
    let (content, found_mode) = match &patch.old {
        Some(old) => read(root, old)?,
        None => (Vec::new(), None),
    };
    let mismatch = |reason| PatchError::Mismatch {
        path: shown.clone(),
        reason,
    };
    let content = match &patch.change {
        Change::Text(hunks) => apply_hunks(&content, hunks).ok_or_else(|| mismatch("its lines differ"))?,
        Change::Literal(content) => content.clone(),
        Change::Delta(delta) => {
            apply_delta(&content, delta).ok_or_else(|| mismatch("its old content differs"))?
        }
    };
    let Some(new) = &patch.new else {
        // A literal or delta for a deletion is empty too.
        return if content.is_empty() {
            Ok(None)
        } else {
            Err(mismatch("the deleted file has more lines"))
        };
    };
    Ok(Some(Written {
        path: new.clone(),
        content,
        mode: patch
            .new_mode
            .or(patch.old_mode)
            .or(found_mode)
            .unwrap_or(0o100_644),
        created: patch.old.is_none(),
    }))
}

/// Content (the target, for a link) and mode of a file.
fn read(root: &Path, path: &Path) -> Result<(Vec<u8>, Option<u32>), PatchError> {
    check_parents(root, path)?;
    let full = root.join(path);
    let read = || -> io::Result<_> {
        let found = fs_err::symlink_metadata(&full)?;
        let content = if found.is_symlink() {
            fs_err::read_link(&full)?.into_os_string().into_vec()
        } else {
            fs_err::read(&full)?
        };
        Ok((content, Some(found.mode())))
    };
    read().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => PatchError::Mismatch {
            path: path.to_owned(),
            reason: "the file does not exist",
        },
        _ => PatchError::Io {
            path: path.to_owned(),
            source,
        },
    })
}

/// Applies hunks exactly where they say. When the tree was checked out with CRLF line ends (`.gitattributes`) and the
/// diff has none, it is applied to the text with plain ones.
fn apply_hunks(content: &[u8], hunks: &[Hunk]) -> Option<Vec<u8>> {
    if hunks.is_empty() {
        return Some(content.to_vec());
    }
    apply_lines(content, hunks).or_else(|| {
        let plain = replace(content, b"\r\n", b"\n");
        if plain.len() == content.len() {
            return None;
        }
        apply_lines(&plain, hunks).map(|text| replace(&text, b"\n", b"\r\n"))
    })
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(from) {
            replaced.extend_from_slice(to);
            rest = after;
        } else {
            replaced.push(*first);
            rest = after;
        }
    }
    replaced
}

fn apply_lines(content: &[u8], hunks: &[Hunk]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let mut new = Vec::with_capacity(content.len());
    let mut done = 0;
    for hunk in hunks {
        let start = if hunk.old.is_empty() {
            hunk.old_start
        } else {
            hunk.old_start.checked_sub(1)?
        };
        let end = start.checked_add(hunk.old.len())?;
        let kept = lines.get(done..start)?;
        if lines.get(start..end)? != hunk.old.iter().map(Vec::as_slice).collect::<Vec<_>>() {
            return None;
        }
        kept.iter().for_each(|line| new.extend_from_slice(line));
        hunk.new.iter().for_each(|line| new.extend_from_slice(line));
        done = end;
    }
    lines
        .get(done..)?
        .iter()
        .for_each(|line| new.extend_from_slice(line));
    Some(new)
}

/// Removes a file and the directories it leaves empty, as git does.
fn remove(root: &Path, path: &Path) -> io::Result<()> {
    fs_err::remove_file(root.join(path))?;
    for parent in path.ancestors().skip(1) {
        if parent.as_os_str().is_empty() || fs_err::remove_dir(root.join(parent)).is_err() {
            break;
        }
    }
    Ok(())
}

fn write(root: &Path, file: &Written) -> Result<(), PatchError> {
    // Only now: a link may have given way to a directory.
    check_parents(root, &file.path)?;
    let full = root.join(&file.path);
    if file.created && fs_err::symlink_metadata(&full).is_ok() {
        return Err(PatchError::Mismatch {
            path: file.path.clone(),
            reason: "the new file exists already",
        });
    }
    let write = || -> io::Result<()> {
        if let Some(parent) = full.parent() {
            fs_err::create_dir_all(parent)?;
        }
        match fs_err::symlink_metadata(&full) {
            // Never through a link; and a file that is being executed cannot be written to.
            Ok(found) if !found.is_dir() => fs_err::remove_file(&full)?,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if file.mode & TYPE_MASK == TYPE_LINK {
            let target = OsString::from_vec(file.content.clone());
            return fs_err::os::unix::fs::symlink(target, &full);
        }
        fs_err::write(&full, &file.content)?;
        fs_err::set_permissions(&full, std::fs::Permissions::from_mode(file.mode & 0o777))
    };
    write().map_err(|source| PatchError::Io {
        path: file.path.clone(),
        source,
    })
}

/// The commit a submodule is moved to; `None` when only its content differs, which a diff does not carry.
fn submodule_commit(patch: &FilePatch) -> Result<Option<(PathBuf, Oid)>, PatchError> {
    let path = patch
        .new
        .as_ref()
        .or(patch.old.as_ref())
        .cloned()
        .unwrap_or_default();
    let Change::Text(hunks) = &patch.change else {
        return Ok(None);
    };
    let side = |lines: fn(&Hunk) -> &Vec<Vec<u8>>| {
        let line = hunks.first().and_then(|hunk| lines(hunk).first())?;
        let text = std::str::from_utf8(line)
            .ok()?
            .trim_end()
            .strip_prefix("Subproject commit ")?;
        Some((
            text.trim_end_matches("-dirty").to_owned(),
            text.ends_with("-dirty"),
        ))
    };
    let (old, new) = (side(|hunk| &hunk.old), side(|hunk| &hunk.new));
    if new.as_ref().is_some_and(|(_, dirty)| *dirty) {
        tracing::warn!(submodule = %path.display(), "uncommitted changes in a submodule are not part of the diff");
    }
    match (old, new) {
        (Some((old, _)), Some((new, _))) if old != new => {
            let commit = Oid::from_str(&new).map_err(|source| PatchError::Submodule {
                path: path.clone(),
                source,
            })?;
            Ok(Some((path, commit)))
        }
        (Some(_), Some(_)) => Ok(None),
        _ => Err(PatchError::Mismatch {
            path,
            reason: "a submodule is added or removed; commit and push that first",
        }),
    }
}

fn checkout_submodule(root: &Path, path: &Path, commit: Oid) -> Result<(), PatchError> {
    let checkout = || -> Result<(), git2::Error> {
        let repo = Repository::open(root.join(path))?;
        if repo.find_commit(commit).is_err() {
            repo.find_remote("origin")?
                .fetch(&[commit.to_string()], None, None)?;
        }
        repo.set_head_detached(commit)?;
        repo.checkout_head(Some(CheckoutBuilder::new().force()))
    };
    checkout().map_err(|source| PatchError::Submodule {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn patched(before: &[(&str, &str)], diff: &str) -> Result<Vec<(String, String)>, PatchError> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in before {
            fs_err::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
            fs_err::write(root.path().join(name), text).unwrap();
        }
        apply(root.path(), &parse(diff.as_bytes())?)?;
        let mut files = Vec::new();
        let mut todo = vec![root.path().to_owned()];
        while let Some(directory) = todo.pop() {
            for entry in fs_err::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    todo.push(entry.path());
                } else {
                    let name = entry
                        .path()
                        .strip_prefix(root.path())
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned();
                    files.push((name, fs_err::read_to_string(entry.path()).unwrap()));
                }
            }
        }
        files.sort();
        Ok(files)
    }

    const HEAD: &str = "diff --git a/f b/f\n--- a/f\n+++ b/f\n";

    fn expect(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn hunks_apply_exactly_where_they_say() {
        let diff = format!("{HEAD}@@ -2 +2 @@\n-b\n+B\n@@ -3,0 +4,2 @@\n+d\n+e\n");
        assert_eq!(
            patched(&[("f", "a\nb\nc\n")], &diff).unwrap(),
            expect(&[("f", "a\nB\nc\nd\ne\n")])
        );
        for before in ["a\nx\nc\n", "b\n", ""] {
            assert!(
                matches!(patched(&[("f", before)], &diff), Err(PatchError::Mismatch { .. })),
                "{before:?}"
            );
        }
        assert!(matches!(patched(&[], &diff), Err(PatchError::Mismatch { .. })));
    }

    #[test]
    fn windows_line_ends_are_kept() {
        let diff = format!("{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n+B\n");
        assert_eq!(
            patched(&[("f", "a\r\nb\r\n")], &diff).unwrap(),
            expect(&[("f", "a\r\nB\r\n")])
        );
    }

    #[test]
    fn a_patch_that_does_not_fit_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs_err::write(root.path().join("f"), "a\n").unwrap();
        let diff =
            format!("{HEAD}@@ -1 +1 @@\n-a\n+b\ndiff --git a/g b/g\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n");
        assert!(apply(root.path(), &parse(diff.as_bytes()).unwrap()).is_err());
        assert_eq!(fs_err::read_to_string(root.path().join("f")).unwrap(), "a\n");
    }

    #[test]
    fn files_and_directories_change_places_and_names_rotate() {
        let diff = "diff --git a/d b/d\nnew file mode 100644\n--- /dev/null\n+++ b/d\n@@ -0,0 +1 @@\n+file\n\
                    diff --git a/d/x b/d/x\ndeleted file mode 100644\n--- a/d/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
                    diff --git a/p b/q\nsimilarity index 100%\nrename from p\nrename to q\n\
                    diff --git a/q b/p\nsimilarity index 100%\nrename from q\nrename to p\n";
        let before = [("d/x", "x\n"), ("p", "was p\n"), ("q", "was q\n")];
        assert_eq!(
            patched(&before, diff).unwrap(),
            expect(&[("d", "file\n"), ("p", "was q\n"), ("q", "was p\n")])
        );
    }

    #[test]
    fn paths_outside_the_tree_are_refused() {
        for name in ["../out", "/etc/x", ".git/hooks/x", "sub/.GIT/config", "link/x"] {
            let root = tempfile::tempdir().unwrap();
            fs_err::os::unix::fs::symlink("/tmp", root.path().join("link")).unwrap();
            let patch = FilePatch {
                old: None,
                new: Some(PathBuf::from(name)),
                copied: false,
                old_mode: None,
                new_mode: None,
                change: Change::Literal(b"x".to_vec()),
            };
            assert!(
                matches!(apply(root.path(), &[patch]), Err(PatchError::Forbidden { .. })),
                "{name}"
            );
        }
    }
}
