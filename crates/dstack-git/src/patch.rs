//! Patches as `git diff --binary` writes them: text and binary hunks, new, deleted, renamed and copied files, modes,
//! links, and the no-index diffs of untracked files that the CLI appends.
//!
//! Applied without git: all results are computed first, so that a patch that does not fit changes nothing.

mod apply;
mod binary;
#[cfg(test)]
mod git_tests;
mod parse;

use std::path::PathBuf;

pub(crate) use apply::apply;
pub(crate) use parse::parse;

/// Change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePatch {
    /// Where the content is taken from; `None`: a new file.
    pub(super) old: Option<PathBuf>,
    /// Where the result goes; `None`: the file is deleted.
    pub(super) new: Option<PathBuf>,
    /// Whether the old file stays where it is although the result goes elsewhere.
    pub(super) copied: bool,
    /// Mode before, as far as the patch says.
    pub(super) old_mode: Option<u32>,
    /// Mode after, as far as the patch says.
    pub(super) new_mode: Option<u32>,
    /// What changes inside.
    pub(super) change: Change,
}

/// Change of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Hunks of lines; none: the content stays.
    Text(Vec<Hunk>),
    /// The whole new content.
    Literal(Vec<u8>),
    /// Git's delta against the old content.
    Delta(Vec<u8>),
}

/// Some lines and what becomes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hunk {
    /// Number of the first old line, from 1; the line before the hunk when it has no old lines.
    pub(super) old_start: usize,
    /// Old lines, context included, each with its line end.
    pub(super) old: Vec<Vec<u8>>,
    /// New lines, context included, each with its line end.
    pub(super) new: Vec<Vec<u8>>,
}

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// Not what `git diff --binary` writes.
    #[error("line {line} of the diff: {reason}")]
    Malformed {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file is not as the patch expects it.
    #[error("{}: the diff does not fit ({reason})", path.display())]
    Mismatch {
        /// Path within the repo.
        path: PathBuf,
        /// What does not fit.
        reason: &'static str,
    },
    /// A path that leads out of the repo or into `.git`.
    #[error("{}: the diff may not change this path", path.display())]
    Forbidden {
        /// Path as in the patch.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot change {}", path.display())]
    Io {
        /// Path within the repo.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The commit of a submodule cannot be checked out.
    #[error("cannot check out the submodule {}", path.display())]
    Submodule {
        /// Path within the repo.
        path: PathBuf,
        /// What git said.
        #[source]
        source: git2::Error,
    },
}

/// Regular file, link, submodule.
pub(super) const TYPE_MASK: u32 = 0o170_000;
pub(super) const TYPE_LINK: u32 = 0o120_000;
pub(super) const TYPE_SUBMODULE: u32 = 0o160_000;
