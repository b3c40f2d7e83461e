//! Recorded exchanges of dstack 0.22.5 against our server: those listed in `matching.txt` match.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use dstack_tests::compat::{self, catalog::Catalog, setup};
use dstack_tests::{need, parts, skip};

/// `suite case` per line.
fn listed(suite: &str) -> BTreeSet<String> {
    let text = fs_err::read_to_string(parts::repository().join("tests/golden/matching.txt")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(of, _)| *of == suite)
        .map(|(_, case)| case.to_owned())
        .collect()
}

fn matches(suite: &str) {
    let listed = listed(suite);
    if listed.is_empty() {
        skip!("no exchange of suite {suite} is listed as matching yet");
    }
    let program = need!(parts::golden_server());
    let golden = parts::repository().join("tests/golden");
    let suites = compat::load(std::slice::from_ref(&golden)).unwrap();
    let catalog = Catalog::serve(&golden.join("fixtures/catalog")).unwrap();
    let server = setup::start(&program, suite, &catalog.url()).unwrap();
    let outcomes = compat::replay(suites.get(suite).unwrap(), &server.url(), |_| ());
    let broken: BTreeMap<_, _> = outcomes
        .iter()
        .filter(|outcome| listed.contains(&outcome.case) && !outcome.differences.is_empty())
        .map(|outcome| {
            (
                &outcome.case,
                outcome
                    .differences
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let replayed = outcomes
        .iter()
        .filter(|outcome| listed.contains(&outcome.case))
        .count();
    assert_eq!(
        replayed,
        listed.len(),
        "matching.txt names cases that do not exist"
    );
    assert!(broken.is_empty(), "these exchanges matched before:\n{broken:#?}");
}

#[test]
fn recorded_exchanges_match() {
    matches("api");
}

#[test]
fn recorded_exchanges_match_with_restricted_permissions() {
    matches("restricted");
}

#[test]
fn recorded_exchanges_match_with_exports() {
    matches("exports");
}

#[test]
fn recorded_exchanges_match_while_the_engine_runs() {
    matches("lifecycle");
}
