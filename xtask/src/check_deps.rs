//! `cargo xtask check-deps`: the crates depend on one another as the table says, and the documents list them so.

mod table;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::build::cargo;
use crate::exec::run_quietly;
use crate::layout;
use table::{BESIDE, Crate, FENCED, OF_CLOUDS, PRODUCT};

const TABLE: &str = "xtask/src/check_deps/table.rs";

#[derive(clap::Args)]
pub(crate) struct Args {}

/// Prints what is wrong; the exit code is 0 when nothing is.
pub(crate) fn run(_: &Args) -> Result<i32> {
    let problems = problems()?;
    for problem in &problems {
        println!("error: {problem}");
    }
    if problems.is_empty() {
        println!("all crates depend on one another as {TABLE} says");
    }
    Ok(i32::from(!problems.is_empty()))
}

/// Everything that differs from the table: each with the rule that it breaks.
pub(crate) fn problems() -> Result<Vec<String>> {
    let metadata = run_quietly(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let edges = edges(&metadata)?;
    let readme = fs_err::read_to_string(layout::root().join("crates/README.md"))?;
    let manifest = fs_err::read_to_string(layout::root().join("Cargo.toml"))?;
    let mut problems = of_table(PRODUCT);
    problems.extend(of_edges(&edges));
    problems.extend(of_fenced(&edges.fenced));
    problems.extend(of_readme(&readme));
    problems.extend(of_manifest(&manifest));
    Ok(problems)
}

/// The packages of the workspace, and what each depends on in it.
#[derive(Debug, Default)]
struct Edges {
    packages: BTreeSet<String>,
    edges: Vec<Edge>,
    /// To crates of others that only some may use.
    fenced: Vec<Edge>,
}

#[derive(Debug)]
struct Edge {
    from: String,
    to: String,
    in_tests: bool,
}

fn edges(metadata: &str) -> Result<Edges> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("cargo metadata names no packages")?;
    let mut found = Edges {
        packages: packages.iter().map(|package| text(&package["name"])).collect(),
        edges: Vec::new(),
        fenced: Vec::new(),
    };
    for package in packages {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let edge = Edge {
                from: text(&package["name"]),
                to: text(&dependency["name"]),
                in_tests: dependency["kind"] == "dev",
            };
            if found.packages.contains(&edge.to) {
                found.edges.push(edge);
            } else if FENCED.iter().any(|fenced| fenced.name == edge.to) {
                found.fenced.push(edge);
            }
        }
    }
    Ok(found)
}

fn position(name: &str) -> Option<usize> {
    PRODUCT.iter().position(|krate| krate.name == name)
}

/// The row of a crate, or that of all crates whose names begin so.
fn find(name: &str) -> Option<&'static Crate> {
    let exact = PRODUCT.iter().chain(BESIDE).find(|krate| krate.name == name);
    exact.or_else(|| OF_CLOUDS.iter().find(|krate| is_named(krate.name, name)))
}

/// Whether a row, or an entry of one, means this crate: `dstack-backend-*` means all that begin so.
fn is_named(row: &str, name: &str) -> bool {
    match row.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => row == name,
    }
}

/// The table keeps to its own order.
fn of_table(rows: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, krate) in rows.iter().enumerate() {
        for used in krate.may_use {
            let is_above = rows.iter().take(at).any(|above| above.name == *used);
            if !is_above && !OF_CLOUDS.iter().any(|of_clouds| of_clouds.name == *used) {
                problems.push(format!(
                    "{TABLE}: {} may use {used}, which does not stand above it",
                    krate.name
                ));
            }
        }
    }
    problems
}

