//! `config.yml` may name files instead of carrying their content.

use serde_json::{Map, Value};

/// A file named in a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// Neither the content nor a file.
    #[error("either `{file}` or `{content}` must be specified")]
    Missing {
        /// Field for the file's name.
        file: &'static str,
        /// Field for the content.
        content: &'static str,
    },
    /// It cannot be read.
    #[error("no such file: {0}")]
    Unreadable(String),
    /// It does not have the form it should have.
    #[error("{0} is not a file of credentials of this cloud")]
    Malformed(String),
}

/// Fills in the content of files that a backend's configuration names. What is not a configuration is left alone:
/// reading it names the problem.
///
/// # Errors
/// A file is missing or cannot be read.
pub fn resolve_files(config: &mut Value, read: &dyn Fn(&str) -> Option<String>) -> Result<(), FileProblem> {
    let Some(map) = config.as_object_mut() else {
        return Ok(());
    };
    let kind = map.get("type").and_then(Value::as_str).map(str::to_owned);
    match kind.as_deref() {
        Some("gcp") => match map.get_mut("creds").and_then(Value::as_object_mut) {
            Some(creds) if has(creds, "type", "service_account") => fill(creds, "filename", "data", read),
            _ => Ok(()),
        },
        Some("kubernetes") => match map.get_mut("kubeconfig").and_then(Value::as_object_mut) {
            Some(kubeconfig) => fill(kubeconfig, "filename", "data", read),
            None => Ok(()),
        },
        Some("nebius") => match map.get_mut("creds").and_then(Value::as_object_mut) {
            Some(creds) => nebius(creds, read),
            None => Ok(()),
        },
        Some("slurm") => {
            let clusters = map.get_mut("clusters").and_then(Value::as_array_mut);
            for cluster in clusters.into_iter().flatten() {
                if let Some(key) = cluster.get_mut("private_key").and_then(Value::as_object_mut) {
                    fill(key, "path", "content", read)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn has(map: &Map<String, Value>, key: &str, text: &str) -> bool {
    map.get(key).and_then(Value::as_str) == Some(text)
}

fn fill(
    map: &mut Map<String, Value>,
    file: &'static str,
    content: &'static str,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<(), FileProblem> {
    if map.get(content).is_some_and(|content| !content.is_null()) {
        return Ok(());
    }
    let name = map.get(file).and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Err(FileProblem::Missing { file, content });
    }
    let text = read(name).ok_or_else(|| FileProblem::Unreadable(name.to_owned()))?;
    map.insert(content.to_owned(), Value::String(text));
    Ok(())
}

/// A file of `{"subject-credentials": {"sub", "kid", "private-key"}}`, or one with the private key alone.
fn nebius(creds: &mut Map<String, Value>, read: &dyn Fn(&str) -> Option<String>) -> Result<(), FileProblem> {
    let name = creds.get("filename").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return fill(creds, "private_key_file", "private_key_content", read);
    }
    let name = name.to_owned();
    let text = read(&name).ok_or_else(|| FileProblem::Unreadable(name.clone()))?;
    let file: Value = serde_json::from_str(&text).unwrap_or_default();
    for (field, place) in [
        ("service_account_id", "/subject-credentials/sub"),
        ("public_key_id", "/subject-credentials/kid"),
        ("private_key_content", "/subject-credentials/private-key"),
    ] {
        let value = file
            .pointer(place)
            .ok_or_else(|| FileProblem::Malformed(name.clone()))?;
        creds.insert(field.to_owned(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(name: &str) -> Option<String> {
        match name {
            "~/key.json" => Some("{}".to_owned()),
            "nebius.json" => {
                Some(json!({"subject-credentials": {"sub": "s", "kid": "k", "private-key": "p"}}).to_string())
            }
            _ => None,
        }
    }

    #[test]
    fn named_files_are_read() {
        let mut gcp = json!({"type": "gcp", "creds": {"type": "service_account", "filename": "~/key.json"}});
        resolve_files(&mut gcp, &files).unwrap();
        assert_eq!(gcp["creds"]["data"], "{}");
        let mut nebius =
            json!({"type": "nebius", "creds": {"type": "service_account", "filename": "nebius.json"}});
        resolve_files(&mut nebius, &files).unwrap();
        assert_eq!(nebius["creds"]["service_account_id"], "s");
        let mut slurm = json!({"type": "slurm", "clusters": [{"private_key": {"path": "gone"}}]});
        assert_eq!(
            resolve_files(&mut slurm, &files),
            Err(FileProblem::Unreadable("gone".to_owned()))
        );
        let mut kubernetes = json!({"type": "kubernetes", "kubeconfig": {}});
        assert!(matches!(
            resolve_files(&mut kubernetes, &files),
            Err(FileProblem::Missing { .. })
        ));
    }
}
