//! Values in messages, as dstack 0.22.5 writes them.

use std::collections::BTreeSet;

/// `True` or `False`.
pub(crate) const fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The fields with commas, or `<none>`.
pub(crate) fn list_or_none(fields: &[String]) -> String {
    if fields.is_empty() {
        "<none>".to_owned()
    } else {
        fields.join(", ")
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}

/// Prints names as Python prints a list: `['a', 'b']`.
pub fn python_list(names: &[String]) -> String {
    format!("[{}]", quoted(names.iter()))
}

/// `{'a', 'b'}`, sorted.
pub(crate) fn python_set<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: BTreeSet<&String> = names.into_iter().collect();
    format!("{{{}}}", quoted(names.into_iter()))
}
