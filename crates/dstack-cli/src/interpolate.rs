//! `${{ namespace.name }}` in configurations.

use std::fmt::Write as _;

const OPENING: &str = "${{";
const CLOSING: &str = "}}";

/// Why a text cannot be interpolated. Never shows values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpolateError {
    /// `${{` without `}}`.
    #[error("No pattern closing: {0}")]
    Unclosed(String),
    /// Not `namespace.name`.
    #[error("Illegal reference name: {0}")]
    Name(String),
    /// Names that stand for nothing.
    #[error("Failed to interpolate due to missing vars: {}", list(.0))]
    Missing(Vec<String>),
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// What a reference stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// This text.
    Text(String),
    /// It is resolved later, by the server: left as it is.
    Later,
    /// Nothing.
    Missing,
}

/// Replaces all references. `$$` stands for `$`.
///
/// # Errors
/// Broken or unknown references.
pub fn interpolate(text: &str, resolve: impl Fn(&str) -> Value) -> Result<String, InterpolateError> {
    let mut result = String::with_capacity(text.len());
    let mut missing = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, after) = rest.split_at(dollar);
        if after.starts_with("$$") {
            let _ = write!(result, "{before}$");
            rest = after.get(2..).unwrap_or_default();
            continue;
        }
        let Some(opening) = rest.find(OPENING) else { break };
        let (before, reference) = rest.split_at(opening);
        let closing = reference
            .find(CLOSING)
            .ok_or_else(|| InterpolateError::Unclosed(reference.to_owned()))?;
        let (whole, after) = reference.split_at(closing + CLOSING.len());
        let name = whole.trim_start_matches(OPENING).trim_end_matches(CLOSING).trim();
        result.push_str(before);
        match resolved(name, &resolve)? {
            Value::Text(value) => result.push_str(&value),
            Value::Later => result.push_str(whole),
            Value::Missing => missing.push(name.to_owned()),
        }
        rest = after;
    }
    result.push_str(rest);
    if missing.is_empty() {
        Ok(result)
    } else {
        Err(InterpolateError::Missing(missing))
    }
}

fn resolved(name: &str, resolve: &impl Fn(&str) -> Value) -> Result<Value, InterpolateError> {
    let namespace = name.split(['.', '[']).next().unwrap_or_default();
    let legal = if namespace == "groups" {
        is_groups_reference(name)
    } else {
        is_name(name)
    };
    if !legal {
        return Err(InterpolateError::Name(name.to_owned()));
    }
    Ok(resolve(name))
}

/// `[A-Za-z_][A-Za-z0-9_]*` twice, one dot between.
fn is_name(name: &str) -> bool {
    let part = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    matches!(name.split_once('.'), Some((namespace, rest)) if part(namespace) && part(rest))
}

/// `groups[i].nodes[j].IP_ADDRESS` or `groups[i].replicas[j].IP_ADDRESS`.
fn is_groups_reference(name: &str) -> bool {
    let index = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((group, rest)) = name
        .strip_prefix("groups[")
        .and_then(|rest| rest.split_once("]."))
    else {
        return false;
    };
    let member = rest
        .strip_prefix("nodes[")
        .or_else(|| rest.strip_prefix("replicas["));
    let Some((number, address)) = member.and_then(|rest| rest.split_once("].")) else {
        return false;
    };
    index(group) && index(number) && address == "IP_ADDRESS"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str) -> Value {
        match name {
            "run.args" => Value::Text("--fast".to_owned()),
            name if name.starts_with("secrets.") || name.starts_with("groups[") => Value::Later,
            _ => Value::Missing,
        }
    }

    #[test]
    fn references() {
        for (text, expected) in [
            ("train ${{ run.args }}!", "train --fast!"),
            ("$${{ run.args }}", "${{ run.args }}"),
            ("echo $HOME ${{run.args}}", "echo $HOME --fast"),
            ("${{ secrets.A }}", "${{ secrets.A }}"),
            (
                "${{ groups[0].nodes[1].IP_ADDRESS }}",
                "${{ groups[0].nodes[1].IP_ADDRESS }}",
            ),
            ("cost $", "cost $"),
            ("", ""),
        ] {
            assert_eq!(interpolate(text, resolve).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn refusals() {
        assert_eq!(
            interpolate("${{ env.X }} ${{ a.b }}", resolve)
                .unwrap_err()
                .to_string(),
            "Failed to interpolate due to missing vars: ['env.X', 'a.b']"
        );
        assert_eq!(
            interpolate("x ${{ a", resolve).unwrap_err(),
            InterpolateError::Unclosed("${{ a".to_owned())
        );
        for name in [
            "x",
            "a.b.c",
            "1.a",
            "a.",
            "groups[x].nodes[0].IP_ADDRESS",
            "secrets.a-b",
        ] {
            let text = format!("${{{{ {name} }}}}");
            assert_eq!(
                interpolate(&text, resolve).unwrap_err(),
                InterpolateError::Name(name.to_owned())
            );
        }
    }
}
