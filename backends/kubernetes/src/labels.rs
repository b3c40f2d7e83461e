//! What objects carry, so that they are found again. Values have at most 63 characters, see
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>.

use std::collections::BTreeMap;

use dstack_compute::{Marks, Owner};

use crate::objects::Metadata;

/// Longest name: that of a service, with what is appended to those of pods taken off.
pub(crate) const POD_NAME_LENGTH: usize = 63 - SECRET_SUFFIX.len();
pub(crate) const SECRET_SUFFIX: &str = "-registry-auth";
pub(crate) const SERVICE_SUFFIX: &str = "-service";

pub(crate) const COMPONENT: &str = "app.kubernetes.io/name";
pub(crate) const INSTANCE: &str = "app.kubernetes.io/instance";
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGED_SELECTOR: &str = "app.kubernetes.io/managed-by=dstack";
/// Id of the project.
pub(crate) const PROJECT_ID: &str = "k8s.dstack.ai/project-id";

pub(crate) const JOB: &str = "dstack-job";
pub(crate) const JUMP: &str = "dstack-ssh-proxy";
pub(crate) const VOLUME: &str = "dstack-volume";
pub(crate) const GATEWAY: &str = "dstack-gateway";

pub(crate) type Labels = BTreeMap<String, String>;

/// Labels of what is made for a request: an object of this name.
pub(crate) fn of_request(component: &str, instance: &str, marks: &Marks, owner: &Owner) -> Labels {
    let tags = owner
        .tags
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()));
    let tags = tags.filter(|(key, value)| is_key(key) && is_value(value));
    let own = [
        (COMPONENT, component.to_owned()),
        (INSTANCE, instance.to_owned()),
        (MANAGED_BY, "dstack".to_owned()),
        ("k8s.dstack.ai/project", owner.project.clone()),
        ("k8s.dstack.ai/name", marks.name.clone()),
        ("k8s.dstack.ai/user", owner.user.clone()),
        (PROJECT_ID, marks.project.to_string()),
    ];
    let own = own
        .into_iter()
        .filter(|(_, value)| !value.is_empty() && is_value(value));
    let all = tags.chain(own).chain(marks.tags());
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Whether an object was made for a request with these marks.
pub(crate) fn is_for(marks: &Marks, found: &Metadata) -> bool {
    let mut own = marks.tags().into_iter();
    own.all(|(label, value)| found.labels.get(label) == Some(&value))
}

fn is_value(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && is_end(text.chars().next())
        && is_end(text.chars().last())
}

fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_domain = |text: &str| {
        !text.is_empty()
            && text.len() <= 253
            && text.split('.').all(|part| {
                !part.is_empty()
                    && part
                        .chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            })
    };
    !name.is_empty() && is_value(name) && prefix.is_none_or(is_domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_that_the_cluster_takes() {
        for (key, fits) in [
            ("team", true),
            ("a.b/c_d", true),
            ("", false),
            ("-a", false),
            ("A/b", false),
            ("a/", false),
            ("a b", false),
        ] {
            assert_eq!(is_key(key), fits, "{key}");
        }
        for (value, fits) in [("", true), ("v-1_x.y", true), ("v-", false), ("ü", false)] {
            assert_eq!(is_value(value), fits, "{value}");
        }
        assert!(!is_value(&"x".repeat(64)));
    }
}
