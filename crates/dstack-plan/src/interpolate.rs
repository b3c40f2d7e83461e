//! `${{ namespace.name }}` (dstack 0.22.5: configuration language §12).

use crate::PlanError;

/// Replaces every reference that `lookup` knows; `$$` stands for `$`.
///
/// Errors: unclosed, not of the form `namespace.name`, unknown.
pub fn interpolate(text: &str, lookup: &dyn Fn(&str, &str) -> Option<String>) -> Result<String, PlanError> {
    let mut out = String::with_capacity(text.len());
    let mut missing = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(rest.get(..at).unwrap_or_default());
        rest = rest.get(at..).unwrap_or_default();
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${{") {
            let (reference, after) = after
                .split_once("}}")
                .ok_or_else(|| PlanError::new(format!("No pattern closing: {text}")))?;
            let reference = reference.trim();
            let (namespace, name) = parse(reference)?;
            match lookup(namespace, name) {
                Some(value) => out.push_str(&value),
                None => missing.push(format!("'{reference}'")),
            }
            rest = after;
        } else {
            out.push('$');
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    if missing.is_empty() {
        return Ok(out);
    }
    Err(PlanError::new(format!(
        "Failed to interpolate due to missing vars: [{}]",
        missing.join(", ")
    )))
}

fn parse(reference: &str) -> Result<(&str, &str), PlanError> {
    let legal = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    match reference.split_once('.') {
        Some((namespace, name)) if legal(namespace) && legal(name) => Ok((namespace, name)),
        _ => Err(PlanError::new(format!("Illegal reference name: {reference}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(namespace: &str, name: &str) -> Option<String> {
        (namespace == "secrets" && name == "TOKEN").then(|| "t0k".to_owned())
    }

    #[test]
    fn references_are_replaced_and_dollars_kept() {
        assert_eq!(
            interpolate("a ${{ secrets.TOKEN }} $HOME $$x", &known).unwrap(),
            "a t0k $HOME $x"
        );
        assert_eq!(
            interpolate("$${{ secrets.TOKEN }}", &known).unwrap(),
            "${{ secrets.TOKEN }}"
        );
    }

    #[test]
    fn unknown_and_malformed_ones_are_errors() {
        let missing = interpolate("${{ secrets.X }}", &known).unwrap_err();
        assert_eq!(
            missing.0,
            "Failed to interpolate due to missing vars: ['secrets.X']"
        );
        assert!(interpolate("${{ secrets.X", &known).is_err());
        assert!(interpolate("${{ a.b.c }}", &known).is_err());
    }
}
