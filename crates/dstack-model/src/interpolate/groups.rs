//! Addresses of the nodes and replicas of groups: `${{ groups[0].nodes[1].IP_ADDRESS }}`.

use super::{InterpolateError, namespace_root};

/// What a group consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupMember {
    /// Nodes of a task.
    Nodes,
    /// Replicas of a service.
    Replicas,
}

impl GroupMember {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Replicas => "replicas",
        }
    }
}

/// A reference to the address of a node: `groups[group].nodes[index].IP_ADDRESS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupReference {
    /// The place of the group.
    pub group: usize,
    /// What it consists of.
    pub member: GroupMember,
    /// The place of the node or replica.
    pub index: usize,
}

impl std::fmt::Display for GroupReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "groups[{}].{}[{}].IP_ADDRESS",
            self.group,
            self.member.as_str(),
            self.index
        )
    }
}

impl GroupReference {
    fn parse(name: &str) -> Option<Self> {
        let rest = name.trim().strip_prefix("groups[")?;
        let (group, rest) = rest.split_once("].")?;
        let (member, rest) = rest.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        let number = |text: &str| {
            text.bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| text.parse().ok())?
        };
        let member = match member {
            "nodes" => GroupMember::Nodes,
            "replicas" => GroupMember::Replicas,
            _ => return None,
        };
        (rest == ".IP_ADDRESS").then_some(Self {
            group: number(group)?,
            member,
            index: number(index)?,
        })
    }
}

/// Whether a name is a whole and valid reference.
pub(super) fn is_group_reference(name: &str) -> bool {
    GroupReference::parse(name).is_some()
}

/// A reference in a text: what stands between the braces, and where the whole of it is.
struct Found<'t> {
    name: &'t str,
    start: usize,
    end: usize,
}

/// All `${{ … }}` that are not escaped and have no `}` inside.
fn references(text: &str) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text
        .get(from..)
        .and_then(|rest| rest.find("${{"))
        .map(|at| at.saturating_add(from))
    {
        let inside = start.saturating_add(3);
        from = inside;
        let escaped = text.get(..start).is_some_and(|before| before.ends_with('$'));
        let Some(length) = text.get(inside..).and_then(|rest| rest.find('}')) else {
            break;
        };
        let close = inside.saturating_add(length);
        let name = text.get(inside..close).unwrap_or("").trim();
        if !escaped && !name.is_empty() && text.get(close..).is_some_and(|rest| rest.starts_with("}}")) {
            let end = close.saturating_add(2);
            found.push(Found { name, start, end });
            from = end;
        }
    }
    found
}

/// Whether a text refers to groups, validly or not.
pub fn contains_group_reference(text: &str) -> bool {
    references(text)
        .iter()
        .any(|found| namespace_root(found.name) == "groups")
}

/// All valid references to groups.
pub fn find_group_references(text: &str) -> Vec<GroupReference> {
    references(text)
        .iter()
        .filter_map(|found| GroupReference::parse(found.name))
        .collect()
}

