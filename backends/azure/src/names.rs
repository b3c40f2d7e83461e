//! Names of the configuration that are parts of addresses, and those of what is made for all machines (as in dstack 0.22.5).

/// Whether a text can be a name in Azure ("Naming rules and restrictions for Azure resources"), and one part of an address.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.()".contains(c);
    (1..=90).contains(&text.chars().count()) && text.chars().all(is_plain) && !text.ends_with('.')
}

/// The parts of `group/name` or `group/name/part`; `None`: it is none.
pub(crate) fn parts<const N: usize>(text: &str) -> Option<[&str; N]> {
    let parts: Vec<&str> = text.split('/').collect();
    let parts: [&str; N] = parts.try_into().ok()?;
    parts.iter().all(|part| is_name(part)).then_some(parts)
}

/// Of the resource group that is made for a project.
pub(crate) fn group_of(project: &str) -> String {
    format!("dstack-{project}")
}

/// Of what all machines of a region share: its network, subnet and security groups.
pub(crate) fn shared(group: &str, region: &str, what: &str) -> String {
    format!("{group}-{region}-{what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_addresses() {
        assert_eq!(parts::<2>("my_group/net-1"), Some(["my_group", "net-1"]));
        assert_eq!(parts::<3>("g/n/s"), Some(["g", "n", "s"]));
        for wrong in ["", "g", "g/", "g/n/s", "g/..", "g/n?x", "g/n%2f"] {
            assert_eq!(parts::<2>(wrong), None, "{wrong}");
        }
        assert_eq!(shared("g", "eastus", "default-subnet"), "g-eastus-default-subnet");
    }
}
