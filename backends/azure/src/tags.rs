//! Tags of what is made. Those that come first win: whose it is, then what the backend's configuration says, then what users say.

use std::collections::BTreeMap;

use dstack_compute::{Marks, Owner};
use dstack_model::common::Tags;

/// Most tags that a resource may have, and their longest keys and values ("Use tags to organize your Azure resources").
const MAX_TAGS: usize = 50;
const MAX_KEY: usize = 512;
const MAX_VALUE: usize = 256;

/// Most tags in the configuration of a backend.
const MAX_CONFIGURED: usize = 25;

/// All tags of what is made for a request.
pub(crate) fn of_machine(
    marks: &Marks,
    owner: &Owner,
    configured: Option<&Tags>,
) -> BTreeMap<String, String> {
    let mut tags = of_shared(None);
    tags.insert("dstack_project".to_owned(), cut(&owner.project));
    tags.insert("dstack_name".to_owned(), cut(&marks.name));
    if !owner.user.is_empty() {
        tags.insert("dstack_user".to_owned(), cut(&owner.user));
    }
    tags.extend(marks.tags().map(|(key, value)| (key.to_owned(), value)));
    add(&mut tags, configured.into_iter().flatten().chain(&owner.tags));
    tags
}

/// Of what machines share.
pub(crate) fn of_shared(configured: Option<&Tags>) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    add_shared(&mut tags, configured);
    tags
}

/// As [`of_shared`], to those that somebody has set, which win.
pub(crate) fn add_shared(tags: &mut BTreeMap<String, String>, configured: Option<&Tags>) {
    let own = ("owner".to_owned(), "dstack".to_owned());
    add(tags, [(&own.0, &own.1)].into_iter());
    add(tags, configured.into_iter().flatten());
}

fn add<'a>(tags: &mut BTreeMap<String, String>, more: impl Iterator<Item = (&'a String, &'a String)>) {
    for (key, value) in more {
        // Keys differ by more than case.
        if tags.keys().any(|known| known.eq_ignore_ascii_case(key)) {
            continue;
        }
        if tags.len() >= MAX_TAGS || problem(key, value).is_some() {
            tracing::warn!(key, "Azure takes no such tag, or no more tags: it is left out");
            continue;
        }
        tags.insert(key.clone(), value.clone());
    }
}

/// What is wrong with the tags of a configuration, for users.
pub(crate) fn configured_problem(configured: &Tags) -> Option<String> {
    if configured.len() > MAX_CONFIGURED {
        return Some(format!("`tags` has more than {MAX_CONFIGURED} tags"));
    }
    configured.iter().find_map(|(key, value)| problem(key, value))
}

fn problem(key: &str, value: &str) -> Option<String> {
    let is_key =
        (1..=MAX_KEY).contains(&key.chars().count()) && !key.contains(['<', '>', '&', '\\', '%', '?', '/']);
    match (is_key, value.chars().count() <= MAX_VALUE) {
        (false, _) => Some(format!("`tags`: Azure takes no tag with the key {key:?}")),
        (_, false) => Some(format!("`tags`: Azure takes no tag with the value of {key:?}")),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_VALUE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_override_users_and_nobody_whose_it_is() {
        let marks = Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: "train-0".to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        };
        let text = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            owned.collect()
        };
        let owner = Owner {
            project: "main".to_owned(),
            user: String::new(),
            tags: text(&[("TEAM", "users"), ("Dstack_Key", "x"), ("a/b", "x"), ("own", "1")])
                .into_iter()
                .collect(),
        };
        let configured: Tags = text(&[("team", "admins")]).into_iter().collect();
        let tags = of_machine(&marks, &owner, Some(&configured));
        assert_eq!(tags["team"], "admins");
        assert_eq!(tags["own"], "1");
        assert_eq!(tags["dstack_key"], marks.key.to_string());
        assert_eq!(tags.len(), 7, "{tags:?}");
    }
}
