//! All manifests of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use dstack_decode::yaml::{ConfigError, ConfigErrors, Position, Spans};

use crate::manifest::Manifest;
use crate::read::read_with_spans;

/// Longest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a directory has.
#[derive(Debug, Default)]
pub struct Folder {
    /// What can be used, in the order of the names of the files.
    pub described: Vec<Described>,
    /// What is wrong with others, in the same order.
    pub problems: Vec<FileProblem>,
}

/// A file that can be used.
#[derive(Debug)]
pub struct Described {
    /// Where it lies.
    pub file: PathBuf,
    /// What it says.
    pub manifest: Manifest,
}

/// Something for which a file, or the directory, is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblem {
    /// Where it lies.
    pub file: PathBuf,
    /// Where in it, as far as it is about a place.
    pub position: Option<Position>,
    /// What is wrong, for administrators.
    pub cause: String,
}

impl FileProblem {
    /// Of a file as a whole.
    pub fn of_file(file: &Path, cause: impl fmt::Display) -> Self {
        Self {
            file: file.to_owned(),
            position: None,
            cause: cause.to_string(),
        }
    }

    fn at(file: &Path, error: &ConfigError) -> Self {
        Self {
            file: file.to_owned(),
            position: Some(error.position),
            cause: error.cause().to_string(),
        }
    }
}

impl fmt::Display for FileProblem {
    /// As compilers do: `FILE:LINE:COLUMN: CAUSE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(position) = self.position {
            write!(f, "{}:{}:", position.line, position.column)?;
        }
        write!(f, " {}", self.cause)
    }
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
            Ok((manifest, spans)) => match files.get(&manifest.kind) {
                Some(first) => folder.problems.extend(twice(&path, &spans, &manifest, first)),
                None => {
                    files.insert(manifest.kind.clone(), path.clone());
                    folder.described.push(Described { file: path, manifest });
                }
            },
            Err(problems) => folder.problems.extend(problems),
        }
    }
    folder
}

/// That another file describes the same type.
fn twice(path: &Path, spans: &Spans, manifest: &Manifest, first: &Path) -> Vec<FileProblem> {
    let text = format!("{} describes `{}` already", first.display(), manifest.kind);
    of_errors(path, &ConfigErrors::at("", spans, "type", text))
}

fn of_errors(path: &Path, errors: &ConfigErrors) -> Vec<FileProblem> {
    let errors = errors.errors.iter();
    errors.map(|error| FileProblem::at(path, error)).collect()
}

/// # Errors
/// What is wrong with the directory; `None`: it is not there.
fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>, Option<FileProblem>> {
    let entries = fs_err::read_dir(dir).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => None,
        _ => Some(FileProblem::of_file(dir, error)),
    })?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    Ok(paths.filter(is_yaml).collect())
}

/// # Errors
/// All that is wrong with the file.
fn read_file(path: &Path) -> Result<(Manifest, Spans), Vec<FileProblem>> {
    let whole = |cause: &dyn fmt::Display| vec![FileProblem::of_file(path, cause)];
    let size = fs_err::metadata(path).map_err(|error| whole(&error))?.len();
    if size > MAX_FILE_BYTES {
        return Err(whole(&format_args!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    let text = fs_err::read_to_string(path).map_err(|error| whole(&error))?;
    read_with_spans(&text, "").map_err(|errors| of_errors(path, &errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../examples/lambda.yml");

    #[test]
    fn a_broken_file_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(read_folder(&at("none")).problems.is_empty());
        let built_in = EXAMPLE.replacen("type: lambda-manifest", "type: lambda", 1);
        for (name, text) in [
            ("a.yml", "manifest: 1\ntype: [\n"),
            ("b.yaml", EXAMPLE),
            ("c.yml", EXAMPLE),
            ("d.txt", "not read"),
            ("e.yml", &built_in),
            ("f.yml", &" ".repeat(1 + (1 << 20))),
        ] {
            fs_err::write(at(name), text).unwrap();
        }
        let folder = read_folder(dir.path());
        let [used] = folder.described.as_slice() else {
            panic!("{:?}", folder.described);
        };
        assert_eq!(
            (&*used.manifest.kind, &used.file),
            ("lambda-manifest", &at("b.yaml"))
        );
        let [broken, twice, built_in, long] = folder.problems.as_slice() else {
            panic!("{:?}", folder.problems);
        };
        assert!(broken.position.is_some_and(|position| position.line >= 2));
        let line_of_type = EXAMPLE
            .lines()
            .position(|line| line.starts_with("type:"))
            .unwrap()
            + 1;
        for (problem, name, cause) in [
            (twice, "c.yml", "b.yaml describes `lambda-manifest` already"),
            (
                built_in,
                "e.yml",
                "`type`: `lambda` is a type that this version has by itself",
            ),
        ] {
            let told = problem.to_string();
            let place = format!("{}:{line_of_type}:", at(name).display());
            assert!(told.starts_with(&place) && told.contains(cause), "{told}");
        }
        assert_eq!(
            long.to_string(),
            format!("{}: it is longer than 1048576 bytes", at("f.yml").display())
        );
    }
}
