//! All manifests of a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::read::read;

/// Longest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a directory has.
#[derive(Debug, Default)]
pub struct Folder {
    /// Manifests that can be used, in the order of the names of their files.
    pub manifests: Vec<Manifest>,
    /// What is wrong with others, for administrators: each begins with the file.
    pub problems: Vec<String>,
}

/// Reads all `*.yml` and `*.yaml` of a directory. One that is not there has none; what is wrong with a file hides no other.
pub fn read_folder(dir: &Path) -> Folder {
    let mut folder = Folder::default();
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut paths = match yaml_files(dir) {
        Ok(paths) => paths,
        Err(problem) => {
            folder.problems.extend(problem);
            return folder;
        }
    };
    paths.sort();
    for path in paths {
        match read_file(&path) {
            Ok(manifest) => match files.get(&manifest.kind) {
                Some(first) => folder.problems.push(format!(
                    "{}: {} describes the type `{}` already",
                    path.display(),
                    first.display(),
                    manifest.kind
                )),
                None => {
                    files.insert(manifest.kind.clone(), path);
                    folder.manifests.push(manifest);
                }
            },
            Err(problem) => folder.problems.push(problem),
        }
    }
    folder
}

/// # Errors
/// What is wrong with the directory; `None`: it is not there.
fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>, Option<String>> {
    let entries = fs_err::read_dir(dir).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => None,
        _ => Some(error.to_string()),
    })?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    Ok(paths.filter(is_yaml).collect())
}

fn read_file(path: &Path) -> Result<Manifest, String> {
    let size = fs_err::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!(
            "{}: it is longer than {MAX_FILE_BYTES} bytes",
            path.display()
        ));
    }
    let text = fs_err::read_to_string(path).map_err(|error| error.to_string())?;
    read(&text, &path.display().to_string()).map_err(|errors| errors.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../examples/lambda.yml");

    #[test]
    fn a_broken_file_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_folder(&dir.path().join("none")).problems.is_empty());
        for (name, text) in [
            ("a.yml", "manifest: 1\ntype: [\n"),
            ("b.yaml", EXAMPLE),
            ("c.yml", EXAMPLE),
            ("d.txt", "not read"),
        ] {
            fs_err::write(dir.path().join(name), text).unwrap();
        }
        let folder = read_folder(dir.path());
        assert_eq!(folder.manifests.len(), 1);
        assert_eq!(folder.manifests[0].kind, "lambda-manifest");
        let [broken, twice] = folder.problems.as_slice() else {
            panic!("{:?}", folder.problems);
        };
        assert!(
            broken.contains("a.yml:") && twice.contains("c.yml: ") && twice.contains("already"),
            "{twice}"
        );
    }
}
