//! Labels of what is made. Those that come first win: whose it is, then what the backend's configuration says, then what users say.

use std::collections::BTreeMap;

use dstack_compute::{Marks, Owner};
use dstack_model::common::Tags;

/// Most labels of a thing ("Requirements for labels").
const MOST: usize = 64;

/// Most labels in the configuration of a backend.
const MOST_CONFIGURED: usize = 25;

const LONGEST: usize = 63;

/// Of all that dstack makes, as dstack 0.22.5 has it too.
pub(crate) const OURS: &str = "labels.owner = \"dstack\"";

/// All labels of what is made for a request.
pub(crate) fn labels(marks: &Marks, owner: &Owner, configured: Option<&Tags>) -> BTreeMap<String, String> {
    let own = [
        ("owner", "dstack".to_owned()),
        ("dstack_project", plain(&owner.project)),
        ("dstack_name", plain(&marks.name)),
        ("dstack_user", plain(&owner.user)),
    ];
    let mut labels: BTreeMap<String, String> = own
        .into_iter()
        .chain(marks.tags())
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    for (key, value) in configured.into_iter().flatten().chain(&owner.tags) {
        if labels.contains_key(key) {
            continue;
        }
        if labels.len() >= MOST || !is_label(key, value) {
            tracing::warn!(
                key,
                "Google takes no such label, or no more labels: it is left out"
            );
            continue;
        }
        labels.insert(key.clone(), value.clone());
    }
    labels
}

/// What is wrong with the labels of a configuration, for users.
pub(crate) fn configured_problem(configured: &Tags) -> Option<String> {
    if configured.len() > MOST_CONFIGURED {
        return Some(format!(
            "Maximum number of tags exceeded. Up to {MOST_CONFIGURED} tags is allowed."
        ));
    }
    let wrong = configured.iter().find(|(key, value)| !is_label(key, value));
    wrong.map(|(key, _)| {
        format!(
            "Invalid resource labels (`{key}`). See labels restrictions: \
             https://cloud.google.com/compute/docs/labeling-resources#requirements"
        )
    })
}

fn is_label(key: &str, value: &str) -> bool {
    key.bytes().next().is_some_and(|first| first.is_ascii_lowercase()) && fits(key) && fits(value)
}

fn fits(text: &str) -> bool {
    text.len() <= LONGEST && text.bytes().all(is_plain)
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
}

/// As much of a text as a label may have.
fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let chars = lower
        .chars()
        .map(|c| if c.is_ascii() && is_plain(c as u8) { c } else { '_' });
    chars.take(LONGEST).collect()
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
        let tags = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let owner = Owner {
            project: "Main Größe".to_owned(),
            user: String::new(),
            tags: tags(&[
                ("team", "users"),
                ("own", ""),
                ("dstack_key", "stolen"),
                ("Bad", "x"),
                ("also", "ü"),
            ]),
        };
        let configured: Tags = [("team".to_owned(), "admins".to_owned())].into_iter().collect();
        let expected = tags(&[
            ("owner", "dstack"),
            ("dstack_project", "main_gr__e"),
            ("dstack_name", "train-0"),
            ("dstack_installation", "0f8fad5b-d9cb-469f-a165-70867728950e"),
            ("dstack_key", "01956fd2-6b2c-7ad1-8f3e-0123456789ab"),
            ("team", "admins"),
            ("own", ""),
        ]);
        assert_eq!(labels(&marks, &owner, Some(&configured)), expected);
        assert_eq!(configured_problem(&configured), None);
        for bad in [("Team", "x"), ("team", "X"), ("1", "x"), ("", "x")] {
            let bad: Tags = [(bad.0.to_owned(), bad.1.to_owned())].into_iter().collect();
            assert!(configured_problem(&bad).is_some(), "{bad:?}");
        }
    }
}
