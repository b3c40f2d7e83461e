//! What the files of the administrator's directory describe.

use dstack_backends::manifest::{FileProblem, Folder, Manifest, read_folder};
use dstack_model::backends::BackendType;
use dstack_server::Settings;
use dstack_server::doctor::{BackendFiles, LeftOut, Wrong};

/// Reads them, and what is to be known of them all. What is wrong with one is told, and hides no other. The types of the others are known
/// from now on.
pub(super) fn read(settings: &Settings) -> (Vec<Manifest>, BackendFiles) {
    let dir = settings.manifests_dir();
    let Folder {
        described,
        mut problems,
    } = read_folder(&dir);
    let mut manifests = Vec::new();
    for found in described {
        match BackendType::register(&found.manifest.kind) {
            Ok(_) => manifests.push(found.manifest),
            Err(error) => problems.push(FileProblem::of_file(&found.file, error)),
        }
    }
    for problem in &problems {
        tracing::warn!(dir = %dir.display(), "A file that describes a backend is left out until the server starts again: {problem}");
    }
    let files = BackendFiles {
        dir,
        used: manifests.len(),
        left_out: by_file(problems),
    };
    (manifests, files)
}

/// Those of one file stand side by side.
fn by_file(problems: Vec<FileProblem>) -> Vec<LeftOut> {
    let mut files: Vec<LeftOut> = Vec::new();
    for FileProblem {
        file,
        position,
        cause,
    } in problems
    {
        let wrong = Wrong {
            line: position.map(|position| position.line),
            cause,
        };
        match files.last_mut().filter(|last| last.file == file) {
            Some(last) => last.problems.push(wrong),
            None => files.push(LeftOut {
                file,
                problems: vec![wrong],
            }),
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn problems_of_a_file_are_told_together() {
        let of = |file: &str, cause: &str| FileProblem::of_file(Path::new(file), cause);
        let files = by_file(vec![of("a", "1"), of("a", "2"), of("b", "3")]);
        let counts: Vec<(&str, usize)> = files
            .iter()
            .map(|left| (left.file.to_str().unwrap(), left.problems.len()))
            .collect();
        assert_eq!(counts, [("a", 2), ("b", 1)]);
    }
}
