//! Whether the files that describe backends can be used.

use std::path::{Path, PathBuf};

use dstack_model::diagnosis::{DiagnosisCheck, Finding};

use super::{Report, counted, finding};

/// Most problems of one file that are told: what comes first is often the cause of the rest.
const MAX_TOLD: usize = 5;

/// The files that describe backends, as the server read them when it started.
#[derive(Debug, Clone, Default)]
pub struct BackendFiles {
    /// Where they lie.
    pub dir: PathBuf,
    /// How many are used.
    pub used: usize,
    /// Those that are not.
    pub left_out: Vec<LeftOut>,
}

/// A file that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Where it lies.
    pub file: PathBuf,
    /// What is wrong with it, at least one, in the order of the file.
    pub problems: Vec<Wrong>,
}

/// Something that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The number of the line, from 1; `None`: it is about the whole file.
    pub line: Option<usize>,
    /// What it is.
    pub cause: String,
}

pub(super) fn check(files: &BackendFiles) -> Report {
    let mut report = Report::default();
    let looked_at = match files.used + files.left_out.len() {
        0 => "there are none".to_owned(),
        count => format!(
            "{} in {}, as read at the start",
            counted(count, "file"),
            files.dir.display()
        ),
    };
    report.looked_at(DiagnosisCheck::BackendFiles, looked_at);
    let found = files.left_out.iter().map(|left| left_out(left, &files.dir));
    report.findings.extend(found);
    report
}

fn left_out(left: &LeftOut, dir: &Path) -> Finding {
    let name = left.file.display();
    let (what, remedy) = match left.file == dir {
        true => (
            "directory",
            "No backend is known that its files describe: see that the server may read it, and start the server again".to_owned(),
        ),
        false => (
            "file",
            format!(
                "The backend that it describes is not known by it. Mend the file, which `dstack backend check --offline {name}` looks at \
                 by itself, or take it away; then start the server again"
            ),
        ),
    };
    let subject = format!("{what} {name}");
    finding(
        DiagnosisCheck::BackendFiles,
        &subject,
        told(&left.problems),
        &remedy,
    )
}

/// The first problems, each with its line.
fn told(problems: &[Wrong]) -> String {
    let texts = problems.iter().take(MAX_TOLD).map(|wrong| match wrong.line {
        Some(line) => format!("line {line}: {}", wrong.cause),
        None => wrong.cause.clone(),
    });
    let mut texts: Vec<String> = texts.collect();
    match problems.len().saturating_sub(MAX_TOLD) {
        0 => {}
        more => texts.push(format!("and {}", counted(more, "more problem"))),
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_problems_the_first_are_told() {
        let wrong = |line: usize| Wrong {
            line: Some(line),
            cause: format!("`x{line}` is odd"),
        };
        assert_eq!(
            told(&[wrong(2), wrong(10)]),
            "line 2: `x2` is odd; line 10: `x10` is odd"
        );
        let many: Vec<Wrong> = (1..=7).map(wrong).collect();
        let text = told(&many);
        assert!(
            text.ends_with("line 5: `x5` is odd; and 2 more problems"),
            "{text}"
        );
        let whole = Wrong {
            line: None,
            cause: "it is too long".to_owned(),
        };
        assert_eq!(told(&[whole]), "it is too long");
    }
}
