//! Tags of what is made. Those that come first win: whose it is, then what the backend's configuration says, then what users say.

use dstack_compute::{Marks, Owner};
use dstack_model::common::Tags;

/// Most tags that a resource may have ("Tag your Amazon EC2 resources").
const MAX_TAGS: usize = 50;

/// Most tags in the configuration of a backend.
const MAX_CONFIGURED: usize = 25;

const MAX_KEY: usize = 128;

const MAX_VALUE: usize = 256;

/// All tags of what is made for a request.
pub(crate) fn tags(marks: &Marks, owner: &Owner, configured: Option<&Tags>) -> Vec<(String, String)> {
    let mut tags = vec![
        ("Name".to_owned(), cut(&marks.name)),
        ("owner".to_owned(), "dstack".to_owned()),
        ("dstack_project".to_owned(), cut(&owner.project)),
        ("dstack_name".to_owned(), cut(&marks.name)),
    ];
    if !owner.user.is_empty() {
        tags.push(("dstack_user".to_owned(), cut(&owner.user)));
    }
    tags.extend(marks.tags().map(|(key, value)| (key.to_owned(), value)));
    let configured = configured.into_iter().flatten();
    for (key, value) in configured.chain(&owner.tags) {
        if tags.iter().any(|(known, _)| known == key) {
            continue;
        }
        if tags.len() >= MAX_TAGS || problem(key, value).is_some() {
            tracing::warn!(key, "AWS takes no such tag, or no more tags: it is left out");
            continue;
        }
        tags.push((key.clone(), value.clone()));
    }
    tags
}

/// What is wrong with the tags of a configuration, for users.
pub(crate) fn configured_problem(configured: &Tags) -> Option<String> {
    if configured.len() > MAX_CONFIGURED {
        return Some(format!("`tags` has more than {MAX_CONFIGURED} tags"));
    }
    configured.iter().find_map(|(key, value)| problem(key, value))
}

/// ("Tag naming limits and requirements", AWS General Reference.)
fn problem(key: &str, value: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_alphanumeric() || " _.:/=-+@".contains(c);
    let fits = |text: &str, longest: usize| text.chars().count() <= longest && text.chars().all(is_allowed);
    let is_key = !key.is_empty() && !key.to_ascii_lowercase().starts_with("aws:") && fits(key, MAX_KEY);
    match (is_key, fits(value, MAX_VALUE)) {
        (false, _) => Some(format!("AWS takes no tag with the key {key:?}")),
        (_, false) => Some(format!("AWS takes no tag with the value of {key:?}")),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_VALUE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks {
            installation: "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap(),
            key: "01956fd2-6b2c-7ad1-8f3e-0123456789ab".parse().unwrap(),
            name: "train-0".to_owned(),
            project: "0f8fad5b-d9cb-469f-a165-708677289500".parse().unwrap(),
        }
    }

    #[test]
    fn administrators_override_users_and_nobody_whose_it_is() {
        let owner = Owner {
            project: "main".to_owned(),
            user: "somebody".to_owned(),
            tags: [
                ("team", "users"),
                ("own", "1"),
                ("dstack_key", "stolen"),
                ("bad", "ü€"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        };
        let configured: Tags = [("team".to_owned(), "admins".to_owned())].into_iter().collect();
        let tags = tags(&marks(), &owner, Some(&configured));
        let expected = [
            ("Name", "train-0"),
            ("owner", "dstack"),
            ("dstack_project", "main"),
            ("dstack_name", "train-0"),
            ("dstack_user", "somebody"),
            ("dstack_installation", "0f8fad5b-d9cb-469f-a165-70867728950e"),
            ("dstack_key", "01956fd2-6b2c-7ad1-8f3e-0123456789ab"),
            ("team", "admins"),
            ("own", "1"),
        ];
        let tags: Vec<(&str, &str)> = tags.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(tags, expected);
    }

    #[test]
    fn there_are_fifty_at_most() {
        let many = (0..60).map(|at| (format!("t{at:02}"), String::new()));
        let owner = Owner {
            tags: many.clone().collect(),
            ..Owner::default()
        };
        assert_eq!(tags(&marks(), &owner, None).len(), 50);
        assert!(configured_problem(&many.clone().take(25).collect()).is_none());
        assert!(configured_problem(&many.take(26).collect()).is_some());
    }

    #[test]
    fn tags_that_aws_refuses_are_refused_before() {
        for (key, value, is_good) in [
            ("team", "a b.c:/=-+@_", true),
            ("aws:team", "", false),
            ("", "", false),
            ("a*b", "", false),
            ("team", "a;b", false),
            (&*"k".repeat(129), "", false),
            ("team", &*"v".repeat(257), false),
        ] {
            let tags: Tags = [(key.to_owned(), value.to_owned())].into_iter().collect();
            assert_eq!(configured_problem(&tags).is_none(), is_good, "{key}={value}");
        }
    }
}