fn of_edges(found: &Edges) -> Vec<String> {
    let mut problems = Vec::new();
    for package in &found.packages {
        if find(package).is_none() {
            problems.push(format!(
                "{package} is not in the table: add a row with what it may depend on to {TABLE}"
            ));
        }
    }
    for krate in PRODUCT.iter().chain(BESIDE) {
        if !found.packages.contains(krate.name) {
            problems.push(format!("{TABLE}: there is no crate {} any more", krate.name));
        }
    }
    for edge in &found.edges {
        if let Some(krate) = find(&edge.from)
            && !is_allowed(krate, edge)
        {
            problems.push(format!(
                "{} must not depend on {}{}: it {}. It may depend on: {}",
                edge.from,
                edge.to,
                if edge.in_tests { " in its tests" } else { "" },
                krate.rule,
                krate.may_use.join(", ")
            ));
        }
    }
    problems
}

/// Also tests keep to these.
fn of_fenced(edges: &[Edge]) -> Vec<String> {
    let mut problems = Vec::new();
    for edge in edges {
        let Some(fenced) = FENCED.iter().find(|fenced| fenced.name == edge.to) else {
            continue;
        };
        if !fenced.only_in.contains(&edge.from.as_str()) {
            problems.push(format!(
                "{} must not depend on {}: {}. Only these may: {}",
                edge.from,
                edge.to,
                fenced.rule,
                fenced.only_in.join(", ")
            ));
        }
    }
    problems
}

/// Tests may also use doubles, and all crates above their own.
fn is_allowed(krate: &Crate, edge: &Edge) -> bool {
    if krate.may_use.iter().any(|used| is_named(used, &edge.to)) {
        return true;
    }
    if !edge.in_tests {
        return false;
    }
    match (position(&edge.from), position(&edge.to)) {
        (Some(from), Some(to)) => to < from,
        (Some(_), None) => true,
        _ => false,
    }
}