/// Checks that all references to groups are valid and of the right kind.
///
/// # Errors
/// The first one that is not.
pub fn check_group_references(text: &str, expected: GroupMember) -> Result<(), InterpolateError> {
    for found in references(text) {
        if namespace_root(found.name) != "groups" {
            continue;
        }
        match GroupReference::parse(found.name) {
            None => return Err(InterpolateError::IllegalName(found.name.to_owned())),
            Some(reference) if reference.member != expected => {
                return Err(InterpolateError::IllegalName(reference.to_string()));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Checks that all references are to something that exists; `sizes` has a number for each group.
///
/// # Errors
/// The first one that is not.
pub fn check_group_bounds(text: &str, sizes: &[usize], member: GroupMember) -> Result<(), InterpolateError> {
    for reference in find_group_references(text)
        .into_iter()
        .filter(|reference| reference.member == member)
    {
        let size = sizes.get(reference.group);
        if size.is_some_and(|size| reference.index < *size) {
            continue;
        }
        let reason = if member == GroupMember::Replicas && size == Some(&0) {
            "this group scales to zero, so no replica is guaranteed at start"
        } else {
            "out of range"
        };
        return Err(InterpolateError::OutOfRange {
            reference: reference.to_string(),
            reason,
        });
    }
    Ok(())
}

/// Fills in addresses; `addresses` has a list for each group, with empty texts where an address is not known yet.
///
/// # Errors
/// Invalid references, members that do not exist, addresses that are not known.
pub fn interpolate_groups(
    text: &str,
    addresses: &[Vec<String>],
    member: GroupMember,
) -> Result<String, InterpolateError> {
    check_group_references(text, member)?;
    let sizes: Vec<usize> = addresses.iter().map(Vec::len).collect();
    check_group_bounds(text, &sizes, member)?;
    let mut filled = String::with_capacity(text.len());
    let mut from = 0;
    for found in references(text) {
        let Some(reference) = GroupReference::parse(found.name) else {
            continue;
        };
        let address = addresses
            .get(reference.group)
            .and_then(|group| group.get(reference.index));
        let Some(address) = address.filter(|address| !address.is_empty()) else {
            return Err(InterpolateError::NoAddress(reference.to_string()));
        };
        filled.push_str(text.get(from..found.start).unwrap_or(""));
        filled.push_str(address);
        from = found.end;
    }
    filled.push_str(text.get(from..).unwrap_or(""));
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(text: &str) -> Result<String, String> {
        let addresses = [
            vec!["10.0.0.1".to_owned(), String::new()],
            vec!["10.0.0.3".to_owned()],
        ];
        interpolate_groups(text, &addresses, GroupMember::Nodes).map_err(|error| error.to_string())
    }

    #[test]
    fn fills_in() {
        assert_eq!(
            fill("a ${{ groups[0].nodes[0].IP_ADDRESS }}:1").unwrap(),
            "a 10.0.0.1:1"
        );
        assert_eq!(
            fill("${{groups[1].nodes[0].IP_ADDRESS}} ${{ env.X }}").unwrap(),
            "10.0.0.3 ${{ env.X }}"
        );
        assert_eq!(
            fill("$${{ groups[9].nodes[0].IP_ADDRESS }}").unwrap(),
            "$${{ groups[9].nodes[0].IP_ADDRESS }}"
        );
    }

    #[test]
    fn refuses() {
        for (text, message) in [
            (
                "${{ groups[0].nodes[1].IP_ADDRESS }}",
                "IP not available for groups[0].nodes[1].IP_ADDRESS",
            ),
            (
                "${{ groups[0].nodes[2].IP_ADDRESS }}",
                "Invalid reference groups[0].nodes[2].IP_ADDRESS: out of range",
            ),
            (
                "${{ groups[2].nodes[0].IP_ADDRESS }}",
                "Invalid reference groups[2].nodes[0].IP_ADDRESS: out of range",
            ),
            (
                "${{ groups[0].replicas[0].IP_ADDRESS }}",
                "Illegal reference name: groups[0].replicas[0].IP_ADDRESS",
            ),
            (
                "${{ groups[0].nodes[0].IP }}",
                "Illegal reference name: groups[0].nodes[0].IP",
            ),
        ] {
            assert_eq!(fill(text), Err(message.to_owned()));
        }
        let error = check_group_bounds(
            "${{ groups[0].replicas[0].IP_ADDRESS }}",
            &[0],
            GroupMember::Replicas,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "Invalid reference groups[0].replicas[0].IP_ADDRESS: this group scales to zero, so no replica is guaranteed at start"
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in "[${} groups\\[\\]0-9.nodesIP_ADDRESS]{0,60}") {
            let _ = fill(&text);
            let _ = contains_group_reference(&text);
        }
    }
}
