//! `docs/SPECIFICATION.md` names tests that exist: one that was given another name proves nothing where it is looked for.

use std::collections::BTreeSet;
use std::path::Path;

use crate::layout;

/// Where Rust sources with tests lie.
const SOURCES: [&str; 7] = ["backends", "crates", "emulators", "fuzz", "sim", "tests", "xtask"];

/// Names of functions and modules in the sources, and of their files and folders.
fn names_in_sources() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in SOURCES {
        add_names_below(&layout::root().join(folder), &mut names);
    }
    names
}

fn add_names_below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy();
        if path.is_dir() && stem != "target" {
            names.insert(stem.into_owned());
            add_names_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.insert(stem.into_owned());
            let source = fs_err::read_to_string(&path).unwrap();
            let words: Vec<&str> = source
                .split(|c: char| !is_of_name(c))
                .filter(|word| !word.is_empty())
                .collect();
            let named = words.windows(2).filter(|pair| matches!(pair, ["fn" | "mod", _]));
            names.extend(named.filter_map(|pair| Some((*pair.last()?).to_owned())));
        }
    }
}

const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The parts of the tests' paths that the page names, `a_flood_of_output_*` among them.
fn named_in(page: &str) -> BTreeSet<&str> {
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|quoted| quoted.contains("::"));
    let parts = paths.flat_map(|path| path.split([' ', ':']));
    parts
        .filter(|part| part.chars().all(|c| is_of_name(c) || c == '*'))
        .filter(|part| part.chars().any(is_of_name))
        .collect()
}

/// Whether the name is as the pattern says, in which `*` stands for anything.
fn matches(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).any(|at| left.get(at..).is_some_and(|left| matches(left, rest)))
        }),
    }
}

#[test]
fn every_test_that_the_specification_names_exists() {
    let page = fs_err::read_to_string(layout::root().join("docs/SPECIFICATION.md")).unwrap();
    let (named, names) = (named_in(&page), names_in_sources());
    assert!(named.len() > 100, "{named:?}");
    let is_there = |part: &&str| names.contains(*part) || names.iter().any(|name| matches(name, part));
    let missing: Vec<&&str> = named.iter().filter(|part| !is_there(part)).collect();
    assert_eq!(missing, Vec::<&&str>::new(), "no such test");
}

/// The page's tests are named by sentences, `page.test.ts a run is taken …` and then `…a token that is replaced`: these, whole or as far
/// as they are told.
fn sentences_in(page: &str) -> Vec<String> {
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut sentences = Vec::new();
    for quoted in text.split('`').skip(1).step_by(2) {
        let (_, sentence) = match quoted.split_once(".test.ts ") {
            Some(split) => split,
            None if quoted.contains(' ') => match quoted.split_once('…') {
                Some(("", sentence)) if !sentence.contains("::") => ("", sentence),
                _ => continue,
            },
            None => continue,
        };
        sentences.push(sentence.trim_end_matches(['…', ' ']).to_owned());
    }
    sentences
}

#[test]
fn every_test_of_the_page_that_the_specification_names_exists() {
    let page = fs_err::read_to_string(layout::root().join("docs/SPECIFICATION.md")).unwrap();
    let mut sources = String::new();
    for folder in ["ui/browser", "ui/test"] {
        for entry in fs_err::read_dir(layout::root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "ts") {
                sources.push_str(&fs_err::read_to_string(path).unwrap());
            }
        }
    }
    let named = sentences_in(&page);
    assert!(named.len() > 10, "{named:?}");
    let is_there = |name: &&String| name.split('…').all(|part| sources.contains(part.trim()));
    let missing: Vec<&String> = named.iter().filter(|name| !is_there(name)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "no such test");
}

#[test]
fn names_are_read_from_the_page() {
    let page = "| P1 | `sim clouds::*`, `dstack-shim volumes::a_disk_*_time`, `…::after::tests` | `a.md` |";
    assert_eq!(
        named_in(page),
        BTreeSet::from(["after", "a_disk_*_time", "clouds", "sim", "tests", "volumes"])
    );
    assert!(matches("a_disk_that_hangs_for_a_time", "a_disk_*_time"));
    assert!(!matches("a_disk_that_hangs", "a_disk_*_time"));
    let page = "`page.test.ts a run is\n  taken`, `…every route is open …`, `…::after::tests`";
    assert_eq!(sentences_in(page), ["a run is taken", "every route is open"]);
}
