//! Names of the groups of a task or a service.

use dstack_units::number::quote_list;

/// Something with a name of its own, or with its place in the list as its name.
pub(super) trait Group {
    /// `node`, `replica`: in messages.
    const KIND: &'static str;
    /// Returns the name of the group, to be read or set; `None` when it has none.
    fn name(&mut self) -> &mut Option<String>;
}

/// Gives nameless groups their place as name.
///
/// # Errors
/// There are no groups, or two of one name.
pub(super) fn check_groups<G: Group>(groups: Option<Vec<G>>) -> Result<Option<Vec<G>>, String> {
    let Some(mut groups) = groups else {
        return Ok(None);
    };
    if groups.is_empty() {
        return Err("`groups` cannot be an empty list".to_owned());
    }
    let names: Vec<String> = groups
        .iter_mut()
        .enumerate()
        .map(|(index, group)| group.name().get_or_insert_with(|| index.to_string()).clone())
        .collect();
    let duplicates = duplicates(names.iter().map(String::as_str));
    if duplicates.is_empty() {
        return Ok(Some(groups));
    }
    let kind = G::KIND;
    Err(format!(
        "Duplicate {kind} group names found: {}. Each {kind} group must have a unique name.",
        quote_list(&duplicates)
    ))
}

/// The names that are there more than once, each once, in the order of their first appearance.
pub(super) fn duplicates<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut counts = indexmap::IndexMap::<&str, usize>::new();
    for name in names {
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|(name, _)| name)
        .collect()
}
