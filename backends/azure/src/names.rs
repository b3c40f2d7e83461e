//! Names of the configuration that are parts of addresses, and those of what is made for all machines (as in dstack 0.22.5).

use sha2::{Digest as _, Sha256};

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

/// Of an id, `/subscriptions/s/resourceGroups/group/providers/p/type/name`: group, type and name.
pub(crate) fn of_id(id: &str) -> Option<[&str; 3]> {
    let parts: Vec<&str> = id.split('/').collect();
    match parts.as_slice() {
        ["", _, _, _, group, _, _, kind, name] => Some([group, kind, name]),
        _ => None,
    }
}

/// Of the resource group that is made for a project.
pub(crate) fn group_of(project: &str) -> String {
    format!("dstack-{project}")
}

/// Of what all machines of a region share: its network, subnet and security groups. Groups may have longer names than what is in them, and
/// characters that are not allowed there ("Naming rules and restrictions for Azure resources"): then the name has a hash of the group's.
pub(crate) fn shared(group: &str, region: &str, what: &str) -> String {
    let longest = match what.ends_with("-network") {
        true => 64,
        false => 80,
    };
    let name = format!("{group}-{region}-{what}");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() <= longest
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
    {
        return name;
    }
    let hash = Sha256::digest(group.to_lowercase());
    let code: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let end = format!("{code}-{region}-{what}");
    let plain = group.chars().filter(|c| is_plain(*c));
    let plain: String = plain.skip_while(|c| !c.is_ascii_alphanumeric()).collect();
    let room = longest.saturating_sub(end.len() + 1).min(plain.len());
    format!(
        "{}-{end}",
        plain.get(..room).filter(|plain| !plain.is_empty()).unwrap_or("g")
    )
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
        let long = "a-resource-group-with-a-name-of-some-length";
        assert_eq!(
            shared(long, "germanywestcentral", "default-network"),
            "a-resource-group-wit-03f4f207-germanywestcentral-default-network"
        );
        assert_eq!(
            shared(long, "eastus", "default-security-group"),
            "a-resource-group-with-a-name-of-some-length-eastus-default-security-group"
        );
        let longest = "x".repeat(90);
        for group in ["_(große)-Gruppe", "(ß)", &longest] {
            for what in ["default-network", "default-subnet", "gateway-security-group"] {
                let name = shared(group, "germanywestcentral", what);
                assert!(name.len() <= 80 && name.ends_with(what), "{name}");
                assert!(name.starts_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
                assert_ne!(name, shared("other", "germanywestcentral", what));
            }
        }
    }
}