/// `crates/README.md` lists the crates of the product, in the order of the table.
fn of_readme(readme: &str) -> Vec<String> {
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| ["));
    let listed: Vec<&str> = rows.filter_map(|row| row.split(']').next()).collect();
    differences("crates/README.md", &listed)
}

/// `Cargo.toml` lists those of them that others depend on, in the same order.
fn of_manifest(manifest: &str) -> Vec<String> {
    let paths = manifest
        .lines()
        .filter_map(|line| line.split_once("path = \"crates/"));
    let listed: Vec<&str> = paths.filter_map(|(_, rest)| rest.split('"').next()).collect();
    let mut sorted = listed.clone();
    sorted.sort_by_key(|name| position(name));
    if listed == sorted {
        return Vec::new();
    }
    vec![format!(
        "Cargo.toml: the order of our own crates is not that of {TABLE}: {}",
        sorted.join(", ")
    )]
}

fn differences(file: &str, listed: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let expected: Vec<&str> = PRODUCT.iter().map(|krate| krate.name).collect();
    for missing in expected.iter().filter(|name| !listed.contains(name)) {
        problems.push(format!("{file}: {missing} is missing"));
    }
    for unknown in listed.iter().filter(|name| !expected.contains(name)) {
        problems.push(format!("{file}: there is no crate {unknown}"));
    }
    if problems.is_empty() && listed != expected {
        problems.push(format!(
            "{file}: the order is not that of {TABLE}: {}",
            expected.join(", ")
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str, in_tests: bool) -> Edges {
        let packages = PRODUCT.iter().chain(BESIDE).map(|krate| krate.name.to_owned());
        Edges {
            packages: packages.collect(),
            edges: vec![Edge {
                from: from.to_owned(),
                to: to.to_owned(),
                in_tests,
            }],
            fenced: Vec::new(),
        }
    }

    #[test]
    fn an_edge_that_the_table_does_not_have_is_named_with_its_rule() {
        assert_eq!(
            of_edges(&edge("dstack-plan", "dstack-store", false)),
            [
                "dstack-plan must not depend on dstack-store: it decides, and does nothing: no store, no cloud, no clock. It may \
                 depend on: dstack-units, dstack-system, dstack-decode, dstack-model, dstack-agent-api"
            ]
        );
        assert_eq!(of_edges(&edge("dstack-cli", "dstack-server", false)).len(), 1);
        assert_eq!(of_edges(&edge("dstack-engine", "dstack-plan", false)), [""; 0]);
    }

    #[test]
    fn tests_may_use_doubles_and_what_stands_above() {
        assert_eq!(
            of_edges(&edge("dstack-logs", "dstack-store-doubles", true)),
            [""; 0]
        );
        assert_eq!(
            of_edges(&edge("dstack-logs", "dstack-store-doubles", false)).len(),
            1
        );
        assert_eq!(of_edges(&edge("dstack-agent", "dstack-agent-api", true)), [""; 0]);
        assert_eq!(of_edges(&edge("dstack-plan", "dstack-engine", true)).len(), 1);
    }

    #[test]
    fn what_is_fenced_is_used_where_it_may_be_also_in_tests() {
        let of = |package: &str| {
            let metadata = format!(
                r#"{{"packages": [{{"name": "{package}", "dependencies": [{{"name": "sqlx", "kind": "dev"}}]}}]}}"#
            );
            of_fenced(&edges(&metadata).unwrap().fenced)
        };
        assert_eq!(of("dstack-store"), [""; 0]);
        assert_eq!(
            of("dstack-server"),
            [
                "dstack-server must not depend on sqlx: statements in SQL stand in one crate, and tests have \
                 `dstack_store::raw`. Only these may: dstack-store"
            ]
        );
    }

    #[test]
    fn every_crate_has_a_row_and_every_row_a_crate() {
        let mut found = edge("dstack-engine", "dstack-plan", false);
        found.packages.insert("dstack-new".to_owned());
        found.packages.remove("dstack-logs");
        let problems = of_edges(&found);
        assert!(
            problems[0].starts_with("dstack-new is not in the table"),
            "{problems:?}"
        );
        assert!(
            problems[1].ends_with("there is no crate dstack-logs any more"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_row_uses_what_stands_above_it_only() {
        assert_eq!(of_table(PRODUCT), [""; 0]);
        let mut upside_down = PRODUCT.to_vec();
        upside_down.swap(0, 1);
        assert!(!of_table(&upside_down).is_empty());
    }

    #[test]
    fn lists_have_all_crates_in_order() {
        let row = |name: &str| format!("| [{name}]({name}) | what it is |\n");
        let all: Vec<String> = PRODUCT.iter().map(|krate| row(krate.name)).collect();
        assert_eq!(of_readme(&all.concat()), [""; 0]);
        assert_eq!(
            of_readme(&all[1..].concat()),
            ["crates/README.md: dstack-units is missing"]
        );
        let mut swapped = all.clone();
        swapped.swap(0, 1);
        assert!(of_readme(&swapped.concat())[0].contains("the order is not that of"));
        let more = all.concat() + &row("dstack-gone");
        assert_eq!(
            of_readme(&more),
            ["crates/README.md: there is no crate dstack-gone"]
        );
        let line = |name: &str| format!("{name} = {{ path = \"crates/{name}\" }}\n");
        assert_eq!(
            of_manifest(&(line("dstack-units") + &line("dstack-plan"))),
            [""; 0]
        );
        assert_eq!(
            of_manifest(&(line("dstack-plan") + &line("dstack-units"))).len(),
            1
        );
    }

    #[test]
    fn edges_are_read_from_what_cargo_prints() {
        let metadata = r#"{"packages": [
            {"name": "a", "dependencies": [{"name": "b", "kind": null}, {"name": "serde", "kind": null}]},
            {"name": "b", "dependencies": [{"name": "a", "kind": "dev"}]}
        ]}"#;
        let found = edges(metadata).unwrap();
        let found: Vec<(&str, &str, bool)> = found
            .edges
            .iter()
            .map(|edge| (&*edge.from, &*edge.to, edge.in_tests))
            .collect();
        assert_eq!(found, [("a", "b", false), ("b", "a", true)]);
    }

    #[test]
    fn this_workspace_keeps_to_the_table() {
        assert_eq!(problems().unwrap(), [""; 0]);
    }
}
