//! Labels of what is made. Those that come first win: whose it is, then what the backend's configuration says, then what users say.

use std::collections::HashMap;

use dstack_compute::{Marks, OwnedMark, Owner};
use dstack_model::common::Tags;

use crate::messages::Metadata;

/// Most tags in the configuration of a backend (dstack 0.22.5).
const MAX_CONFIGURED: usize = 25;

/// Most labels of a thing. Nebius tells no number.
const MAX_LABELS: usize = 64;

const LONGEST: usize = 63;

pub(crate) fn labels(marks: &Marks, owner: &Owner, configured: Option<&Tags>) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> = marks
        .tags()
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect();
    let own = [
        ("owner", "dstack"),
        ("dstack_project", &owner.project),
        ("dstack_name", &marks.name),
        ("dstack_user", &owner.user),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_ascii_lowercase()));
    let configured = configured.into_iter().flatten();
    let wanted = configured.chain(&owner.tags);
    let wanted = wanted.map(|(key, value)| (key.clone(), value.clone()));
    for (key, value) in own.into_iter().chain(wanted) {
        if labels.len() < MAX_LABELS && is_label(&key, &value) {
            labels.entry(key).or_insert(value);
        }
    }
    labels
}

/// What is wrong with the tags of a configuration, for users.
pub(crate) fn configured_problem(configured: &Tags) -> Option<String> {
    if configured.len() > MAX_CONFIGURED {
        return Some(format!("`tags` has more than {MAX_CONFIGURED} tags"));
    }
    let wrong = configured.iter().find(|(key, value)| !is_label(key, value));
    wrong.map(|(key, _)| {
        format!("`tags`: {key:?} is no label: lower-case letters, digits, `_` and `-`, {LONGEST} at most, and a letter first")
    })
}

/// Nebius tells no rules; these are those of dstack 0.22.5.
fn is_label(key: &str, value: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let fits = |text: &str| text.len() <= LONGEST && text.bytes().all(is_plain);
    key.starts_with(|first: char| first.is_ascii_lowercase()) && fits(key) && fits(value)
}

/// Whose a thing is.
pub(crate) fn mark(metadata: &Metadata) -> Option<OwnedMark> {
    OwnedMark::of_tags(|name| metadata.labels.get(name).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_override_users_and_nobody_whose_it_is() {
        let marks = Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: "Train 0".to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        };
        let pairs = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            pairs.collect()
        };
        let owner = Owner {
            project: "Main".to_owned(),
            user: String::new(),
            tags: pairs(&[
                ("team", "users"),
                ("dstack_key", "stolen"),
                ("Bad", "x"),
                ("bad", "ü"),
            ]),
        };
        let configured: Tags = [("team".to_owned(), "admins".to_owned())].into_iter().collect();
        let labels = labels(&marks, &owner, Some(&configured));
        let mut told: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        told.sort_unstable();
        assert_eq!(
            told,
            [
                ("dstack_installation", "0f8fad5b-d9cb-469f-a165-70867728950e"),
                ("dstack_key", "01956fd2-6b2c-7ad1-8f3e-0123456789ab"),
                ("dstack_project", "main"),
                ("dstack_user", ""),
                ("owner", "dstack"),
                ("team", "admins"),
            ]
        );
        let metadata = Metadata {
            labels,
            ..Metadata::default()
        };
        assert!(mark(&metadata).unwrap().is_for(&marks));
    }

    #[test]
    fn tags_that_are_no_labels_are_refused() {
        for (key, value, is_good) in [
            ("team", "a_b-1", true),
            ("1", "", false),
            ("a", "A", false),
            ("", "", false),
        ] {
            let tags: Tags = [(key.to_owned(), value.to_owned())].into_iter().collect();
            assert_eq!(configured_problem(&tags).is_none(), is_good, "{key}={value}");
        }
        let many = (0..26).map(|at| (format!("t{at}"), String::new()));
        assert!(configured_problem(&many.collect()).is_some());
    }
}
